"""`status` as lines: who holds what on this machine, and my runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from scheduler.units import duration, size
from scheduler.view.ahead import left
from scheduler.view.words import clean, moment, table


def lines(facts: Mapping[str, Any]) -> list[str]:
    """Everything `status` says."""
    host = facts["host"]
    promised = size(sum(lease["promised"].get("host", 0) for lease in facts["leases"]))
    memory = f"host {size(host['total'])}, {size(host['available'])} available, {promised} promised"
    said = [f"{facts['hostname']}  {memory}", *_gpus(facts), "", *_leases(facts["leases"])]
    return [*said, *_waiting(facts["waiting"]), *_idle(facts["idle"]), "", *_runs(facts["runs"])]


def closed_lines(facts: Mapping[str, Any]) -> list[str]:
    """What is out of service, and what is reserved."""
    disabled = [
        f"{device} is closed to everybody: {clean(why)}; root opens it (scheduler devices enable --everybody)"
        for device, why in facts["disabled"].items()
    ]
    reserved = [
        f"{one['device']}: {clean(one['sentence'])}; what runs there goes on, nobody else's task starts"
        for one in facts["reserved"]
    ]
    return disabled + reserved


def _gpus(facts: Mapping[str, Any]) -> list[str]:
    said = [_gpu(gpu) for gpu in facts["gpus"]]
    if facts["gpus_trouble"]:
        said.append(f"GPUs: {facts['gpus_trouble']}")
    return said + closed_lines(facts)


def _gpu(gpu: Mapping[str, Any]) -> str:
    strangers = [f"{size(one['bytes'])} of {clean(one['user']) or 'somebody'}'s by hand" for one in gpu["foreign"]]
    words = [f"{size(gpu['free'])} free", f"{size(gpu['promised'])} promised", *strangers]
    return f"{gpu['device']} {size(gpu['total'])}, {', '.join(words)}{': ' + gpu['closed'] if gpu['closed'] else ''}"


def _leases(leases: list[dict[str, Any]]) -> list[str]:
    if not leases:
        return ["nothing is promised to anybody now"]
    rows = [
        [
            clean(lease["user"]),
            str(lease["run"]),
            str(lease["task"]),
            device,
            str(lease["pid"] or lease["shim"] or ""),
            moment(lease["since"] or None),
            size(promised) if device else "cannot be read: nothing starts beside it",
            size(lease["used"][device]) if device in lease["used"] else "",
        ]
        for lease in leases
        for device, promised in (lease["promised"] or {"": 0}).items()
    ]
    return table(
        ["user", "run", "task", "device", "pid", "since", "promised", "used"], rows, frozenset({1, 2, 4, 6, 7})
    )


def _waiting(waiting: list[dict[str, Any]]) -> list[str]:
    if not waiting:
        return []
    rows = [
        [
            clean(one["user"]),
            one["run"],
            str(one["task"]),
            ", ".join(one["devices"]),
            duration(one["waited"]),
            size(one["bytes"]) if one["bytes"] else "unknown",
            "kept for it" if one["closed"] else "",
        ]
        for one in waiting
    ]
    return ["", *table(["waits", "run", "task", "for", "since", "wants", ""], rows, frozenset({1, 2, 4, 5}))]


def _idle(idle: list[dict[str, Any]]) -> list[str]:
    return [
        f"idle    {clean(one['user'])}'s {one['what']} (process {one['pid']}) holds "
        f"{', '.join(f'{size(bytes_)} of {device}' for device, bytes_ in one['holds'].items())} "
        f"and has done nothing for {duration(one['idle'])}"
        for one in idle
    ]


def _runs(runs: list[dict[str, Any]]) -> list[str]:
    if not runs:
        return ["no runs yet: scheduler run FILE starts one"]
    rows = [
        [str(run["number"]), _now(run), moment(run["accepted"]), _states(run), clean(run["file"])]
        for run in runs
        if "trouble" not in run
    ]
    return table(["run", "now", "accepted", "tasks", "list"], rows, frozenset({0})) + _troubles(runs)


def run_lines(runs: list[dict[str, Any]]) -> list[str]:
    """Everything `runs` says: as `status`, with each run's machine and name."""
    if not runs:
        return ["no runs yet: scheduler run FILE starts one"]
    rows = [_row(run) for run in runs if "trouble" not in run]
    return table(["run", "name", "host", "now", "accepted", "tasks", "list"], rows, frozenset({0})) + _troubles(runs)


def _row(run: Mapping[str, Any]) -> list[str]:
    named = [str(run["number"]), clean(run["name"]), clean(run["host"])]
    return [*named, _now(run), moment(run["accepted"]), _states(run), clean(run["file"])]


def _now(run: Mapping[str, Any]) -> str:
    """Where it stands, and who can go on with it."""
    if run["over"]:
        return "running" if run["alive"] else "ended"
    if run["elsewhere"]:
        return f"not over: belongs to {clean(run['elsewhere'])}"
    if run["alive"]:
        foreseen = run.get("expected")
        return f"running, {left(foreseen['end'], time.time())}" if foreseen and foreseen["end"] else "running"
    state = f" --state {run['state']}" if run.get("state") else ""
    return f"unfinished: scheduler resume {run['number']}{state}"


def _states(run: Mapping[str, Any]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in run["states"].items())


def _troubles(runs: list[dict[str, Any]]) -> list[str]:
    return [f"run {run['number']} cannot be read: {run['trouble']}" for run in runs if "trouble" in run]


def device_lines(devices: list[dict[str, Any]]) -> list[str]:
    """Everything `devices` says."""
    rows = [
        [
            one["device"], one["model"], *(size(one[f"{what}_bytes"]) for what in ("total", "free", "promised")),
            _starts(one),
        ]
        for one in devices
    ]  # fmt: skip
    return table(["device", "model", "total", "free", "promised", "my runs"], rows, frozenset({2, 3, 4}))


def _starts(device: Mapping[str, Any]) -> str:
    """Whether my runs start anything on it."""
    if device["closed"]:
        return f"closed: {device['closed']}"
    runs = ", ".join(str(number) for number in device["disabled_for"])
    return f"disabled for {runs}" if runs else "may start on it"


def removed_lines(removed: list[dict[str, Any]]) -> list[str]:
    """What `runs rm` took away."""
    said = [f"run {run['number']}  {clean(run['file'])}: removed, {size(run['freed_bytes'])} freed" for run in removed]
    total = sum(run["freed_bytes"] for run in removed)
    return [*said, f"{len(removed)} removed, {size(total)} freed"] if len(removed) != 1 else said
