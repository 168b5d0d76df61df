"""Lists of tasks to be accepted: from files, streams, grids, commands or Python calls; and files that grow."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.app.observe import run_facts
from scheduler.app.run.previous_runs import real_path
from scheduler.core.ports import Happening
from scheduler.core.tasks.fields import RowForm
from scheduler.runtime.paths import RunPaths, make_private
from scheduler.runtime.python_envs import Programs
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import RunInfo
from scheduler.store.run.journal_reader import JournalReader
from scheduler.store.run.run_store import Cells, GrowingRows
from scheduler.units import count
from scheduler.values import dataclass, field, replace

if TYPE_CHECKING:
    from scheduler.inputs.csv_reader import CsvFile, CsvMark
    from scheduler.inputs.grid import Chosen
    from scheduler.inputs.python_calls import CallTarget
    from scheduler.inputs.python_tasks import Task


FOLLOWED, QUEUE = "followed", "queue"
"""The `door` of a file that is followed, and of a queue to which tasks are submitted."""


@dataclass(frozen=True, slots=True)
class TaskList:
    """Rows of task fields, ready to be accepted."""

    what: str
    form: RowForm
    rows: Iterator[Cells]
    warnings: Callable[[], Sequence[str]] = field(default=lambda: ())
    file: CsvFile | None = None
    path: str = ""
    """The real path of the file, by which its earlier runs are found."""
    source: RowSource | None = None
    """The stream that commands are read from during the run; then there are no rows at the start."""
    door: str = "list"
    """The source of the rows: list, stdin, grid, followed or queue."""
    prepare: Callable[[RunPaths], None] = field(default=lambda run: None)
    """Creates the files that the rows need in the run's directory; called before the first row is read."""

    @property
    def mark(self) -> str:
        """The position in the source up to which rows are accepted."""
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
    mine: str = "",
) -> TaskList:
    """Return a CSV or JSON lines file as a list; `template` is a command that is filled in with each row.

    `mine` names columns of the user, separated by commas, that look like misspelled task fields.
    """
    from scheduler.inputs.csv_reader import CsvFile

    own = {name.strip() for name in mine.split(",")}
    file = CsvFile(path, header=header, defaults=defaults, append=append, python=python, template=template, mine=own)
    return TaskList(path, file.form, file.rows(), lambda: file.warnings, file, real_path(path))


class RowSource(GrowingRows, Protocol):
    """A source of rows during the run, which the loop can wait on."""

    @property
    def mark(self) -> str:
        """The position in the source up to which rows are accepted."""


def stdin_listing(defaults: Mapping[str, str], *, multiline: bool, at_once: bool) -> TaskList:
    """Return the commands of standard input as a list; with `at_once`, read all of them before the run begins."""
    from scheduler.inputs.lines import form_of_lines
    from scheduler.inputs.stdin import LineStream

    form = form_of_lines(defaults)
    stream = LineStream(0, form, multiline=multiline)
    if at_once:
        return TaskList("stdin", form, stream.rows(), door="stdin")
    return TaskList("stdin", form, iter(()), source=stream, door="stdin")


def grid_listing(defaults: Mapping[str, str], names: Iterable[str], chosen: Iterable[Chosen]) -> TaskList:
    """Return the commands of a parameter grid as a list."""
    from scheduler.inputs.grid import grid_form, grid_rows

    form = grid_form(defaults, names)
    return TaskList("grid", form, grid_rows(form, chosen), door="grid")


def follow_listing(
    path: str, defaults: Mapping[str, str], settings: Settings, *, multiline: bool, anew: bool
) -> TaskList:
    """Return a file whose lines are commands, as a list that grows with the file.

    Lines that an earlier run of the file accepted are skipped, unless `anew` is set.
    """
    from scheduler.inputs.follow import FollowedFile, FollowMark
    from scheduler.inputs.lines import form_of_lines

    form, real = form_of_lines(defaults), os.path.realpath(path)
    earlier = None if anew else _followed_before(settings, real)
    mark = FollowMark.unpack(earlier.meta["mark"]) if earlier is not None else FollowMark()
    source = FollowedFile(path, form, replace(mark, multiline=multiline))
    warnings = []
    if earlier is not None and mark.lines:
        taken = count(mark.lines, "line")
        warnings.append(f"{path}: skipping {taken} that run {earlier.number} has taken (--new reads all lines)")
    return TaskList(path, form, iter(()), lambda: warnings, path=real, source=source, door=FOLLOWED)


def _followed_before(settings: Settings, real: str) -> RunInfo | None:
    """Return the newest run that followed this file, or None."""
    found = (info for info in run_facts.all_runs(settings) if info.meta.get("path") == real)
    return next((info for info in found if info.meta.get("door") == FOLLOWED), None)


def one_listing(words: Sequence[str], defaults: Mapping[str, str], python: str, append: str = "none") -> TaskList:
    """Return one command, given on the command line, as a list."""
    from scheduler.inputs import one_command

    form, rows = one_command.rows(words, defaults, python, append)
    return TaskList(one_command.shown(words), form, rows)


AT_ONCE, WRITERS = 256, 16
"""How many calls are in memory as bytes at one moment, and how many of their files are written at one moment: each
waits some milliseconds for the disk, which syncs many of them at once."""


@dataclass(frozen=True, slots=True)
class PythonCall:
    """One call of a Python class or function, as a task."""

    name: str
    arguments: Mapping[str, Any]
    """The arguments that the launcher reads as JSON."""
    values: Callable[[], bytes]
    """Returns the rest of the arguments as bytes; they are made one call after another, and never kept in memory."""
    varied: Mapping[str, Any] = field(default_factory=dict)
    rest: Mapping[Any, str] = field(default_factory=dict)
    """Fingerprints of the values that are passed beside the varied arguments."""


class PythonCalls:
    """All calls of one target, as a list.

    The arguments of each call lie in a file of the run's directory; `terms` are keywords of every Task.
    """

    def __init__(self, target: CallTarget, calls: Sequence[PythonCall], terms: Mapping[str, Any] | None = None) -> None:
        self.target = target
        self.calls = calls
        self._terms = terms or {}
        self._run: RunPaths | None = None

    def listing(self, what: str) -> TaskList:
        """Return the calls as a list; they become rows when their run has a directory."""
        from scheduler.inputs import python_tasks

        form, _ = python_tasks.rows(self._tasks(), {}, sys.executable)
        return TaskList(what, form, self._rows(), prepare=self._prepare)

    def _prepare(self, run: RunPaths) -> None:
        from concurrent.futures import ThreadPoolExecutor

        from scheduler.runtime.task_launcher import write_own

        self._run = run
        make_private(run.given)
        with ThreadPoolExecutor(WRITERS) as pool:
            for first in range(0, len(self.calls), AT_ONCE):
                list(pool.map(lambda given: write_own(*given), self._given(run, first)))

    def _given(self, run: RunPaths, first: int) -> list[tuple[str, dict[str, Any], bytes]]:
        """Return the paths and the contents of the files of some calls, from a place in the list on."""
        some = enumerate(self.calls[first : first + AT_ONCE], first + 1)
        return [
            (str(run.given_to(row)), {**self.target.to_dict(), **call.arguments}, call.values()) for row, call in some
        ]

    def _rows(self) -> Iterator[Cells]:
        from scheduler.inputs import python_tasks

        yield from python_tasks.rows(self._tasks(), {}, sys.executable)[1]

    def _tasks(self) -> list[Task]:
        return [self._task(row, call) for row, call in enumerate(self.calls, 1)]

    def _task(self, row: int, call: PythonCall) -> Task:
        from scheduler.inputs import python_calls
        from scheduler.inputs.python_tasks import Task

        launcher, given = (str(self._run.launcher), str(self._run.given_to(row))) if self._run else ("", "")
        words = python_calls.words(sys.executable, launcher, given, self.target, call.varied, call.rest)
        columns = {f"config.{key}": value for key, value in call.varied.items()}
        return Task(command=words, name=python_calls.plain(call.name), columns=columns, **self._terms)


class CsvFollower:
    """The CSV file of a running list: rows may be appended after those that were accepted."""

    def __init__(self, file: CsvFile, mark: CsvMark) -> None:
        self.form = file.form
        self._file = file
        self._mark = self._next = mark

    def appended(self, *, last: bool) -> tuple[Sequence[Cells], str, str]:
        """Return appended rows, the position after them, and a sentence about any other change of the file."""
        rows, self._next, sentence = self._file.appended(self._mark, last=last)
        self.form = self._file.form
        return rows, self._next.pack() if rows else "", sentence or ""

    def accepted(self) -> None:
        """Note that the rows returned last are in the journal."""
        self._mark = self._next

    def untaken(self) -> tuple[Sequence[Cells], str]:
        """Return the rows after the accepted ones, and a sentence about any other change of the file."""
        return self._file.untaken(self._mark)

    @property
    def mark(self) -> str:
        """The position in the file up to which rows are accepted."""
        return self._mark.pack()

    @property
    def more(self) -> bool:
        """False, because a run ends once all rows of its list have ended."""
        return False

    def fileno(self) -> int:
        """Return -1: a growing file wakes no poll."""
        return -1

    def collect(self) -> Sequence[Happening]:
        """Return nothing: the file is read by `appended`."""
        return ()


def batches(rows: Iterable[Cells], num: int) -> Iterator[list[Cells]]:
    """Yield rows in batches, each sorted by priority."""
    from scheduler.inputs.csv_reader import batches as split

    return split(rows, num)


def resumed(info: RunInfo, journal: JournalReader, programs: Programs) -> RowSource | None:
    """Return the source from which a resumed run reads on, or None."""
    if info.meta.get("door") == FOLLOWED:
        return _followed_on(info)
    if info.meta.get("door") == QUEUE:
        from scheduler.app.queue.queue_source import QueueSource

        return QueueSource(json.loads(info.meta["settings"])["queue_idle"])
    if not info.meta.get("mark"):
        return None
    from scheduler.inputs.csv_reader import CsvFile, CsvMark

    form = RowForm.unpack(journal.forms()[0])
    python, directory = programs.python.path, info.meta["directory"]
    file = CsvFile.resumed(info.meta["file"], form, python=python, cwd=directory, programs=programs)
    return CsvFollower(file, CsvMark.unpack(info.meta["mark"]))


def _followed_on(info: RunInfo) -> RowSource:
    from scheduler.inputs.follow import FollowedFile, FollowMark
    from scheduler.inputs.lines import form_of_lines

    form = form_of_lines(json.loads(info.meta["defaults"]))
    return FollowedFile(info.meta["path"], form, FollowMark.unpack(info.meta["mark"]))
