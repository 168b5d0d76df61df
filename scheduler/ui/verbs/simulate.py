"""The result of a simulation: a table with its lower bound for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TextIO

from scheduler.core.model import State
from scheduler.simulation.lower_bound import LowerBound
from scheduler.simulation.metrics import RunMetrics
from scheduler.ui.text import table
from scheduler.units import count, duration


def facts(one: RunMetrics) -> dict[str, Any]:
    """Return the results of one policy as data for JSON; times are in seconds."""
    bound = one.bound
    return {
        "policy": one.policy,
        "tasks": one.tasks,
        "states": {str(state): number for state, number in sorted(one.states.items())},
        "makespan": round(one.makespan, 3),
        "lower_bound": round(bound.makespan, 3),
        "ratio": round(one.ratio, 4),
        "reasons": [{"seconds": round(r.seconds, 3), "why": r.why} for r in bound.reasons],
        "mean_completion": round(one.mean_completion, 3),
        "mean_completion_bound": round(bound.mean_completion, 3),
        "p95_completion": round(one.p95_completion, 3),
        "p95_completion_bound": round(bound.p95_completion, 3),
        "waits": {
            str(priority): {"tasks": w.tasks, "mean": round(w.mean, 3), "max": round(w.most, 3)}
            for priority, w in one.waits.items()
        },
        **_alone(one),
        **({} if one.known is None else {"makespan_peaks_known": round(one.known, 3)}),
        "ooms": one.ooms,
        "unknown_ooms": one.unknown_ooms,
        "bypassed_max": one.bypassed,
        "stretched": one.stretched,
        "memory_use": round(one.memory_use, 4),
        "load_use": round(one.load_use, 4),
        "energy_wh": round(one.energy, 1),
    }


def _alone(one: RunMetrics) -> dict[str, Any]:
    """Return the waiting time that the best priority has when it is alone on the machine; empty unless `--alone`
    requested it.
    """
    if one.alone is None:
        return {}
    return {"waits_alone": {str(min(one.waits)): {"mean": round(one.alone.mean, 3), "max": round(one.alone.most, 3)}}}


def write_json(policies: Sequence[RunMetrics], out: TextIO, *, several: bool) -> None:
    """Write one object; with `several`, write a list with an object for each policy."""
    result = [facts(one) for one in policies]
    print(json.dumps(result if several else result[0], indent=1), file=out)


def lines(policies: Sequence[RunMetrics]) -> list[str]:
    """Return a table of all policies, the waiting times, the lower bound with its reasons, and the tasks that did not
    succeed.
    """
    header = [
        "policy", "makespan", "/bound", "mean end", "/bound", "p95 end", "/bound", "OOMs", "bypassed", "stretched",
        "memory", "load", "energy",
    ]  # fmt: skip
    rows = [_row(one) for one in policies]
    right = frozenset(range(1, len(header)))
    waits, bound = _waits(policies), _bound(policies[0].bound)
    return [*table(header, rows, right), *waits, *_learning(policies), *bound, *_troubles(policies)]


def _learning(policies: Sequence[RunMetrics]) -> list[str]:
    """Return lines about the cost of unknown peaks; empty unless `--learning` requested them."""
    result = []
    for one in policies:
        if one.known:
            cost = one.makespan / one.known - 1
            more = f"{abs(cost):.1%} {'more' if cost >= 0 else 'less'}"
            result.append(
                f"{one.policy}: {duration(one.known)} with known peaks; without knowing them it took {more} time"
            )
    return ["", *result] if result else []


def _row(one: RunMetrics) -> list[str]:
    bound = one.bound
    return [
        one.policy,
        duration(one.makespan),
        f"{one.ratio:.3f}",
        duration(one.mean_completion),
        _ratio(one.mean_completion, bound.mean_completion),
        duration(one.p95_completion),
        _ratio(one.p95_completion, bound.p95_completion),
        str(one.ooms),
        str(one.bypassed),
        str(one.stretched),
        f"{one.memory_use:.0%}",
        f"{one.load_use:.0%}",
        f"{one.energy / 1000:.2f}kWh" if one.energy else "",
    ]


def _ratio(value: float, bound: float) -> str:
    return f"{value / bound:.2f}" if bound else ""


def _waits(policies: Sequence[RunMetrics]) -> list[str]:
    """Return lines about how long the tasks of each priority waited for their starts."""
    priorities = sorted({priority for one in policies for priority in one.waits})
    rows = [[one.policy, *(_wait(one, priority) for priority in priorities)] for one in policies]
    header = ["wait (mean, max)", *(f"priority {priority}" for priority in priorities)]
    if any(one.alone for one in policies):
        header.insert(2, "alone on the machine")
        for cells, one in zip(rows, policies, strict=True):
            cells.insert(2, _beside_alone(one))
    return ["", *table(header, rows)] if priorities else []


def _beside_alone(one: RunMetrics) -> str:
    """Return the waiting time of the best priority alone on the machine, and how many times longer it waits in this
    simulation.
    """
    if one.alone is None:
        return ""
    here, alone = one.waits[min(one.waits)].mean, one.alone.mean
    times = f" (here {here / alone:.2f} times as long)" if alone else ""
    return f"{duration(alone)}, {duration(one.alone.most)}{times}"


def _wait(one: RunMetrics, priority: int) -> str:
    waits = one.waits.get(priority)
    return f"{duration(waits.mean)}, {duration(waits.most)}" if waits else ""


def _bound(bound: LowerBound) -> list[str]:
    if not bound.reasons:
        return ["", "no lower bound: no task fits on this machine"]
    result = ["", f"lower bound {duration(bound.makespan)}: {bound.reasons[0].why}"]
    return result + [f"            {duration(reason.seconds)}: {reason.why}" for reason in bound.reasons[1:]]


def _troubles(policies: Sequence[RunMetrics]) -> list[str]:
    result = []
    for one in policies:
        bad = {state: number for state, number in one.states.items() if state is not State.SUCCEEDED}
        if bad:
            states = ", ".join(f"{number:,} {state}" for state, number in sorted(bad.items()))
            result.append(f"{one.policy}: {states} of {count(one.tasks, 'task')}")
    return ["", *result] if result else []
