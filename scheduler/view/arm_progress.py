"""How far the run of an experiment is: one line that is written over, where there is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from scheduler.core.events import Event, Exited
from scheduler.core.model import UNFINISHED, Refusal, State
from scheduler.core.ports import View
from scheduler.view.sink import let_go


class ArmView:
    """The run's own view goes on into its log; here is only how much is done, and what must be heard."""

    def __init__(self, log: View, what: str, counts: Callable[[], Mapping[State, int]], out: TextIO) -> None:
        self._log = log
        self._what = what
        self._counts = counts
        self._out = out
        self._live = out.isatty()

    def show(self, event: Event, at: float) -> None:
        """Count the ends."""
        self._log.show(event, at)
        if self._live and isinstance(event, Exited):
            counts = self._counts()
            total = sum(counts.values())
            over = total - sum(counts.get(state, 0) for state in UNFINISHED)
            self._write(f"\r\x1b[K{self._what}: {over} of {total} tasks")

    def say(self, sentence: str) -> None:
        """A sentence of its own."""
        self._log.say(sentence)
        self._write(f"hint:   {sentence}\n")

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """The run's log has it."""
        self._log.waits(refusals)

    def hang_up(self) -> None:
        """The terminal is gone; the run goes on."""
        self._log.hang_up()
        self._live = False

    def clear(self) -> None:
        """Make room for other lines."""
        if self._live:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        try:
            print(text, end="", file=self._out, flush=True)
        except (OSError, ValueError):
            self._live = False
            let_go(self._out)
