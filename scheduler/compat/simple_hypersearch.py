"""`simple_hypersearch PATTERN -p NAME VALUE ...`: prints the commands of a parameter grid, one on each line."""

from __future__ import annotations

import argparse
import io
import sys

from scheduler.cli.grid import add_sampling, commands, show
from scheduler.cli.main import guarded
from scheduler.inputs.grid import PARAMETER, split_parameters


def main(argv: list[str]) -> int:
    """Run a command line of the older tool; return the exit code."""
    return guarded(lambda: _main(argv))


def _main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="simple_hypersearch",
        description="Print a command for each combination of the parameters' values, one per line.",
        epilog='example: simple_hypersearch "python3 train_dnn.py --lr {lr} --batch_size {bs}" '
        "-p lr 0.001 0.0005 -p bs 32 64 | simple_gpu_scheduler --gpus 0,1,2",
    )
    parser.add_argument("command", metavar="PATTERN", help="a command; {lr} is the value of the parameter lr")
    add_sampling(parser)
    parser.add_argument(*PARAMETER, nargs="+", metavar=("NAME", "VALUES"), help="a parameter and its values")
    flags = [flag for action in parser._actions for flag in action.option_strings]

    def is_flag(word: str) -> bool:
        name = word.partition("=")[0]
        return name in flags or (len(name) > 2 and any(flag.startswith(name) for flag in flags if flag[:2] == "--"))

    rest, values = split_parameters(argv, is_flag)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")
    args = parser.parse_args(rest)
    show(commands(args.command, values, args))
    return 0
