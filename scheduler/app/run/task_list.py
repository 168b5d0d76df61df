"""Lists of tasks to be accepted: from files, streams, grids, commands or Python calls; and files that grow."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from scheduler.app.observe import run_facts
from scheduler.app.run.previous_runs import real_path
from scheduler.core.tasks.fields import RowForm
from scheduler.core.tasks.row_source import InputRow, RowSource
from scheduler.runtime.paths import RunPaths, make_private
from scheduler.runtime.python_envs import Programs
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import RunInfo
from scheduler.store.run.journal_reader import JournalReader
from scheduler.units import count
from scheduler.values import dataclass, field, replace

if TYPE_CHECKING:
    from scheduler.inputs.call_rows import CallRows
    from scheduler.inputs.grid import Chosen
    from scheduler.inputs.python_calls import CallTarget, PythonCall


FOLLOWED, QUEUE, CALLS = "followed", "queue", "calls"
"""The `door` of a file that is followed, of a queue to which tasks are submitted, and of an executor's calls."""


@dataclass(frozen=True, slots=True)
class TaskList:
    """Rows of task fields, ready to be accepted."""

    what: str
    form: RowForm
    rows: Iterator[InputRow]
    warnings: Callable[[], Sequence[str]] = field(default=lambda: ())
    path: str = ""
    """The real path of the file, by which earlier runs of the file are found."""
    source: RowSource | None = None
    """The source from which rows join the run while it goes on; None: there is none."""
    door: str = "list"
    """The source of the rows: list, stdin, grid, followed, queue or calls."""
    prepare: Callable[[RunPaths], None] = field(default=lambda run: None)
    """A function that creates the files that the rows need in the run's directory; called before the first row is
    read."""
    local: str = ""
    """The name of these tasks in errors, if they can run only on the machine of their scheduler; otherwise empty."""

    @property
    def mark(self) -> str:
        """The position in the source up to which rows are accepted."""
        return self.source.mark if self.source is not None else ""

    @property
    def is_open(self) -> bool:
        """True if the run may go on when no task is left, because more rows may come from its source."""
        return self.source is not None and self.source.more


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
    return TaskList(path, file.form, file.rows(), lambda: file.warnings, real_path(path), file)


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


class PythonCalls:
    """All calls of one target, as a list; the rows are made, and their arguments written, one after another while the
    list is accepted.

    Their arguments lie in one file of the run's directory: `said` has the facts about all calls for the launcher,
    `shared` the pickled values that all calls have. `varied` names the arguments that vary between calls; `terms` are
    keywords of every Task.
    """

    def __init__(
        self,
        target: CallTarget,
        calls: Iterable[PythonCall],
        varied: Iterable[str],
        said: Mapping[str, Any],
        shared: bytes = b"",
        **terms: Any,
    ) -> None:
        self.target = target
        self._calls = calls
        self._varied = list(varied)
        self._said = said
        self._shared = shared
        self._terms = terms
        self._run: RunPaths | None = None

    def listing(self, what: str) -> TaskList:
        """Return the calls as a list; they become rows when their run has a directory."""
        from scheduler.inputs.call_rows import CallRows

        rows = CallRows(self._varied, self._terms, sys.executable)
        local = "" if self._said["what"] == "function" else "Python tasks with a result folder"
        return TaskList(what, rows.form, self._rows(rows), prepare=self._prepare, local=local)

    def _prepare(self, run: RunPaths) -> None:
        self._run = run
        make_private(run.given)

    def _rows(self, rows: CallRows) -> Iterator[InputRow]:
        """Yield the rows; after the last row, all calls are on the disk."""
        from scheduler.runtime.task_launcher import CallWriter

        run = self._run
        assert run is not None  # `prepare` comes before the first row
        writer = CallWriter(str(run.calls), {**self.target.to_dict(), **self._said}, self._shared)
        complete = False
        try:
            for row, call in enumerate(self._calls, 1):
                given = writer.add(dict(call.said), call.pickled)
                yield rows.row(row, call, str(run.launcher), given)
            rows.refuse()
            complete = True
        finally:
            writer.close(complete=complete)


def batches(rows: Iterable[InputRow], num: int) -> Iterator[list[InputRow]]:
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
    mark = CsvMark.unpack(info.meta["mark"])
    return CsvFile.resumed(info.meta["file"], form, mark, python=python, cwd=directory, programs=programs)


def _followed_on(info: RunInfo) -> RowSource:
    from scheduler.inputs.follow import FollowedFile, FollowMark
    from scheduler.inputs.lines import form_of_lines

    form = form_of_lines(json.loads(info.meta["defaults"]))
    return FollowedFile(info.meta["path"], form, FollowMark.unpack(info.meta["mark"]))
