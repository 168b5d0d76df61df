"""What an experiment came to, as people and programs take it: a table, CSV, JSON, a page with its charts."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from html import escape
from typing import Any, TextIO

from scheduler.core.experiments import Arm, Reading, Setting, Spread, Summary
from scheduler.units import count, duration
from scheduler.view.drawing import Drawing, svg
from scheduler.view.experiment_charts import number
from scheduler.view.words import clean, table

COLUMNS = (
    "arm", "repeat", "run", "world", "mps", "thread_percentage", "per_device", "num", "order", "tasks", "succeeded",
    "makespan_s", "tasks_per_hour", "epochs_per_hour", "task_mean_s", "ooms", "residents_max", "under_mps",
    "mps_clients", "energy_j",
)  # fmt: skip
BATCHES = ("arm", "repeat", "batch", "priority", "tasks", "wait_mean_s", "wait_max_s")
STYLE = """
body { font-family: Helvetica, Arial, sans-serif; margin: 2em auto; max-width: 1040px; color: #222; }
table { border-collapse: collapse; margin: 1em 0; } td, th { padding: .25em .8em; border-bottom: 1px solid #ddd; }
td:not(:first-child) { text-align: right; } th { text-align: left; } .what { font-size: 1.15em; }
.simulated { color: #b03a2e; font-weight: bold; } pre { background: #f6f6f6; padding: 1em; overflow: auto; }
svg { width: 100%; height: auto; }
"""


def rows(all_: Sequence[Summary], setting: Setting) -> list[dict[str, Any]]:
    """Every reading; what is not known is None."""
    priorities = sorted({p for one in all_ for reading in one.readings for p in reading.waited()})
    return [_row(one.arm, reading, setting, priorities) for one in all_ for reading in one.readings]


def _row(arm: Arm, reading: Reading, setting: Setting, priorities: Iterable[int]) -> dict[str, Any]:
    waited = reading.waited()
    said = {
        "arm": arm.name, "repeat": reading.repeat, "run": reading.run, "world": setting.words,
        "mps": "yes" if arm.mps else "no", "thread_percentage": arm.percentage or None,
        "per_device": arm.per_device, "num": arm.num, "order": arm.order or None, "tasks": reading.tasks,
        "succeeded": reading.succeeded, "makespan_s": round(reading.makespan, 3),
        "tasks_per_hour": round(reading.tasks_per_hour, 3), "epochs_per_hour": round(reading.epochs_per_hour, 3),
        "task_mean_s": round(reading.task_mean, 3), "ooms": reading.ooms, "residents_max": reading.residents,
        "under_mps": reading.shared, "mps_clients": reading.clients,
        "energy_j": None if reading.energy is None else round(reading.energy, 1),
    }  # fmt: skip
    waits = {f"wait_mean_s.{p}": round(waited[p], 3) if p in waited else None for p in priorities}
    return said | waits


def write_csv(found: Sequence[Mapping[str, Any]], out: TextIO) -> None:
    """Readings as a table."""
    writer = csv.DictWriter(out, [*(found[0] if found else COLUMNS)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)


def write_batches(all_: Sequence[Summary], out: TextIO) -> None:
    """What every priority waited in every batch."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(BATCHES)
    for one in all_:
        for reading in one.readings:
            for w in reading.waits:
                known = (one.arm.name, reading.repeat, w.batch, w.priority, w.tasks)
                writer.writerow((*known, round(w.mean, 3), round(w.most, 3)))


def write_json(all_: Sequence[Summary], setting: Setting, sentence: str, folder: str, out: TextIO) -> None:
    """All of it for programs."""
    said = {
        "format": 1,
        "setting": asdict(setting),
        "says": sentence,
        "folder": folder,
        "readings": rows(all_, setting),
    }
    print(json.dumps(said, indent=1), file=out)


Column = tuple[str, Callable[[Summary], str]]


def _spread(of: Callable[[Reading], float], text: Callable[[float], str]) -> Callable[[Summary], str]:
    return lambda one: _with_ends(one.spread(of), text)


def _with_ends(spread: Spread, text: Callable[[float], str]) -> str:
    said, least, most = text(spread.mean), text(spread.least), text(spread.most)
    return said if least == most else f"{said} ({least} to {most})"


def _columns(all_: Sequence[Summary], priorities: Sequence[int], *, of_priority: bool) -> list[Column]:
    makespan: Column = ("makespan", _spread(lambda r: r.makespan, duration))
    rate: Column = ("tasks/h", _spread(lambda r: r.tasks_per_hour, number))
    failed: list[Column] = []
    if any(r.succeeded < r.tasks for one in all_ for r in one.readings):
        failed = [("not done", lambda one: str(sum(r.tasks - r.succeeded for r in one.readings)))]
    if of_priority:
        return [makespan, *(_wait(p) for p in priorities), rate, *failed]
    columns: list[Column] = [
        makespan,
        rate,
        ("epochs/h", _spread(lambda r: r.epochs_per_hour, number)),
        ("mean task", _spread(lambda r: r.task_mean, duration)),
        ("OOM", lambda one: str(sum(r.ooms for r in one.readings))),
        ("at once", lambda one: str(max(r.residents for r in one.readings))),
        *failed,
    ]
    if any(r.shared for one in all_ for r in one.readings):
        columns.append(("MPS clients", _clients))
    if any(r.energy is not None for one in all_ for r in one.readings):
        columns.append(("energy", _spread(lambda r: (r.energy or 0.0) / 3.6e6, lambda kwh: f"{kwh:.3g}kWh")))
    return columns


def _wait(priority: int) -> Column:
    return f"priority {priority} waits", _spread(lambda r: r.waited().get(priority, 0.0), duration)


def _clients(one: Summary) -> str:
    shared = sum(r.shared for r in one.readings)
    return f"{sum(r.clients for r in one.readings)} of {shared}" if shared else ""


def cells(all_: Sequence[Summary], *, of_priority: bool) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table that people see."""
    priorities = sorted({p for one in all_ for r in one.readings for p in r.waited()})
    columns = _columns(all_, priorities, of_priority=of_priority)
    header = ["arm", "repeats", *(name for name, _ in columns)]
    return header, [[one.arm.name, str(len(one.readings)), *(say(one) for _, say in columns)] for one in all_]


def lines(all_: Sequence[Summary], setting: Setting, sentence: str, *, of_priority: bool) -> list[str]:
    """For a terminal."""
    header, found = cells(all_, of_priority=of_priority)
    said = table(header, found, frozenset(range(1, len(header))))
    return [f"world   {setting.words}", *(f"hint:   {note}" for note in setting.notes), "", *said, "", f"{sentence}."]


def progress(done: int, of: int, arm: Arm, reading: Reading, left: float) -> str:
    """One arm is measured."""
    bad = reading.tasks - reading.succeeded
    failed = f", {count(bad, 'task')} not done" if bad else ""
    run = f"  run {reading.run}" if reading.run else ""
    more = f"  about {duration(left)} left" if done < of and left >= 1 else ""
    rate = f"{number(reading.tasks_per_hour)} tasks/h"
    return f"{done}/{of}  {arm.name}, repeat {reading.repeat}: {duration(reading.makespan)}, {rate}{failed}{run}{more}"


def page(
    title: str,
    sentence: str,
    all_: Sequence[Summary],
    setting: Setting,
    chart: Drawing,
    machine: Mapping[str, Any],
    *,
    of_priority: bool,
) -> str:
    """Everything in one file that needs no other."""
    header, found = cells(all_, of_priority=of_priority)
    head = "".join(f"<th>{_safe(cell)}</th>" for cell in header)
    body = "".join("<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in found)
    kind = "simulated" if setting.simulated else "real"
    notes = "".join(f"<p>{_safe(note)}</p>" for note in setting.notes)
    facts = {name: value for name, value in machine.items() if name != "arms"}
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{_safe(title)}</title>'
        f"<style>{STYLE}</style></head><body>\n<h1>{_safe(title)}</h1>\n"
        f'<p class="{kind}">{_safe(setting.words)}</p>{notes}\n<p class="what">{_safe(sentence)}.</p>\n'
        f"<table><tr>{head}</tr>{body}</table>\n{svg(chart)}\n"
        "<p>Bars are means of the repeats, whiskers reach from the least to the most of them. Per hour: tasks that "
        "succeeded, and their epochs, over the makespan, which reaches from the first start to the last end.</p>\n"
        f"<h2>Where</h2>\n<pre>{_safe(json.dumps(facts, indent=1))}</pre>\n</body></html>\n"
    )


def _safe(text: str) -> str:
    return escape(clean(text))


def write_object(said: Mapping[str, Any], out: TextIO) -> None:
    """One JSON object."""
    print(json.dumps(said, indent=1), file=out)


def write_text(text: str, out: TextIO) -> None:
    """A page."""
    print(text, end="", file=out)
