"""How well needs are learned: a list of configurations whose peaks differ from run to run, cold and then warm.

    python scripts/bench/learning.py [--tasks 300] [--configs 30] [--budget 6GiB] [--scale 1.0] [--seed 1]

Each configuration has a peak; half of its tasks differ from it by a factor with the quantiles that were measured on
real training jobs. A task takes a quarter of its memory at once and its peak a tenth into its run, one in twenty only
in its last epoch. Nothing is declared. Printed: outcomes, out-of-memories, and how much was reserved for what was used.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import environ

from scheduler.units import MIB

QUANTILES = ((0.0, 0.85), (0.05, 0.85), (0.1, 0.99), (0.25, 1.0), (0.75, 1.01), (0.9, 1.08), (0.95, 1.17), (1.0, 1.28))
TASK = """
import hashlib, json, mmap, os, sys, time
base, seconds = int(sys.argv[1]), float(sys.argv[2])
table = json.loads(os.environ["LEARNING_QUANTILES"])
drawn_by = os.environ["SCHEDULER_KEY"] + os.environ["LEARNING_SEED"]
draw = int.from_bytes(hashlib.blake2b(drawn_by.encode()).digest()[:8])
deviates, late, at = draw % 2, draw // 2 % 20 == 0, (draw >> 16) % 10000 / 10000
factor = 1.0
if deviates:
    for (q0, f0), (q1, f1) in zip(table, table[1:]):
        if q0 <= at <= q1:
            factor = f0 + (f1 - f0) * (at - q0) / (q1 - q0)
peak = int(base * factor)
def take(size):
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
    return mmap.mmap(-1, size, flags=flags)
epochs = 10
held = [take(peak // 4)]
for epoch in range(1, epochs + 1):
    if epoch == (epochs if late else 2):
        held.append(take(peak - peak // 4))
    time.sleep(seconds / epochs)
    print(f"epoch {epoch}/{epochs}", flush=True)
"""


def main() -> int:
    """Run the list cold and warm, print what came of it; 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--configs", type=int, default=30)
    parser.add_argument("--budget", default="6GiB")
    parser.add_argument("--scale", type=float, default=1.0, help="of all peaks")
    parser.add_argument("--seconds", type=float, default=1.5, help="mean run time of a task")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="learning-") as folder:
        write_list(Path(folder), args)
        reports = [run_once(Path(folder), args) for _ in range(2)]
    good = True
    for name, report in zip(("cold", "warm"), reports, strict=True):
        print(f"{name}: {report}")
    good = all(r["succeeded"] == args.tasks for r in reports)
    good = good and reports[0]["ooms"] * 10 <= args.configs and reports[1]["ooms"] == 0
    print(f"seed {args.seed}: {'within' if good else 'OUTSIDE'} the bounds")
    return 0 if good else 1


def write_list(folder: Path, args: argparse.Namespace) -> None:
    """The task script and a CSV of all tasks, configurations mixed."""
    (folder / "task.py").write_text(TASK, encoding="utf-8")
    chance = random.Random(args.seed)
    configs = [
        (int(chance.uniform(700, 2400) * MIB * args.scale), round(chance.uniform(0.5, 1.5) * args.seconds, 2))
        for _ in range(args.configs)
    ]
    rows = [configs[number % args.configs] for number in range(args.tasks)]
    chance.shuffle(rows)
    with open(folder / "jobs.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["Directory", "Executable", "Filename", "Epochs", "Priority", "CPUs"])
        for base, seconds in rows:
            writer.writerow([folder, sys.executable, f"task.py {base} {seconds}", 10, 1, 0.1])


def run_once(folder: Path, args: argparse.Namespace) -> dict[str, float]:
    """One run of the list; what `results` says of it in a few numbers."""
    env = {
        **environ(folder),
        "LEARNING_SEED": str(args.seed),
        "LEARNING_QUANTILES": json.dumps(QUANTILES),
    }
    command = [sys.executable, "-m", "scheduler", "run", "jobs.csv", "--devices", f"host:{args.budget}"]
    command += ["--settle", "200ms", "--append", "none", "--json"]
    done = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    tasks = json.loads(done.stdout)["tasks"]
    peaks = sum(task["peak_bytes"] or 0 for task in tasks)
    return {
        "succeeded": sum(task["state"] == "succeeded" for task in tasks),
        "ooms": sum(task["ooms"] for task in tasks),
        "attempts": sum(task["attempts"] for task in tasks),
        "reserved_for_peaks": round(sum(task["reserved_bytes"] or 0 for task in tasks) / peaks, 3),
        "unknown": sum(task["source"] == "measured" for task in tasks),
    }


if __name__ == "__main__":
    sys.exit(main())
