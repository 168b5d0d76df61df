"""How long a report of 10,000 tasks with curves takes to open in Chromium: `python scripts/bench/report.py [tasks]`.

On a machine that is busy with other work the seconds say little: each opening is also given in units of the start of a
Chromium with a blank page, measured right before it.
"""

from __future__ import annotations

import math
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scheduler.app.observe import report
from scheduler.core.metrics.record import MetricRecord
from scheduler.ui.web.report import ReportedRun
from tests.support.chromium import NARROW, WIDE, browser
from tests.support.reported import told

BOUND, LARGEST = 3.0, 8 << 20
"""Seconds to open a report, and bytes of the largest one."""
TURNS, POINTS = 5, 500


def sweep(tasks: int) -> ReportedRun:
    """Simulate a sweep over three parameters, in which each task has two curves and has printed something."""
    run = told("sweep", tasks, "8x24GiB")
    rows = [
        {**row, "lr": f"{10.0 ** -(row['id'] % 7)}", "bs": str(16 << row["id"] % 6), "width": str(row["id"] % 23)}
        for row in run.rows
    ]
    metrics = {row["id"]: record(row["id"]) for row in rows}
    return replace(run, rows=rows, varies=("lr", "bs", "width"), metrics=metrics)


def record(task: int) -> MetricRecord:
    """Return curves with as many points as are kept."""
    made = MetricRecord()
    for step in range(1, POINTS + 1):
        loss = math.exp(-step / 80) + task % 97 / 300 + math.sin(step * 1.7) / 40
        made.take([("val_loss", loss, step), ("val_acc", 1 - loss / 3, step)])
    return made


def start() -> float:
    """Return how long another Chromium takes to start and to show a blank page."""
    began = time.perf_counter()
    with browser() as other:
        other.open("about:blank", WIDE)
        return time.perf_counter() - began


def main(tasks: int) -> int:
    """Print the median of some goes, wide and narrow; 1 where one is above the bound."""
    run = sweep(tasks)
    with tempfile.TemporaryDirectory(prefix="report-") as name, browser() as chromium:
        page, picture = Path(name) / "report.html", Path(name) / "report.svg"
        began = time.perf_counter()
        written = report.write([run], str(page))
        print(f"{len(run.tracks):,} attempts: written in {time.perf_counter() - began:.2f} s, {written >> 10} KiB")
        began = time.perf_counter()
        report.write([run], str(picture))
        print(f"the timeline alone in {time.perf_counter() - began:.2f} s")
        worst = 0.0
        for size in (WIDE, NARROW):
            taken, starts = [], []
            for _ in range(TURNS):
                chromium.open("about:blank", size)
                starts.append(start())
                began = time.perf_counter()
                chromium.driver.get(page.as_uri())
                chromium.driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
                taken.append(time.perf_counter() - began)
            worst = max(worst, statistics.median(taken))
            print(f"opened {size[0]} wide and drawn: median {statistics.median(taken):.2f} s, most {max(taken):.2f} s")
            ratio = statistics.median(one / blank for one, blank in zip(taken, starts, strict=True))
            print(f"    {ratio:.2f} times the start of Chromium with a blank page ({statistics.median(starts):.2f} s)")
    return 0 if worst < BOUND and written < LARGEST else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
