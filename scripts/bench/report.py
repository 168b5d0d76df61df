"""How long a report of 10,000 tasks takes to open in Chromium: `python scripts/bench/report.py [tasks]`."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from scheduler.app.observe import report
from tests.support.chromium import NARROW, WIDE, browser
from tests.support.reported import told

BOUND = 3.0
TURNS = 5


def main(tasks: int) -> int:
    """Print the median of some goes, wide and narrow; 1 where one is above the bound."""
    run = told("sweep", tasks, "8x24GiB")
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
            taken = []
            for _ in range(TURNS):
                chromium.open("about:blank", size)
                began = time.perf_counter()
                chromium.driver.get(page.as_uri())
                chromium.driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
                taken.append(time.perf_counter() - began)
            worst = max(worst, statistics.median(taken))
            print(f"opened {size[0]} wide and drawn: median {statistics.median(taken):.2f} s, most {max(taken):.2f} s")
    return 0 if worst < BOUND else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000))
