"""What a simulation came to, as people and programs take it: a table with its lower bound, or JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, TextIO

from scheduler.core.bound import Bound
from scheduler.core.measures import Outcomes
from scheduler.core.model import State
from scheduler.units import count, duration
from scheduler.view.words import table


def facts(one: Outcomes) -> dict[str, Any]:
    """One policy's numbers for programs; times are seconds."""
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
        "ooms": one.ooms,
        "unknown_ooms": one.unknown_ooms,
        "overtaken_max": one.overtaken,
        "stretched": one.stretched,
        "memory_use": round(one.memory_use, 4),
        "load_use": round(one.load_use, 4),
    }


def _alone(one: Outcomes) -> dict[str, Any]:
    """What the best priority would wait with the machine to itself, where that was asked."""
    if one.alone is None:
        return {}
    return {"waits_alone": {str(min(one.waits)): {"mean": round(one.alone.mean, 3), "max": round(one.alone.most, 3)}}}


def write_json(all_: Sequence[Outcomes], out: TextIO, *, several: bool) -> None:
    """One object, or with several policies a list of them."""
    said = [facts(one) for one in all_]
    print(json.dumps(said if several else said[0], indent=1), file=out)


def lines(all_: Sequence[Outcomes]) -> list[str]:
    """All policies beside the lower bound, and what that follows from."""
    header = [
        "policy", "makespan", "x bound", "mean done", "x", "95% done", "x", "OOM", "overtaken", "stretched", "memory",
        "load",
    ]  # fmt: skip
    rows = [_row(one) for one in all_]
    right = frozenset(range(1, len(header)))
    return [*table(header, rows, right), *_waits(all_), *_bound(all_[0].bound), *_troubles(all_)]


def _row(one: Outcomes) -> list[str]:
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
        str(one.overtaken),
        str(one.stretched),
        f"{one.memory_use:.0%}",
        f"{one.load_use:.0%}",
    ]


def _ratio(value: float, bound: float) -> str:
    return f"{value / bound:.2f}" if bound else ""


def _waits(all_: Sequence[Outcomes]) -> list[str]:
    """How long each priority waited for its start."""
    priorities = sorted({priority for one in all_ for priority in one.waits})
    rows = [[one.policy, *(_wait(one, priority) for priority in priorities)] for one in all_]
    header = ["waited (mean, max)", *(f"priority {priority}" for priority in priorities)]
    if any(one.alone for one in all_):
        header.insert(2, "and if it were alone")
        for cells, one in zip(rows, all_, strict=True):
            cells.insert(2, _beside_alone(one))
    return ["", *table(header, rows)] if priorities else []


def _beside_alone(one: Outcomes) -> str:
    """What the best priority waits alone, and how many times longer it does here."""
    if one.alone is None:
        return ""
    here, alone = one.waits[min(one.waits)].mean, one.alone.mean
    times = f" (here {here / alone:.2f} times)" if alone else ""
    return f"{duration(alone)}, {duration(one.alone.most)}{times}"


def _wait(one: Outcomes, priority: int) -> str:
    waits = one.waits.get(priority)
    return f"{duration(waits.mean)}, {duration(waits.most)}" if waits else ""


def _bound(bound: Bound) -> list[str]:
    if not bound.reasons:
        return ["", "no lower bound: none of the tasks fits this machine"]
    said = ["", f"lower bound {duration(bound.makespan)}: {bound.reasons[0].why}"]
    return said + [f"            {duration(reason.seconds)}: {reason.why}" for reason in bound.reasons[1:]]


def _troubles(all_: Sequence[Outcomes]) -> list[str]:
    said = []
    for one in all_:
        bad = {state: number for state, number in one.states.items() if state is not State.SUCCEEDED}
        if bad:
            states = ", ".join(f"{number:,} {state}" for state, number in sorted(bad.items()))
            said.append(f"{one.policy}: of {count(one.tasks, 'task')} {states}")
    return ["", *said] if said else []
