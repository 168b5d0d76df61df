"""How fast a long list is accepted durably, beside the least that can be done with it.

    python scripts/bench/accept.py [--rows 1000000]

The least: the csv module into one SQLite table in one durable transaction. Both in one go, three times, interleaved.
"""

from __future__ import annotations

import argparse
import csv
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measuring import Bench, ratios
from page import Bound, Section, spread, table

ACCEPT = """
import resource, sys, time
from scheduler.app.run.options import RunOptions
from scheduler.app.run.task_list import csv_listing
from scheduler.app.run.start import begin
from scheduler.runtime.settings import read_settings
started = time.perf_counter()
settings = read_settings({"state": sys.argv[2], "leases": sys.argv[3]})
listing = csv_listing(sys.argv[1], header=0, defaults={}, append="both", python=sys.executable)
begin(listing, RunOptions(), settings, sys.executable).close()
print(time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def measure(bench: Bench) -> dict[str, Any]:
    """Both in turns, by seconds, and the memory of ours."""
    return taken(bench.folder, 100_000 if bench.quick else 1_000_000)


def taken(folder: Path, rows: int) -> dict[str, Any]:
    """Both in turns."""
    (folder / "train.py").write_text("", encoding="utf-8")
    with open(folder / "jobs.csv", "w", encoding="utf-8") as file:
        file.write("Directory,Executable,Filename,Epochs,Priority\n")
        file.writelines(f"{folder},-1,train.py --lr {i},10,{i % 5}\n" for i in range(rows))
    pairs = [(least(folder, turn), accepted(folder, turn)) for turn in range(3)]
    return {
        "rows": rows,
        "least": [round(base, 3) for base, _ in pairs],
        "ours": [round(ours, 3) for _, (ours, _) in pairs],
        "mib": max(memory for _, (_, memory) in pairs),
    }


def section(found: dict[str, Any]) -> list[Section]:
    """A table; the bounds are those of a million rows."""
    made = Section(f"Accepting a list of {found['rows']:,} rows")
    times = ratios(found["ours"], found["least"])
    rows = [
        ["csv module into one SQLite table, one durable transaction", spread(found["least"]), "1"],
        ["scheduler: every cell checked, journaled durably", spread(found["ours"]), spread(times)],
    ]
    made.text += [table(("what", "s", "times"), rows), f"Ours held {found['mib']} MiB at most."]
    made.bounds = [
        Bound("accepting a list, times csv to SQLite", 3, statistics.median(times)),
        Bound("accepting a list, memory", 300, found["mib"], "MiB"),
    ]
    return [made]


def main() -> int:
    """Print both, their ratio, and the memory; 1 where the ratio is above 3 or the memory above 300 MiB."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    rows = parser.parse_args().rows
    with tempfile.TemporaryDirectory(prefix="accept-") as name:
        found = taken(Path(name), rows)
    for base, ours in zip(found["least"], found["ours"], strict=True):
        print(f"csv to SQLite {base:.2f}s   accepted {ours:.2f}s   ratio {ours / base:.2f}")
    ratio, memory = statistics.median(ratios(found["ours"], found["least"])), found["mib"]
    print(f"{rows:,} rows: median ratio {ratio:.2f} (bound 3), {memory} MiB (bound 300)")
    return 0 if ratio <= 3 and memory < 300 else 1


def least(folder: Path, turn: int) -> float:
    """The csv module into one table, in one durable transaction."""
    started = time.perf_counter()
    database = sqlite3.connect(folder / f"least{turn}.db", isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE jobs (a, b, c, d, e)")
    database.execute("BEGIN")
    with open(folder / "jobs.csv", newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        next(reader)
        database.executemany("INSERT INTO jobs VALUES (?, ?, ?, ?, ?)", reader)
    database.execute("COMMIT")
    database.close()
    return time.perf_counter() - started


def accepted(folder: Path, turn: int) -> tuple[float, int]:
    """Let the product accept the list, in a process of its own; return its seconds and MiB."""
    command = [sys.executable, "-c", ACCEPT, folder / "jobs.csv", folder / f"state{turn}", folder / "leases"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    seconds, memory = done.stdout.split()
    return float(seconds), int(memory)


if __name__ == "__main__":
    sys.exit(main())
