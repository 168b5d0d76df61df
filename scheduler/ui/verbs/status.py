"""The lines of `status`, `devices` and `runs`: reservations on this machine, its devices, the user's runs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from scheduler.core.reporting.forecast import TimeSpan
from scheduler.ui.text import clean, moment, scheduler_ended, table
from scheduler.ui.verbs.eta import left, of_pause
from scheduler.units import duration, size


def lines(facts: Mapping[str, Any]) -> list[str]:
    """Return the lines of `status`."""
    host = facts["host"]
    reserved = size(sum(lease["reserved"].get("host", 0) for lease in facts["leases"]))
    memory = f"host {size(host['total'])}, {size(host['available'])} free, {reserved} reserved"
    result = [f"{facts['hostname']}  {memory}", *_gpus(facts), "", *_leases(facts["leases"])]
    nodes = ["", *node_lines(facts["nodes"])] if "nodes" in facts else []
    return [*result, *_waiting(facts["waiting"]), *nodes, "", *_runs(facts["runs"])]


def others_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return lines about the reservations and waiting tasks in `facts`, about unmanaged memory, and about drained
    devices.
    """
    unmanaged = [_gpu(gpu) for gpu in facts["gpus"] if gpu["unmanaged"] or gpu["drained"]]
    trouble = [f"GPUs: {facts['gpus_trouble']}"] if facts["gpus_trouble"] else []
    leases = _leases(facts["leases"]) if facts["leases"] else []
    return [*unmanaged, *trouble, *closed_lines(facts), *leases, *_waiting(facts["waiting"])]


def closed_lines(facts: Mapping[str, Any]) -> list[str]:
    """Return lines about drained devices and device reservations."""
    disabled = [
        f"{device} is disabled for all users: {clean(why)}; root enables it (scheduler devices enable --all-users)"
        for device, why in facts["disabled"].items()
    ]
    reserved = [
        f"{one['device']}: {clean(one['sentence'])}; running tasks continue, no other user's task starts"
        for one in facts["reserved"]
    ]
    return disabled + reserved


def _gpus(facts: Mapping[str, Any]) -> list[str]:
    result = [_gpu(gpu) for gpu in facts["gpus"]]
    if facts["gpus_trouble"]:
        result.append(f"GPUs: {facts['gpus_trouble']}")
    return result + closed_lines(facts)


def _gpu(gpu: Mapping[str, Any]) -> str:
    unmanaged = [
        f"{size(one['bytes'])} used by {clean(one['user']) or 'an unknown user'} (unmanaged)"
        for one in gpu["unmanaged"]
    ]
    words = [f"{size(gpu['free'])} free", f"{size(gpu['reserved'])} reserved", *unmanaged]
    return f"{gpu['device']} {size(gpu['total'])}, {', '.join(words)}{'; ' + gpu['drained'] if gpu['drained'] else ''}"


def _leases(leases: list[dict[str, Any]]) -> list[str]:
    if not leases:
        return ["no task has a reservation now"]
    rows = [
        [
            clean(lease["user"]),
            str(lease["run"]),
            str(lease["task"]),
            device,
            str(lease["pid"] or lease["shim"] or ""),
            moment(lease["since"] or None),
            size(reserved) if device else "unreadable lease: no task starts on its device",
            size(lease["used"][device]) if device in lease["used"] else "",
        ]
        for lease in leases
        for device, reserved in (lease["reserved"] or {"": 0}).items()
    ]
    return table(
        ["user", "run", "task", "device", "pid", "since", "reserved", "used"], rows, frozenset({1, 2, 4, 6, 7})
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
            "memory is kept free for it" if one["keeps_devices"] else "",
        ]
        for one in waiting
    ]
    return ["", *table(["waiting", "run", "task", "for", "since", "needs", ""], rows, frozenset({1, 2, 4, 5}))]


def node_lines(nodes: list[dict[str, Any]]) -> list[str]:
    """Return lines about the nodes of runs on several machines, and about the memory that these runs reserve on each
    node.
    """
    if not nodes:
        return ["none of your living runs is on several machines (run --on)"]
    rows = [
        [
            node["node"], str(node["run"]), f"away: {clean(node['away'])}" if node["away"] else "up",
            str(node["gpus"]), *_reserved(node["gpu_memory"]), *_reserved(node["ram"]), f"{node['cores']:g}",
            str(len(node["tasks"])),
        ]
        for node in nodes
    ]  # fmt: skip
    header = ["node", "run", "state", "GPUs", "memory", "reserved", "RAM", "reserved", "cores", "tasks"]
    return table(header, rows, frozenset({1, 3, 4, 5, 6, 7, 8, 9}))


def _reserved(memory: Mapping[str, int]) -> list[str]:
    return [size(memory["total"]), size(memory["reserved"])] if memory["total"] else ["", ""]


def _runs(runs: list[dict[str, Any]]) -> list[str]:
    if not runs:
        return ["no runs yet: scheduler run FILE starts one"]
    rows = [
        [str(run["number"]), _status(run), moment(run["accepted"]), _states(run), clean(run["file"])]
        for run in runs
        if "trouble" not in run
    ]
    return table(["run", "status", "accepted", "tasks", "list"], rows, frozenset({0})) + _troubles(runs)


def run_lines(runs: list[dict[str, Any]]) -> list[str]:
    """Return the lines of `runs`: the lines of `status` with the machine and the name of each run added."""
    if not runs:
        return ["no runs yet: scheduler run FILE starts one"]
    rows = [_row(run) for run in runs if "trouble" not in run]
    return table(["run", "name", "host", "status", "accepted", "tasks", "list"], rows, frozenset({0})) + _troubles(runs)


def _row(run: Mapping[str, Any]) -> list[str]:
    named = [str(run["number"]), clean(run["name"]), clean(run["host"])]
    return [*named, _status(run), moment(run["accepted"]), _states(run), clean(run["file"])]


def _status(run: Mapping[str, Any]) -> str:
    """Return in words whether a run continues, has ended or can be resumed, and on which machine."""
    if run["over"]:
        return (of_pause(run, time.time()) or "running") if run["alive"] else "ended"
    if run["elsewhere"]:
        return f"unfinished: belongs to {clean(run['elsewhere'])}"
    if run["alive"]:
        now, expected = time.time(), run.get("expected") or {}
        what = of_pause(run, now) or "running"
        end = expected.get("end")
        apart = expected.get("held", 0), expected.get("too_long", 0)
        return f"{what}, {left(TimeSpan.from_dict(end), now, *apart)}" if end else what
    return scheduler_ended(run["number"], run.get("state") or "")


def _states(run: Mapping[str, Any]) -> str:
    return ", ".join(f"{number:,} {state}" for state, number in run["states"].items())


def _troubles(runs: list[dict[str, Any]]) -> list[str]:
    return [f"run {run['number']} cannot be read: {run['trouble']}" for run in runs if "trouble" in run]


def device_lines(devices: list[dict[str, Any]]) -> list[str]:
    """Return the lines of `devices`."""
    rows = [
        [
            one["device"], one["model"], *(size(one[f"{what}_bytes"]) for what in ("total", "free", "reserved")),
            _unmanaged(one), _availability(one),
        ]
        for one in devices
    ]  # fmt: skip
    header = ["device", "model", "total", "free", "reserved", "unmanaged", "your runs"]
    return table(header, rows, frozenset({2, 3, 4}))


def _unmanaged(device: Mapping[str, Any]) -> str:
    """Return the unmanaged memory on a device and the users of its processes, in words; empty if there is none."""
    found = device["unmanaged"]
    users = ", ".join(sorted({clean(one["user"]) or "an unknown user" for one in found}))
    return f"{size(sum(one['bytes'] for one in found))} ({users})" if found else ""


def _availability(device: Mapping[str, Any]) -> str:
    """Return in words whether the user's runs may start tasks on a device."""
    if device["drained"]:
        return f"drained: {device['drained']}"
    runs = ", ".join(str(number) for number in device["disabled_for"])
    return f"disabled for run {runs}" if runs else "may start tasks"


def removed_lines(removed: list[dict[str, Any]]) -> list[str]:
    """Return lines about the runs that `runs rm` removed."""
    result = [
        f"run {run['number']}  {clean(run['file']) or '(unreadable)'}: removed, {size(run['freed_bytes'])} freed"
        for run in removed
    ]
    total = sum(run["freed_bytes"] for run in removed)
    return [*result, f"{len(removed)} removed, {size(total)} freed"] if len(removed) != 1 else result
