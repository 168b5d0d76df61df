"""The report on runs: one HTML file that opens offline, JSON data, or CSV rows."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import median, quantiles
from typing import Any, TextIO

from scheduler.core.metrics.curve import Curve
from scheduler.core.metrics.goal import goal_of, ranked
from scheduler.core.metrics.record import MetricRecord
from scheduler.core.model import HOST, Purpose
from scheduler.core.reporting.device_history import DeviceHistory
from scheduler.core.reporting.memory_timeline import AttemptTrack, lanes
from scheduler.core.reporting.run_history import RunTotals
from scheduler.ui.text import clean, instant
from scheduler.ui.web.assembly import PageParts, assemble
from scheduler.ui.web.task_data import number
from scheduler.values import dataclass, field

FORMAT = 1
PARTS = PageParts(
    "report.html",
    ("uPlot.min.css", "look.css", "report.css"),
    (
        "uPlot.iife.min.js", "basics.js", "plots.js", "grid.js", "detail.js", "devices.js", "charts.js", "metrics.js",
        "report.js",
    ),
    {"metrics": "metrics.html"},
)  # fmt: skip
LONGEST = 300
"""The most characters of a command that are shown."""
TASK_COLUMNS = (
    "id", "name", "state", "priority", "batch", "device", "attempts", "ooms", "waited_s", "ran_s", "peak_bytes",
    "reserved_bytes", "started", "ended", "epochs", "of_epochs", "exit_code", "reason", "command",
)  # fmt: skip
CURVE_COLUMNS = ("task", "last", "lowest", "lowest_step", "highest", "highest_step", "steps", "values", "nan_from")
MOST_METRICS = 6
LEAST_POINTS, MOST_POINTS, ALL_POINTS = 8, 200, 160_000
"""The least and the most points of a curve, and the number of points of all curves above which each curve gets
fewer.
"""
MOST_CURVES = 20_000
"""The number of curves above which the least important metrics have only their values and no curves."""
LOAD_COLUMNS = ("at", "busy", "used_bytes", "celsius")
BAR_COLUMNS = (
    "task", "attempt", "lane", "begin", "end", "outcome", "purpose", "reserved_bytes", "peak_bytes", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """One run with all data that a report needs."""

    facts: Mapping[str, Any]
    totals: RunTotals
    rows: Sequence[Mapping[str, Any]]
    tracks: Sequence[AttemptTrack]
    capacities: Mapping[str, int]
    """The bytes of each device's memory, by device id, as far as the run recorded them."""
    now: float
    varies: Sequence[str] = ()
    """The columns of the parameters that vary in the run's list."""
    metrics: Mapping[int, MetricRecord] = field(default_factory=dict)
    """The metrics of the run's tasks."""
    arrows: Sequence[tuple[int, int]] = ()
    """Pairs of task ids: a task, and a task that depends on it."""
    first: Sequence[str] = ()
    """The metrics that the user named for the run."""
    log_ends: Callable[[], Mapping[int, str]] = dict
    """A function that reads the end of each task's newest log; only an HTML report shows these."""
    load: DeviceHistory = field(default_factory=DeviceHistory)
    """The load of the run's GPUs over time, as far as it was recorded."""
    links: Callable[[], Mapping[int, Sequence[str]]] = dict
    """A function that reads the addresses of the run's tasks at Weights & Biases and MLflow; only an HTML report shows
    them."""


def data(runs: Sequence[ReportedRun]) -> dict[str, Any]:
    """Return the report as data for JSON; times are in seconds since the first placement of each run."""
    return {"format": FORMAT, "runs": [_run(one) for one in runs]}


def _run(reported: ReportedRun) -> dict[str, Any]:
    begin = min((track.attempt.placed for track in reported.tracks), default=float(reported.facts["accepted"]))
    end = max((track.attempt.ended or reported.now for track in reported.tracks), default=begin)
    return {
        "number": reported.facts["number"],
        "name": clean(str(reported.facts["name"])),
        "file": clean(str(reported.facts["file"])),
        "host": reported.facts["host"],
        "alive": reported.facts["alive"],
        "began": instant(begin),
        "begin": round(begin, 3),
        "seconds": round(end - begin, 3),
        "states": reported.facts["states"],
        "summary": _summary(reported),
        "waits": _waits(reported.rows),
        "devices": _devices(reported, begin),
        "arrows": [[parent, child] for parent, child in reported.arrows],
        "task_columns": TASK_COLUMNS,
        "tasks": [_task(row, reported.metrics.get(row["id"]), begin) for row in reported.rows],
        "parameters": [clean(name) for name in reported.varies],
        "settings": [[clean(str(row.get(name) or ""))[:LONGEST] for name in reported.varies] for row in reported.rows],
        "metrics": _metrics(reported),
    }


def _summary(reported: ReportedRun) -> dict[str, Any]:
    totals = reported.totals
    attempts: dict[int, int] = {}
    for track in reported.tracks:
        if track.attempt.purpose is Purpose.RUN:
            attempts[track.task] = attempts.get(track.task, 0) + 1
    return {
        "tasks": totals.tasks,
        "makespan_s": round(totals.makespan, 3),
        "energy_wh": totals.energy_wh,
        "tasks_ran_s": round(totals.spent, 3),
        "at_once": round(totals.at_once, 3),
        "one_at_a_time_s": None if totals.alone is None else [round(seconds, 3) for seconds in totals.alone],
        "profiling_share": round(totals.probing, 4),
        "memory_use": round(totals.memory_use, 4),
        "reserved_for_peaks": round(totals.reserved_for_peaks, 3),
        "ooms": totals.ooms,
        "retries": sum(number - 1 for number in attempts.values()),
        "stretched": len(totals.stretched),
    }


def _metrics(reported: ReportedRun) -> list[dict[str, Any]]:
    """Return the most important metrics, each with its curves; if there are many tasks, each curve has fewer points."""
    tasks: Counter[str] = Counter(name for record in reported.metrics.values() for name in record.curves)
    names = ranked(tasks, reported.first)[:MOST_METRICS]
    drawn = {
        name
        for place, name in enumerate(names)
        if not place or sum(tasks[n] for n in names[: place + 1]) <= MOST_CURVES
    }
    most = max(LEAST_POINTS, min(MOST_POINTS, ALL_POINTS // max(1, sum(tasks[name] for name in drawn))))
    return [
        {
            "name": clean(name),
            "goal": str(goal_of(name)),
            "curve_columns": CURVE_COLUMNS,
            "curves": [
                _curve(task, record.curves[name], most if name in drawn else 0)
                for task, record in reported.metrics.items()
                if name in record.curves
            ],
        }
        for name in names
    ]


def _curve(task: int, curve: Curve, most: int) -> list[Any]:
    """Return the curve of a task: its last value, its extremes with their steps, and about `most` points or fewer."""
    low, high = curve.lowest or (None, None), curve.highest or (None, None)
    points = curve.few_steps(most) if most else []
    extremes = [number(low[0]), low[1], number(high[0]), high[1]]
    steps, values = [step for step, _ in points], [number(value) for _, value in points]
    return [task, number(curve.last), *extremes, steps, values, number(curve.nan_step)]


def _waits(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return for how long tasks waited for their last start, by priority."""
    by_priority: dict[int, list[float]] = {}
    for row in rows:
        if row.get("waited_s") is not None:
            by_priority.setdefault(int(row["priority"]), []).append(max(0.0, float(row["waited_s"])))
    return [
        {
            "priority": priority,
            "tasks": len(found),
            "median_s": round(median(found), 3),
            "p95_s": round(quantiles(found, n=20, method="inclusive")[-1] if len(found) > 1 else found[0], 3),
            "max_s": round(max(found), 3),
        }
        for priority, found in sorted(by_priority.items())
    ]


def _devices(reported: ReportedRun, begin: float) -> list[dict[str, Any]]:
    labels: Mapping[str, str] = reported.facts["devices"]
    nodes = [key.partition("@")[2] for key in labels if key.startswith(f"{HOST}@")]
    keys = dict.fromkeys([*labels, *(key for track in reported.tracks for key in track.steps)])
    found = []
    for key in keys:
        tracks = [track for track in reported.tracks if key in track.steps]
        bars = _bars([track for track in tracks if key in track.shown], key, begin, reported.now)
        if tracks:
            memory = [_memory(number, track, key, begin, reported.now) for number, track in enumerate(tracks)]
            found.append(
                {
                    "key": key,
                    "label": labels.get(key, key),
                    "node": next((node for node in nodes if labels.get(key, "").startswith(f"{node} ")), ""),
                    "capacity": reported.capacities.get(key),
                    "bar_columns": BAR_COLUMNS,
                    "bars": bars,
                    "memory": [one for one in memory if any(reserved or held for _, reserved, held in one["steps"])],
                    "load_columns": LOAD_COLUMNS,
                    "load": [
                        [round(point.at - begin, 1), round(point.busy, 3), point.used, point.celsius]
                        for point in reported.load.points.get(key, ())
                    ],
                }
            )
    return found


def _bars(tracks: Sequence[AttemptTrack], key: str, begin: float, now: float) -> list[list[Any]]:
    spans = [(track.attempt.placed, _end(track, now)) for track in tracks]
    return [
        [
            track.task,
            track.attempt.number,
            lane,
            round(start - begin, 3),
            round(end - begin, 3),
            track.attempt.outcome or "running",
            str(track.attempt.purpose),
            track.steps[key][-1][1],
            track.attempt.peak.get(key, 0),
            track.attempt.source,
        ]
        for track, lane, (start, end) in zip(tracks, lanes(spans), spans, strict=True)
    ]


def _memory(number: int, track: AttemptTrack, key: str, begin: float, now: float) -> dict[str, Any]:
    steps = [(round(at - begin, 3), reserved, held) for at, reserved, held in track.steps[key]]
    end = round(_end(track, now) - begin, 3)
    return {"task": track.task, "attempt": track.attempt.number, "end": end, "steps": steps}


def _end(track: AttemptTrack, now: float) -> float:
    return now if track.attempt.ended is None else track.attempt.ended


def _task(row: Mapping[str, Any], record: MetricRecord | None, begin: float) -> list[Any]:
    values = {name: row.get(name) for name in TASK_COLUMNS}
    for name in ("started", "ended"):
        at: float | None = row.get(name)
        values[name] = None if at is None else round(at - begin, 3)
    values["epochs"], values["of_epochs"] = record.progress if record and record.progress else (None, None)
    for name in ("name", "command", "reason"):
        values[name] = clean(str(values[name] or ""))[:LONGEST]
    return [values[name] for name in TASK_COLUMNS]


def page(runs: Sequence[ReportedRun], texts: Mapping[str, str]) -> str:
    """Return the page, with styles, scripts and data included; `texts` has the content of its parts."""
    found = data(runs)
    for run, reported in zip(found["runs"], runs, strict=True):
        run["logs"] = {**reported.log_ends()}  # the page shows them as a terminal would
        run["links"] = {**reported.links()}
    title = " and ".join(f"run {run['number']} {run['name'] or run['file']}".strip() for run in found["runs"])
    return assemble(PARTS, texts, title, found)


def write_csv(runs: Sequence[ReportedRun], out: TextIO) -> None:
    """Write a row for each attempt on each device of all runs."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["run", "device", *BAR_COLUMNS])
    for run in data(runs)["runs"]:
        for device in run["devices"]:
            writer.writerows([run["number"], device["label"], *bar] for bar in device["bars"])
