"""`python scheduler.py`: the flags of the batch-by-batch original and of the one-shot tool, with this engine."""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import sys
from itertools import pairwise

from scheduler.app.run.options import MPS_WORDS
from scheduler.cli import main as command
from scheduler.cli.parsing import joined_mps

ONE_SHOT = (
    "-gc", "--gpu_count", "-i", "--init", "-v", "--verbose", "-o", "--out", "-e", "--err", "-pg", "--prefered_gpu",
    "-fg", "--forced_gpu", "-s", "--status", "-rg", "--release_gpu", "--export",
)  # fmt: skip
"""The flags that only the one-shot tool has."""
LISTS = (".csv", ".tsv", ".txt", ".json", ".jsonl", ".ndjson")
"""The suffixes of lists; a file with such a suffix is a list even if it is executable."""
LEAST, MOST = 1, 100
"""The lowest and the highest thread percentage that MPS can enforce; it cannot enforce 0, which the original
accepted.
"""
AUTO = "auto"
"""The default of `--mps`: the original always used MPS; this project uses it if it works on the machine."""


def main(argv: list[str]) -> int:
    """Translate the command line to `scheduler run` and run it; pass a quoted task and its flags to the one-shot
    tool.
    """
    if is_one_shot(argv):
        from scheduler.compat import schedule

        return schedule.main(argv)
    parser = argparse.ArgumentParser(
        prog="scheduler.py",
        description="Run a CSV of training jobs.",
        epilog="example: python scheduler.py --csv jobs.csv",
    )
    parser.add_argument("-c", "--csv", metavar="FILE", help="the CSV (default scheduler_files/commands_1.csv)")
    parser.add_argument("-n", "--num", help="rows in a batch (default 20)")
    parser.add_argument("--header", default="0", help="row number of the header, or None")
    parser.add_argument("-m", "--mps", default=AUTO, metavar="HOW", help="NVIDIA MPS: on, off, auto (default) or join")
    parser.add_argument(
        "--threads_percentage",
        "--thread_percentage",
        "--thread-percentage",
        dest="percentage",
        help="maximum percentage of a GPU's threads that a task may use under MPS",
    )
    parser.add_argument(
        "--profile",
        metavar="HOW",
        help="how memory is learned: auto (default), probe, live or off; sequential is the original's procedure: every "
        "task of a batch is profiled, one after the other, then the batch is packed by peak plus buffer alone",
    )
    args, rest = parser.parse_known_args(joined_mps(argv))
    said = [args.csv] if args.csv is not None else []
    said += ["--num", args.num] if args.num is not None else []
    said += ["--profile", args.profile] if args.profile is not None else []
    said += [f"--mps={args.mps}"]
    if args.percentage is not None and MPS_WORDS.get(args.mps.lower()) == "off":
        sys.stderr.write("hint:   --threads_percentage is ignored, because MPS is off\n")
    elif args.percentage is not None:
        said += ["--thread-percentage", _clamped(args.percentage)]
    return command.main(["run", *said, "--header", args.header, "--keep-going", *rest])


def _clamped(said: str) -> str:
    """Return the nearest percentage that MPS can enforce, as the original did; print a note if it differs from the
    given one.
    """
    try:
        number = int(said)
    except ValueError:
        return said  # `auto`, or a value that `run` refuses
    kept = min(max(number, LEAST), MOST)
    if kept != number:
        sys.stderr.write(f"hint:   --threads_percentage {number} is outside of 1 to 100: {kept} is used\n")
    return str(kept)


def is_one_shot(argv: list[str]) -> bool:
    """Tell whether a command line is for the one-shot tool: it has a flag that only this tool has, or a quoted task."""
    said = argv[: argv.index("--")] if "--" in argv else argv
    if any(word.partition("=")[0] in ONE_SHOT for word in said):
        return True
    words = [word for before, word in pairwise(["", *said]) if not before.startswith("-") and not word.startswith("-")]
    return any(" " in word.strip() or ("--" not in argv and is_program(word)) for word in words)


def is_program(word: str) -> bool:
    """Tell whether a word names a program, by its path or on PATH, and not a list."""
    if word.lower().endswith(LISTS):
        return False
    if not os.path.isfile(word):
        return shutil.which(word) is not None
    with contextlib.suppress(OSError), open(word, "rb") as file:
        return file.read(4).startswith((b"#!", b"\x7fELF"))
    return False
