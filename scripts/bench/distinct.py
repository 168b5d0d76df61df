"""The cost of a pass as distinct commands add up: `python scripts/bench/distinct.py [--rows 20000]`.

One real run of `true 1`, `true 2`, ..., two at a time. Its processor time and its memory are read after each twentieth
of the rows. Printed are both, and how the last tenth compares with the first one. The exit code is 1 where a bound is
missed.
"""

from __future__ import annotations

import argparse
import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from measuring import environ, kept, machine, scheduler

MOST_TIMES = 2.0
"""The most that an ended task of the last tenth may cost, in times of one of the first tenth."""
MOST_BYTES = 400
"""The most that memory may grow for each ended task of the second half; a new class of tasks takes about 2 KiB."""
PARTS = 20
PAUSE = 0.1
COUNT_ENDED = "SELECT count(*) FROM events WHERE kind = 'exited'"


@dataclass(frozen=True)
class Mark:
    """The resources that the scheduler had used when so many tasks were over."""

    ended: int
    seconds: float
    cpu: float
    rss: int


def main() -> int:
    """Run the list and print the figures; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--same", action="store_true", help="the same command in all rows")
    args = parser.parse_args()
    print(", ".join(machine().values()))
    with tempfile.TemporaryDirectory(prefix="bench-distinct-") as folder:
        marks = list(measured(Path(folder), args.rows, same=args.same))
    for before, now in pairwise(marks):
        print(f"  {now.ended:>7,} ended: {shown(before, now)}, {now.rss / 2**20:6.1f} MiB", flush=True)
    return 0 if judged(marks) else 1


def shown(before: Mark, now: Mark) -> str:
    """Return one step of the run as a line."""
    tasks = max(1, now.ended - before.ended)
    cpu, rate = (now.cpu - before.cpu) / tasks * 1000, tasks / (now.seconds - before.seconds)
    return f"{cpu:6.2f} ms of CPU a task, {rate:5.0f}/s"


def judged(marks: Sequence[Mark]) -> bool:
    """Print both bounds; whether they are kept."""
    tenth, half = max(2, len(marks) // 10), len(marks) // 2
    first, last = _cost(marks[1 : tenth + 1]), _cost(marks[-tenth - 1 :])
    grown = (marks[-1].rss - marks[half].rss) / (marks[-1].ended - marks[half].ended)
    cost = kept("CPU of a task at the end, in times of one at the start", round(last / first, 2), MOST_TIMES)
    return kept("bytes of memory for each ended task of the second half", round(grown), MOST_BYTES) and cost


def _cost(marks: Sequence[Mark]) -> float:
    return (marks[-1].cpu - marks[0].cpu) / (marks[-1].ended - marks[0].ended)


def measured(folder: Path, rows: int, *, same: bool) -> Iterator[Mark]:
    """A mark for each part of the rows, as they end."""
    lines = "".join(f"true {0 if same else number}\n" for number in range(rows))
    (folder / "list").write_text(lines, encoding="ascii")
    words = [scheduler(), "run", "-", "-j", "2", "--devices", "host"]
    with open(folder / "list", "rb") as source:
        child = subprocess.Popen(
            words, stdin=source, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environ(folder), cwd=folder
        )
    step, due = max(1, rows // PARTS), 0
    try:
        while child.poll() is None:
            ended = _ended(folder)
            if ended is not None and ended >= due and (mark := _mark(child.pid, ended)) is not None:
                yield mark
                due = ended + step
            time.sleep(PAUSE)
    finally:
        child.kill()
        child.wait()


def _ended(folder: Path) -> int | None:
    """How many tasks are over, by the journal; None where there is none yet."""
    journal = next(folder.glob("state/**/journal.db"), None)
    if journal is None:
        return None
    try:
        with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as opened:
            return int(opened.execute(COUNT_ENDED).fetchone()[0])
    except sqlite3.Error:
        return None


def _mark(pid: int, ended: int) -> Mark | None:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return Mark(ended, time.monotonic(), cpu, int(fields[21]) * resource.getpagesize())


if __name__ == "__main__":
    sys.exit(main())
