"""The gain and the cost of `--preempt` for real, on stand-in GPUs with trainings that save and go on:

    python scripts/bench/preemption_real.py [--tasks 20] [--seconds 30] [--every 60] [--gpus 4] [--after 2.5]

It is the list of preemption.py, 120 times as fast: trainings that fill a GPU each and take `--seconds`, and an urgent
task of five seconds now and then. Two machines work at the same time, one without and one with `--preempt`. The lines
tell how long the urgent tasks waited, when the last training ended, how often one saved, and how many steps of half a
second were computed twice.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path

from measuring import ROOT

sys.path.insert(0, str(ROOT))

from tests.support.gpu_home import GpuHome  # found through the line above
from tests.support.standin.box import SAVES, TRAIN

STEP, URGENT = 0.5, 5.0
"""Seconds of a step of saves.py, and of an urgent task."""
URGENTLY = f"""
import sys, time
sys.path.insert(0, {str(TRAIN.parent)!r})
import client
client.Cuda().allocate(0, 20 << 30)
time.sleep({URGENT})
"""


def main() -> None:
    """Play the list without and with preemption, and print both."""
    args = _arguments()

    def go(preempt: bool) -> str:
        with tempfile.TemporaryDirectory(prefix="preemption-") as folder:
            return play(Path(folder), args, preempt=preempt)

    with ThreadPoolExecutor() as pool:
        for name, line in zip(("without", "with"), pool.map(go, (False, True)), strict=True):
            print(f"{name:8} {line}")


def _arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--tasks", type=int, default=20)
    made.add_argument("--seconds", type=float, default=30.0, help="the time that a training takes")
    made.add_argument("--every", type=float, default=60.0, help="seconds between two urgent tasks")
    made.add_argument("--gpus", type=int, default=4)
    made.add_argument("--after", type=float, default=2.5, help="seconds that an urgent task waits first")
    return made.parse_args()


def play(folder: Path, args: argparse.Namespace, *, preempt: bool) -> str:
    """Play the list to its end, and return what became of it."""
    home = GpuHome(folder, gpus=args.gpus)
    home.env |= {"SCHEDULER_PREEMPT_AFTER": f"{args.after}s", "SCHEDULER_QUEUE_IDLE": "10s"}
    try:
        (home.root / "urgent.py").write_text(URGENTLY)
        steps = int(args.seconds / STEP)
        row = [f"python -S -E {SAVES} {steps}", "21GiB", "yes", 5]
        home.write("jobs.csv", "Command,Memory,Resumable,Priority", *[row] * args.tasks)
        home.call("submit", "jobs.csv", code=0)
        began, submitted = time.time(), list[float]()
        length = args.tasks * args.seconds / args.gpus
        words = ["submit", "--priority", "-5", *["--preempt"] * preempt, "--memory", "21GiB"]
        for number in range(max(1, int(length / args.every))):
            # half a training off their ends, since all begin together
            time.sleep(max(0.0, began + number * args.every + args.seconds / 2 - time.time()))
            submitted.append(time.time())
            home.call(*words, "--", "python", "-S", "-E", "urgent.py", code=0)
        last = args.tasks + len(submitted) - 1
        assert home.start("wait", f"0-{last}").wait() == 0
        tasks = home.tasks("r1")
        assert {task["state"] for task in tasks} == {"succeeded"}, tasks
        waits = [_moment(task["ended"]) - URGENT - at for task, at in zip(tasks[args.tasks :], submitted, strict=True)]
        lines = (home.root / "steps").read_text().splitlines()
        assert len({*lines}) == args.tasks * steps, "a step is missing"
        saves = sum(task["attempts"] - 1 for task in tasks[: args.tasks])
        end = max(_moment(task["ended"]) for task in tasks[: args.tasks]) - began
    finally:
        home.end()
    return (
        f"{len(waits)} urgent tasks waited {statistics.mean(waits):.1f} s on average, {max(waits):.1f} s at most; the "
        f"trainings ended after {end:.1f} s, {saves} times one saved, {len(lines) - args.tasks * steps} of "
        f"{args.tasks * steps} steps were computed twice"
    )


def _moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


if __name__ == "__main__":
    main()
