"""Reports on runs: the data from their journals, and the files that contain them."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from scheduler.app.live.tracker_links import links_of_tasks
from scheduler.app.observe.run_facts import find_run
from scheduler.app.observe.run_reader import RunReader
from scheduler.core.model import RETRIABLE
from scheduler.core.reporting.memory_timeline import MemoryTimeline
from scheduler.core.tasks.redaction import without_secrets
from scheduler.devices.load_recorder import read_history
from scheduler.errors import StateError, UsageError
from scheduler.runtime.paths import PAGE, RunPaths, open_within, replace_file
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import RunInfo
from scheduler.ui.charts.memory_chart import draw, reported_schedule
from scheduler.ui.charts.svg import svg
from scheduler.ui.web import report
from scheduler.ui.web.report import ReportedRun

MOST_ARROWS = 2000
"""The most arrows between tasks that a report draws; more could not be distinguished."""
ALL_LOG_ENDS, LOG_END, LEAST_LOG_END = 1 << 20, 4096, 256
"""The most bytes of log ends in one report, the most bytes of one log's end, and the fewest that are worth reading."""
BAD_LOG_END, MOST_BAD = 2048, 200
"""The bytes that are read from the end of a log of a failed task, and the most failed tasks whose logs are read."""
MOST_RUNS = 4
"""The most runs that are readable side by side."""


def report_data(settings: Settings, words: Sequence[str], *, secrets: bool = False) -> list[ReportedRun]:
    """Return the data of runs (default: the latest) from their journals; raise NoSuchRun for an unknown run, UsageError
    for too many runs.
    """
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
            partial(_log_ends, info.places, rows, secrets=secrets),
            read_history(info.places.devices),
            partial(links_of_tasks, info.places, {row["id"]: row["attempts"] for row in rows if row["attempts"]}),
        )


def _log_ends(places: RunPaths, rows: Sequence[Mapping[str, Any]], *, secrets: bool) -> dict[int, str]:
    """Read the end of each task's newest log; with many tasks each end is shorter, or only failed tasks have one."""
    begun = [row for row in rows if row["attempts"]]
    most = min(LOG_END, ALL_LOG_ENDS // max(1, len(begun)))
    bad = {row["id"] for row in [row for row in begun if row["state"] in RETRIABLE][:MOST_BAD]}
    ends: dict[int, str] = {}
    for row in begun:
        wanted = max(most, BAD_LOG_END) if row["id"] in bad else most
        if wanted < LEAST_LOG_END:
            continue
        with suppress(OSError), open_within(places.task_log(row["id"], row["attempts"]), places.root) as file:
            text = _last_lines(file, wanted)
            ends[row["id"]] = text if secrets else without_secrets(text)
    return ends


def _last_lines(file: BinaryIO, most: int) -> str:
    """Return the last whole lines of a file, or only the end of its last line if that line is longer."""
    begin = max(0, file.seek(0, os.SEEK_END) - most)
    file.seek(begin)
    text = file.read(most).decode("utf-8", "replace")
    _, line_end, rest = text.partition("\n")
    return "…\n" + rest if begin and line_end and rest else text


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
    texts = {name: (PAGE / name).read_text(encoding="utf-8") for name in report.PARTS.names}
    return report.page(found, texts).encode("utf-8")


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
