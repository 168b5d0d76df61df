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
        [
            str(run["number"]),
            "running"
            if run["alive"]
            else "ended"
            if run["over"]
            else "unfinished: scheduler resume " + str(run["number"]),
            moment(run["accepted"]),
            ", ".join(f"{number:,} {state}" for state, number in run["states"].items()),
            clean(run["file"]),
        ]
        for run in runs
        if "trouble" not in run
    ]
    troubles = [f"run {run['number']} cannot be read: {run['trouble']}" for run in runs if "trouble" in run]
    return table(["run", "now", "accepted", "tasks", "list"], rows, frozenset({0})) + troubles
