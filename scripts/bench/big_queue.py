"""A queue of very many single submissions: how long the verbs take beside it, and what its scheduler holds:
`python scripts/bench/big_queue.py [--submits 100000] [--state DIR]`.

All tasks but one wait, since one runs at a time. `--state` keeps the queue, so that it need not be made again. The
bounds are for a machine that does nothing else.
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

from measuring import ROOT, environ, in_turns, kept, median_and_spread, scheduler, seconds_of

sys.path.insert(0, str(ROOT))

TURNS = 5
CLIENTS = 8
BOUNDS = {"list": 2.0, "list --limit 20": 2.0, "why": 1.0}
"""The most seconds by the clock, as medians."""


def main() -> int:
    """Make the queue and print all figures; return 1 if a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--submits", type=int, default=100_000)
    parser.add_argument("--state", help="a directory for the queue, which is kept")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="big-queue-") as name:
        folder = Path(args.state or name)
        folder.mkdir(parents=True, exist_ok=True)
        env = {**environ(folder), "SCHEDULER_QUEUE_IDLE": "1h"}
        try:
            return 0 if _measure(args.submits, folder, env) else 1
        finally:
            _call(env, "stop", "queue", *(["--leave"] if args.state else ["--abandon"]))
            _call(env, "wait", "queue")


def _measure(submits: int, folder: Path, env: Mapping[str, str]) -> bool:
    _call(env, "submit", "--cpus", str(os.cpu_count() or 1), "--", "sleep", "100000")
    _make(submits - 1, env)
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


def _make(submits: int, env: Mapping[str, str]) -> None:
    """Submit single commands from some clients at once, each by the code of `submit`."""
    began = time.perf_counter()
    each = [submits // CLIENTS + (number < submits % CLIENTS) for number in range(CLIENTS)]
    words = [sys.executable, __file__, "--client"]
    with ThreadPoolExecutor(CLIENTS) as pool:
        for done in pool.map(lambda number: subprocess.run([*words, str(number)], env=env, check=True), each):
            assert done.returncode == 0
    took = time.perf_counter() - began
    print(f"{submits:,} submissions from {CLIENTS} clients: {took:.1f} s, {1000 * took / max(1, submits):.2f} ms each")


def _client(submits: int) -> None:
    """Submit so many commands, one after the other, in this process."""
    from scheduler.cli.submit import main as submit

    with open(os.devnull, "w", encoding="ascii") as nothing, contextlib.redirect_stdout(nothing):
        for number in range(submits):
            assert submit(["--", "sleep", str(number)]) == 0


def _call(env: Mapping[str, str], *words: str) -> None:
    subprocess.run([scheduler(), *words], env=env, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--client"]:
        _client(int(sys.argv[2]))
        sys.exit()
    sys.exit(main())
