"""`simple_gpu_scheduler --gpus 0 1 2`: one command at a time on each listed GPU, from standard input."""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Sequence
from contextlib import closing

from scheduler.app.run import run_loop, start
from scheduler.app.run.devices import SLOTS
from scheduler.app.run.options import RunOptions
from scheduler.app.run.task_list import stdin_listing
from scheduler.cli.main import guarded
from scheduler.errors import UsageError
from scheduler.runtime.settings import read_settings


def main(argv: list[str]) -> int:
    """Run a command line of the older tool; return 0 if every command succeeded."""
    return guarded(lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="simple_gpu_scheduler",
        description="Run the commands that come in on standard input, one on each line, one at a time on each GPU. "
        "A command finds its GPU in CUDA_VISIBLE_DEVICES; blank lines and lines that begin with # are skipped.",
        epilog="example: simple_gpu_scheduler --gpus 0 1 2 < gpu_commands.txt    "
        "two at a time on each GPU: --gpus 0,0,1,1    two GPUs for each command: --gpus 0,1 2,3",
    )
    parser.add_argument(
        "--gpus",
        nargs="+",
        required=True,
        metavar="GPU",
        help="GPUs by number, UUID or any name: 0 1 2 or 0,1,2; the last one is used first",
    )
    settings = read_settings({})
    choices = RunOptions(devices=slots(parser.parse_args(argv).gpus), plain=True)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # bytes that are no text are shown unchanged
    listing = stdin_listing({}, multiline=False, at_once=False)
    session = start.begin(listing, choices, settings)
    assert session is not None
    session.inherits = True
    with closing(session):
        return run_loop.run_to_end(session).exit_code


def slots(said: Sequence[str]) -> str:
    """Return the slots of the run. A single value is split at commas; if there are several values, each is a slot. The
    last slot is used first.
    """
    names = said[0].split(",") if len(said) == 1 else said
    stripped = [",".join(part.strip() for part in name.split(",")) for name in names]
    if any(";" in name for name in stripped):
        raise UsageError(f"--gpus {' '.join(said)}: a name cannot have a semicolon in it")
    return SLOTS + ";".join(reversed(stripped))
