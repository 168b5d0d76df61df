"""What a run on named slots says: one line for each command that starts, and in the end what failed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from scheduler.core.events import Event, Placed
from scheduler.core.model import NAMED, Refusal, State
from scheduler.units import count
from scheduler.view.plain import PlainView
from scheduler.view.sink import Sink, hint
from scheduler.view.words import clean, short

MOST_FAILURES = 20


class ProcessingView:
    """Everything goes into the run's log; the terminal belongs to the tasks, but for a line as each of them starts."""

    def __init__(self, log: PlainView, out: Sink, command: Callable[[int], str]) -> None:
        self._log = log
        self._out = out
        self._command = command

    def show(self, event: Event, at: float) -> None:
        """The line, before anything that the command itself prints."""
        self._log.show(event, at)
        if isinstance(event, Placed):
            slot = next(key for key in event.promise if key.startswith(NAMED))
            name = slot.removeprefix(NAMED).partition(":")[2]
            self._out.line(f"Processing command `{self._command(event.task)}` on gpu {name}", at=at)

    def say(self, sentence: str) -> None:
        """Beside the tasks' own output."""
        self._log.say(sentence)
        hint(sentence)

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """That a slot is taken is no news."""
        self._out.catch_up()

    def hang_up(self) -> None:
        """The terminal is gone; the log goes on."""
        self._out.hang_up()


def last_words(rows: Iterable[dict[str, Any]], states: Mapping[State, int], run: int) -> list[str]:
    """What failed, and what waits; nothing where all is well."""
    total, said = sum(states.values()), list[str]()
    waiting = states.get(State.WAITING, 0) + states.get(State.INTERRUPTED, 0)
    failed = total - states.get(State.SUCCEEDED, 0) - waiting
    if failed:
        said.append(f"{failed:,} of {count(total, 'command')} failed (scheduler list {run} shows all):")
    shown = 0
    for row in rows if failed else ():
        if row["state"] in ("succeeded", "waiting", "interrupted"):
            continue
        shown += 1
        if shown > MOST_FAILURES:
            said.append(f"  ... and {failed - MOST_FAILURES:,} more")
            break
        how = row["reason"] or f"exit {row['exit_code']}"
        said.append(f"  line {row['row']}: `{short(row['name'], 100)}` on gpu {_named(row['device'])}: {how}")
    if waiting:
        said.append(f"{count(waiting, 'command')} wait: scheduler resume {run} starts them")
    return said


def _named(device: str | None) -> str:
    return clean(device or "").removeprefix("slot ")


def close(words: Sequence[str], log: Sink) -> None:
    """Say it beside the tasks' own output, and keep it."""
    for line in words:
        log.line(line, at=time.time())
        hint(line)
