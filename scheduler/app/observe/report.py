"""Reports on runs: the data from their journals, and the files that contain them."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path

from scheduler.app.observe.run_facts import find_run
from scheduler.app.observe.run_reader import RunReader
from scheduler.core.reporting.memory_timeline import MemoryTimeline
from scheduler.errors import StateError, UsageError
from scheduler.runtime.paths import PAGE, replace_file
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import RunInfo
from scheduler.ui.charts.memory_chart import draw, reported_schedule
from scheduler.ui.charts.svg import svg
from scheduler.ui.web import report
from scheduler.ui.web.report import ReportedRun

MOST_ARROWS = 2000
"""The largest number of arrows between tasks; more are no longer told apart."""
MOST_RUNS = 4
"""The largest number of runs that are readable side by side."""


def report_data(settings: Settings, words: Sequence[str], *, secrets: bool = False) -> list[ReportedRun]:
    """Return the data of runs (default: the latest) from their journals; raise NoSuchRun or UsageError."""
    if len(words) > MOST_RUNS:
        raise UsageError(f"{len(words)} runs side by side are too narrow to be read: give at most {MOST_RUNS}")
    named: list[str | None] = [*words] or [None]
    return [_told(find_run(settings, word), secrets) for word in named]


def _told(info: RunInfo, secrets: bool) -> ReportedRun:
    history = MemoryTimeline()
    with closing(RunReader(info)) as reader:
        for recorded in reader.recorded():
            history.take(recorded.event, recorded.at)
        capacities = json.loads(info.meta.get("totals", "{}"))
        now = time.time() if info.alive else reader.history.last or time.time()
        found = list(reader.rows_and_metrics(secrets=secrets))
        rows, metrics = [row for row, _ in found], {row["id"]: record for row, record in found if record is not None}
        facts, totals = reader.run_facts(), reader.totals()
        return ReportedRun(
            facts,
            totals,
            rows,
            history.tracks,
            capacities,
            now,
            reader.varies,
            metrics,
            [*islice(reader.brain.dependencies.edges(), MOST_ARROWS)],
            reader.metric_names,
        )


def write(found: Sequence[ReportedRun], path: str) -> int:
    """Write a report in the form that the file's suffix selects, completely or not at all; return its size in bytes."""
    make = FORMS.get(Path(path).suffix.lower())
    if make is None:
        raise UsageError(f"-o {path}: the name of a report ends with .html, .svg (the timeline), .csv or .json")
    made = make(found)
    try:
        replace_file(Path(path), made, durable=False)
    except OSError as exc:
        raise StateError(f"the report cannot be written: {path}: {exc.strerror}") from exc
    return len(made)


def as_json(found: Sequence[ReportedRun]) -> str:
    """Return the report as JSON."""
    return json.dumps(report.data(found), indent=1) + "\n"


def _html(found: Sequence[ReportedRun]) -> bytes:
    names = (report.PAGE, report.METRICS_PART, report.LICENSE, *report.STYLES, *report.SCRIPTS)
    return report.page(found, {name: (PAGE / name).read_text(encoding="utf-8") for name in names}).encode("utf-8")


def _svg(found: Sequence[ReportedRun]) -> bytes:
    return svg(draw([reported_schedule(run) for run in report.data(found)["runs"]])).encode()


def _csv(found: Sequence[ReportedRun]) -> bytes:
    out = io.StringIO()
    report.write_csv(found, out)
    return out.getvalue().encode("utf-8")


FORMS: Mapping[str, Callable[[Sequence[ReportedRun]], bytes]] = {
    ".html": _html,
    ".htm": _html,
    ".svg": _svg,
    ".csv": _csv,
    ".json": lambda found: as_json(found).encode("utf-8"),
}
