"""The rows of a simulation: from a trace, or from a list and the profiles of its tasks."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence

from scheduler.app.observe.run_facts import places
from scheduler.app.run.options import chosen_python
from scheduler.app.run.task_list import csv_listing
from scheduler.core.model import Device, Job, Spec, Terms
from scheduler.core.placement.node_choice import fault_of_nodes
from scheduler.core.placement.request import declared, gpus_of
from scheduler.core.profiling.class_profile import Profile
from scheduler.core.profiling.earlier_versions import EarlierVersions
from scheduler.core.profiling.hardware import Hardware
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.tasks import command
from scheduler.core.tasks.after import parsed
from scheduler.core.tasks.fields import FIVE
from scheduler.errors import InputError
from scheduler.runtime.python_envs import Programs
from scheduler.runtime.settings import Settings
from scheduler.simulation.traces import looks_like_trace, measured, read_trace
from scheduler.simulation.workload import MeasuredTask, TraceRow, arriving_over, from_profile, trace_row
from scheduler.store.profiles import ProfileStore
from scheduler.store.task_classes import TaskClassFinder
from scheduler.units import GIB, count
from scheduler.values import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class ScenarioSource:
    """The file of the rows, and the assumptions about rows without a profile."""

    path: str
    assumed: MeasuredTask
    all_at_once: bool = False
    over: float | None = None
    """Seconds within which rows arrive at random times; None: at the times that the trace gives."""
    seed: int = 1
    guess: bool = False
    """True if rows without a profile get typical values; False if they are refused."""
    fields: Mapping[str, str] = field(default_factory=dict)
    """The texts of task fields, by column, for rows of a list without values of their own."""


USUAL_EPOCH, USUAL_TIME, USUAL_PEAK = 30.0, 600.0, 4 * GIB
"""The assumed epoch in seconds, time in seconds and peak in bytes of a row without a profile, if guessing is
allowed."""


def rows(
    source: ScenarioSource, devices: Sequence[Device], settings: Settings
) -> tuple[list[TraceRow], Container[str]]:
    """Return every row with its measurements, and the columns by which `run` would rank the list.

    Raise InputError if measurements are missing; the error says which ones, and how to provide them.
    """
    found, columns = (
        _rows_of_trace(source.path) if looks_like_trace(source.path) else _of_list(source, devices, settings)
    )
    some = any(device.is_gpu for device in devices)
    if not found:
        raise InputError(source.path, "it has a header and no rows: nothing to simulate")
    found = [_with_gpus(row, some) for row in found]
    for row in found:
        _check(source.path, row, devices)
    if source.over is not None:
        return arriving_over(found, source.over, source.seed), columns
    return [replace(row, arrives=0.0) for row in found] if source.all_at_once else found, columns


def _rows_of_trace(path: str) -> tuple[list[TraceRow], Container[str]]:
    """Return the rows of a trace, whose batches are ranked like those of a five-column list."""
    return read_trace(path), FIVE


def without_held(path: str, found: Sequence[TraceRow]) -> tuple[list[TraceRow], int]:
    """Return the rows that can start, and the number of the other rows: held ones, and rows that depend on them.

    Raise InputError if no row can start.
    """
    left, gone = list(found), [row for row in found if row.spec.terms.hold]
    while gone:
        names, out = {_name(row) for row in gone}, {id(row) for row in gone}
        left = [row for row in left if id(row) not in out]
        gone = [row for row in left if not names.isdisjoint(name for name, _ in _parents(row.spec.after))]
    if not left:
        raise InputError(path, "all of its rows are held, so nothing would start: nothing to simulate")
    return left, len(found) - len(left)


def _parents(after: str) -> Iterable[tuple[str, bool]]:
    return parsed(after) if after else ()


def _name(row: TraceRow) -> str:
    return row.spec.name or row.job


def _with_gpus(row: TraceRow, some: bool) -> TraceRow:
    """Return a row that names its number of GPUs."""
    terms = row.spec.terms
    if terms.gpus is not None:
        return row
    gpus = gpus_of(terms, some)
    spec = replace(row.spec, terms=replace(terms, gpus=gpus))
    return replace(row, spec=spec, cores=row.cores or (0.0 if gpus else 1.0))


def _check(path: str, row: TraceRow, devices: Sequence[Device]) -> None:
    """Refuse a row for which the machine, or each node, has too few GPUs, or no host."""
    nodes = Counter(device.node for device in devices if device.is_gpu)
    gpus = max(nodes.values(), default=0)
    if row.gpus > gpus:
        where = (
            f"no simulated node has more than {gpus}"
            if len(nodes) > 1
            else f"the simulated machine has {gpus or 'none'}"
        )
        more = f"{len(nodes)}x({row.gpus}x24GiB)" if len(nodes) > 1 else f"{row.gpus}x24GiB"
        raise InputError(
            path,
            f"needs {count(row.gpus, 'GPU')}; {where}: --devices {more}",
            row.spec.row,
            "gpus",
        )
    if fault := fault_of_nodes(row.spec.terms, devices, otherwise="--devices 2x(4x24GiB) simulates several"):
        raise InputError(path, fault.text, row.spec.row, fault.column)
    if not row.gpus and not any(device.is_host for device in devices):
        raise InputError(
            path,
            "runs on the host, but the simulated machine has none: add host:64GiB to --devices",
            row.spec.row,
        )


def _of_list(
    source: ScenarioSource, devices: Sequence[Device], settings: Settings
) -> tuple[list[TraceRow], Container[str]]:
    """Return the rows of a list, read as `run` reads it, and its columns."""
    python = chosen_python(settings)
    listing = csv_listing(
        source.path, header=0, defaults=source.fields, append="both", python=python.path, mine=settings.my_columns
    )
    some = any(device.is_gpu for device in devices)
    profile = _profiles(settings, Programs(os.environ, os.getcwd(), python))
    made = []
    rows = [(number, listing.form.spec(cells, number), nth) for number, cells, _, nth in listing.rows]
    varies = command.varying_of(spec for _, spec, _ in rows)
    for number, spec, nth in rows:
        job = Job(spec, command.name(spec, varies=varies), command.key(spec, nth), listing.form.append)
        own = {name.strip().lower(): value for name, value in spec.own}
        gpus = gpus_of(spec.terms, some)
        of_row = MeasuredTask(peak=declared(spec.terms, gpus), host_peak=spec.terms.host_memory if gpus else None)
        earlier = from_profile(profile(job), spec.terms.epochs, gpus)
        known = measured(source.path, number, own).over(earlier).over(of_row).over(source.assumed)
        guessed = source.guess and (known.seconds is None or known.peak is None)
        known = known.over(_usual(spec)) if guessed else known
        _complete(source.path, number, job.name, known)
        made.append(replace(trace_row(spec, known, job.name), guessed=guessed))
    return made, listing.form.known


def _usual(spec: Spec) -> MeasuredTask:
    """Return a guess for a row without a profile."""
    epochs = spec.terms.epochs
    return MeasuredTask(seconds=USUAL_EPOCH * epochs if epochs else USUAL_TIME, peak=USUAL_PEAK)


def _complete(path: str, row: int, name: str, known: MeasuredTask) -> None:
    """Refuse a row if too little is known about it."""
    needed = ((known.seconds, "duration", "duration_s"), (known.peak, "memory", "peak_mem_mib"))
    missing = {what: column for value, what, column in needed if value is None}
    if missing:
        what = f"{' and '.join(missing)} {'is' if len(missing) == 1 else 'are'}"
        columns = f"the column{'' if len(missing) == 1 else 's'} {' and '.join(missing.values())}"
        raise InputError(
            path,
            f"the {what} unknown, because {name} has no profile: add {columns} to the file, or assume values for all "
            "such rows (--assume 10min,4GiB)",
            row,
        )


class _OneDevice(Hardware):
    """The hardware whose name a stored profile has."""

    def __init__(self, name: str) -> None:
        super().__init__(tuple, dict)
        self._name = name

    def of(self, terms: Terms) -> tuple[str, ...]:
        """Return the name of this hardware, which is the same for all terms."""
        return (self._name,)


def _profiles(settings: Settings, programs: Programs) -> Callable[[Job], Profile]:
    """Return a function that finds what earlier runs learned about a task's class, on any device."""
    home = places(settings)
    if not home.profiles.exists():
        return lambda job: Profile()
    store = ProfileStore(home.profiles)
    kept = {one.key: one.profile for one in store.all()}
    versions = EarlierVersions(kept.values(), ((), ()))
    devices = sorted({one.device for one in store.all()})
    finders = [TaskClassFinder(store, programs, os.getcwd(), _OneDevice(device)) for device in devices]
    store.close()

    def find(job: Job) -> Profile:
        kinds: list[TaskClass] = [finder.of(job) for finder in finders]
        found = next((kept[kind.key] for kind in kinds if kind.key in kept), None)
        if found is None:  # the script was edited since: use the newest earlier version
            related = (relative.profile for kind in kinds if (relative := versions.relative(kind)) is not None)
            found = next(filter(None, related), None)
        return found or Profile()

    return find
