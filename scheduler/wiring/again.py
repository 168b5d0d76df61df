"""The same list again: which run of it is not over, and which of its rows earlier runs have done."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.core import command
from scheduler.core.events import Skipped
from scheduler.core.fields import Form
from scheduler.core.model import UNFINISHED, State
from scheduler.errors import NoSuchRun, SameList, SchedulerError, StateError
from scheduler.paths import Places
from scheduler.store.rundir import Cells
from scheduler.store.runs import RunInfo, Runs
from scheduler.units import count
from scheduler.values import dataclass
from scheduler.wiring.reading import Telling

MOST_SKIPPED = 5000
"""So many tasks are named in one event."""


@dataclass(frozen=True, slots=True)
class Wish:
    """How a list is to be run that may have been run before."""

    new: bool = False
    """Whatever other runs of it there are."""
    skip_done: bool = False
    """Only rows that have not succeeded before."""


@dataclass(frozen=True, slots=True)
class Past:
    """What became of the rows of one run."""

    left: Mapping[State, int]
    """How many are not over, by where they stand."""
    done: Mapping[int, int]
    """Those that are done, by the hash of what they say (a list may have a million), and by which run."""

    @classmethod
    def of(cls, telling: Telling) -> Past:
        """As its journal tells it."""
        counts = telling.brain.roll.counts
        left = {state: counts[state] for state in State if state in UNFINISHED and counts[state]}
        return cls(left, {hash(content): by for content, by in telling.done()})


def real_path(path: str) -> str:
    """What a list is known by; empty for a pipe, which is another list each time."""
    try:
        return os.path.realpath(path) if stat.S_ISREG(os.stat(path).st_mode) else ""
    except OSError:
        return ""


class Again:
    """What earlier runs of one list mean for a new one."""

    def __init__(self, home: Places, path: str, wish: Wish) -> None:
        self.path = path
        self._runs = Runs(home)
        self._wish = wish
        self._others: set[int] = set()
        """Runs of other lists, which need not be looked at twice."""
        self._pasts: dict[int, Past] = {}
        self._done: dict[int, int] = {}
        """Rows that are done, and by which run."""
        self._rows = 0
        self._found: dict[int, list[int]] = {}
        """The places of rows that are done, by the run that did them."""
        self._troubles: list[str] = []

    # ---- may it begin ----

    def refuse(self) -> None:
        """Raise SameList where a run of this list is alive or unfinished on this machine, and no other is wanted."""
        passed_over = False
        for info in () if self._wish.new else self._mine():
            said = "" if info.elsewhere or (passed_over and not info.alive) else self._not_over(info)
            if said:
                raise SameList(said)
            passed_over = passed_over or info.meta.get("new") == "yes"

    def facts(self) -> dict[str, str]:
        """What the new run's journal keeps; one that was wanted beside others answers for what those have left."""
        return {"path": self.path, "new": "yes" if self._wish.new else ""}

    def _mine(self) -> Iterator[RunInfo]:
        """The runs of this list, newest first."""
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
            if info.meta.get("path") == self.path:
                yield info
            else:
                self._others.add(number)

    def _cannot_read(self, number: int, exc: SchedulerError) -> None:
        """A damaged run keeps nobody from running, but what it did is not known.

        Without a log it has not begun: its journal may just be being made, and can be read at the next look.
        """
        said = f"run {number} cannot be read, so whether it did rows of this list is unknown: {exc}"
        if self._runs.places.run(number).log.exists() and said not in self._troubles:
            self._troubles.append(said)

    def _not_over(self, info: RunInfo) -> str:
        """Why another run of the list would be one too many; empty where it would not."""
        run, shown = info.number, f"scheduler list {info.number} shows it"
        anew = "--new starts the whole list once more beside it"
        if info.alive:
            ends = f"scheduler resume {run} goes on with it should its scheduler end"
            return f"run {run} of {info.what} is alive, so nothing is started: {shown}, {ends}, {anew}"
        left = self._past(info).left
        if not left:
            return ""
        what = ", ".join(f"{number:,} {state}" for state, number in left.items())
        goes_on = f"scheduler resume {run} goes on with it"
        return f"run {run} of {info.what} is unfinished ({what}), so nothing is started: {goes_on}, {shown}, {anew}"

    def _past(self, info: RunInfo) -> Past:
        """What became of a run's rows, found out once."""
        if info.number not in self._pasts:
            try:
                with contextlib.closing(Telling(info, only_states=True)) as telling:
                    self._pasts[info.number] = Past.of(telling)
            except SchedulerError as exc:
                self._cannot_read(info.number, exc)
                self._pasts[info.number] = Past({}, {})
        return self._pasts[info.number]

    # ---- what is done ----

    def look_back(self) -> None:
        """Find out what earlier runs of this list have done; the newest counts where several did the same."""
        for info in self._mine():
            self._done = {**self._past(info).done, **self._done}

    def noting(self, batches: Iterable[Sequence[Cells]], form: Form) -> Iterator[Sequence[Cells]]:
        """The batches of the new run as they are, while those of their rows are noted that are done."""
        for batch in batches:
            if self._done:
                self._note(batch, form)
            self._rows += len(batch)
            yield batch

    def _note(self, batch: Sequence[Cells], form: Form) -> None:
        here = os.getcwd()
        for offset, (row, cells, _, nth) in enumerate(batch):
            by = self._done.get(hash(command.content(form.spec(cells, row), nth, form.append, here)))
            if by is not None:
                self._found.setdefault(by, []).append(self._rows + offset)

    def events(self, first: int) -> list[Skipped]:
        """Rows that are done are skipped, where that was wished; `first` is the id of the first row."""
        if not self._wish.skip_done:
            return []
        return [
            Skipped(run, tuple(first + place for place in places[start : start + MOST_SKIPPED]))
            for run, places in self._found.items()
            for start in range(0, len(places), MOST_SKIPPED)
        ]

    def words(self) -> list[str]:
        """What to say of that before anything starts."""
        said = self._troubles[:]
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
