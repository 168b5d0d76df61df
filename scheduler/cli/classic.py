"""`python scheduler.py`: the flags of the batch-by-batch original and of the one-shot tool, on the same engine."""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise

from scheduler.cli import main as command

OFF = ("false", "0", "no", "off", "")
ON = ("true", "1", "yes", "on")
ONE_SHOT = (
    "-gc", "--gpu_count", "-i", "--init", "-v", "--verbose", "-o", "--out", "-e", "--err", "-pg", "--prefered_gpu",
    "-fg", "--forced_gpu", "-s", "--status", "-rg", "--release_gpu", "--export",
)  # fmt: skip
"""Flags of the one-shot tool, none of which a list's call has."""


def main(argv: list[str]) -> int:
    """Translate to `scheduler run` and run it; a quoted task and its flags go to the one-shot door."""
    if is_one_shot(argv):
        from scheduler.cli import schedule

        return schedule.main(argv)
    parser = argparse.ArgumentParser(
        prog="scheduler.py",
        description="Run a CSV of training jobs.",
        epilog="example: python scheduler.py --csv jobs.csv",
    )
    parser.add_argument("-c", "--csv", metavar="FILE", help="the CSV (default scheduler_files/commands_1.csv)")
    parser.add_argument("-n", "--num", help="rows in a batch (default 20)")
    parser.add_argument("--header", default="0", help="row number of the header, or None")
    parser.add_argument(
        "-m", "--mps", nargs="?", const="on", metavar="on|off", help="NVIDIA MPS: not there yet, so off"
    )
    parser.add_argument("--threads_percentage", help="only means something under MPS")
    args, rest = parser.parse_known_args([word.replace("--thread_", "--threads_", 1) for word in argv])
    problem = _mps(args.mps, args.threads_percentage)
    if problem:
        sys.stderr.write(f"scheduler: {problem}\n")
        return 2
    said = [args.csv] if args.csv is not None else []
    said += ["--num", args.num] if args.num is not None else []
    return command.main(["run", *said, "--header", args.header, "--keep-going", *rest])


def is_one_shot(argv: list[str]) -> bool:
    """Whether that is a call of the one-shot tool: one of its own flags, or a quoted task that no flag takes."""
    said = argv[: argv.index("--")] if "--" in argv else argv
    if any(word.partition("=")[0] in ONE_SHOT for word in said):
        return True
    return any(" " in word.strip() and not before.startswith("-") for before, word in pairwise(["", *said]))


def _mps(said: str | None, percentage: str | None) -> str:
    """What cannot be done about MPS; empty where nothing is asked of it."""
    word = (said or "").lower()
    if word in ON:
        return "--mps: NVIDIA MPS is not there yet; run without it, or with --mps off"
    if word not in OFF:
        return f"--mps {said}: write on or off"
    if percentage is not None:
        sys.stderr.write("hint:   --threads_percentage is ignored, because MPS is off\n")
    return ""
