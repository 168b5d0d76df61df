"""`scheduler grid CMD -p NAME VALUE ...`: a parameter grid, printed, kept as a list, or run."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.cli.parsing import Parser, joined_mps
from scheduler.core import sweep
from scheduler.doors.grid import Chosen, split_parameters, write_csv
from scheduler.errors import UsageError

MODES = ("shuffled_grid", "grid")
_OWN = ("command", "run", "out", "json", "sampling_mode", "n_samples", "seed", "parameter")


def main(argv: list[str]) -> int:
    """Print the commands, or do with them what is asked."""
    made = _parser(argv)
    flags = {flag for action in made._actions for flag in action.option_strings}
    rest, values = split_parameters(argv, lambda word: word.partition("=")[0] in flags)
    args = made.parse_args(joined_mps(rest))
    chosen = commands(args.command, _full(values), args)
    if args.run:
        return _run(args, values, chosen)
    _refuse_run_flags(made, args)
    if args.out is not None:
        rows = write_csv(args.out, list(values), chosen)
        sys.stdout.write(f"{args.out}: {rows:,} rows; scheduler run {args.out} runs them\n")
        return 0
    show(chosen, as_json=args.json)
    return 0


def _parser(argv: Sequence[str]) -> Parser:
    made = Parser(
        "grid",
        "Every combination of some parameters' values, as commands.",
        'scheduler grid "python train.py --lr {lr} --bs {bs}" -p lr 0.1 0.01 -p bs 32 64 --run',
    ).common()
    made.add_argument("command", metavar="CMD", help="a shell command; {lr} is the value of the parameter lr")
    made.add_argument("-p", "--parameter", nargs="+", metavar=("NAME", "VALUE"), help="a parameter and its values")
    add_sampling(made)
    made.add_argument("--out", metavar="F.csv", help="write a list that scheduler run takes, parameters beside it")
    made.add_argument("--run", action="store_true", help="run them; all flags of scheduler run apply")
    from scheduler.cli.run import add_run_flags

    add_run_flags(made)
    return made


def add_sampling(made: argparse.ArgumentParser) -> None:
    """Which combinations, in which order."""
    made.add_argument(
        "--sampling-mode", choices=MODES, default=MODES[0], help="in random order, or the last parameter fastest"
    )
    made.add_argument("--n-samples", metavar="N", help="so many of them at most, without repeating one")
    made.add_argument("--seed", metavar="S", help="the same number gives the same random order")


def _full(values: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    for name, said in values.items():
        if not said:
            raise UsageError(f"-p {name}: it has no values: write them behind the name")
    return values


def commands(pattern: str, values: sweep.Values, args: argparse.Namespace) -> Iterator[Chosen]:
    """The commands with the values that made them; whatever is wrong is said before the first. Raises UsageError."""
    if not values:
        raise UsageError("no parameters: give at least one, as in -p lr 0.1 0.01")
    most = _whole("--n-samples", args.n_samples)
    if most is not None and most < 0:
        raise UsageError(f"--n-samples {most}: write a whole number from 0")
    dice = random.Random(_whole("--seed", args.seed))
    try:
        sweep.command(pattern, {name: said[0] if said else "" for name, said in values.items()})
    except sweep.BadPattern as exc:
        raise UsageError(str(exc)) from exc
    shuffled = args.sampling_mode == MODES[0]
    found = sweep.shuffled(values, dice.shuffle) if shuffled else sweep.combinations(values)
    return _filled(pattern, sweep.first(found, most))


def _filled(pattern: str, found: Iterable[dict[str, str]]) -> Iterator[Chosen]:
    for values in found:
        try:
            yield sweep.command(pattern, values), values
        except sweep.BadPattern as exc:
            raise UsageError(f"{exc}, with {values}") from exc


def _whole(flag: str, text: str | None) -> int | None:
    try:
        return None if text is None else int(text)
    except ValueError:
        raise UsageError(f"{flag} {text}: write a whole number") from None


def show(chosen: Iterable[Chosen], *, as_json: bool = False) -> None:
    """One command on each line, as soon as it is made; as JSON with its parameters."""
    for line, values in chosen:
        sys.stdout.write((json.dumps({"Command": line, **values}) if as_json else line) + "\n")
        sys.stdout.flush()


def _refuse_run_flags(made: Parser, args: argparse.Namespace) -> None:
    """What is said of a run says nothing where none is wanted."""
    for action in made._actions:
        if action.dest not in (*_OWN, "help", "state") and getattr(args, action.dest) != action.default:
            raise UsageError(f"{action.option_strings[0]} is for commands that are run: add --run, or leave it out")
    if args.json and args.out is not None:
        raise UsageError("--json prints what --out writes into a file: leave one of them out")


def _run(args: argparse.Namespace, values: Mapping[str, Sequence[str]], chosen: Iterator[Chosen]) -> int:
    from scheduler.cli import run
    from scheduler.cli.parsing import settings_from
    from scheduler.wiring.again import Wish
    from scheduler.wiring.listing import grid_listing

    if args.out is not None:
        raise UsageError("--out and --run: write the list first, then scheduler run it, or leave one of them out")
    listing = grid_listing(run.checked(run.defaults_from(args)), values, chosen)
    return run.run_listing(listing, args, settings_from(args, *run.TURNED), Wish())
