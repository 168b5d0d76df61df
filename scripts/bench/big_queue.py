"""A queue of very many single submissions: how long the verbs take beside it, and what its scheduler holds:
`python scripts/bench/big_queue.py [--submits 100000] [--lines 1] [--state DIR]`.

All tasks but one wait, since one runs at a time. Each submission has one command, or so many `--lines` of standard
input; the first and the last tenth are told apart, with the memory of the scheduler after each. `--state` keeps the
queue, so that it need not be made again. The bounds are for a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from measuring import ROOT, environ, in_turns, kept, median_and_spread, scheduler, seconds_of

sys.path.insert(0, str(ROOT))

from scripts.bench.chaos_queue import scheduler_of  # found through the line above

TURNS = 5
CLIENTS = 8
SINGLES, TENTHS = 20, 10
BOUNDS = {"list": 2.0, "list --limit 20": 2.0, "why": 1.0}
"""The most seconds by the clock, as medians."""


def main() -> int:
    """Make the queue and print all figures; return 1 if a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--submits", type=int, default=100_000)
    parser.add_argument("--lines", type=int, default=1, help="tasks of each submission (default 1)")
    parser.add_argument("--state", help="a directory for the queue, which is kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="big-queue-") as name:
        folder = Path(args.state or name)
        folder.mkdir(parents=True, exist_ok=True)
        env = {**environ(folder), "SCHEDULER_QUEUE_IDLE": "1h"}
        try:
            return 0 if _measure(args.submits, args.lines, folder, env) else 1
        finally:
            _call(env, "stop", "queue", *(["--leave"] if args.state else ["--abandon"]))
            _call(env, "wait", "queue")


def _measure(submits: int, lines: int, folder: Path, env: Mapping[str, str]) -> bool:
    _call(env, "submit", "--cpus", str(os.cpu_count() or 1), "--", "sleep", "100000")
    singles = [seconds_of([scheduler(), "submit", "--", "true"], cwd=folder, env=env)[0] for _ in range(SINGLES)]
    print(f"{SINGLES} single submits to the empty queue: {median_and_spread(singles)} s")
    _make(submits - 1 - SINGLES, lines, folder, env)
    last = str(submits - 1)
    verbs = {
        "bare python": [sys.executable, "-c", "pass"],
        "submit": [scheduler(), "submit", "--", "true"],
        "list": [scheduler(), "list"],
        "list --limit 20": [scheduler(), "list", "queue", "--limit", "20"],
        "list, every row": [scheduler(), "list", "queue"],
        "why": [scheduler(), "why", last],
        "status": [scheduler(), "status"],
        "logs": [scheduler(), "logs", "0"],
        "set --priority": [scheduler(), "set", last, "--priority", "3"],
    }

    def timed(name: str) -> tuple[float, float]:
        return seconds_of(verbs[name], cwd=folder, env=env)

    found = in_turns(TURNS, {name: lambda _, name=name: timed(name) for name in verbs})
    for name, both in found.items():
        wall, core = (list(column) for column in zip(*both, strict=True))
        print(f"{name:<20} {median_and_spread(wall):>22} s, {median_and_spread(core):>22} s of a core")
    medians = {name: sorted(wall for wall, _ in both)[len(both) // 2] for name, both in found.items()}
    good = [kept(f"s, {name} at {submits:,}", round(medians[name], 2), most) for name, most in BOUNDS.items()]
    return all(good)


def _make(submits: int, lines: int, folder: Path, env: Mapping[str, str]) -> None:
    """Submit commands from some clients at once, each by the code of `submit`, a tenth of them after the other."""
    words = [sys.executable, __file__, "--client", str(lines)]
    for tenth in range(TENTHS):
        began, core, many = time.perf_counter(), _cost(folder)[0], submits // TENTHS + (tenth < submits % TENTHS)
        each = [many // CLIENTS + (number < many % CLIENTS) for number in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            for done in pool.map(lambda number: subprocess.run([*words, str(number)], env=env, check=True), each):
                assert done.returncode == 0
        took = time.perf_counter() - began
        if tenth in (0, TENTHS - 1):
            which, (core_then, size) = ("first", "last")[tenth > 0], _cost(folder)
            print(
                f"the {which} {many:,} tasks, {lines} a submission, {CLIENTS} clients: {took:.1f} s, "
                f"{1000 * took / max(1, many):.2f} ms each; "
                f"of the scheduler {1000 * (core_then - core) / max(1, many):.2f} ms of a core each, and {size:.1f} MiB"
            )


def _cost(folder: Path) -> tuple[float, float]:
    """Return the seconds of the cores that the queue's scheduler took so far, and its proportional memory in MiB."""
    pid = scheduler_of(folder / "state")
    rollup = Path("/proc", str(pid), "smaps_rollup").read_text(encoding="ascii")
    memory = sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:")) / 1024
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system, memory


def _client(lines: int, tasks: int) -> None:
    """Submit so many commands, one submission after the other, in this process."""
    from scheduler.cli.submit import main as submit

    with open(os.devnull, "w", encoding="ascii") as nothing, contextlib.redirect_stdout(nothing):
        for first in range(0, tasks, lines):
            if lines == 1:
                assert submit(["--", "sleep", str(first)]) == 0
                continue
            with tempfile.TemporaryFile("w+", encoding="ascii") as file:
                file.writelines(f"sleep {number}\n" for number in range(first, min(tasks, first + lines)))
                file.seek(0)
                os.dup2(file.fileno(), sys.stdin.fileno())
                assert submit(["--stdin"]) == 0


def _call(env: Mapping[str, str], *words: str) -> None:
    subprocess.run([scheduler(), *words], env=env, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        _client(*map(int, sys.argv[2:]))
        sys.exit()
    sys.exit(main())
