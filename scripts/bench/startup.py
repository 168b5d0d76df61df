"""From the command to the first task's start."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import own_time
import peers
from measuring import Bench, in_turns, ratios
from page import Bound, Section, bar_chart, not_measured, number, spread, table
from peers import LIMIT, Tool

SLOTS = 2
TASKS = 40
WARM = "scheduler run jobs.csv, profile warm"
NEW = "scheduler run jobs.csv, nothing known"
LINES = "scheduler run -"


def measure(bench: Bench) -> dict[str, Any]:
    """Milliseconds until the first task of a short list began, by each of them in turns."""
    folder = bench.folder
    command, file = peers.stamping(folder, "stamps")
    list_ = [f"{command} 0.01"] * TASKS
    (folder / "jobs.csv").write_text("Command\n" + "".join(f"{one}\n" for one in list_), encoding="utf-8")
    others, missing = peers.others(folder, SLOTS)
    warm = peers.ours(folder, SLOTS, name=WARM, source="jobs.csv")
    lines = peers.ours(folder, SLOTS, "--profile", "off", name=LINES)
    warm.run([], folder)

    def first(tool: Tool) -> float:
        file.write_bytes(b"")
        went = tool.run([] if tool.name in (WARM, NEW) else list_, folder)
        return round((peers.stamps(tool, file, TASKS)[0][0] - went.launched) * 1000, 2)

    def new(go: int) -> float:
        return first(_elsewhere(folder, go))

    tools = [peers.limit(folder, SLOTS), warm, lines, *others]
    measured = {tool.name: lambda _, tool=tool: first(tool) for tool in tools}
    (folder / "one.csv").write_text(f"Command\n{command} 0.01\n", encoding="utf-8")
    one = peers.ours(folder, SLOTS, source="one.csv")
    one.run([], folder)
    times = in_turns(bench.goes(7), {**measured, NEW: new})
    return {"milliseconds": times, "missing": missing, "profile": own_time.profiled(one, [], folder)}


def _elsewhere(folder: Path, go: int) -> Tool:
    """Ours in a state in which nothing was learned yet."""
    own = folder / f"new{go}"
    own.mkdir()
    return peers.ours(own, SLOTS, name=NEW, source=str(folder / "jobs.csv"))


def section(found: dict[str, Any]) -> list[Section]:
    """A table and its chart."""
    made = Section("Start-up: from the command to the first task's start")
    times = found["milliseconds"]
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    order = peers.in_order(medians)
    made.text.append(
        f"A list of {TASKS} tasks that write down when they began. HyperQueue's server and worker, and task-spooler's,"
        " are started by the way, as they are the first time."
    )
    drawn = {name: times[name] for name in order}
    made.show(
        "startup", "Start-up, tool by tool", bar_chart("To the first task's start", "less is better", drawn, "ms")
    )
    rows = [[name, spread(times[name]), number(statistics.median(ratios(times[name], times[LIMIT])))] for name in order]
    made.text.append(table(("tool", "ms", "times the limit"), rows))
    made.text += not_measured(found["missing"])
    words = (
        "Where a run of one such task with a warm profile goes, from its start to its end, under cProfile, which slows "
        f"it ({found['profile']['seconds']:.2f} s):"
    )
    made.text += [words, own_time.as_table(found["profile"], 1, "in all")]
    made.bounds = [Bound("start-up with a warm profile", 300, statistics.median(times[WARM]), "ms")]
    return [made]
