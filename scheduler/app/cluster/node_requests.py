"""The requests about the nodes of a run, separated from the requests to the run itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from scheduler.cluster.head import Nodes
from scheduler.core.control.request_kinds import RunRequest
from scheduler.core.ports import Answer, Request


class Inbox(Protocol):
    """The source of all requests to a run."""

    def fileno(self) -> int:
        """Return a descriptor that is readable after a request; -1 if only `collect` can tell."""

    def collect(self) -> Sequence[Request]:
        """Return the new requests."""


class NodeRequests:
    """An inbox that carries out requests about nodes, and passes all other requests on."""

    def __init__(self, nodes: Nodes, inbox: Inbox, answer: Callable[[Request, Sequence[Answer]], None]) -> None:
        self._nodes, self._inbox, self._answer = nodes, inbox, answer
        self._done: list[tuple[Request, Answer]] = []
        self._recorded: list[tuple[Request, Answer]] = []
        """The requests that were carried out. The loop records their effects before the next `collect` answers them.

        `_done` contains the requests whose effects the loop has not collected yet."""

    def fileno(self) -> int:
        """Return the descriptor of the inbox."""
        return self._inbox.fileno()

    def collect(self) -> list[Request]:
        """Return the requests to the run; answer the requests about nodes that were carried out before this call."""
        for request, answer in self._recorded:
            self._answer(request, [answer])
        self._recorded.clear()
        if not self._nodes.has_news:
            self._recorded, self._done = self._done, self._recorded
        passed = []
        for request in self._inbox.collect():
            if request.what == RunRequest.GIVE_UP:
                self._done.append((request, self._nodes.give_up(request.said.get("node", ""))))
            else:
                passed.append(request)
        return passed
