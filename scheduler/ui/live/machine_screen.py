"""The interactive screen of the whole machine (`top --all`): devices, the user's runs with their tasks, all others."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from scheduler.core.reporting.live_status import LiveStatus, LiveTask
from scheduler.ui.live import device_lines, task_table
from scheduler.ui.live.device_trends import DeviceTrends
from scheduler.ui.live.keys import MACHINE_KEYS, KeyDecoder, Press
from scheduler.ui.live.run_screen import LEAST_NEWS, RULE, SHORT, RunScreen, help_lines, with_news
from scheduler.ui.live.task_list import live_row
from scheduler.ui.terminal import panels
from scheduler.ui.terminal.panels import Line
from scheduler.ui.text import columns, fit
from scheduler.ui.verbs import status as status_words
from scheduler.units import count
from scheduler.values import dataclass

HINTS = "? keys   ↑↓ select   Enter open the run   q leave"
PROGRESS = 50
"""The least width at which a run's line shows its progress and its expected end."""
Place = tuple[int, int | None]
"""A run and one of its tasks; None instead of a task: the run itself."""


@dataclass(frozen=True, slots=True)
class MachinePicture:
    """The state of the machine at one time."""

    facts: Mapping[str, Any]
    """The facts of `status`."""
    user: str
    runs: Sequence[LiveStatus]
    """The user's runs that have a scheduler or living tasks."""
    varies: Sequence[str] = ()
    """The parameters that vary in the lists of the user's runs."""
    recent: Callable[[], Sequence[str]] = tuple
    """A function that reads the last lines of the logs of the user's runs."""


class RunPane(Protocol):
    """A run that the user opened from the machine's screen."""

    @property
    def screen(self) -> RunScreen:
        """The screen of the run."""

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the present lines of the run."""

    def close(self) -> None:
        """Close all files that the pane has opened."""


class MachineScreen:
    """The screen of the machine and its keys; it draws nothing itself."""

    def __init__(self, open_run: Callable[[int], RunPane]) -> None:
        self._open_run = open_run
        self._decoder = KeyDecoder()
        self._devices = DeviceTrends()
        self._pane: RunPane | None = None
        self._places: Sequence[Place] = ()
        self._rows: Sequence[Place | None] = ()
        """The run or task on each line below the devices; None: the line with the titles of the columns."""
        self._selected: Place | None = None
        self._filled: set[str] = set()
        """The columns of the table that have ever had a value."""
        self._top = 0
        self._visible = 1
        self._first_row = 0
        self._helps = False
        self._leaves = False

    # ---- keys ----

    @property
    def leaves(self) -> bool:
        """True once the user has left the view."""
        return self._leaves or (self._pane is not None and self._pane.screen.leaves)

    @property
    def waits(self) -> bool:
        """True while the bytes typed so far may be only a part of a key."""
        return self._decoder.waits

    @property
    def mouse(self) -> bool:
        """True while the terminal should report clicks to this screen."""
        return self._pane is None or self._pane.screen.mouse

    def type(self, data: bytes) -> bool:
        """Handle typed bytes; return whether they change the screen."""
        presses = self._decoder.feed(data, time.monotonic())
        for press in presses:
            if self._pane is None:
                self._press(press)
            elif press.key in ("esc", "left", "backspace") and self._pane.screen.at_rest:
                self.close()
            else:
                self._pane.screen.press(press)
        return bool(presses)

    def _press(self, press: Press) -> None:
        moves = {"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -self._visible, "pgdn": self._visible,
                 "home": -(1 << 30), "g": -(1 << 30), "end": 1 << 30, "G": 1 << 30}  # fmt: skip
        if self._helps:
            self._helps, self._leaves = False, press.key in ("q", "Q")
        elif press.key in ("wheelup", "wheeldown"):
            self._move(-3 if press.key == "wheelup" else 3)
        elif press.key in moves:
            self._move(moves[press.key])
        elif press.key in ("enter", "right"):
            self._open()
        elif press.key == "click":
            self._click(press.row)
        elif press.key == "esc":
            self._selected, self._top = None, 0
        elif press.key == "?":
            self._helps = True
        elif press.key in ("q", "Q"):
            self._leaves = True

    def _move(self, by: int) -> None:
        if not self._places:
            return
        at = self._places.index(self._selected) if self._selected in self._places else -1 if by > 0 else 0
        self._selected = self._places[max(0, min(at + by, len(self._places) - 1))]

    def _click(self, row: int) -> None:
        at = row - self._first_row
        place = self._rows[at] if 0 <= at < len(self._rows) else None
        if place is not None and place == self._selected:
            self._open()
        elif place is not None:
            self._selected = place

    def _open(self) -> None:
        if self._selected is None:
            self._move(1)
        if self._selected is not None:
            run, task = self._selected
            self._pane = self._open_run(run)
            if task is not None:
                self._pane.screen.open(task)

    def close(self) -> None:
        """Close the run that was opened, if there is one."""
        pane, self._pane = self._pane, None
        if pane is not None:
            pane.close()

    # ---- lines ----

    def lines(self, look: Callable[[], MachinePicture], width: int, height: int) -> list[Line]:
        """Return exactly `height` lines, each at most `width` columns wide; `look` returns the current state of the
        machine.
        """
        if self._pane is not None:
            return self._pane.lines(width, height)
        picture = look()
        bars = panels.bars_of(picture.facts)
        self._devices.note(bars, time.time())
        if self._helps:
            return _filled(help_lines(width, height, MACHINE_KEYS), height)
        foot: Line = ((fit(HINTS, width), "dim"),)
        gap: list[Line] = [()] if height >= SHORT else []
        head: list[Line] = [_title(picture, width), *gap]
        head += [*device_lines.lines(bars, self._devices, width, height, panels.MACHINE_LEGEND), *gap]
        rest = [((fit(line, width), ""),) for line in _others(picture)]
        room = height - len(head) - 1
        runs = self._runs(picture, width, max(3, room - min(len(rest) + len(gap), room // 3)), len(head))
        body = [*head, *runs, *(gap if rest else ()), *rest]
        if len(body) > height - 1:
            body = [*body[: height - 2], ((fit("more lines: scheduler status", width), ""),)]
        return [panels.clipped(line, width) for line in [*_filled(body, height - 1), foot]][-height:]

    def _runs(self, picture: MachinePicture, width: int, room: int, above: int) -> list[Line]:
        """Return the lines of the user's runs, each with its living tasks, scrolled so that the selected line is
        visible.
        """
        entries = [(status, one) for status in picture.runs for one in (None, *status.living)]
        self._places = [(status.run, None if one is None else one.task) for status, one in entries]
        if not entries:
            return [((fit("you have no living run: scheduler run FILE starts one", width), ""),)]
        self._visible, self._first_row = max(1, room - 1), above
        if self._selected not in self._places:
            self._selected = None
        else:
            at = self._places.index(self._selected)
            self._top = max(min(self._top, at), at - self._visible + 1)
        self._top = max(0, min(self._top, len(entries) - self._visible))
        shown = entries[self._top : self._top + self._visible]
        rows = [live_row(one, picture.varies) for _, one in shown if one is not None]
        varies = [name for name in picture.varies if any(row.words.parameters.get(name) for row in rows)]
        table = task_table.make(rows, varies, width, "", down=False, no_metrics=picture.varies, filled=self._filled)
        beside = bool(rows) and width - table.width - len(RULE) >= LEAST_NEWS
        whole, width = width, table.width if beside else width
        name = min(max(12, width // 4), max(columns(_run_name(status)) for status in picture.runs))
        found = self._lines_of(shown, table, name, width)
        if beside:
            found += [()] * (room - len(found))
            found = with_news(found, picture.recent(), width, whole)
        return found

    def _lines_of(
        self, shown: Sequence[tuple[LiveStatus, LiveTask | None]], table: task_table.Table, name: int, width: int
    ) -> list[Line]:
        """Return a line for each run and for each task, and a line of column titles above the first task."""
        found: list[Line] = []
        at, places = 0, list[Place | None]()
        for status, one in shown:
            place = (status.run, None if one is None else one.task)
            if one is None:
                found.append(_run_line(status, name, width, selected=place == self._selected))
                places.append(place)
                continue
            if None not in places:
                found.append(table.header(width))
                places.append(None)
            found.append(table.line(at, width, selected=place == self._selected))
            places.append(place)
            at += 1
        self._rows = places
        return found


def _title(picture: MachinePicture, width: int) -> Line:
    """Return the line with the name of the machine, and the number of tasks of all users that run on it."""
    facts = picture.facts
    name = fit(facts["hostname"], max(1, width // 2))
    devices = [f"{count(len(facts['gpus']), 'GPU')}"] if facts["gpus"] else []
    words = "   ".join([*devices, f"{count(len(facts['leases']), 'task')} of {_users(facts)}"])
    return (name, "bold"), (fit(f"   {words}", width - columns(name)), "dim")


def _users(facts: Mapping[str, Any]) -> str:
    return count(len({lease["user"] for lease in facts["leases"]}) or 1, "user")


def _filled(lines: Sequence[Line], height: int) -> list[Line]:
    return [*lines[:height], *([()] * (height - len(lines)))]


def _run_line(status: LiveStatus, name: int, width: int, *, selected: bool) -> Line:
    """Return the line of a run with its progress and its expected end; `name` is the width of the run's name."""
    words = fit(_run_name(status), name, pad=True)
    room = max(0, width - name - 4 - PROGRESS)
    counts = panels.counts(status, room)
    if sum(columns(text) for text, _ in panels.counts(status, width * 2)) > room:
        counts = panels.counts(status, room, bad_first=True)
    rest = width - name - 4 - sum(columns(text) for text, _ in counts)
    line: Line = ((words + "  ", "bold cyan"), *panels.progress(status, rest), ("  ", ""), *counts)
    if not selected:
        return panels.clipped(line, width)
    return ((fit("".join(text for text, _ in line), width, pad=True), "reverse"),)


def _run_name(status: LiveStatus) -> str:
    return f"r{status.run}  {status.what}"


def _others(picture: MachinePicture) -> list[str]:
    """Return lines about reservations and waiting tasks of runs that are not the user's, unmanaged memory, and drained
    devices.
    """
    facts = picture.facts
    mine = {(picture.user, str(status.run)) for status in picture.runs}
    others = [lease for lease in facts["leases"] if (lease["user"], str(lease["run"])) not in mine]
    waiting = [one for one in facts["waiting"] if (one["user"], str(one["run"])) not in mine]
    return status_words.others_lines({**facts, "leases": others, "waiting": waiting})
