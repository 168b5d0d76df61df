"""`run` and `runs`: starting and reading runs from a program or a notebook."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from scheduler.app.observe import run_facts, run_reader
from scheduler.app.run import run_loop, start
from scheduler.app.run.options import RunOptions, check_counts, fence_word, mps_word, nodes_of, run_name, this_python
from scheduler.app.run.previous_runs import RerunOptions
from scheduler.app.run.session import RunSession
from scheduler.app.run.task_list import TaskList, csv_listing
from scheduler.core.model import GOOD_ENDS
from scheduler.core.tasks import begin
from scheduler.core.tasks.fields import BEGIN
from scheduler.errors import UsageError
from scheduler.inputs import python_tasks
from scheduler.inputs.python_tasks import Task
from scheduler.runtime import clock
from scheduler.runtime.python_envs import missing_package
from scheduler.runtime.settings import Settings, read_settings

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Finished:
    """A finished run, read from its journal."""

    number: int
    state: str
    """The state directory of the run."""

    @property
    def tasks(self) -> list[dict[str, Any]]:
        """Return a dictionary for each task, with the columns of `scheduler results`."""
        with closing(self._reader()) as reader:
            return list(reader.rows())

    @property
    def frame(self) -> pd.DataFrame:
        """Return the tasks as a pandas DataFrame, indexed by task id, with times as timestamps."""
        pandas = _pandas()
        frame: pd.DataFrame = pandas.DataFrame(self.tasks).set_index("id")
        for name in ("submitted", "started", "ended"):
            frame[name] = pandas.to_datetime(frame[name], unit="s", utc=True)
        return frame

    @property
    def curves(self) -> pd.DataFrame:
        """Return the curves of all metrics as a pandas DataFrame with the columns task, metric, step, value."""
        points: list[tuple[int, str, float, float]] = []
        with closing(self._reader()) as reader:
            for row, record in reader.rows_and_metrics():
                for name, curve in record.curves.items() if record is not None else ():
                    points += [(row["id"], name, step, value) for step, value in curve.steps()]
        made: pd.DataFrame = _pandas().DataFrame(points, columns=["task", "metric", "step", "value"])
        return made

    @property
    def counts(self) -> dict[str, int]:
        """The number of tasks per state."""
        with closing(self._reader()) as reader:
            counts: dict[str, int] = reader.run_facts()["states"]
        return counts

    @property
    def succeeded(self) -> bool:
        """True if every task succeeded, apart from skipped and pruned ones."""
        return GOOD_ENDS.issuperset(self.counts)

    def _reader(self) -> run_reader.RunReader:
        return run_reader.RunReader(run_facts.find_run(read_settings({"state": self.state}), f"r{self.number}"))


def _pandas() -> Any:
    """Return the module pandas."""
    try:
        import pandas as pd  # takes 180 ms
    except ModuleNotFoundError:
        raise missing_package("pandas") from None
    return pd


def run(  # noqa: PLR0913  # each is a flag of `scheduler run`, by keyword only
    jobs: str | os.PathLike[str] | Iterable[Task],
    *,
    devices: str = "auto",
    num: int | None = None,
    order: str = "",
    buffer: str = "512MiB",
    max_load: float = 1.0,
    jobs_at_once: int | None = None,
    slots: int | None = None,
    max_per_device: int | None = None,
    header: int | None = 0,
    name: str = "",
    python: str = "",
    my_columns: str = "",
    state: str | None = None,
    defaults: Mapping[str, str] | None = None,
    new: bool = False,
    skip_done: bool = False,
    keep_going: bool = False,
    max_failures: int | None = None,
    stop_when: str = "",
    keep_best: str = "",
    mps: bool | str = False,
    mps_fence: bool = True,
    fence: str = "",
    launcher_args: bool = True,
    on: str | Sequence[str] = "",
    node_fence: str = "",
    verbose: bool = False,
) -> Finished:
    """Run a CSV file or a list of Tasks to its end, as `scheduler run` does; raise only if the run cannot start.

    A failed task is not an exception: look at `.succeeded` or `.frame`. `defaults` has strings by column, for rows
    without a value there. A file whose earlier run has not ended is refused, unless `new`; `skip_done` skips rows that
    succeeded earlier. `stop_when` ("val_loss > 2 after 3, val_loss is nan") and `keep_best` ("1/3 by val_acc at
    3,9,27") stop tasks early by their metrics. `mps` is True, "auto" or "join"; `fence` "torch" or "dmem". Without
    `launcher_args`, commands of accelerate and deepspeed stay as they are. `on` names other machines ("ssh:gpu1,gpu2"),
    `node_fence` their fence ("1m"). Signals need the main thread without an event loop; see `asyncio.to_thread`.
    """
    texts = {"order": order, "python": python, "my_columns": my_columns, "stop_when": stop_when, "keep_best": keep_best}
    flags = _flags(num, on, node_fence, texts, launchers=launcher_args)
    settings = read_settings({**flags, "buffer": buffer, "max_load": str(max_load), "state": state})
    check_counts(jobs_at_once=jobs_at_once, slots=slots, max_per_device=max_per_device, max_failures=max_failures)
    is_file = isinstance(jobs, (str, os.PathLike))
    _check_wish(is_file, new or skip_done)
    listing = _listing(jobs, header, defaults_by_column(defaults or {}), this_python(settings), settings.my_columns)
    choices = RunOptions(
        devices,
        slots,
        jobs_at_once,
        max_per_device,
        run_name("name=", name),
        keep_going=keep_going or not is_file,
        max_failures=max_failures,
        **_limits(mps_word(f"mps={mps!r}", mps), mps_fence, fence),
    )
    with closing(_begun(listing, choices, settings, RerunOptions(new, skip_done))) as session:
        run_loop.run_to_end(session, sys.stdout if verbose else None)
    return Finished(session.number, str(run_facts.places(settings).root))


def _flags(
    num: int | None, on: str | Sequence[str], fence: str, texts: Mapping[str, str], *, launchers: bool
) -> dict[str, str | None]:
    """Return keywords as the values of flags, without the empty ones."""
    given = {"num": "" if num is None else str(num), "launcher_args": "" if launchers else "no"}
    return {name: text or None for name, text in {**given, "on": nodes_of(on), "node_fence": fence, **texts}.items()}


def _limits(mps: str, mps_fence: bool, fence: str) -> dict[str, Any]:
    """Return the options for sharing GPUs and for limiting the memory on them."""
    return {"mps": mps, "mps_fence": mps_fence, "fence": fence_word(fence, mps)}


def _begun(listing: TaskList, choices: RunOptions, settings: Settings, rerun: RerunOptions) -> RunSession:
    """Return the session of an accepted list; raise UsageError if the list has no tasks."""
    session = start.begin(listing, choices, settings, rerun)
    if session is None:
        raise UsageError(f"{listing.what} has no tasks")
    return session


def _check_wish(is_file: bool, wished: bool) -> None:
    """Raise UsageError for keywords that need a file if the jobs are a list of tasks."""
    if wished and not is_file:
        raise UsageError(
            "new and skip_done concern earlier runs of a file, but the jobs are a list of tasks: leave them out"
        )


def runs(state: str | None = None) -> list[Finished]:
    """Return all runs of this user on this machine, newest first."""
    settings = read_settings({"state": state})
    root = str(run_facts.places(settings).root)
    return [Finished(info.number, root) for info in run_facts.all_runs(settings)]


def defaults_by_column(texts: Mapping[str, str]) -> dict[str, str]:
    """Return the default values by column, with the begin time as an absolute time."""
    if not texts.get(BEGIN):
        return dict(texts)
    try:
        return {**texts, BEGIN: begin.absolute(texts[BEGIN], clock.wall())}
    except ValueError as exc:
        raise UsageError(f"defaults: {BEGIN}: {exc}") from exc


def _listing(
    jobs: str | os.PathLike[str] | Iterable[Task], header: int | None, defaults: dict[str, str], python: str, mine: str
) -> TaskList:
    if isinstance(jobs, (str, os.PathLike)):
        return csv_listing(os.fspath(jobs), header=header, defaults=defaults, append="both", python=python, mine=mine)
    form, rows = python_tasks.rows(task_list(jobs), defaults, python)
    return TaskList("tasks", form, rows)


def task_list(jobs: object) -> list[Task]:
    """Return the tasks as a list, even if they come from a generator; raise UsageError for an object that is not a
    task.
    """
    if isinstance(jobs, Task) or not isinstance(jobs, Iterable):
        raise UsageError(f"a {type(jobs).__name__} is neither the path of a file nor a list of Tasks")
    return list(jobs)
