"""Cut the power at each write of a run, or at random ones of a larger run, and resume it from what is left on the disk.

    python scripts/bench/power_cuts.py [--tasks 3] [--points 1000] [--seed 1] [--queue]

Without `--points` every point is tried at which something else is left on the disk. What a power cut leaves, and what
counts as lost or run twice, is in `tests/support/power.py`. The exit code is 1 if anything is.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.power import RUN, Recorder, Verdict, judge, judge_queue, prepare, queue_commands, try_points


def main() -> int:
    """Record a run, try the points, and return 1 if something is lost, run twice or unreadable."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=3)
    parser.add_argument("--points", type=int, default=0, help="how many points, chosen at random; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--queue", action="store_true", help="submit the tasks to a queue instead")
    args = parser.parse_args()
    chosen = judge_queue if args.queue else judge
    dice, verdict, began = random.Random(args.seed), Verdict(), time.monotonic()
    codes = [dice.choice((0, 0, 3)) for _ in range(args.tasks)]
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder))
        prepare(recorder, codes)
        recorder.record(*(queue_commands(recorder, codes) if args.queue else [RUN]))
        for names in ("synced", "all"):
            number = sum(1 for _ in recorder.points(names))
            most = min(number, args.points // 2) if args.points else number
            try_points(recorder, codes, names, set(dice.sample(range(number), most)), verdict, chosen)
            print(f"names {names}: {most} of {number} points; {verdict.line()}", flush=True)
    print(f"{verdict.line()}; seed {args.seed}, {time.monotonic() - began:.0f}s")
    for what in ("lost", "twice", "unreadable"):
        for said in getattr(verdict, what)[:5]:
            print(f"  {what}: {said}")
    return 0 if verdict.good else 1


if __name__ == "__main__":
    sys.exit(main())
