"""The cost of starting a task that does nothing, and where the time goes."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import own_time
import peers
from measuring import Bench, in_turns, ratios
from page import Bound, Section, bar_chart, not_measured, number, spread, table
from peers import DURABLE, LIMIT, OURS, Tool

SLOTS = 2
SAID = {
    LIMIT: "`sh -c COMMAND` by posix_spawn, then waitpid: nothing is kept of it",
    DURABLE: "the same, and a file of 4 KiB for each end, synced to the disk before the next one starts",
    OURS: "`scheduler run - --devices host --slots 2 --profile off`: ends synced, all in the journal",
    "xargs -P": "`xargs -d '\\n' -P 2 -n 1 sh -c`",
    "simple_gpu_scheduler": "`simple_gpu_scheduler --gpus 0 1`",
    "task-spooler": "`tsp -n sh -c COMMAND` for each, then `tsp -w`",
    "HyperQueue": "its Python package; server and worker are up before the clock starts, no files of output",
    "GNU parallel": "`parallel -j 2`",
}


def tools(folder: Path) -> tuple[list[Tool], dict[str, str]]:
    """Return the limits, our own tool and the others that are installed; and why the rest is missing, by name."""
    found, missing = peers.others(folder, SLOTS)
    return [peers.limit(folder, SLOTS), peers.durable(folder, SLOTS), plain(folder), *found], missing


def plain(folder: Path) -> Tool:
    """Return our own tool without profiling: there is nothing to learn of `true`."""
    return peers.ours(folder, SLOTS, "--profile", "off")


def measure(bench: Bench) -> dict[str, Any]:
    """Lists of `true` by each of them, in turns."""
    tasks = 400 if bench.quick else 2000
    all_, missing = tools(bench.folder)
    commands, folder = ["true"] * tasks, bench.at("profiled")
    went = in_turns(bench.goes(5), {one.name: lambda _, one=one: one.run(commands, bench.folder) for one in all_})
    return {
        "tasks": tasks,
        "seconds": {name: [round(go.seconds, 4) for go in goes] for name, goes in went.items()},
        "busy": {name: [round(go.busy, 2) for go in goes] for name, goes in went.items()},
        "missing": missing,
        "profile": own_time.profiled(plain(folder), commands, folder),
    }


# ---- the page ----


def section(found: dict[str, Any]) -> list[Section]:
    """A table and its chart, and where ours goes."""
    limit = found["seconds"][LIMIT]
    order = peers.in_order({name: statistics.median(one) for name, one in found["seconds"].items()})
    times = {name: ratios(found["seconds"][name], limit) for name in order}
    made = Section(f"Dispatch: {found['tasks']:,} tasks of `true` on two slots")
    made.show(
        "dispatch", "Times the limit, tool by tool", bar_chart("Dispatch, times the limit", "less is better", times)
    )
    rows = [
        [
            name,
            number(statistics.median(found["seconds"][name]) / found["tasks"] * 1000),
            spread(times[name]),
            number(statistics.median(ratios(found["busy"][name], found["busy"][LIMIT]))),
            SAID[name],
        ]
        for name in times
    ]
    made.text.append(table(("tool", "ms a task", "times the limit", "cores' time, times", "how it was asked"), rows))
    made.text += [*not_measured(found["missing"]), *_why(found)]
    made.bounds = [
        Bound("dispatch of `true`, times the limit", 8, statistics.median(times[OURS])),
    ]
    if "GNU parallel" in times:
        beside = ratios(found["seconds"][OURS], found["seconds"]["GNU parallel"])
        made.bounds.append(Bound("dispatch, times GNU parallel", 1, statistics.median(beside)))
    return [made]


def _why(found: dict[str, Any]) -> list[str]:
    """Where the rest goes."""
    profile = found["profile"]
    words = (
        f"Where ours goes: its own process under cProfile, which slows it ({profile['seconds']:.1f} s for "
        f"{found['tasks']:,} tasks, start and end included). Each line is what a function takes by itself. `poll` is "
        "waiting for tasks and their shims, which are processes of their own and run beside it."
    )
    return [words, own_time.as_table(profile, found["tasks"])]
