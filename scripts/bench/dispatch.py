"""What starting a task that does nothing costs, how soon a freed slot is used again, and where the time goes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import own_time
import peers
from measuring import Bench, in_turns, quantile, ratios
from page import Bound, Section, bar_chart, number, spread, table
from peers import DURABLE, LIMIT, OURS, Tool

SLOTS = 2
PAUSES = (0.020, 0.035)
"""Seconds that a task sleeps where reactions are measured: so the slots do not end at the same moment."""
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
    """The limits, ours, and whoever is here."""
    found, missing = peers.others(folder, SLOTS)
    return [peers.limit(folder, SLOTS), peers.durable(folder, SLOTS), plain(folder), *found], missing


def plain(folder: Path) -> Tool:
    """Ours, which learns nothing here."""
    return peers.ours(folder, SLOTS, "--profile", "off")


def measure(bench: Bench) -> dict[str, Any]:
    """Lists of `true` by each of them, in turns, and lists of tasks that write down when they ran."""
    tasks, reactions = (300, 60) if bench.quick else (2000, 200)
    all_, missing = tools(bench.folder)
    command, file = peers.stamping(bench.folder, "stamps")
    pauses = [PAUSES[0] + (PAUSES[1] - PAUSES[0]) * (n * 7 % 16) / 16 for n in range(reactions)]

    def react(tool: Tool) -> list[float]:
        file.write_bytes(b"")
        tool.run([f"{command} {pause:.4f}" for pause in pauses], bench.folder)
        began, ended = peers.stamps(tool, file, reactions)
        return [start - end for start, end in zip(began[SLOTS:], ended[:-SLOTS], strict=True)]

    went = in_turns(
        bench.goes(5), {one.name: lambda _, one=one: one.run(["true"] * tasks, bench.folder) for one in all_}
    )
    reacted = in_turns(bench.goes(5), {one.name: lambda _, one=one: react(one) for one in all_})
    return {
        "tasks": tasks,
        "seconds": {name: [round(go.seconds, 4) for go in goes] for name, goes in went.items()},
        "busy": {name: [round(go.busy, 2) for go in goes] for name, goes in went.items()},
        "reactions": {name: _summed([one for go in goes for one in go]) for name, goes in reacted.items()},
        "missing": missing,
        "profile": own_time.profiled(plain(bench.at("profiled")), ["true"] * tasks, bench.folder / "profiled"),
    }


def _summed(seconds: Sequence[float]) -> dict[str, float]:
    """Milliseconds."""
    milli = [one * 1000 for one in seconds]
    return {
        "number": len(milli),
        "median": round(statistics.median(milli), 3),
        "p99": round(quantile(milli, 0.99), 3),
        "most": round(max(milli), 3),
    }


# ---- the page ----


def section(found: dict[str, Any]) -> list[Section]:
    """Both tables and their charts."""
    return [_dispatch(found), _reaction(found)]


def _order(found: dict[str, Any]) -> list[str]:
    """The limits, ours, then the others by how quick they are."""
    times = {name: statistics.median(one) for name, one in found["seconds"].items()}
    first = [name for name in times if name.startswith(("C ", OURS))]
    return [*first, *sorted(times.keys() - set(first), key=lambda name: times[name])]


def _dispatch(found: dict[str, Any]) -> Section:
    limit = found["seconds"][LIMIT]
    times = {name: ratios(found["seconds"][name], limit) for name in _order(found)}
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
    made.text += _missing(found)
    made.text += _why(found)
    median = statistics.median(times[OURS])
    made.bounds = [
        Bound("dispatch of `true`, times the limit", 8, median),
        Bound("dispatch, times the limit, with a C shim", 5, median),
    ]
    if "GNU parallel" in times:
        beside = ratios(found["seconds"][OURS], found["seconds"]["GNU parallel"])
        made.bounds.append(Bound("dispatch, times GNU parallel", 1, statistics.median(beside)))
    return made


def _why(found: dict[str, Any]) -> list[str]:
    """Where the rest goes."""
    profile = found["profile"]
    words = (
        f"Where ours goes: its own process under cProfile, which slows it ({profile['seconds']:.1f} s for "
        f"{found['tasks']:,} tasks, start and end included). Each line is what a function takes by itself. `poll` is "
        "waiting for tasks and their shims, which are processes of their own and run beside it."
    )
    return [words, own_time.as_table(profile, found["tasks"])]


def _missing(found: dict[str, Any]) -> list[str]:
    return [f"Not measured: {name} ({why})." for name, why in found["missing"].items()]


def _reaction(found: dict[str, Any]) -> Section:
    made = Section("Reaction: from a task's end to the next start on its slot")
    reactions = {name: found["reactions"][name] for name in _order(found)}
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
    made.bounds = [
        Bound("reaction, median", 5, reactions[OURS]["median"], "ms"),
        Bound("reaction, 99th percentile", 25, reactions[OURS]["p99"], "ms"),
    ]
    return made
