"""Earlier runs of a list: which of them have not ended, and which rows are done (`--new`, `--skip-done`)."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.app.observe.run_reader import RunReader
from scheduler.core.events import Skipped
from scheduler.core.model import UNFINISHED, State
from scheduler.core.tasks import command
from scheduler.core.tasks.fields import RowForm
from scheduler.core.tasks.row_source import InputRow
from scheduler.errors import NoSuchRun, SameList, SchedulerError, StateError
from scheduler.runtime.paths import StatePaths
from scheduler.store.run.catalog import RunCatalog, RunInfo
from scheduler.units import count, ranges
from scheduler.values import dataclass

MOST_SKIPPED = 5000
"""The most tasks that one event names."""


@dataclass(frozen=True, slots=True)
class RerunOptions:
    """The user's options for a list that was run before."""

    new: bool = False
    """True if the run starts although another run of the list has not ended."""
    skip_done: bool = False
    """True if rows that have succeeded before are skipped."""


@dataclass(frozen=True, slots=True)
class PreviousRun:
    """The state of the rows in one run."""

    left: Mapping[State, int]
    """The number of unfinished rows by state."""
    done: Mapping[int, int]
    """The run that completed each done row, by the hash of the row's content (a list may have a million rows)."""

    @classmethod
    def of(cls, reader: RunReader) -> PreviousRun:
        """Return the state of the rows from a run's journal."""
        counts = reader.brain.state_counts
        left = {state: counts[state] for state in State if state in UNFINISHED and counts[state]}
        return cls(left, {hash(content): by for content, by in reader.done()})


def real_path(path: str) -> str:
    """Return the real path of a list, by which its runs are found; empty for a pipe, which is a new list each time."""
    try:
        return os.path.realpath(path) if stat.S_ISREG(os.stat(path).st_mode) else ""
    except OSError:
        return ""


class PreviousRuns:
    """The earlier runs of one list, and their consequences for a new run."""

    def __init__(self, home: StatePaths, path: str, wish: RerunOptions) -> None:
        self.path = path
        self._runs = RunCatalog(home)
        self._wish = wish
        self._others: set[int] = set()
        """Runs of other lists, which are read only once."""
        self._pasts: dict[int, PreviousRun] = {}
        self._done: dict[int, int] = {}
        """The run that completed each done row, by the hash of its content."""
        self._rows = 0
        self._found: dict[int, list[int]] = {}
        """The positions of done rows, by the run that completed them."""
        self._unread: dict[int, str] = {}
        """The runs that cannot be read, newest first, each with the reason."""

    # ---- may it begin ----

    def refuse(self) -> None:
        """Raise SameList if a run of this list has not ended on this machine, unless `--new` was given."""
        passed_over = False
        for info in () if self._wish.new else self._mine():
            said = "" if info.elsewhere or (passed_over and not info.alive) else self._not_over(info)
            if said:
                raise SameList(said)
            passed_over = passed_over or info.meta.get("new") == "yes"

    def facts(self) -> dict[str, str]:
        """Return facts for the new run's journal: with `--new`, the unfinished runs that it replaces."""
        return {"path": self.path, "new": "yes" if self._wish.new else ""}

    def _mine(self) -> Iterator[RunInfo]:
        """Yield the runs of this list, newest first."""
        for number in reversed(self._runs.numbers()) if self.path else ():
            if number in self._others:
                continue
            try:
                info = self._runs.info(number)
            except NoSuchRun:
                continue  # not accepted, or not yet
            except StateError as exc:
                self._cannot_read(number, exc)
                continue
            if info.lost and not info.alive:
                self._cannot_read(number, StateError(info.lost))
            elif info.meta.get("path") == self.path:
                yield info
            else:
                self._others.add(number)

    def _cannot_read(self, number: int, exc: SchedulerError) -> None:
        """Note a run that cannot be read: it does not prevent the start, but it is unknown which of its rows are done.

        A run without a log has not begun: its journal may be incomplete now and readable later.
        """
        if self._runs.places.run(number).log.exists():
            self._unread.setdefault(number, str(exc))

    def _troubles(self) -> list[str]:
        """Return one sentence about all runs that cannot be read, with the reason for the newest one."""
        if not self._unread:
            return []
        several, why = len(self._unread) > 1, next(iter(self._unread.values()))
        what = f"{'runs' if several else 'run'} {ranges(self._unread)} cannot be read"
        unknown = f"so it is unknown which rows of this list {'they' if several else 'it'} completed"
        return [f"{what}, {unknown}: {why}"]

    def _not_over(self, info: RunInfo) -> str:
        """Return why no other run of the list may start while this one exists; empty if one may start."""
        run, shown = info.number, f"scheduler list r{info.number} shows it"
        anew = "--new starts the whole list again as another run"
        if info.alive:
            ends = f"scheduler resume r{run} continues it if its scheduler ends"
            return f"run {run} of {info.what} is alive, so nothing is started: {shown}, {ends}, {anew}"
        left = self._past(info).left
        if not left:
            return ""
        what = ", ".join(f"{number:,} {state}" for state, number in left.items())
        goes_on = f"scheduler resume r{run} continues it"
        return f"run {run} of {info.what} is unfinished ({what}), so nothing is started: {goes_on}, {shown}, {anew}"

    def _past(self, info: RunInfo) -> PreviousRun:
        """Return the state of a run's rows; read it only once."""
        if info.number not in self._pasts:
            try:
                with contextlib.closing(RunReader(info, only_states=True)) as reader:
                    self._pasts[info.number] = PreviousRun.of(reader)
            except SchedulerError as exc:
                self._cannot_read(info.number, exc)
                self._pasts[info.number] = PreviousRun({}, {})
        return self._pasts[info.number]

    # ---- what is done ----

    def look_back(self) -> None:
        """Find the rows that earlier runs of this list completed; the newest run counts if several completed a row."""
        for info in self._mine():
            self._done = {**self._past(info).done, **self._done}

    def noting(self, batches: Iterable[Sequence[InputRow]], form: RowForm) -> Iterator[Sequence[InputRow]]:
        """Yield the batches of the new run unchanged, and note which of their rows are done."""
        for batch in batches:
            if self._done:
                self._note(batch, form)
            self._rows += len(batch)
            yield batch

    def _note(self, batch: Sequence[InputRow], form: RowForm) -> None:
        here = os.getcwd()
        for offset, (row, cells, _, nth) in enumerate(batch):
            by = self._done.get(hash(command.content(form.spec(cells, row), nth, form.append, here)))
            if by is not None:
                self._found.setdefault(by, []).append(self._rows + offset)

    def events(self, first: int) -> list[Skipped]:
        """Return the events that skip done rows under `--skip-done`; `first` is the id of the first row."""
        if not self._wish.skip_done:
            return []
        return [
            Skipped(run, tuple(first + place for place in places[start : start + MOST_SKIPPED]))
            for run, places in self._found.items()
            for start in range(0, len(places), MOST_SKIPPED)
        ]

    def words(self) -> list[str]:
        """Return sentences about done rows, for the first lines of the run."""
        said = self._troubles()
        done = Counter({run: len(places) for run, places in self._found.items()})
        if not done and not self._wish.skip_done:
            return said
        where = ", ".join(f"{number:,} in run {run}" for run, number in sorted(done.items(), reverse=True))
        of = f"{done.total():,} of {count(self._rows, 'row')}"
        if self._wish.skip_done:
            return [
                *said,
                f"skipped {of} that succeeded before ({where or 'none did'}); {self._rows - done.total():,} run",
            ]
        runs_only = "--skip-done runs only the failed, changed and new ones"
        return [*said, f"{of} already succeeded ({where}): {runs_only}"]
