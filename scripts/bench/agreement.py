"""Does a simulation come to what a real run comes to? Runs a list for real, simulates it, and prints both makespans.

    python scripts/bench/agreement.py [standin] [sample] [--runs 3] [--tasks 200] [--seconds 4.0] [--seed 1]

standin: tasks on the GPUs of tests/standin, whose truths are known; time is scaled so that a task lasts seconds.
sample: scheduler_files/commands.csv on the host's RAM; its truths are what the rows take one at a time.
Nothing is known beforehand to either side. The real runs need the machine for themselves.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gpu_pack
from measuring import ROOT, environ

from scheduler.core.events import Exited
from scheduler.store.run.journal_reader import JournalReader
from scheduler.units import MIB

SETTLE = 60.0
"""The value of `--settle` on GPUs: the simulated time is so much longer that it is that again."""


def standin(folder: Path, args: argparse.Namespace) -> bool:
    """The list of gpu_pack, whose tasks do what a table says."""
    place, chance = gpu_pack.Place(folder, 4), random.Random(args.seed)
    truths = {f"c{n}": {**gpu_pack._truth(n, chance, args), "late": False} for n in range(max(1, args.tasks // 5))}
    (folder / "truth.json").write_text(json.dumps(truths))
    (folder / "job.py").write_text(gpu_pack.JOB.replace("TABLE(said)", 'said["--config"]'))
    configs = [f"c{n % len(truths)}" for n in range(args.tasks)]
    chance.shuffle(configs)
    header = ["Directory", "Executable", "Filename", "Epochs", "Priority", "GPUs"]
    rows = [[folder, sys.executable, f"job.py --config {c}", 10, 1, truths[c]["gpus"]] for c in configs]
    settle = args.seconds / 10
    place.write(header, rows[:1])
    before = place.run(settle, state="once").seconds - float(truths[configs[0]]["seconds"])
    place.write(header, rows)
    real = [place.run(settle, state=f"run{n}").seconds for n in range(args.runs)]
    scale = SETTLE / settle
    trace = [
        {
            "job_id": n, "duration_s": scale * (float(truths[c]["seconds"]) + before), "priority": 1, "epochs": 10,
            "peak_mem_mib": int(truths[c]["bytes"]) / MIB, "gpus": truths[c]["gpus"], "util": truths[c]["busy"],
            "config": f"job.py --config {c}",
        }
        for n, c in enumerate(configs)
    ]  # fmt: skip
    found = simulated(folder, trace, "--devices", "4x24GiB")
    print(f"standin: before its work a task takes {before:.2f}s")
    return compare("standin", real, found["makespan"] / scale, 0.10)


def sample(folder: Path, args: argparse.Namespace) -> bool:
    """The forty rows of the sample, one at a time for their truths, then together."""
    folder.mkdir(parents=True)
    alone = run_sample(folder / "alone", "-j", "1")
    real = [makespan(run_sample(folder / f"run{n}")) for n in range(args.runs)]
    with open(ROOT / "scheduler_files/commands.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    by_row = {row["row"]: row["id"] for row in alone["tasks"]}
    exits = [exited_of(folder / "alone", by_row[number]) for number in range(2, len(rows) + 2)]
    trace = [
        {
            "job_id": number, "duration_s": e.seconds, "priority": said["Priority"], "epochs": said["Epochs"],
            "peak_mem_mib": e.peak["host"] / MIB, "gpus": 0, "cores": e.cpu_seconds / e.seconds,
            "config": said["Filename"],
        }
        for number, (said, e) in enumerate(zip(rows, exits, strict=True))
    ]  # fmt: skip
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    found = simulated(folder, trace, "--devices", f"host:{total // MIB}MiB")
    return compare("sample", real, found["makespan"], 0.20)


def run_sample(state: Path, *flags: str) -> dict[str, Any]:
    """One real run of the sample with nothing known; its results."""
    command = [sys.executable, "-m", "scheduler", "run", "scheduler_files/commands.csv", "--devices", "host"]
    done = subprocess.run(
        [*command, "--python", sys.executable, "--json", *flags],
        cwd=ROOT, env=environ(state.parent, SCHEDULER_STATE=str(state)),
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def makespan(results: dict[str, Any]) -> float:
    """From the first start to the last end."""
    from datetime import datetime

    starts = [datetime.fromisoformat(task["started"]).timestamp() for task in results["tasks"]]
    ends = [datetime.fromisoformat(task["ended"]).timestamp() for task in results["tasks"]]
    return max(ends) - min(starts)


def exited_of(state: Path, task: int) -> Exited:
    """How a task of the state's one run ended."""
    if state not in _EXITS:
        (path,) = (state / "runs").glob("*/journal.db")
        journal = JournalReader.read(path)
        _EXITS[state] = {one.event.task: one.event for one in journal.events() if isinstance(one.event, Exited)}
        journal.close()
    return _EXITS[state][task]


_EXITS: dict[Path, dict[int, Exited]] = {}


def simulated(folder: Path, trace: Sequence[dict[str, object]], *flags: str) -> dict[str, Any]:
    """Run the list on a simulated machine."""
    path = folder / "trace.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(trace[0]))
        writer.writeheader()
        writer.writerows(trace)
    command = [sys.executable, "-m", "scheduler", "simulate", str(path), "--no-deviation", "--json", *flags]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(what: str, real: Sequence[float], simulated_: float, most: float) -> bool:
    """Print both, and how far they are apart."""
    middle = statistics.median(real)
    apart = simulated_ / middle - 1
    good = abs(apart) <= most
    runs = ", ".join(f"{seconds:.1f}s" for seconds in real)
    print(
        f"{'ok  ' if good else 'MISS'} {what}: real {middle:.1f}s (median of {runs}), simulated {simulated_:.1f}s: "
        f"{apart:+.1%} (at most {most:.0%})",
        flush=True,
    )
    return good


SCENES: dict[str, Callable[[Path, argparse.Namespace], bool]] = {"standin": standin, "sample": sample}


def main() -> int:
    """Run the scenes that were named, or all; 1 where a simulation is too far off."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("scenes", nargs="*", choices=[[], *SCENES], default=[])
    parser.add_argument("--runs", type=int, default=3, help="real runs, of which the median counts")
    parser.add_argument("--tasks", type=int, default=200, help="of the stand-in list")
    parser.add_argument("--seconds", type=float, default=4.0, help="mean run time of a stand-in task")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    print(
        f"load of the last minute: {os.getloadavg()[0]:.1f} (above 0.3 the real runs are not to be trusted)", flush=True
    )
    with tempfile.TemporaryDirectory(prefix="agreement-") as folder:
        good = [SCENES[name](Path(folder) / name, args) for name in args.scenes or SCENES]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
