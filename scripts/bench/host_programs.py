"""First contact on host RAM: `python scripts/bench/host_programs.py [--budget 4GiB] [--goes 1]`.

Thirty programs that all differ, written with numpy, pandas and the standard library (programs/host, each in three
sizes), run in a budget of host RAM: packed with nothing known, and one at a time. Nothing is declared but a quarter of
a core, so that memory decides. Printed are both times, the most RAM that the tasks used at once, and the attempts that
ran out of memory. The exit code is 1 where a task fails, the budget is exceeded, or packing is not faster.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from measuring import PROGRAMS, environ, kept, machine, scheduler

from scheduler.units import GIB, parse_size

CORES = 0.25
PAUSE = 0.2
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""So that a program computes with one core, as its row says at most."""


@dataclass(frozen=True)
class Go:
    """One run of all programs."""

    seconds: float
    most: int
    """The most RAM that all tasks used at once, in bytes."""
    states: dict[str, int]
    """The number of tasks in each state."""
    ooms: int
    """The attempts that ran out of memory."""


def write(folder: Path, sizes: Sequence[int]) -> None:
    """Write the programs in these sizes, and the list of them."""
    rows = []
    for source in sorted((PROGRAMS / "host").glob("*.py")):
        for size in sizes:
            text = source.read_text(encoding="utf-8").replace("\nSIZE = 1\n", f"\nSIZE = {size}\n")
            (folder / f"{source.stem}_{size}.py").write_text(text, encoding="utf-8")
            rows.append([folder, sys.executable, f"{source.stem}_{size}.py", 1, 1, CORES])
    with open(folder / "list.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["Directory", "Executable", "Filename", "Epochs", "Priority", "CPUs"], *rows])


def go(folder: Path, sizes: Sequence[int], budget: str, *more: str) -> Go:
    """Run all programs once."""
    folder.mkdir()
    write(folder, sizes)
    words = [scheduler(), "run", "list.csv", "--devices", f"host:{budget}", "--append", "none", *more]
    with open(folder / "out", "wb") as out:
        began = time.monotonic()
        child = subprocess.Popen(words, stdout=out, stderr=out, env=environ(folder, **THREADS), cwd=folder)
        try:
            most = max(used_at_once(child), default=0)
        finally:
            child.kill()
            child.wait()
    return Go(time.monotonic() - began, most, *results(folder))


def used_at_once(child: subprocess.Popen[bytes]) -> Iterator[int]:
    """Yield the RAM that all tasks of a run use together, again and again until it ends."""
    run = psutil.Process(child.pid)
    while child.poll() is None:
        yield sum(map(_used, run.children(recursive=True)))
        time.sleep(PAUSE)


def _used(process: psutil.Process) -> int:
    """Return the RAM of a process if it is one of the programs; 0 otherwise."""
    try:
        is_program = any(word.endswith(".py") and "_" in word for word in process.cmdline()[1:2])
        return process.memory_full_info().pss if is_program else 0
    except psutil.Error:
        return 0


def results(folder: Path) -> tuple[dict[str, int], int]:
    """Return how many tasks ended in each state, and how many attempts ran out of memory."""
    found = subprocess.run(
        [scheduler(), "results", "--csv"], env=environ(folder), cwd=folder, capture_output=True, text=True, check=True
    )
    states: dict[str, int] = {}
    ooms = 0
    for row in csv.DictReader(found.stdout.splitlines()):
        states[row["state"]] = states.get(row["state"], 0) + 1
        ooms += int(row.get("ooms") or 0)
    return states, ooms


def main() -> int:
    """Run the programs both ways; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="4GiB", help="host RAM for all of them (default 4GiB)")
    parser.add_argument("--goes", type=int, default=1)
    parser.add_argument("--sizes", default="1,2,3", help="of each program (default 1,2,3)")
    args = parser.parse_args()
    sizes = [int(size) for size in args.sizes.split(",")]
    print(", ".join(machine().values()))
    good = []
    with tempfile.TemporaryDirectory(prefix="host-programs-") as name:
        for number in range(args.goes):
            packed = go(Path(name) / f"packed-{number}", sizes, args.budget)
            single = go(Path(name) / f"single-{number}", sizes, args.budget, "-j", "1")
            for what, one in (("packed", packed), ("one at a time", single)):
                print(
                    f"  {what:13} {one.seconds:6.1f} s, at most {one.most / GIB:.2f} GiB at once, "
                    f"{one.ooms} out of memory, {one.states}",
                    flush=True,
                )
            good += [
                kept("packed / one at a time", round(packed.seconds / single.seconds, 2), 1.0),
                kept("RAM at once / budget", round(packed.most / parse_size(args.budget), 2), 1.0),
                kept("tasks that did not succeed", sum(packed.states.values()) - packed.states.get("succeeded", 0), 0),
            ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
