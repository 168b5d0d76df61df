"""MIG instances packed by learned memory: `python scripts/bench/instances.py [--goes 3] [--seconds 3] [--small]`.

40 tasks of 8 kinds (1 to 8 GiB), of which nothing is known, run as real processes on the stand-in's instances: seven
instances of two GPUs of 40 GiB (20, five of 10 and one of 5 GiB) and a third GPU that is whole; with `--small` seven
instances of 5 GiB and a whole GPU, where half of the kinds are too large for an instance. Then one task runs on each
device at a time. Printed are the tasks that succeeded, the out-of-memories that each device counted, and how many times
faster packing is. The exit code is 1 if a task did not succeed, or, without `--small`, if a device ran out of memory.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.support.gpu_home import GpuHome, training

PEAKS = (1, 2, 3, 4, 5.5, 6.5, 7, 8)
EACH = 5
MIXED = (("3g.20gb", "2g.10gb", "2g.10gb"), ("2g.10gb", "2g.10gb", "2g.10gb", "1g.5gb"))
SMALL = (("1g.5gb",) * 7,)


def go(cards: Sequence[Sequence[str]], seconds: float, *flags: str) -> tuple[float, int, int]:
    """Run the list once; return its makespan, how many tasks succeeded, and the out-of-memories of the devices."""
    with tempfile.TemporaryDirectory() as root:
        home = GpuHome(Path(root), gpus=len(cards) + 1, total="40GiB", name="NVIDIA A100-SXM4-40GB")
        try:
            parts = [part for card, profiles in enumerate(cards) for part in home.box.slice(card, *profiles)]
            kinds = [training(peak=f"{peak}GiB", seconds=seconds, busy=0.3) for peak in PEAKS]
            home.jobs(*kinds * EACH)
            with home.going("--settle", "1s", *flags):
                pass
            tries = home.tries()
            succeeded = {one.task for one in tries if one.outcome == "succeeded"}
            took = max(one.ended for one in tries) - min(one.placed for one in tries)
            return took, len(succeeded), sum(home.box.ooms(part) for part in (*range(len(cards) + 1), *parts))
        finally:
            with contextlib.redirect_stdout(io.StringIO()):  # it prints the whole log
                home.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--goes", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    cards, wanted, well = SMALL if args.small else MIXED, len(PEAKS) * EACH, True
    alone, _, _ = go(cards, args.seconds, "--max-per-device", "1")
    for number in range(1, args.goes + 1):
        took, succeeded, ooms = go(cards, args.seconds)
        well = well and succeeded == wanted and (args.small or not ooms)
        print(
            f"go {number}: {succeeded} of {wanted} succeeded, {ooms} out-of-memories, {took:.1f} s; "
            f"one for each device {alone:.1f} s: {alone / took:.2f} times faster",
            flush=True,
        )
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
