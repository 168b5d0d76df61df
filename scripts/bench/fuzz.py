"""Give any number of generated inputs to every door of the program, and print each kind of fault once.

    python scripts/bench/fuzz.py --cases 100000 --seed 1 [--door list --door words] [--keep]

The doors and what counts as a fault are in `tests/support/doors.py`. `--keep` adds the smallest case of each kind of
fault to the corpus in `tests/data/doors.jsonl`, which the tests try from then on. The exit code is 1 if there is a
fault.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from hypothesis import HealthCheck, Phase, given, seed, settings  # noqa: E402

from tests.support.doors import BY_NAME, CORPUS, DOORS, Case, Door, Fault, Place  # noqa: E402

PORTION = 1000
"""Cases between two looks at the clock; hypothesis keeps what it has seen of a portion in memory."""


def main() -> int:
    """Try the cases, and return 1 if a door has a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--door", action="append", choices=sorted(BY_NAME), help="only this door; again for more")
    parser.add_argument("--keep", action="store_true", help="add the smallest case of each kind of fault to the corpus")
    args = parser.parse_args()
    chosen = [door for door in DOORS if not args.door or door.name in args.door]
    shares, tried, found = sum(door.share for door in chosen), 0, dict[tuple[str, str], tuple[str, Case]]()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder))
        for door in chosen:
            began, wanted = time.monotonic(), max(1, args.cases * door.share // shares)
            faults = dict[str, tuple[str, Case]]()
            done = sum(
                portion(door, place, min(PORTION, wanted - first), args.seed + first, faults)
                for first in range(0, wanted, PORTION)
            )
            tried += done
            found.update({(door.name, kind): one for kind, one in faults.items()})
            print(
                f"{door.name:12} {done:7,} cases {time.monotonic() - began:7.1f}s  {len(faults)} kinds of fault",
                flush=True,
            )
            for said, case in faults.values():
                print(f"    {said}\n    {json.dumps(case)[:500]}", flush=True)
    if args.keep:
        with CORPUS.open("a") as file:
            file.writelines(json.dumps({"door": name, "case": case}) + "\n" for (name, _), (_, case) in found.items())
    print(f"{tried:,} cases, {len(found)} kinds of fault")
    return 1 if found else 0


def portion(door: Door, place: Place, cases: int, first: int, faults: dict[str, tuple[str, Case]]) -> int:
    """Try some cases at a door, keep the smallest of each kind of fault, and return how many were tried."""
    done = 0

    @seed(first)
    @settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(door.cases)
    def try_one(case: Case) -> None:
        nonlocal done
        done += 1
        try:
            door.give(place, case)
        except Fault as fault:
            kind = where(fault)
            if kind not in faults or len(json.dumps(case)) < len(json.dumps(faults[kind][1])):
                faults[kind] = f"{kind}: {fault}", case

    try_one()
    return done


def where(fault: Fault) -> str:
    """Return the line of the program in which an error was raised, or the beginning of the sentence."""
    frames = traceback.extract_tb(fault.__cause__.__traceback__) if fault.__cause__ is not None else []
    ours = [frame for frame in frames if "/scheduler/" in frame.filename]
    return f"{ours[-1].filename.rpartition('/scheduler/')[2]}:{ours[-1].lineno}" if ours else str(fault)[:50]


if __name__ == "__main__":
    sys.exit(main())
