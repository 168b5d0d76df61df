"""Finds what a simulation is given: a trace's rows, or a list's with what is known of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from scheduler.core import command, packing
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Profile
from scheduler.core.model import HOST, Device, Job, Spec, Terms
from scheduler.core.workload import Measured, TraceRow, arriving_over, from_profile, trace_row
from scheduler.doors.traces import looks_like_trace, measured, read_trace
from scheduler.environments import Programs
from scheduler.errors import InputError
from scheduler.settings import Settings
from scheduler.store.profiles import Profiles
from scheduler.store.rundir import Kinds
from scheduler.units import GIB, count
from scheduler.values import dataclass
from scheduler.wiring.choices import chosen_python
from scheduler.wiring.listing import csv_listing
from scheduler.wiring.reading import places


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows come from, and what is taken of a row of which nothing is known."""

    path: str
    assumed: Measured
    all_at_once: bool = False
    over: float | None = None
    """Seconds within which rows come at random; None: when they say."""
    seed: int = 1
    guess: bool = False
    """Rows of which too little is known are taken to be as usual; else they are refused."""


USUAL_EPOCH, USUAL_TIME, USUAL_PEAK = 30.0, 600.0, 4 * GIB
"""What a row is taken to need where nothing is known and guesses will do."""


def rows(source: Source, devices: Sequence[Device], settings: Settings) -> list[TraceRow]:
    """Every row with its truth; raises InputError with what is missing and how to give it."""
    found = read_trace(source.path) if looks_like_trace(source.path) else _of_list(source, devices, settings)
    some = any(device.is_gpu for device in devices)
    if not found:
        raise InputError(source.path, "it has a header and no rows: nothing to simulate")
    found = [_with_gpus(row, some) for row in found]
    for row in found:
        _check(source.path, row, devices)
    if source.over is not None:
        return arriving_over(found, source.over, source.seed)
    return [replace(row, arrives=0.0) for row in found] if source.all_at_once else found


def _with_gpus(row: TraceRow, some: bool) -> TraceRow:
    """A row that says itself how many GPUs it gets."""
    terms = row.spec.terms
    if terms.gpus is not None:
        return row
    gpus = packing.gpus_of(terms, some)
    spec = replace(row.spec, terms=replace(terms, gpus=gpus))
    return replace(row, spec=spec, cores=row.cores or (0.0 if gpus else 1.0))


def _check(path: str, row: TraceRow, devices: Sequence[Device]) -> None:
    """Refuse a row for which the machine has too few GPUs, or no host."""
    gpus = sum(device.is_gpu for device in devices)
    if row.gpus > gpus:
        raise InputError(
            path,
            f"wants {count(row.gpus, 'GPU')}, the simulated machine has {gpus or 'none'}: --devices {row.gpus}x24GiB",
            row.spec.row,
            "gpus",
        )
    if not row.gpus and not any(device.key == HOST for device in devices):
        raise InputError(
            path, "runs on the host, which the simulated machine has not: add host:64GiB to --devices", row.spec.row
        )


def _of_list(source: Source, devices: Sequence[Device], settings: Settings) -> list[TraceRow]:
    """The rows of a list as `run` takes it."""
    python = chosen_python(settings)
    listing = csv_listing(source.path, header=0, defaults={}, append="both", python=python.path)
    some = any(device.is_gpu for device in devices)
    profile = _profiles(settings, Programs(os.environ, os.getcwd(), python))
    made = []
    for number, cells, _, nth in listing.rows:
        spec = listing.form.spec(cells, number)
        job = Job(spec, command.name(spec), command.key(spec, nth), listing.form.append)
        own = {name.strip().lower(): value for name, value in spec.own}
        gpus = packing.gpus_of(spec.terms, some)
        declared = Measured(peak=packing.declared(spec.terms, gpus), host_peak=spec.terms.host_memory if gpus else None)
        earlier = from_profile(profile(job), spec.terms.epochs, gpus)
        known = measured(source.path, number, own).over(earlier).over(declared).over(source.assumed)
        guessed = source.guess and (known.seconds is None or known.peak is None)
        known = known.over(_usual(spec)) if guessed else known
        _complete(source.path, number, job.name, known)
        made.append(replace(trace_row(spec, known, job.name), guessed=guessed))
    return made


def _usual(spec: Spec) -> Measured:
    """A guess, so that something can be shown before anything ran."""
    epochs = spec.terms.epochs
    return Measured(seconds=USUAL_EPOCH * epochs if epochs else USUAL_TIME, peak=USUAL_PEAK)


def _complete(path: str, row: int, name: str, known: Measured) -> None:
    """Refuse a row of which too little is known."""
    missing = [
        (what, column)
        for value, what, column in (
            (known.seconds, "how long it takes", "duration_s"),
            (known.peak, "how much memory it takes", "peak_mem_mib"),
        )
        if value is None
    ]
    if missing:
        what = " and ".join(what for what, _ in missing) + (" is" if len(missing) == 1 else " are")
        columns = " and a column ".join(column for _, column in missing)
        raise InputError(
            path,
            f"{what} not known of {name}, nothing like it ran to its end here (scheduler profiles): give the file a "
            f"column {columns}, or say --assume 10min,4GiB for all such rows",
            row,
        )


def _on(device: str, terms: Terms) -> str:  # whatever it asks for
    return device


def _profiles(settings: Settings, programs: Programs) -> Callable[[Job], Profile]:
    """What earlier runs learned of a task's kind, whatever they ran on."""
    home = places(settings)
    if not home.profiles.exists():
        return lambda job: Profile()
    store = Profiles(home.profiles)
    kept = {one.key: one.profile for one in store.all()}
    devices = sorted({one.device for one in store.all()})
    finders = [Kinds(store, programs, os.getcwd(), partial(_on, device)) for device in devices]
    store.close()

    def find(job: Job) -> Profile:
        kinds: list[Kind] = [finder.of(job) for finder in finders]
        return next((kept[kind.key] for kind in kinds if kind.key in kept), Profile())

    return find
