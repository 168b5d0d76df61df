"""Trivial calls through `scheduler.Executor`, beside Python's pools of processes and Ray, in one run:
`python scripts/bench/executor.py [--calls N] [--rounds N] [--ray PYTHON]`.

The kinds take turns; what counts are the ratios to `ProcessPoolExecutor`, whose processes make many calls each. A pool
that makes one call in each process does what the Executor does for each call.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from measuring import environ

PROGRAM = Path(__file__).parent / "programs" / "calls.py"
POOL = "ProcessPoolExecutor"
KINDS = (POOL, "ProcessPoolExecutor, chunks", "process for each call", "scheduler", "scheduler, chunks")
SLOW = {"process for each call": 20}
"""How many times fewer calls some kinds make, so that they end."""
SINGLE = 50


def main() -> int:
    """Print milliseconds a call, and the ratios, of each kind."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--calls", type=int, default=10_000, help="calls of each kind (default 10000)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each kind (default 3)")
    parser.add_argument("--ray", default="", metavar="PYTHON", help="interpreter of an environment that has Ray")
    args = parser.parse_args()
    pythons = dict.fromkeys(KINDS, sys.executable) | ({"ray": args.ray} if args.ray else {})
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in pythons}
    with tempfile.TemporaryDirectory(prefix="calls-") as name:
        for _ in range(args.rounds):
            for kind, python in pythons.items():
                found[kind].append(measured(Path(name), kind, python, args.calls // SLOW.get(kind, 1)))
    print(f"{'':<30}{'ms a call':>12}{'times the pool':>18}{'a single one, ms':>18}{'times the pool':>18}")
    for kind, both in found.items():
        many, one = (statistics.median(column) for column in zip(*both, strict=True))
        ratios = [
            statistics.median(mine[i] / pool[i] for mine, pool in zip(both, found[POOL], strict=True)) for i in (0, 1)
        ]
        print(f"{kind:<30}{1000 * many:>12.3f}{ratios[0]:>18.1f}{1000 * one:>18.2f}{ratios[1]:>18.1f}")
    return 0


def measured(folder: Path, kind: str, python: str, calls: int) -> tuple[float, float]:
    """Return the seconds of a call among many, and of a single one."""
    words = [python, str(PROGRAM), kind, str(calls), str(SINGLE)]
    done = subprocess.run(words, env=environ(folder), cwd=folder, stdout=subprocess.PIPE, check=True, text=True)
    said = json.loads(done.stdout.splitlines()[-1])
    return said["all"] / calls, said["single"]


if __name__ == "__main__":
    raise SystemExit(main())
