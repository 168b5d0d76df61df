"""The devices of this machine for `devices`, and the user's runs that use them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

from scheduler.app.control.run_requests import ask
from scheduler.app.control.targets import Target
from scheduler.app.observe.run_facts import find_run, places
from scheduler.app.observe.run_reader import RunReader
from scheduler.core.control.request_kinds import RunRequest
from scheduler.core.control.requests import named
from scheduler.errors import SchedulerError, UsageError
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import RunCatalog, RunInfo, run_word
from scheduler.ui.verbs.answers import RequestResult


def devices(settings: Settings) -> list[dict[str, Any]]:
    """Return each device with its free, reserved and unmanaged memory, and the user's runs that start nothing on it."""
    from scheduler.app.run.devices import find_devices
    from scheduler.store.machine.lease_directory import find_directory
    from scheduler.store.machine.lease_records import living

    pool = find_devices("auto", settings)
    try:
        budgets = pool.snapshot()
    finally:
        pool.close()
    leases = living(find_directory(settings.leases or None))
    shut = {info.number: reader.brain.rules.closed for info, reader in _unfinished(settings)}
    return [
        {
            "device": b.device.label,
            "key": b.device.key,
            "model": b.device.model,
            "total_bytes": b.device.total,
            "free_bytes": b.free,
            "reserved_bytes": sum(lease.reserved.get(b.device.key, 0) for lease in leases),
            "unmanaged": [one.to_dict() for one in b.unmanaged],
            "drained": b.closed,
            "disabled_for": sorted(number for number, closed in shut.items() if b.device.key in closed),
        }
        for b in budgets
    ]


def _unfinished(settings: Settings) -> Iterator[tuple[RunInfo, RunReader]]:
    """Return the user's runs on this machine that may still start tasks."""
    for info in RunCatalog(places(settings)).all():
        if info.elsewhere:
            continue
        try:
            reader = RunReader(info, only_states=True)
        except SchedulerError:
            continue  # a run that cannot be read must not hide the others
        with closing(reader):
            if info.alive or reader.unfinished:
                yield info, reader


def give_up(settings: Settings, node: str, run: str | None) -> list[RequestResult]:
    """Give up a node of the user's running runs, or of the named run; raise UsageError if no such run has the node."""
    infos = [info for info, _ in _unfinished(settings)] if run is None else [find_run(settings, run_word(run))]
    found = [info for info in infos if node in _nodes_of(info)]
    if not found:
        there = sorted({name for info in infos for name in _nodes_of(info)})
        has = f"they have: {', '.join(there)}" if there else "they run on this machine alone"
        raise UsageError(f"none of your unfinished runs has a node {node!r}; {has}")
    dead = [info for info in found if not info.alive]
    if dead:
        number = dead[0].number
        raise UsageError(f"run {number} has no scheduler that could do it: scheduler resume r{number} -d starts one")
    return [ask(Target(info), RunRequest.GIVE_UP, {"node": node}) for info in found]


def _nodes_of(info: RunInfo) -> list[str]:
    """Return the nodes for which the list of a run was accepted."""
    said = json.loads(info.meta.get("settings", "{}")).get("on", "")
    return [host for word in said.split() for host in word.removeprefix("ssh:").split(",")]


def users_of(settings: Settings, device: str, run: str | None) -> list[Target]:
    """Return the user's unfinished runs that use a device, or the named run; raise UsageError if there is no such
    run.
    """
    if run is not None:
        return [Target(find_run(settings, run_word(run)))]
    found, labels = [], set[str]()
    for info, reader in _unfinished(settings):
        mine = reader.devices
        labels.update(one.label for one in mine)
        try:
            if named(device, mine):
                found.append(Target(info))
        except ValueError:
            continue
    if found:
        return found
    if not labels:
        raise UsageError(
            "you have no unfinished run to change: for a new run, choose devices with scheduler run --devices"
        )
    raise UsageError(f"none of your unfinished runs has a device {device!r}; they have: {', '.join(sorted(labels))}")
