"""A door's rows as a list to be accepted, and what is appended to their file later."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scheduler.core.fields import Form
from scheduler.environments import Programs
from scheduler.store.journal import Journal
from scheduler.store.rundir import Cells
from scheduler.store.runs import RunInfo
from scheduler.wiring.again import real_path

if TYPE_CHECKING:
    from scheduler.doors.csv_batches import CsvFile, Mark


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


def batches(rows: Iterable[Cells], num: int) -> Iterator[list[Cells]]:
    """Rows in batches, each sorted by priority."""
    from scheduler.doors.csv_batches import batches as split

    return split(rows, num)


def resumed(info: RunInfo, journal: Journal, programs: Programs) -> Following | None:
    """What goes on being read for a run that is taken over."""
    if not info.meta.get("mark"):
        return None
    from scheduler.doors.csv_batches import CsvFile, Mark

    form = Form.unpack(journal.forms()[0])
    python, directory = programs.python.path, info.meta["directory"]
    file = CsvFile.resumed(info.meta["file"], form, python=python, cwd=directory, programs=programs)
    return Following(file, Mark.unpack(info.meta["mark"]))
