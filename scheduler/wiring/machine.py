"""Joins what is needed to tell of this machine's devices, and to keep one's own runs from some of them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

from scheduler.core.control import named
from scheduler.errors import SchedulerError, UsageError
from scheduler.settings import Settings
from scheduler.store.runs import RunInfo, Runs
from scheduler.wiring.addressing import Target
from scheduler.wiring.reading import Telling, find_run, places


def devices(settings: Settings) -> list[dict[str, Any]]:
    """What there is, what of it is free and promised, and which of my runs start nothing on it."""
    from scheduler.store.leases import find_directory, living
    from scheduler.wiring.finding import find_devices

    pool = find_devices("auto", settings)
    try:
        budgets = pool.snapshot()
    finally:
        pool.close()
    leases = living(find_directory(settings.leases or None))
    shut = {info.number: telling.brain.rules.closed for info, telling in _unfinished(settings)}
    return [
        {
            "device": b.device.label,
            "key": b.device.key,
            "model": b.device.model,
            "total_bytes": b.device.total,
            "free_bytes": b.free,
            "promised_bytes": sum(lease.promised.get(b.device.key, 0) for lease in leases),
            "closed": b.closed,
            "disabled_for": sorted(number for number, closed in shut.items() if b.device.key in closed),
        }
        for b in budgets
    ]


def _unfinished(settings: Settings) -> Iterator[tuple[RunInfo, Telling]]:
    """My runs on this machine that may still start something."""
    for info in Runs(places(settings)).all():
        if info.elsewhere:
            continue
        try:
            telling = Telling(info, only_states=True)
        except SchedulerError:
            continue  # one that cannot be read hides no other
        with closing(telling):
            if info.alive or telling.unfinished:
                yield info, telling


def users_of(settings: Settings, device: str, run: str | None) -> list[Target]:
    """My unfinished runs that have a device, or the one that is named, whatever it has; raises UsageError."""
    if run is not None:
        return [Target(find_run(settings, run))]
    found, labels = [], set[str]()
    for info, telling in _unfinished(settings):
        mine = telling.devices
        labels.update(one.label for one in mine)
        try:
            if named(device, mine):
                found.append(Target(info))
        except ValueError:
            continue
    if found:
        return found
    if not labels:
        raise UsageError("none of my runs is unfinished, so there is nothing to change: run --devices leaves one out")
    raise UsageError(f"no unfinished run of mine has a device {device!r}; they have: {', '.join(sorted(labels))}")
