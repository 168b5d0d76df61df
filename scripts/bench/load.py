"""Measure what a scheduler holds at the start and at the end of a long load; each part stands for itself.

    python scripts/bench/load.py [--only PART] [--tasks 20000] [--scale 1.0]

run: one list of `--tasks` tasks. schedulers: fifty lists at once. at-once: 2,000 tasks of one list that live at the
same moment. output: a task that prints 2 GB. descendants: a task with 50,000 processes, 500 at a time. mutex: how long
each decision of a list holds the mutex while ten users have 200 leases (needs root). `--scale` makes all of them
smaller.

Printed of a scheduler: memory of its own (PSS), descriptors, threads, and files below its state and in the lease
directory; early, and when nearly all is done. The exit code is 1 if a task did not succeed, or if anything but the
journal grows with each task.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.killing import Home, Started, children  # noqa: E402  # found through the line above
from tests.support.two_users import become, reachable_python  # noqa: E402
from tests.support.waiting import wait_until  # noqa: E402

MIB = 1 << 20
HOURS = 36_000.0
FLAGS = ("--devices", "host:4GiB", "--max-load", "1000", "--memory", "1MiB", "--buffer", "8MiB", "--plain")
FORKS = """
import os, sys
left = int(sys.argv[1])
while left:
    for _ in range(500):
        if os.fork() == 0:
            os.read(0, 1)
            os._exit(0)
    for _ in range(500):
        os.wait()
    left -= 500
"""
HOLD = """
import os, sys
from pathlib import Path
from scheduler.core.model import EstimateSource, Placement, Purpose
from scheduler.store.machine.leases import FileLeaseRegistry
registry = FileLeaseRegistry(Path(sys.argv[1]), f"{os.getuid()}-aa", "boot")
with registry.deciding() as transaction:
    for task in range(int(sys.argv[2])):
        transaction.take(Placement(task, 1, Purpose.RUN, {"host": 1 << 20}, 0.0, EstimateSource.DECLARED))
print("held", flush=True)
sys.stdin.read()
"""
TIMED = """
import atexit, sys, time
from scheduler.store.machine.leases import FileLeaseRegistry
from scheduler.store.machine.mutex import Mutex
held, take, release = [], Mutex.take, Mutex.release
def taken(self, patience):
    done = take(self, patience)
    self.since = time.perf_counter(), time.thread_time()
    return done
def released(self):
    release(self)
    held.append((time.perf_counter() - self.since[0], time.thread_time() - self.since[1]))
Mutex.take, Mutex.release = taken, released
where = sys.argv.pop(1)
atexit.register(lambda: open(where, "w").write("\\n".join(f"{a} {b}" for a, b in held)))
from scheduler.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Holding(NamedTuple):
    """The memory, descriptors, threads and files of a scheduler at one moment."""

    memory: float
    """MiB of its own and its share of what others have, too (PSS)."""
    descriptors: int
    threads: int
    state: int
    """Files below its state."""
    leases: int

    def __str__(self) -> str:
        return (
            f"{self.memory:.1f} MiB, {self.descriptors} descriptors, {self.threads} threads, {self.state} files, "
            f"{self.leases} in the lease directory"
        )


def holding(home: Home, pid: int) -> Holding:
    """Look at a scheduler and at its folders."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    memory = next(int(line.split()[1]) / 1024 for line in rollup if line.startswith("Pss:"))
    files = sum(len(names) for _, _, names in os.walk(home.state))
    count = lambda what: len(os.listdir(f"/proc/{pid}/{what}"))  # noqa: E731
    return Holding(memory, count("fd"), count("task"), files, len(os.listdir(home.leases)))


def done(home: Home) -> int:
    """Return how many tasks have ended; by the log, because results would read the whole journal."""
    return home.log().count(" done ")


@contextlib.contextmanager
def world() -> Iterator[Home]:
    with tempfile.TemporaryDirectory(prefix="load-") as folder:
        home = Home(Path(folder))
        try:
            yield home
        finally:
            home.end()


def going(home: Home, *words: str) -> Started:
    return home.start("run", "jobs.csv", *FLAGS, *words)


def part_run(scale: float, tasks: int) -> bool:
    tasks = int(tasks * scale)
    with world() as home:
        home.commands(*["true"] * tasks)
        began = time.monotonic()
        with going(home) as scheduler:
            wait_until(lambda: done(home) >= tasks // 20, HOURS, pause=0.5)
            early = holding(home, scheduler.pid)
            wait_until(lambda: done(home) >= tasks * 19 // 20, HOURS, pause=0.5)
            late = holding(home, scheduler.pid)
            code = scheduler.wait(HOURS)
        seconds = time.monotonic() - began
        journal = sum(path.stat().st_size for path in (home.state / "runs/1").glob("journal*"))
        look = time.monotonic()
        home.call("status", code=0)
        look = time.monotonic() - look
        print(f"run of {tasks} tasks, {seconds:.0f} s, exit {code}; journal {journal / tasks:.0f} bytes a task")
        print(f"  status after it {1000 * look:.0f} ms", f"  5 %: {early}", f" 95 %: {late}", sep="\n", flush=True)
        grown = late.memory - early.memory
        print(f"  {1024 * grown / (0.9 * tasks):.2f} KiB of memory for each task")
        return code == 0 and late.descriptors <= early.descriptors + 10 and late.threads <= early.threads + 2


def part_schedulers(scale: float, _: int) -> bool:
    number = max(2, int(50 * scale))
    with world() as home:
        home.commands(*["true"] * 5)
        began = time.monotonic()
        words = ("run", "jobs.csv", *FLAGS, "--new")
        every = [home.start(*words, stderr=subprocess.PIPE) for _ in range(number)]
        said = [one.communicate()[1] for one in every]
        codes = [one.returncode for one in every]
        seconds = time.monotonic() - began
        for words_, code in zip(said, codes, strict=True):
            if code:
                print(f"  exit {code}: {words_.strip()[-300:]}")
        runs = json.loads(home.call("runs", "--json").stdout)["runs"]
        states = {task["state"] for run in runs for task in home.tasks(str(run["number"]))}
        print(f"{number} schedulers at once, 5 tasks each: {seconds:.1f} s, exits {set(codes)}, states {states}; "
              f"{len(os.listdir(home.leases))} files left in the lease directory", flush=True)  # fmt: skip
        return set(codes) == {0} and states == {"succeeded"}


def part_at_once(scale: float, _: int) -> bool:
    number = int(2000 * scale)
    with world() as home:
        home.commands(*[f"sh -c 'echo >>{home.root}/began; read line <{home.root}/gate'"] * number)
        os.mkfifo(home.root / "gate")
        began = time.monotonic()
        with going(home) as scheduler:
            told = home.root / "began"
            wait_until(lambda: told.exists() and told.stat().st_size >= number // 20, HOURS, pause=0.2)
            early = holding(home, scheduler.pid)
            wait_until(lambda: told.stat().st_size >= number, HOURS, pause=0.2)
            full, up = holding(home, scheduler.pid), time.monotonic() - began
            look = time.monotonic()
            home.call("status", code=0)
            look = time.monotonic() - look
            gate = os.open(home.root / "gate", os.O_RDWR)
            os.write(gate, b"\n" * number)
            code = scheduler.wait(HOURS)
            os.close(gate)
        print(f"{number} tasks at once: all live after {up:.0f} s, exit {code}; status meanwhile {1000 * look:.0f} ms",
              f"   5 %: {early}", f"  full: {full}", sep="\n", flush=True)  # fmt: skip
        return code == 0


def part_output(scale: float, _: int) -> bool:
    mib = int(2048 * scale)
    with world() as home:
        home.commands(f"head -c {mib}M /dev/zero")
        began = time.monotonic()
        most = 0.0
        with going(home, "--log-max", "50MiB") as scheduler:
            while scheduler.poll() is None:
                most = max(most, *map(memory, shims(scheduler.pid)), 0.0)
                time.sleep(0.05)
        log = sum(path.stat().st_size for path in (home.state / "runs/1/tasks").rglob("*.log")) / MIB
        seconds = time.monotonic() - began
        print(
            f"a task that prints {mib} MiB: {seconds:.1f} s, exit {scheduler.returncode}, its log {log:.0f} MiB, its "
            f"shim at most {most:.1f} MiB",
            flush=True,
        )
        return scheduler.returncode == 0


def shims(scheduler: int) -> list[int]:
    """Return the fork server of a scheduler and its shims."""
    servers = children(scheduler, "shim")
    return [*servers, *(shim for server in servers for shim in children(server, "shim"))]


def memory(pid: int) -> float:
    """Return the MiB that a process has; 0 if it has ended."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0]) / 1024
    return 0.0


def look_on(home: Home, scheduler: Started) -> Holding:
    """Look at a scheduler until it ends; return the last look."""
    late = holding(home, scheduler.pid)
    while scheduler.poll() is None:
        with contextlib.suppress(OSError, StopIteration):
            late = holding(home, scheduler.pid)
        time.sleep(0.2)
    return late


def part_descendants(scale: float, _: int) -> bool:
    number = int(50_000 * scale) // 500 * 500
    with world() as home:
        (home.root / "forks.py").write_text(FORKS)
        home.commands(f"{sys.executable} -S -E forks.py {number}")
        began = time.monotonic()
        with going(home) as scheduler:
            wait_until(lambda: home.log() and home.states() == ["running"], 60)
            early = holding(home, scheduler.pid)
            late = look_on(home, scheduler)
        print(f"a task with {number} descendants: {time.monotonic() - began:.0f} s, exit {scheduler.returncode}",
              f"  early: {early}", f"   late: {late}", sep="\n", flush=True)  # fmt: skip
        return scheduler.returncode == 0 and late.descriptors <= early.descriptors + 10


def part_mutex(scale: float, _: int) -> bool:
    users, each = 10, max(1, int(20 * scale))
    with tempfile.TemporaryDirectory(prefix="load-") as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        root.chmod(0o755)
        python, code = reachable_python(root)
        home = Home(root / "home")
        home.root.mkdir()
        home.leases = root / "leases"
        home.leases.mkdir()
        home.leases.chmod(0o1777)
        home.env["SCHEDULER_LEASES"] = str(home.leases)
        stack.callback(home.end)
        for user in range(users):
            words = [*become(30_000 + user), python, "-c", HOLD, str(home.leases), str(each)]
            one = subprocess.Popen(
                words, env={"PYTHONPATH": str(code)}, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            stack.callback(one.wait)
            stack.callback(one.kill)
            assert one.stdout is not None
            assert one.stdout.readline() == b"held\n"
        home.commands(*["true"] * 200)
        times = root / "times"
        home.command = [sys.executable, "-c", TIMED, str(times)]
        good = True
        for slots in ("4", "100"):
            done_ = home.call("run", "jobs.csv", *FLAGS, "--new", "--slots", slots)
            every = [[1000 * float(word) for word in line.split()] for line in times.read_text().splitlines()]
            wall, own = (sorted(column) for column in zip(*every, strict=True))
            print(
                f"mutex with {users * each} leases of {users} users, {slots} slots: {len(wall)} times, median "
                f"{at(wall, 0.5):.2f} ms, 99 % {at(wall, 0.99):.2f} ms, longest {wall[-1]:.2f} ms; of the processor "
                f"{at(own, 0.5):.2f}, {at(own, 0.99):.2f}, {own[-1]:.2f} ms; exit {done_.returncode}",
                flush=True,
            )
            good = good and done_.returncode == 0 and at(wall, 0.99) <= 5.0
        return good


def at(sorted_: list[float], share: float) -> float:
    """Return the value below which this share of all lies."""
    return sorted_[min(len(sorted_) - 1, int(share * len(sorted_)))]


PARTS: dict[str, Callable[[float, int], bool]] = {
    "run": part_run,
    "schedulers": part_schedulers,
    "at-once": part_at_once,
    "output": part_output,
    "descendants": part_descendants,
    "mutex": part_mutex,
}


def main() -> int:
    """Measure the parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS, action="append")
    parser.add_argument("--tasks", type=int, default=20_000)
    parser.add_argument("--scale", type=float, default=1.0)
    args = parser.parse_args()
    good = [PARTS[name](args.scale, args.tasks) for name in args.only or PARTS]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
