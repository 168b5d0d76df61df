"""The view of one job: its own output here, and on standard error why it waits and what becomes of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scheduler.core import explain
from scheduler.core.events import Event, Exited, Refused, Started
from scheduler.core.model import Outcome, Refusal, State
from scheduler.core.ports import View
from scheduler.view.following import Follower
from scheduler.view.plain import ending
from scheduler.view.sink import let_go


class OneTaskView:
    """Follows one task after another view was told.

    `files` says where an attempt's output and errors lie; `waits` who holds what it waits for, and for how long.
    """

    def __init__(
        self,
        inner: View,
        files: Callable[[int, int], Mapping[Path, int]],
        waits: Callable[[Refusal], str],
        state: Callable[[int], State],
    ) -> None:
        self._inner = inner
        self._files = files
        self._waits = waits
        self._state = state
        self._follower: Follower | None = None
        self._said = ""

    def show(self, event: Event, at: float) -> None:
        """Pass an attempt's output on, from its start to its end."""
        self._inner.show(event, at)
        if isinstance(event, Started) and self._follower is None:
            files = self._files(event.task, event.attempt)
            self._follower = Follower(dict(files), self._lost)
        elif isinstance(event, Exited):
            self._ended(event)
        elif isinstance(event, Refused):
            self.tell(f"task {event.task} is refused: it {event.reason}")

    def _ended(self, event: Exited) -> None:
        if self._follower is None:  # it was over before anybody heard of its start
            files = self._files(event.task, event.attempt)
            self._follower = Follower(dict(files), self._lost)
        self._follower.finish()
        self._follower = None
        again = self._state(event.task) is State.WAITING
        if event.reason or event.outcome is not Outcome.SUCCEEDED:
            self._tell_end(event, again=again)

    def _tell_end(self, event: Exited, *, again: bool) -> None:
        """What its exit code alone does not say."""
        if again:
            self.tell(f"task {event.task}: {ending(event)}; it is tried again")
        elif event.reason or event.outcome is not Outcome.FAILED:
            self.tell(f"task {event.task}: {event.outcome}, {ending(event)}")

    def _lost(self) -> None:
        self.tell("nobody reads its output here any more: it goes on into its log, scheduler list shows it")

    def say(self, sentence: str) -> None:
        """A sentence of its own."""
        self._inner.say(sentence)
        self.tell(sentence)

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Why it does not start now, and for whom and about how long it waits; told again when that changes."""
        self._inner.waits(refusals)
        if not refusals:
            return
        refusal = refusals[0]
        who = self._waits(refusal)
        key = f"{refusal.reason} {refusal.device} {who.partition(',')[0]}"
        if key != self._said:
            self._said = key
            self.tell(f"task {refusal.task} waits: it {explain.why(refusal)}{'; ' if who else ''}{who}")

    def hang_up(self) -> None:
        """The terminal is gone; the log goes on."""
        self._inner.hang_up()
        let_go(sys.stderr)

    def tell(self, sentence: str) -> None:
        """On standard error, if anybody reads that."""
        try:
            print(f"scheduler: {sentence}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            let_go(sys.stderr)
