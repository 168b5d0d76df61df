"""Joins what is needed for a report on runs: their journals, and what becomes of the report."""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path

from scheduler.core.history import History
from scheduler.errors import StateError, UsageError
from scheduler.paths import PAGE
from scheduler.settings import Settings
from scheduler.store.runs import RunInfo
from scheduler.view import report, timeline
from scheduler.view.report import Told
from scheduler.wiring.reading import Telling, find_run

MOST_RUNS = 4
"""Side by side; more are too narrow to be read."""


def told(settings: Settings, words: Sequence[str], *, secrets: bool = False) -> list[Told]:
    """What the runs' journals tell; without a word the latest run's. Raises NoSuchRun, UsageError."""
    if len(words) > MOST_RUNS:
        raise UsageError(f"{len(words)} runs side by side are too narrow to be read: name {MOST_RUNS} at most")
    named: list[str | None] = [*words] or [None]
    return [_told(find_run(settings, word), secrets) for word in named]


def _told(info: RunInfo, secrets: bool) -> Told:
    history = History()
    with closing(Telling(info)) as telling:
        for recorded in telling.recorded():
            history.take(recorded.event, recorded.at)
        capacities = json.loads(info.meta.get("totals", "{}"))
        now = time.time() if info.alive else telling.fold.last or time.time()
        rows = list(telling.rows(secrets=secrets))
        return Told(telling.run_facts(), telling.totals(), rows, history.tracks, capacities, now)


def write(found: Sequence[Told], path: str) -> int:
    """Write a report in the form that the file's name asks for, whole or not at all; how many bytes it has."""
    make = FORMS.get(Path(path).suffix.lower())
    if make is None:
        raise UsageError(f"-o {path}: a report is .html, .png, .csv or .json, by the end of its name")
    made = make(found)
    half = Path(f"{path}.{os.getpid()}.part")
    try:
        half.write_bytes(made)
        half.replace(path)
    except OSError as exc:
        with suppress(OSError):
            half.unlink()
        raise StateError(f"the report cannot be written: {path}: {exc.strerror}") from exc
    return len(made)


def as_json(found: Sequence[Told]) -> str:
    """The report as data."""
    return json.dumps(report.data(found), indent=1) + "\n"


def _html(found: Sequence[Told]) -> bytes:
    names = (report.PAGE, *report.STYLES, *report.SCRIPTS)
    return report.page(found, {name: (PAGE / name).read_text(encoding="utf-8") for name in names}).encode("utf-8")


def _csv(found: Sequence[Told]) -> bytes:
    out = io.StringIO()
    report.write_csv(found, out)
    return out.getvalue().encode("utf-8")


FORMS: Mapping[str, Callable[[Sequence[Told]], bytes]] = {
    ".html": _html,
    ".htm": _html,
    ".png": timeline.png,
    ".csv": _csv,
    ".json": lambda found: as_json(found).encode("utf-8"),
}
