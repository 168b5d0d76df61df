"""How soon a freed slot is used again."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import peers
from dispatch import SLOTS, tools
from measuring import Bench, in_turns, quantile
from page import Bound, Section, bar_chart, not_measured, number, table
from peers import OURS, Tool

PAUSES = (0.020, 0.035)
"""Seconds that tasks sleep: not the same, so that the slots do not become free at the same moment."""


def measure(bench: Bench) -> dict[str, Any]:
    """Lists of tasks that write down when they ran, by each tool in turns."""
    tasks = 100 if bench.quick else 200
    all_, missing = tools(bench.folder)
    command, file = peers.stamping(bench.folder, "stamps")
    least, most = PAUSES
    commands = [f"{command} {least + (most - least) * (n * 7 % 16) / 16:.4f}" for n in range(tasks)]

    def react(tool: Tool) -> list[float]:
        """With N slots, start N + i can only come after end i: both are paired in their order."""
        file.write_bytes(b"")
        tool.run(commands, bench.folder)
        began, ended = peers.stamps(tool, file, tasks)
        return [start - end for start, end in zip(began[SLOTS:], ended[:-SLOTS], strict=True)]

    reacted = in_turns(bench.goes(3), {one.name: lambda _, one=one: react(one) for one in all_})
    found = {name: _summed([one for go in goes for one in go]) for name, goes in reacted.items()}
    return {"reactions": found, "missing": missing}


def _summed(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    milli = [one * 1000 for one in seconds]
    return {
        "number": len(milli),
        "median": round(statistics.median(milli), 3),
        "p99": round(quantile(milli, 0.99), 3),
        "most": round(max(milli), 3),
    }


def section(found: dict[str, Any]) -> list[Section]:
    """A table and its chart."""
    made = Section("Reaction: from a task's end to the next start on its slot")
    order = peers.in_order({name: one["median"] for name, one in found["reactions"].items()})
    reactions = {name: found["reactions"][name] for name in order}
    made.text.append(
        "Tasks of 20 to 35 ms on two slots write down themselves when they begin and end; the n-th end makes room for "
        "start n + 2. A task's own exit and the next one's exec are in it, so the limit is not zero."
    )
    drawn = {name: [one["median"]] for name, one in reactions.items()}
    made.show("reaction", "Median reaction, tool by tool", bar_chart("Median reaction", "less is better", drawn, "ms"))
    rows = [
        [name, *(number(one[which]) for which in ("median", "p99", "most")), str(one["number"])]
        for name, one in reactions.items()
    ]
    made.text.append(table(("tool", "median, ms", "99th percentile, ms", "most, ms", "reactions"), rows))
    made.text += not_measured(found["missing"])
    made.bounds = [
        Bound("reaction, median", 5, reactions[OURS]["median"], "ms"),
        Bound("reaction, 99th percentile", 25, reactions[OURS]["p99"], "ms"),
    ]
    return [made]
