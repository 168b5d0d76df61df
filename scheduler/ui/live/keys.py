"""The keys of the live view: the table for help and docs, and the decoder of typed bytes."""

from __future__ import annotations

import re
from codecs import getincrementaldecoder

from scheduler.values import dataclass

ESCAPE = "\x1b"
PATIENCE = 0.05
"""Seconds after which an escape character counts as the key Esc, and not as the beginning of a sequence."""
_SEQUENCE = re.compile(r"\x1b\[<(\d+);(\d+);(\d+)([Mm])|\x1b(?:\[|O)([\d;]*)([A-Za-z~])")
_BEGINNING = re.compile(r"\x1b(?:(?:\[|O)[\d;<]*)?\Z")
_FINAL = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end", "M": "enter"}
_NUMBERED = {"1": "home", "4": "end", "5": "pgup", "6": "pgdn", "7": "home", "8": "end", "3": "delete"}
_CONTROL = {"\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\t": "tab", "\x15": "clear"}
_BUTTONS = {0: "click", 64: "wheelup", 65: "wheeldown"}


@dataclass(frozen=True, slots=True)
class Press:
    """A pressed key, or a click or wheel event of the mouse with its position."""

    key: str
    """A character, or a name: up, down, pgup, pgdn, home, end, enter, esc, backspace, click, wheelup, wheeldown …"""
    row: int = -1
    """The row of a click, from 0."""


@dataclass(frozen=True, slots=True)
class KeyHelp:
    """One line of the help about keys."""

    keys: str
    does: str
    """The effect of the keys, as a phrase for the help."""


LIST_KEYS = (
    KeyHelp("↑ ↓  j k", "select the previous or the next task"),
    KeyHelp("PgUp PgDn", "select a task one screen further"),
    KeyHelp("Home End  g G", "select the first or the last task"),
    KeyHelp("Enter", "open the task's page: parameters, curve, memory, why, log"),
    KeyHelp("Esc", "go back: close the page, drop the filter, drop the selection"),
    KeyHelp("/", "show only tasks with these words in id, state, name, parameters"),
    KeyHelp("s S", "sort by the next column; S turns the order around"),
    KeyHelp("c", "cancel the task, after y"),
    KeyHelp("r", "retry the task: queue it again"),
    KeyHelp("h", "hold the waiting task, or release the held one"),
    KeyHelp("p", "change the priority of the waiting task (smaller first)"),
    KeyHelp("+ -", "one task more or less at once (-j of the run)"),
    KeyHelp("m", "mouse off or on; while it is off, the terminal selects text"),
    KeyHelp("mouse", "click selects, a second click opens, the wheel scrolls"),
    KeyHelp("?", "show or hide this help"),
    KeyHelp("q", "leave the view; the run continues"),
)
MACHINE_KEYS = (
    KeyHelp("↑ ↓  j k", "select the previous or the next run or task"),
    KeyHelp("PgUp PgDn", "select one screen further"),
    KeyHelp("Home End  g G", "select the first or the last"),
    KeyHelp("Enter", "open the run, or the task's page; all keys of a run work there"),
    KeyHelp("Esc", "go back to the machine; drop the selection"),
    KeyHelp("mouse", "click selects, a second click opens, the wheel moves it"),
    KeyHelp("?", "show or hide this help"),
    KeyHelp("q", "leave the view"),
)
"""The keys of `top --all`."""
SIGNAL_KEYS = (
    KeyHelp("Ctrl-C", "run: finish what runs, start nothing new; twice: stop. top: leave"),
    KeyHelp("Ctrl-\\", "run: end the scheduler and leave its tasks running"),
    KeyHelp("Ctrl-Z", "pause the view and give the shell back; fg continues"),
)
"""Keys that the terminal turns into signals."""


class KeyDecoder:
    """The decoder of bytes from a terminal; an escape sequence may arrive in several parts."""

    def __init__(self) -> None:
        self._decode = getincrementaldecoder("utf-8")("ignore").decode
        self._rest = ""
        self._since = 0.0

    @property
    def waits(self) -> bool:
        """True while it is undecided whether the bytes so far are the key Esc or the beginning of a sequence."""
        return bool(self._rest)

    def feed(self, data: bytes, now: float) -> list[Press]:
        """Return the keys that are complete after these bytes; without bytes, return Esc if an escape character has
        waited long enough.
        """
        if not data:
            return self._give_up(now)
        text, self._rest = self._rest + self._decode(data), ""
        found: list[Press] = []
        at = 0
        while at < len(text):
            if text[at] != ESCAPE:
                found += _character(text[at])
                at += 1
            elif match := _SEQUENCE.match(text, at):
                found += _sequence(match)
                at = match.end()
            elif _BEGINNING.match(text, at):
                self._rest, self._since = text[at:], now
                break
            else:
                found.append(Press("esc"))
                at += 1
        return found

    def _give_up(self, now: float) -> list[Press]:
        if not self._rest or now - self._since < PATIENCE:
            return []
        self._rest = ""
        return [Press("esc")]


def _character(letter: str) -> list[Press]:
    key = _CONTROL.get(letter, letter)
    return [Press(key)] if key != letter or letter.isprintable() else []


def _sequence(match: re.Match[str]) -> list[Press]:
    button, _, row, how, numbers, final = match.groups()
    if button is not None:
        key = _BUTTONS.get(int(button[:6]), "")
        return [Press(key, int(row[:6]) - 1)] if key and how == "M" else []
    key = _NUMBERED.get(numbers.partition(";")[0], "") if final == "~" else _FINAL.get(final, "")
    return [Press(key)] if key else []
