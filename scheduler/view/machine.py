"""`status` as lines: who holds what on this machine, and my runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from scheduler.units import size
from scheduler.view.words import clean, moment, table


def lines(facts: Mapping[str, Any]) -> list[str]:
    """Everything `status` says."""
    host = facts["host"]
    promised = size(sum(lease["promised"].get("host", 0) for lease in facts["leases"]))
    memory = f"host {size(host['total'])}, {size(host['available'])} available, {promised} promised"
    return [f"{facts['hostname']}  {memory}", "", *_leases(facts["leases"]), "", *_runs(facts["runs"])]


def _leases(leases: list[dict[str, Any]]) -> list[str]:
    if not leases:
        return ["nothing is promised to anybody now"]
    rows = [
        [lease["user"], str(lease["run"]), str(lease["task"]), device, size(promised), str(lease["shim"] or "")]
        for lease in leases
        for device, promised in lease["promised"].items()
    ]
    return table(["user", "run", "task", "device", "promised", "pid"], rows, frozenset({1, 2, 4, 5}))


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
        return "running"
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
