"""Nine trees of processes that are hard to end, and what it takes to end them.

python -m tests.support.trees [--rounds 3] [--ungrouped]

It prints milliseconds beyond the grace, and survivors.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

from scheduler.runtime.shim import LEFTOVER_GRACE, LINGER
from tests.e2e.conftest import Driver, marked

GRACE = 0.3
SCRIPT = """
import os, signal, sys, time
def nap(): time.sleep(600); os._exit(0)
def child(work):
    if os.fork() == 0:
        work(); nap()
def twice(work): child(lambda: child(work) or os._exit(0))
def chain():
    while True:
        time.sleep(0.005)
        if os.fork(): os._exit(0)
def become(env):
    os.execve(sys.executable, [sys.executable, "-IS", "-c", "import time; time.sleep(600)", *sys.argv[1:]], env)
def deaf(): [signal.signal(n, signal.SIG_IGN) for n in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
def leave(): os.setsid(); os.closerange(0, 256)
TREES = {
    "session": lambda: child(os.setsid),
    "deaf": lambda: child(deaf),
    "double-fork": lambda: twice(lambda: None),
    "daemon": lambda: twice(leave),
    "clean-environment": lambda: twice(lambda: (os.setsid(), become({}))),
    "grandchild": lambda: child(lambda: child(nap)),
    "chain": lambda: child(chain),
    "stopped": lambda: child(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "crowd": lambda: [child(deaf) for _ in range(40)],
}
TREES[sys.argv[1]]()
time.sleep(0.05)
print("ready", flush=True)
if sys.argv[2] == "nap":
    nap()
"""
"""The program `SCRIPT TREE nap|end MARK`: its main process sleeps, or ends before the others."""
TREES = (
    "session", "deaf", "double-fork", "daemon", "clean-environment", "grandchild", "chain", "stopped", "crowd",
)  # fmt: skip


def argv(tree: str, main: str, mark: str) -> list[str]:
    """Return the command that starts one of the trees."""
    return [sys.executable, "-IS", "-c", SCRIPT, tree, main, mark]


def cancel(driver: Driver, tree: str, mark: str) -> float:
    """Ask the tree to stop; return the seconds beyond the grace time."""
    task = driver.launch(*argv(tree, "nap", mark), grace=GRACE)
    return _ended(driver, task, lambda: driver.engine.stop(task, 1), GRACE)


def kill(driver: Driver, tree: str, mark: str) -> float:
    """Stop the tree at once, as after a second Ctrl-C."""
    task = driver.launch(*argv(tree, "nap", mark), grace=GRACE)
    return _ended(driver, task, lambda: driver.engine.stop(task, 1, kill=True), 0.0)


def timeout(driver: Driver, tree: str, mark: str) -> float:
    """Let the tree reach its time limit."""
    limit = 1.0
    task = driver.launch(*argv(tree, "nap", mark), grace=GRACE, timeout=limit)
    driver.started(task)
    ended = driver.exited(task, deadline=60)
    return max(0.0, ended.seconds - limit - GRACE)


def main_ends(driver: Driver, tree: str, mark: str) -> float:
    """End the main process alone; what it leaves has two seconds to end."""
    task = driver.launch(*argv(tree, "end", mark))
    began = time.monotonic()
    driver.exited(task, deadline=60)
    return max(0.0, time.monotonic() - began - LINGER - LEFTOVER_GRACE)


WAYS: dict[str, Callable[[Driver, str, str], float]] = {
    "cancel": cancel, "kill": kill, "timeout": timeout, "main's end": main_ends,
}  # fmt: skip


def _ended(driver: Driver, task: int, act: Callable[[], None], grace: float) -> float:
    driver.wait_for_line("ready", task)
    began = time.monotonic()
    act()
    driver.exited(task, deadline=60)
    return max(0.0, time.monotonic() - began - grace)


def measure(rounds: int, *, grouped: bool) -> int:
    """Print a table; return 1 if a process survived."""
    survivors, slowest = 0, 0.0
    where = "in control groups where they can be made" if grouped else "without control groups"
    print(where)
    print(f"{'milliseconds beyond the grace, the slowest of ' + str(rounds):<28}", *WAYS, sep="  ")
    for tree in TREES:
        row = []
        for way in WAYS.values():
            found = []
            for _ in range(rounds):
                with tempfile.TemporaryDirectory() as root:
                    driver, mark = Driver(Path(root), uuid.uuid4().hex, cgroups=grouped), f"mark-{uuid.uuid4().hex}"
                    found.append(way(driver, tree, mark))
                    survivors += len(marked(mark))
                    driver.end()
            row.append(max(found))
        slowest = max(slowest, *row)
        print(f"{tree:<28}", *(f"{1000 * each:8.0f}" for each in row), sep="  ", flush=True)
    print(f"{survivors} survivors; the slowest {1000 * slowest:.0f} ms beyond the grace")
    return 1 if survivors else 0


def main(said: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.trees", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ungrouped", action="store_true", help="as where no control groups can be made")
    args = parser.parse_args(said)
    return measure(args.rounds, grouped=not args.ungrouped)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
