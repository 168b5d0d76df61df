"""The view of a run on named slots: a line for each command that starts, and at the end a line for each failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scheduler.core.events import Event
from scheduler.core.model import NAMED, Placement, State
from scheduler.core.placement.refusal import Refusal
from scheduler.core.ports import View
from scheduler.ui.terminal.plain_view import PlainView
from scheduler.ui.terminal.sink import LineSink, hint
from scheduler.ui.text import clean, short
from scheduler.units import count

MOST_FAILURES = 20


class SlotView(View):
    """A view that leaves the terminal to the output of the tasks, except for a line at the start of each task; all
    lines are written to the log.
    """

    def __init__(self, log: PlainView, out: LineSink, command: Callable[[int], str]) -> None:
        super().__init__(log)
        self._out = out
        self._command = command

    def show(self, event: Event, at: float) -> None:
        """Print the line about a start, before the command itself prints anything."""
        super().show(event, at)
        if isinstance(event, Placement):
            slot = next(key for key in event.reservation if key.startswith(NAMED))
            name = slot.removeprefix(NAMED).partition(":")[2]
            self._out.line(f"Processing command `{self._command(event.task)}` on gpu {name}", at=at)

    def say(self, sentence: str) -> None:
        """Print a sentence between lines of the tasks' output."""
        super().say(sentence)
        hint(sentence)

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Print nothing, because waiting for a slot is normal."""
        self._out.catch_up()

    def hang_up(self) -> None:
        """Note that the terminal was closed; continue to write the log."""
        self._out.hang_up()


def last_words(rows: Iterable[dict[str, Any]], states: Mapping[State, int], run: int) -> list[str]:
    """Return lines about the tasks that failed and that still wait; empty if all tasks succeeded."""
    total, result = sum(states.values()), list[str]()
    waiting = states.get(State.WAITING, 0) + states.get(State.INTERRUPTED, 0)
    failed = total - states.get(State.SUCCEEDED, 0) - waiting
    if failed:
        result.append(f"{failed:,} of {count(total, 'command')} failed (scheduler list r{run} shows all):")
    shown = 0
    for row in rows if failed else ():
        if row["state"] in ("succeeded", "waiting", "interrupted"):
            continue
        shown += 1
        if shown > MOST_FAILURES:
            result.append(f"  ... and {failed - MOST_FAILURES:,} more")
            break
        how = " ".join(clean(row["reason"] or "").split()) or f"exit {row['exit_code']}"
        result.append(f"  line {row['row']}: `{short(row['name'], 100)}` on gpu {_named(row['device'])}: {how}")
    if waiting:
        result.append(f"{count(waiting, 'command')} waiting: scheduler resume r{run} continues the run")
    return result


def _named(device: str | None) -> str:
    return clean(device or "").removeprefix("slot ")


def close(words: Sequence[str], log: LineSink) -> None:
    """Print lines on standard error, and write them to the log."""
    for line in words:
        log.line(line, at=time.time())
        hint(line)
