"""A door's rows as a list to be accepted, and what is appended to their file later."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Protocol

from scheduler.core.fields import Form
from scheduler.core.ports import Happening
from scheduler.environments import Programs
from scheduler.paths import RunPlaces
from scheduler.settings import Settings
from scheduler.store.journal import Journal
from scheduler.store.rundir import Cells, Rows
from scheduler.store.runs import RunInfo
from scheduler.units import count
from scheduler.values import dataclass
from scheduler.wiring import reading
from scheduler.wiring.again import real_path

if TYPE_CHECKING:
    from scheduler.doors.csv_batches import CsvFile, Mark
    from scheduler.doors.grid import Chosen


FOLLOWED = "followed"
"""The door of a file that is followed."""


@dataclass(frozen=True, slots=True)
class Listing:
    """A door's rows, ready to be accepted."""

    what: str
    form: Form
    rows: Iterator[Cells]
    warnings: Callable[[], Sequence[str]] = field(default=lambda: ())
    file: CsvFile | None = None
    path: str = ""
    """The real path of the file, by which it is known when it is run again."""
    source: Source | None = None
    """What commands are read from while the run goes on; then there are no rows to begin with."""
    door: str = "list"
    """Which door it came through: a list, stdin, or a file that is followed."""
    prepare: Callable[[RunPlaces], None] = field(default=lambda run: None)
    """Makes what its rows need in the directory of their run; called before the first row is asked for."""

    @property
    def mark(self) -> str:
        """What is remembered of its source, once its rows are accepted."""
        if self.file is not None:
            return self.file.mark.pack()
        return self.source.mark if self.source is not None else ""


def csv_listing(
    path: str,
    *,
    header: int | None,
    defaults: Mapping[str, str],
    append: str,
    python: str,
    template: Sequence[str] = (),
) -> Listing:
    """A CSV or JSON lines file as a listing; `template` is the command that every row of a table fills."""
    from scheduler.doors.csv_batches import CsvFile

    file = CsvFile(path, header=header, defaults=defaults, append=append, python=python, template=template)
    return Listing(path, file.form, file.rows(), lambda: file.warnings, file, real_path(path))


class Source(Rows, Protocol):
    """Rows that come while the run goes on, as something to wait on."""

    @property
    def mark(self) -> str:
        """What is remembered of it when nothing of it is accepted yet."""


def stdin_listing(defaults: Mapping[str, str], *, multiline: bool, at_once: bool) -> Listing:
    """Commands from standard input; `at_once`: all of them, to its end, before the run begins."""
    from scheduler.doors.lines import form_of_lines
    from scheduler.doors.stdin_lines import LineStream

    form = form_of_lines(defaults)
    stream = LineStream(0, form, multiline=multiline)
    if at_once:
        return Listing("stdin", form, stream.rows(), door="stdin")
    return Listing("stdin", form, iter(()), source=stream, door="stdin")


def grid_listing(defaults: Mapping[str, str], names: Iterable[str], chosen: Iterable[Chosen]) -> Listing:
    """The commands of a grid."""
    from scheduler.doors.grid import grid_form, grid_rows

    form = grid_form(defaults, names)
    return Listing("grid", form, grid_rows(form, chosen), door="grid")


def follow_listing(
    path: str, defaults: Mapping[str, str], settings: Settings, *, multiline: bool, anew: bool
) -> Listing:
    """A file whose lines are commands, now and for as long as the run lives.

    What earlier runs that followed it have taken is not taken again, unless it is read `anew`.
    """
    from scheduler.doors.followed import Followed, Mark
    from scheduler.doors.lines import form_of_lines

    form, real = form_of_lines(defaults), os.path.realpath(path)
    earlier = None if anew else _followed_before(settings, real)
    mark = Mark.unpack(earlier.meta["mark"]) if earlier is not None else Mark()
    source = Followed(path, form, replace(mark, multiline=multiline))
    said = []
    if earlier is not None and mark.lines:
        said.append(
            f"{path} is read on behind the {count(mark.lines, 'line')} that run {earlier.number} took (--new: all)"
        )
    return Listing(path, form, iter(()), lambda: said, path=real, source=source, door=FOLLOWED)


def _followed_before(settings: Settings, real: str) -> RunInfo | None:
    """The newest run that followed this file."""
    found = (info for info in reading.all_runs(settings) if info.meta.get("path") == real)
    return next((info for info in found if info.meta.get("door") == FOLLOWED), None)


def one_listing(said: Sequence[str], defaults: Mapping[str, str], python: str, append: str = "none") -> Listing:
    """One command, given on the command line, as a listing."""
    from scheduler.doors import one_shot

    form, rows = one_shot.rows(said, defaults, python, append)
    return Listing(one_shot.shown(said), form, rows)


class Following:
    """The CSV file of a run that goes on: rows appended behind what was accepted."""

    def __init__(self, file: CsvFile, mark: Mark) -> None:
        self.form = file.form
        self._file = file
        self._mark = self._next = mark

    def appended(self, *, last: bool) -> tuple[Sequence[Cells], str, str]:
        """The rows, the mark behind them, and what else happened to the file."""
        rows, self._next, sentence = self._file.appended(self._mark, last=last)
        return rows, self._next.pack() if rows else "", sentence or ""

    def accepted(self) -> None:
        """The rows told last are in the journal."""
        self._mark = self._next

    def untaken(self) -> tuple[Sequence[Cells], str]:
        """What stands behind the accepted rows."""
        return self._file.untaken(self._mark)

    @property
    def mark(self) -> str:
        """What is remembered of it."""
        return self._mark.pack()

    @property
    def more(self) -> bool:
        """A list that is worked off ends its run."""
        return False

    def fileno(self) -> int:
        """A file's growth is seen by looking."""
        return -1

    def collect(self) -> Sequence[Happening]:
        """Nothing: it is read when its rows are asked for."""
        return ()


def batches(rows: Iterable[Cells], num: int) -> Iterator[list[Cells]]:
    """Rows in batches, each sorted by priority."""
    from scheduler.doors.csv_batches import batches as split

    return split(rows, num)


def resumed(info: RunInfo, journal: Journal, programs: Programs) -> Source | None:
    """What goes on being read for a run that is taken over."""
    if info.meta.get("door") == FOLLOWED:
        return _followed_on(info)
    if not info.meta.get("mark"):
        return None
    from scheduler.doors.csv_batches import CsvFile, Mark

    form = Form.unpack(journal.forms()[0])
    python, directory = programs.python.path, info.meta["directory"]
    file = CsvFile.resumed(info.meta["file"], form, python=python, cwd=directory, programs=programs)
    return Following(file, Mark.unpack(info.meta["mark"]))


def _followed_on(info: RunInfo) -> Source:
    from scheduler.doors.followed import Followed, Mark
    from scheduler.doors.lines import form_of_lines

    form = form_of_lines(json.loads(info.meta["defaults"]))
    return Followed(info.meta["path"], form, Mark.unpack(info.meta["mark"]))
