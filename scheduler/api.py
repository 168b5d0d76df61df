"""The Python API: the same runs from a program or a notebook."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TextIO

from scheduler.doors import python_tasks
from scheduler.doors.python_tasks import Task
from scheduler.errors import UsageError
from scheduler.settings import read_settings
from scheduler.wiring import reading, starting
from scheduler.wiring.again import Wish
from scheduler.wiring.choices import Choices, check_counts, mps_word, run_name, this_python
from scheduler.wiring.listing import Listing, csv_listing

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Finished:
    """A run as its journal tells it."""

    number: int
    state: str
    """The state directory it lies in."""

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """One dictionary for each task, with the columns of `scheduler results`."""
        telling = self._telling()
        try:
            return list(telling.rows())
        finally:
            telling.close()

    @property
    def frame(self) -> pd.DataFrame:
        """The same as a pandas DataFrame, times as timestamps, indexed by task id."""
        import pandas as pd  # 180 ms that only this pays

        frame = pd.DataFrame(self.tasks).set_index("id")
        for name in ("submitted", "started", "ended"):
            frame[name] = pd.to_datetime(frame[name], unit="s", utc=True)
        return frame

    @property
    def counts(self) -> dict[str, int]:
        """How many tasks stand in which state."""
        telling = self._telling()
        try:
            counts: dict[str, int] = telling.run_facts()["states"]
            return counts
        finally:
            telling.close()

    @property
    def succeeded(self) -> bool:
        """Whether every task did."""
        return set(self.counts) <= {"succeeded", "skipped"}

    def _telling(self) -> reading.Telling:
        return reading.Telling(reading.find_run(read_settings({"state": self.state}), str(self.number)))


def run(  # noqa: PLR0913  # each is a flag of `scheduler run`, by keyword only
    jobs: str | os.PathLike[str] | Iterable[Task],
    *,
    devices: str = "auto",
    num: int = 20,
    order: str = "batch",
    buffer: str = "512MiB",
    max_load: float = 1.0,
    jobs_at_once: int | None = None,
    slots: int | None = None,
    max_per_device: int | None = None,
    header: int | None = 0,
    name: str = "",
    python: str = "",
    state: str | None = None,
    defaults: Mapping[str, str] | None = None,
    new: bool = False,
    skip_done: bool = False,
    keep_going: bool = False,
    max_failures: int | None = None,
    mps: bool | str = False,
    mps_fence: bool = True,
    verbose: bool = False,
) -> Finished:
    """Run a CSV file or a list of Tasks to its end, as `scheduler run` does; raises only for what is refused.

    A failed task is not an exception: look at `.succeeded` or `.frame`. `defaults` are texts by column for rows that
    do not say it themselves. A file that another run has not ended is refused, unless `new`; with `skip_done` only rows
    run that succeeded in no earlier run of it. `mps` is True, "auto" or "join".

    Signals keep meaning what the command line says, on the main thread only; elsewhere, and beside a running event
    loop, nothing of the caller's is touched. It blocks: use `asyncio.to_thread` in a coroutine.
    """
    flags = {"num": str(num), "order": order, "buffer": buffer, "max_load": str(max_load), "python": python or None}
    settings = read_settings({**flags, "state": state})
    check_counts(jobs_at_once=jobs_at_once, slots=slots, max_per_device=max_per_device, max_failures=max_failures)
    is_file = isinstance(jobs, (str, os.PathLike))
    _check_wish(is_file, new or skip_done)
    interpreter = this_python(settings)
    listing = _listing(jobs, header, dict(defaults or {}), interpreter)
    choices = Choices(
        devices,
        slots,
        jobs_at_once,
        max_per_device,
        run_name("name=", name),
        keep_going=keep_going or not is_file,
        max_failures=max_failures,
        mps=mps_word(f"mps={mps!r}", mps),
        mps_fence=mps_fence,
    )
    session = starting.begin(listing, choices, settings, interpreter, Wish(new, skip_done))
    if session is None:
        raise UsageError(f"{listing.what} has no tasks")
    stream: TextIO | None = sys.stdout if verbose else None
    try:
        session.go(stream, session.first_words())
    finally:
        session.close()
    return Finished(session.number, str(reading.places(settings).root))


def _check_wish(is_file: bool, wished: bool) -> None:
    """Refuse for a list of tasks what only a file can have."""
    if wished and not is_file:
        raise UsageError(
            "new and skip_done are about the earlier runs of a file, and a list of tasks is none: leave them out"
        )


def runs(state: str | None = None) -> list[Finished]:
    """All runs of this user on this machine, newest first."""
    settings = read_settings({"state": state})
    root = str(reading.places(settings).root)
    return [Finished(info.number, root) for info in reading.all_runs(settings)]


def _listing(
    jobs: str | os.PathLike[str] | Iterable[Task], header: int | None, defaults: dict[str, str], python: str
) -> Listing:
    if isinstance(jobs, (str, os.PathLike)):
        return csv_listing(os.fspath(jobs), header=header, defaults=defaults, append="both", python=python)
    form, rows = python_tasks.rows(_tasks(jobs), defaults, python)
    return Listing("tasks", form, rows)


def _tasks(jobs: object) -> list[Task]:
    """They may come from a generator; raises UsageError for what is no list of anything."""
    if isinstance(jobs, Task) or not isinstance(jobs, Iterable):
        raise UsageError(f"a {type(jobs).__name__} is neither the path of a file nor a list of Tasks")
    return list(jobs)
