"""The view of `exec`: a task's output in this terminal; why it waits and how it ended on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scheduler.core.control import messages
from scheduler.core.events import Event, Exited, Refused, Started
from scheduler.core.model import Outcome, State
from scheduler.core.placement.refusal import Refusal
from scheduler.core.ports import View
from scheduler.ui.terminal.file_follower import FileFollower
from scheduler.ui.terminal.plain_view import ending
from scheduler.ui.terminal.sink import let_go


class ExecView(View):
    """A view that follows one task, and passes everything on to an inner view.

    `files` returns the paths of an attempt's output; `waits` returns, in words, who holds the resources that the task
    waits for, and for how long.
    """

    def __init__(
        self,
        inner: View,
        files: Callable[[int, int], Mapping[Path, int]],
        waits: Callable[[Refusal], str],
        state: Callable[[int], State],
    ) -> None:
        super().__init__(inner)
        self._files = files
        self._waits = waits
        self._state = state
        self._follower: FileFollower | None = None
        self._last_reason = ""

    def show(self, event: Event, at: float) -> None:
        """Print an attempt's output while it runs, from its start to its end."""
        super().show(event, at)
        if isinstance(event, Started) and self._follower is None:
            files = self._files(event.task, event.attempt)
            self._follower = FileFollower(dict(files), self._lost)
        elif isinstance(event, Exited):
            self._ended(event)
        elif isinstance(event, Refused):
            self.tell(f"task {event.task} is refused: it {event.reason}")

    def _ended(self, event: Exited) -> None:
        """Print the rest of the output, and a sentence about how the attempt ended."""
        if self._follower is None:  # it ended before its start was seen
            files = self._files(event.task, event.attempt)
            self._follower = FileFollower(dict(files), self._lost)
        self._follower.finish()
        self._follower = None
        again = self._state(event.task) is State.WAITING
        if event.reason or event.outcome is not Outcome.SUCCEEDED:
            self._tell_end(event, again=again)

    def _tell_end(self, event: Exited, *, again: bool) -> None:
        """Print the facts about the end that the exit code alone does not show; with `again`, say that the task is
        retried.
        """
        if again:
            self.tell(f"task {event.task}: {ending(event)}; it will be tried again")
        elif event.reason or event.outcome is not Outcome.FAILED:
            self.tell(f"task {event.task}: {event.outcome}, {ending(event) or event.reason}")

    def _lost(self) -> None:
        """Print once that the reader of the output has closed it."""
        self.tell("nothing reads the output any more; it continues in the task's log (scheduler logs shows it)")

    def say(self, sentence: str) -> None:
        """Print a sentence about the run."""
        super().say(sentence)
        self.tell(sentence)

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Print why the task does not start now, who holds the resources that it needs, and for about how long; print
        this again whenever it changes.
        """
        super().waits(refusals)
        if not refusals:
            return
        refusal = refusals[0]
        holders = self._waits(refusal)
        reason = f"{refusal.reason} {refusal.device} {holders.partition(',')[0]}"
        if reason != self._last_reason:
            self._last_reason = reason
            self.tell(f"{messages.line(refusal)}{'; ' if holders else ''}{holders}")

    def hang_up(self) -> None:
        """Note that the terminal was closed; continue to write the log."""
        super().hang_up()
        let_go(sys.stderr)

    def tell(self, sentence: str) -> None:
        """Print a sentence on standard error unless it was closed."""
        try:
            print(f"scheduler: {sentence}", file=sys.stderr, flush=True)
        except (OSError, ValueError):
            let_go(sys.stderr)
