"""Judge runs from outside: nothing of the program is imported, and what it says is compared with what was seen.

    python scripts/bench/oracle.py --minutes 5 --seed 1

Each task tells a file of its own when it begins and ends. The leases are read 20 times a second under the mutex of
their directory, by a parser of the documented format that is written here. Schedulers, shims and tasks are killed at
random, and each kill is kept with the attempt that it hit. In the end a second attempt, or an exit code other than the
task's own, is explained by a kill of that very attempt, or is a failure; reservations above the budget are explained by
a task that was measured above its declared memory, or are an overcommit.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zlib import crc32

ROOT = Path(__file__).resolve().parents[2]
MIB = 1 << 20
BUDGET = 1024 * MIB
TASK = """
import fcntl, os, sys, time
name, code, seconds, size = sys.argv[1], *map(float, sys.argv[2:])
attempt = os.environ["SCHEDULER_ATTEMPT"]
life = open(f"seen/{name}.life", "w")
def tell(*words):
    fd = os.open(f"seen/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)
try:
    fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    tell("twice", attempt)
tell("begin", attempt, os.getpid(), time.time())
kept = bytearray(int(size) << 20)
for place in range(0, len(kept), 4096):
    kept[place] = 1
time.sleep(seconds)
tell("end", attempt, os.getpid(), time.time(), int(code))
sys.exit(int(code))
"""
LEASE = re.compile(r"(\d+)\.([0-9a-f-]+)\.(\d+)\.(\d+)\.[0-9a-f]{16}(\.shim)?")


@dataclass
class Seen:
    """Everything that was seen, done and found."""

    looks: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    hit: dict[tuple[int, int, int], list[str]] = field(default_factory=dict)
    """The kills by run, task and attempt."""
    explained: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)


def leases(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the living leases under the mutex: the names of locked files, and what their blocks say."""
    try:
        mutex = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return []
    try:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        every = [(name, lease(mutex, name)) for name in os.listdir(mutex) if LEASE.fullmatch(name)]
    finally:
        os.close(mutex)
    return [(name, said) for name, said in every if said is not None]


def lease(folder: int, name: str) -> dict[str, Any] | None:
    """Return what a lease says; None if it is dead."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        sum_, _, text = os.pread(fd, 4096, 0).partition(b"\n")[0].partition(b" ")
        return json.loads(text) if sum_ == b"%08x" % crc32(text) else {}
    finally:
        os.close(fd)


class Oracle:
    """One run after another, killed and judged."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self.dice, self.seen = root, random.Random(seed), Seen()
        self.state, self.leases = root / "state", root / "leases"
        (root / "task.py").write_text(TASK)
        own = {"SCHEDULER_STATE": str(self.state), "SCHEDULER_LEASES": str(self.leases), "HOME": str(root)}
        kept = {name: text for name, text in os.environ.items() if not name.startswith("SCHEDULER_")}
        self.env = {**kept, **own, "PYTHONPATH": str(ROOT)}
        self._over = threading.Event()

    def call(self, *words: str) -> subprocess.Popen[str]:
        """Start a command; what it says goes to a file."""
        with open(self.root / "said", "a") as said:
            command = [sys.executable, "-m", "scheduler", *words]
            return subprocess.Popen(command, cwd=self.root, env=self.env, stdout=said, stderr=said, text=True)

    def watch(self) -> None:
        """Read the leases 20 times a second, and note sums above the budget that nothing explains."""
        while not self._over.wait(0.05):
            living = leases(self.leases)
            self.seen.looks += 1
            total = sum(said.get("bytes", {}).get("host", 0) for _, said in living)
            if total > BUDGET:
                grown = [name for name, said in living if said.get("bytes", {}).get("host", 0) > 250 * MIB]
                if grown:
                    self.seen.explained["sum above the budget after growth"] += 1
                else:
                    self.seen.over.append(f"{total / MIB:.0f} MiB: {[(n, s.get('bytes')) for n, s in living]}")

    def run(self, number: int, until: float) -> None:
        """Run a list under kills, and judge it."""
        codes = [self.dice.choice((0, 0, 1, 7)) for _ in range(16)]
        folder = self.root / "seen"
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            path.unlink()
        rows = []
        for task, code in enumerate(codes):
            seconds, size = self.dice.uniform(0.2, 2), self.dice.randint(20, 120)
            rows.append(f'"{sys.executable} task.py {task} {code} {seconds:.2f} {size}",200MiB')
        (self.root / "jobs.csv").write_text("Command,Memory\n" + "\n".join(rows) + "\n")
        limits = ["--devices", f"host:{BUDGET // MIB}MiB", "--keep-going", "--plain", "--max-load", "100", "--new"]
        process = self.call("run", "jobs.csv", *limits)
        while process.poll() is None or process.returncode == -signal.SIGKILL:
            if process.poll() is not None:
                process = self.call("resume", f"r{number}")
            time.sleep(self.dice.uniform(0.3, 1.5))
            if (
                time.monotonic() < until
                and process.poll() is None
                and f"run {number} " in (self.root / "said").read_text()
            ):
                self.kill(process, number)
        self.judge(number, codes, process.returncode)

    def kill(self, process: subprocess.Popen[str], number: int) -> None:
        """Kill a scheduler, or the shim or the main process of an attempt."""
        kind = self.dice.choice(("scheduler", "shim", "task"))
        if kind == "scheduler":
            process.kill()
            process.wait()
            self.seen.kills[kind] += 1
            return
        living = [(name, said) for name, said in leases(self.leases) if said.get("shim")]
        if not living:
            return
        name, said = self.dice.choice(living)
        *_, task, attempt, _ = LEASE.fullmatch(name).groups()  # type: ignore[union-attr]
        pid = said["shim"] if kind == "shim" else next(iter(children(said["shim"])), 0)
        if pid:
            self.seen.hit.setdefault((number, int(task), int(attempt)), []).append(kind)
            self.seen.kills[kind] += 1
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def judge(self, number: int, codes: list[int], code: int) -> None:
        """Compare what the program says of a run with what its tasks have told."""
        words = [sys.executable, "-m", "scheduler", "results", f"r{number}", "--json"]
        answer = subprocess.run(words, cwd=self.root, env=self.env, capture_output=True, text=True, check=False)
        tasks = json.loads(answer.stdout)["tasks"] if answer.returncode == 0 else []
        if len(tasks) != len(codes):
            what = f"{len(tasks)} of {len(codes)} tasks, exit {code}"
            self.seen.faults.append(f"run {number}: {what}: {answer.stderr[-200:]}")
        for place, task in enumerate(tasks):
            self._judge_task(number, place, task, codes[place])

    def _judge_task(self, number: int, place: int, task: dict[str, Any], code: int) -> None:
        path = self.root / "seen" / str(place)
        told = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        what = f"run {number}, task {task['id']}: told {told}, said {task['state']} {task['exit_code']}"
        begun = [int(words[1]) for words in told if words[0] == "begin"]
        ended = [int(words[1]) for words in told if words[0] == "end"]
        if any(words[0] == "twice" for words in told):
            self.seen.faults.append(f"twice at once: {what}")
        for attempt in begun[:-1]:
            kinds = self.seen.hit.get((number, task["id"], attempt), [])
            if "shim" in kinds:
                self.seen.explained["rerun after its shim was killed"] += 1
            else:
                self.seen.faults.append(f"rerun without a kill of attempt {attempt}: {what}")
        if ended and task["exit_code"] == code:
            return
        if begun and all("shim" in self.seen.hit.get((number, task["id"], attempt), []) for attempt in begun):
            self.seen.explained["given up after the shims of all attempts were killed"] += 1
            return
        last = self.seen.hit.get((number, task["id"], begun[-1] if begun else 0), [])
        if "task" in last and task["exit_code"] in (137, -9, None):
            self.seen.explained["other code after its main process was killed"] += 1
        else:
            self.seen.faults.append(f"another code ({code} expected): {what}; kills {last}")

    def go(self, minutes: float) -> int:
        """Run lists for some minutes; return 1 if anything is unexplained."""
        watcher = threading.Thread(target=self.watch)
        watcher.start()
        number, until = 0, time.monotonic() + 60 * minutes
        try:
            while time.monotonic() < until:
                number += 1
                self.run(number, until)
        finally:
            self._over.set()
            watcher.join()
        left = [name for name, _ in leases(self.leases)]
        seen = self.seen
        print(
            f"{number} runs, {seen.looks} looks at the leases; killed {dict(seen.kills)}; "
            f"explained {dict(seen.explained)}; unexplained {len(seen.faults)}, "
            f"overcommits {len(seen.over)}, leases left {len(left)}"
        )
        for said in (*seen.faults[:5], *seen.over[:3], *left[:3]):
            print(f"  {said}")
        if "Traceback" in (self.root / "said").read_text():
            print("  a traceback: see said")
            return 1
        return 1 if seen.faults or seen.over or left else 0


def children(pid: int) -> list[int]:
    """Return the children of a process."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def main() -> int:
    """Judge runs for some minutes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        return Oracle(Path(folder), args.seed).go(args.minutes)


if __name__ == "__main__":
    sys.exit(main())
