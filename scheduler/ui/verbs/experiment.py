"""The results of an experiment: a table, CSV, JSON, and a page with charts."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from io import StringIO
from typing import Any

from scheduler.core.reporting.experiment import Arm, ExperimentContext, Reading, Summary
from scheduler.ui.charts.experiment_charts import mps_chart, number, priority_chart
from scheduler.ui.charts.svg import svg
from scheduler.ui.text import clean, table
from scheduler.units import count, duration
from scheduler.values import dataclass

STYLE = """
body { font-family: Helvetica, Arial, sans-serif; margin: 2em auto; max-width: 1040px; color: #222; }
table { border-collapse: collapse; margin: 1em 0; } td, th { padding: .25em .8em; border-bottom: 1px solid #ddd; }
td:not(:first-child) { text-align: right; } th { text-align: left; } .what { font-size: 1.15em; }
.simulated { color: #b03a2e; font-weight: bold; } pre { background: #f6f6f6; padding: 1em; overflow: auto; }
svg { width: 100%; height: auto; }
"""
EXPLAINED = (
    "Bars are means of the repeats, whiskers reach from the least to the most. Per hour: tasks that succeeded, and "
    "their epochs, divided by the makespan, which is the time from the first start to the last end."
)


def rows(summaries: Sequence[Summary], context: ExperimentContext) -> list[dict[str, Any]]:
    """Return a row for each reading; an unknown value is None."""
    priorities = _priorities(summaries)
    return [_row(one.arm, reading, context, priorities) for one in summaries for reading in one.readings]


def _priorities(summaries: Sequence[Summary]) -> list[int]:
    return sorted({priority for one in summaries for reading in one.readings for priority in reading.waited()})


def _row(arm: Arm, reading: Reading, context: ExperimentContext, priorities: Sequence[int]) -> dict[str, Any]:
    waited = reading.waited()
    row = {
        "arm": arm.name, "repeat": reading.repeat, "run": reading.run, "world": context.words,
        "mps": "yes" if arm.mps else "no", "thread_percentage": arm.percentage or None,
        "per_device": arm.per_device, "num": arm.num, "order": arm.order or None, "tasks": reading.tasks,
        "succeeded": reading.succeeded, "makespan_s": round(reading.makespan, 3),
        "tasks_per_hour": round(reading.tasks_per_hour, 3), "epochs_per_hour": round(reading.epochs_per_hour, 3),
        "task_mean_s": round(reading.task_mean, 3), "ooms": reading.ooms, "residents_max": reading.residents,
        "under_mps": reading.shared, "mps_clients": reading.clients,
        "energy_j": None if reading.energy is None else round(reading.energy, 1),
    }  # fmt: skip
    return row | {f"wait_mean_s.{p}": round(waited[p], 3) if p in waited else None for p in priorities}


def batch_rows(summaries: Sequence[Summary]) -> list[dict[str, Any]]:
    """Return a row for the waits of each priority in each batch."""
    return [
        {
            "arm": one.arm.name, "repeat": reading.repeat, "batch": wait.batch, "priority": wait.priority,
            "tasks": wait.tasks, "wait_mean_s": round(wait.mean, 3), "wait_max_s": round(wait.most, 3),
        }
        for one in summaries
        for reading in one.readings
        for wait in reading.waits
    ]  # fmt: skip


def csv_text(found: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV with a header."""
    out = StringIO()
    writer = csv.DictWriter(out, [*found[0]] if found else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    return out.getvalue()


def json_text(summaries: Sequence[Summary], context: ExperimentContext, sentence: str, folder: str) -> str:
    """Return all results as JSON."""
    facts = {
        "format": 1,
        "setting": context.to_dict(),
        "says": sentence,
        "folder": folder,
        "readings": rows(summaries, context),
    }
    return json.dumps(facts, indent=1) + "\n"


def progress(done: int, of: int, arm: Arm, reading: Reading, left: float) -> str:
    """Return the line about an arm that was just measured; `left` is how many seconds the others take."""
    bad = reading.tasks - reading.succeeded
    failed = f", {count(bad, 'task')} unfinished" if bad else ""
    run = f"  run {reading.run}" if reading.run else ""
    more = f"  about {duration(left)} left" if done < of and left >= 1 else ""
    rate = f"{number(reading.tasks_per_hour)} tasks/h"
    return f"{done}/{of}  {arm.name}, repeat {reading.repeat}: {duration(reading.makespan)}, {rate}{failed}{run}{more}"


Number = Callable[[Reading], float]
Text = Callable[[float], str]


def _spread(of: Number, text: Text) -> Callable[[Summary], str]:
    """Return the cell of a number: its mean, and its least and most where they differ."""

    def cell(one: Summary) -> str:
        spread = one.spread(of)
        mean, least, most = text(spread.mean), text(spread.least), text(spread.most)
        return mean if least == most else f"{mean} ({least} to {most})"

    return cell


def _total(of: Callable[[Reading], int]) -> Callable[[Summary], str]:
    return lambda one: str(sum(map(of, one.readings)))


def _clients(one: Summary) -> str:
    shared = sum(reading.shared for reading in one.readings)
    return f"{sum(reading.clients for reading in one.readings)} of {shared}" if shared else ""


def _wait_of(priority: int) -> Number:
    return lambda reading: reading.waited().get(priority, 0.0)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of an experiment for people."""

    title: str
    sentence: str
    summaries: Sequence[Summary]
    context: ExperimentContext
    of_priority: bool

    def lines(self) -> list[str]:
        """Return the lines for a terminal."""
        header, cells = self._table()
        notes = [f"hint:   {note}" for note in self.context.notes]
        shown = table(header, cells, frozenset(range(1, len(header))))
        return [f"world   {self.context.words}", *notes, "", *shown, "", f"{self.sentence}."]

    def picture(self) -> str:
        """Return the charts as SVG."""
        return svg((priority_chart if self.of_priority else mps_chart)(self.summaries, self.context, self.title))

    def page(self, machine: Mapping[str, Any]) -> str:
        """Return the report as one HTML page that needs no other file."""
        header, cells = self._table()
        head = "".join(f"<th>{_safe(cell)}</th>" for cell in header)
        body = "".join("<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in cells)
        kind = "simulated" if self.context.simulated else "real"
        notes = "".join(f"<p>{_safe(note)}</p>" for note in self.context.notes)
        facts = {name: value for name, value in machine.items() if name != "arms"}
        return (
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_safe(self.title)}</title>'
            f"<style>{STYLE}</style></head><body>\n<h1>{_safe(self.title)}</h1>\n"
            f'<p class="{kind}">{_safe(self.context.words)}</p>{notes}\n<p class="what">{_safe(self.sentence)}.</p>\n'
            f"<table><tr>{head}</tr>{body}</table>\n{self.picture()}\n<p>{EXPLAINED}</p>\n"
            f"<h2>Machine</h2>\n<pre>{_safe(json.dumps(facts, indent=1))}</pre>\n</body></html>\n"
        )

    def _table(self) -> tuple[list[str], list[list[str]]]:
        columns = dict(self._columns())
        cells = [
            [one.arm.name, str(len(one.readings)), *(cell(one) for cell in columns.values())] for one in self.summaries
        ]
        return ["arm", "repeats", *columns], cells

    def _columns(self) -> Iterator[tuple[str, Callable[[Summary], str]]]:
        """Yield the name and the cell of each column that says something here."""
        readings = [reading for one in self.summaries for reading in one.readings]
        yield "makespan", _spread(lambda r: r.makespan, duration)
        for priority in _priorities(self.summaries) if self.of_priority else ():
            yield f"priority {priority} waits", _spread(_wait_of(priority), duration)
        yield "tasks/h", _spread(lambda r: r.tasks_per_hour, number)
        if not self.of_priority:
            yield "epochs/h", _spread(lambda r: r.epochs_per_hour, number)
            yield "mean task", _spread(lambda r: r.task_mean, duration)
            yield "OOM", _total(lambda r: r.ooms)
            yield "concurrent", lambda one: str(max(reading.residents for reading in one.readings))
        if any(reading.succeeded < reading.tasks for reading in readings):
            yield "unfinished", _total(lambda r: r.tasks - r.succeeded)
        if not self.of_priority and any(reading.shared for reading in readings):
            yield "MPS clients", _clients
        if not self.of_priority and any(reading.energy is not None for reading in readings):
            yield "energy", _spread(lambda r: (r.energy or 0.0) / 3.6e6, lambda kwh: f"{kwh:.3g}kWh")


def _safe(text: str) -> str:
    return escape(clean(text))
