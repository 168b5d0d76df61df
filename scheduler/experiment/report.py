"""The report of an experiment: one table of metrics for a terminal, as CSV, as charts, and as a page."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from typing import Any

from scheduler.experiment import charts
from scheduler.experiment.arms import Experiment
from scheduler.experiment.charts import number
from scheduler.experiment.readings import NUMBERS, Reading, Summary, priorities_of
from scheduler.experiment.verdict import ExperimentContext, verdict
from scheduler.runtime.paths import PAGE
from scheduler.ui.text import clean, table
from scheduler.ui.web.assembly import PageParts, assemble
from scheduler.units import count, duration, size
from scheduler.values import dataclass

PARTS = PageParts(
    "experiment.html",
    ("uPlot.min.css", "look.css", "experiment.css"),
    ("uPlot.iife.min.js", "basics.js", "plots.js", "grid.js", "experiment.js"),
    {},
)
_FACTS = {
    "host": "host", "kernel": "Linux", "cores": "cores", "python": "Python", "driver": "NVIDIA driver", "cuda": "CUDA",
    "mps_speed": "speed under MPS, assumed", "interference": "tasks that share a GPU", "seed": "seed of the simulation",
}  # fmt: skip
"""The labels of the facts about a machine on the page."""
EXPLAINED = (
    "Bars show the mean of the repeats, whiskers the range from the lowest to the highest. Tasks and epochs per hour "
    "count tasks that succeeded, divided by the makespan: the time from the first start to the last end."
)


@dataclass(frozen=True, slots=True)
class Metric:
    """One number of a run: a column of the table, and also a chart if a higher or a lower number is better."""

    title: str
    of: Callable[[Reading], float]
    text: Callable[[float], str]
    better: str = ""
    """The better direction of the metric: `more` or `less`; empty: neither, so it has no chart."""

    def cell(self, one: Summary) -> str:
        """Return the mean over the repeats, with the minimum and the maximum if they differ."""
        spread = one.spread(self.of)
        mean, least, most = self.text(spread.mean), self.text(spread.least), self.text(spread.most)
        return mean if least == most else f"{mean} ({least} to {most})"


def _wait(priority: int) -> Callable[[Reading], float]:
    return lambda reading: reading.waited().get(priority, 0.0)


def csv_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as CSV with a header."""
    out = StringIO()
    writer = csv.DictWriter(out, [*found[0]] if found else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _rounded(value) for name, value in row.items()} for row in found)
    return out.getvalue()


def _rounded(value: Any) -> Any:
    return round(value, 3) if isinstance(value, float) else value


def progress(done: int, of: int, reading: Reading, left: float) -> str:
    """Return the line about the arm that was just measured; `left` is the expected time in seconds for the arms that
    are left.
    """
    bad = reading.tasks - reading.succeeded
    failed = f", {count(bad, 'task')} unfinished" if bad else ""
    run = f"  run {reading.run}" if reading.run else ""
    more = f"  about {duration(left)} left" if done < of and left >= 1 else ""
    numbers = f"{duration(reading.makespan_s)}, {number(reading.tasks_per_hour)} tasks/h"
    return f"{done}/{of}  {reading.arm}, repeat {reading.repeat}: {numbers}{failed}{run}{more}"


@dataclass(frozen=True, slots=True)
class Report:
    """The results of an experiment in the forms that people read."""

    experiment: Experiment
    summaries: Sequence[Summary]
    context: ExperimentContext

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        return verdict(self.summaries, self.context, of_priority=self.experiment.of_priority)

    def metrics(self) -> Iterator[Metric]:
        """Yield the metrics that are informative for this experiment, in the order of the columns."""
        readings = [reading for one in self.summaries for reading in one.readings]
        yield Metric("makespan", lambda r: r.makespan_s, duration, "less")
        if self.experiment.of_priority:
            for priority in priorities_of(self.summaries):
                yield Metric(f"priority {priority} waits", _wait(priority), duration, "less")
            yield Metric("tasks/h", lambda r: r.tasks_per_hour, number)
        else:
            yield Metric("tasks/h", lambda r: r.tasks_per_hour, number, "more")
            if any(reading.epochs for reading in readings):
                yield Metric("epochs/h", lambda r: r.epochs_per_hour, number, "more")
            yield Metric("mean task", lambda r: r.task_mean_s, duration, "less")
            yield Metric("OOM", lambda r: r.ooms, number)
            yield Metric("concurrent", lambda r: r.residents_max, number)
        if any(reading.succeeded < reading.tasks for reading in readings):
            yield Metric("unfinished", lambda r: r.tasks - r.succeeded, number)
        if any(reading.under_mps for reading in readings):
            yield Metric("MPS clients", lambda r: r.mps_clients, number)
        if any(reading.energy_j is not None for reading in readings):
            yield Metric("energy", lambda r: (r.energy_j or 0.0) / 3.6e6, lambda kwh: f"{kwh:.3g}kWh")

    def _table(self) -> tuple[list[str], list[list[str]]]:
        metrics = [*self.metrics()]
        cells = [
            [_names(some), str(len(some[0].readings)), *(m.cell(some[0]) for m in metrics)]
            for some in self._alike(metrics)
        ]
        return ["arm", "repeats", *(metric.title for metric in metrics)], cells

    def lines(self) -> list[str]:
        """Return the lines for a terminal."""
        header, cells = self._table()
        notes = [f"hint:   {note}" for note in self.context.notes]
        shown = table(header, cells, frozenset(range(1, len(header))))
        return [f"world   {self.context.words}", *notes, "", *shown, "", f"{self.verdict}."]

    def table_csv(self) -> str:
        """Return a CSV table with a row for each reading."""
        priorities = priorities_of(self.summaries)
        return csv_text([self._row(one, reading, priorities) for one in self.summaries for reading in one.readings])

    def _row(self, one: Summary, reading: Reading, priorities: Sequence[int]) -> dict[str, Any]:
        waited = reading.waited()
        return {
            **one.arm.to_dict(),
            "repeat": reading.repeat,
            "run": reading.run,
            "world": self.context.words,
            **{name: getattr(reading, name) for name in NUMBERS},
            "tasks_per_hour": reading.tasks_per_hour,
            "epochs_per_hour": reading.epochs_per_hour,
            **{f"wait_mean_s.{priority}": waited.get(priority) for priority in priorities},
        }

    def batches_csv(self) -> str:
        """Return a CSV table with a row for the waiting times of each priority in each batch."""
        readings = [reading for one in self.summaries for reading in one.readings]
        return csv_text([{"arm": r.arm, "repeat": r.repeat, **wait.to_dict()} for r in readings for wait in r.waits])

    def picture(self) -> str:
        """Return the charts as SVG."""
        drawn = [charts.heading(self.experiment.title, self.context.words, simulated=self.context.simulated)]
        for metric in self.metrics():
            if metric.better:
                title = f"{metric.title[0].upper()}{metric.title[1:]}"
                drawn.append(charts.chart(title, f"{metric.better} is better", self.summaries, metric.of, metric.text))
        if self.experiment.of_priority:
            drawn += charts.batch_charts(self.summaries)
        return charts.as_svg(drawn)

    def data(self) -> dict[str, Any]:
        """Return the data that the page shows: a number with its spread for each arm and metric."""
        metrics = [*self.metrics()]
        return {
            "title": clean(self.experiment.title),
            "words": clean(self.context.words),
            "simulated": self.context.simulated,
            "notes": [clean(note) for note in self.context.notes],
            "verdict": clean(self.verdict),
            "explained": EXPLAINED,
            "columns": [{"title": metric.title, "better": metric.better} for metric in metrics],
            "arms": [self._arm(some, metrics) for some in self._alike(metrics)],
            "batches": [_batches(one) for one in self.summaries] if self.experiment.of_priority else [],
        }

    def _alike(self, metrics: Sequence[Metric]) -> list[list[Summary]]:
        """Return the arms in groups; arms of one kind that are equal in every number are in one group."""
        found: dict[tuple[Any, ...], list[Summary]] = {}
        for one in self.summaries:
            numbers = [one.spread(metric.of) for metric in metrics]
            key = one.arm.mps, len(one.readings), *((n.mean, n.least, n.most) for n in numbers)
            found.setdefault(key, []).append(one)
        return [*found.values()]

    @staticmethod
    def _arm(alike: Sequence[Summary], metrics: Sequence[Metric]) -> dict[str, Any]:
        one = next((arm for arm in alike if arm.arm.base), alike[0])
        spreads = [(metric, one.spread(metric.of)) for metric in metrics]
        return {
            "name": clean(_names(alike)),
            "kind": "mps" if one.arm.mps else "base" if one.arm.base else "plain",
            "repeats": len(one.readings),
            "cells": [
                {
                    "mean": spread.mean, "least": spread.least, "most": spread.most, "text": metric.cell(one),
                    "short": metric.text(spread.mean),
                }
                for metric, spread in spreads
            ],
        }  # fmt: skip

    def page(self, machine: Mapping[str, Any]) -> str:
        """Return the report as one HTML page that needs no other file."""
        texts = {name: (PAGE / name).read_text(encoding="utf-8") for name in PARTS.names}
        facts = {**self.data(), "machine": _machine_words(machine, of_mps=not self.experiment.of_priority)}
        return assemble(PARTS, texts, clean(self.experiment.title), facts)


def _names(alike: Sequence[Summary]) -> str:
    """Return the names of equal arms as one name; their common beginning is written once, as in `packed, MPS 100% =
    50%`.
    """
    first, *others = [one.arm.name for one in alike]
    return " = ".join([first, *(other[_common(first, other) :] for other in others)])


def _common(first: str, other: str) -> int:
    """Return the number of leading characters that both names share, counting whole words only."""
    length = next((at for at, pair in enumerate(zip(first, other, strict=False)) if pair[0] != pair[1]), 0)
    return first.rfind(" ", 0, length) + 1


def _machine_words(machine: Mapping[str, Any], *, of_mps: bool) -> list[tuple[str, str]]:
    """Return the facts about a machine as pairs of a label and a text; equal devices share one row."""
    known = {name: value for name, value in machine.items() if name in _FACTS and value is not None}
    if not of_mps:
        known.pop("mps_speed", None)
    facts = [(_FACTS[name], clean(str(value))) for name, value in known.items()]
    alike: dict[tuple[str, int], list[str]] = {}
    for device in machine.get("devices", ()):
        alike.setdefault((device.get("model") or "", device["total"]), []).append(device["label"])
    for (model, total), labels in alike.items():
        what = f"{model}, {size(total)}" if model else size(total)
        each = f"{len(labels)} x {what}" if len(labels) > 1 else what
        facts.append((clean(", ".join(labels)), clean(each)))
    return facts


def _batches(one: Summary) -> dict[str, Any]:
    """Return the mean waiting times of the first repeat of an arm, by batch and priority."""
    waits = [[wait.batch, wait.priority, wait.wait_mean_s, wait.wait_max_s] for wait in one.readings[0].waits]
    return {"arm": clean(one.arm.name), "columns": ["batch", "priority", "mean_s", "max_s"], "waits": waits}
