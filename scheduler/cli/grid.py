"""`scheduler grid CMD -p NAME VALUE ...`: expand a parameter grid; print it, write it as a list, run or submit it."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.cli.flags import any_integer
from scheduler.cli.parsing import Parser, joined_mps
from scheduler.core.tasks import param_grid
from scheduler.errors import UsageError
from scheduler.inputs.grid import Chosen, grid_form, grid_rows, split_parameters, write_csv
from scheduler.store.queue.queue_link import USUAL, checked_name
from scheduler.units import count

MODES = ("shuffled_grid", "grid")
_OWN = ("command", "run", "submit", "out", "json", "sampling_mode", "n_samples", "seed", "parameter", "help", "state")
"""Arguments that have an effect whether the commands are printed, written, run or submitted; named as `argparse` names
them.
"""
_OF_SUBMIT = ("queue", "python", "on")
"""Arguments that have an effect with --submit, in addition to the task fields."""


def main(argv: list[str]) -> int:
    """Print the commands, write them to a file, run or submit them."""
    made = _parser()
    names = {flag for action in made._actions for flag in action.option_strings}
    rest, values = split_parameters(argv, lambda word: word.partition("=")[0] in names)
    _refuse_unknown_flags(values)
    args = made.parse_args(joined_mps(rest))
    chosen = commands(args.command, _checked_values(values), args)
    _refuse_two_modes(args)
    _refuse_flags_without_effect(made, args)
    if args.run:
        return _run(args, values, chosen)
    if args.submit:
        return _submit(args, values, chosen)
    if args.out is not None:
        rows = write_csv(args.out, list(values), chosen)
        sys.stdout.write(f"{args.out}: {count(rows, 'row')} written; scheduler run {args.out} runs the list\n")
        return 0
    show(chosen, as_json=args.json)
    return 0


def _refuse_unknown_flags(values: Mapping[str, Sequence[str]]) -> None:
    """Raise UsageError for a value that looks like a flag, because it is probably a misspelt flag of `grid`."""
    for name, given in values.items():
        for word in given:
            if word.startswith("--"):
                raise UsageError(
                    f"-p {name}: {word!r} is no flag of grid (scheduler grid --help); write a value that begins with "
                    f"-- after a blank, as ' {word}'"
                )


def _parser() -> Parser:
    made = Parser(
        "grid",
        "Expand a parameter grid: one command for every combination of the parameters' values.",
        'scheduler grid "python train.py --lr {lr} --bs {bs}" -p lr 0.1 0.01 -p bs 32 64 --run',
    ).common()
    made.add_argument("command", metavar="CMD", help="a shell command; {lr} is the value of the parameter lr")
    made.add_argument("-p", "--parameter", nargs="+", metavar=("NAME", "VALUE"), help="a parameter and its values")
    add_sampling(made)
    made.add_argument("--out", metavar="FILE.csv", help="write a list for scheduler run, with parameter columns")
    made.add_argument("--run", action="store_true", help="run the commands; all flags of scheduler run apply")
    made.add_argument(
        "--submit", action="store_true", help="submit the commands to your queue and print their ids; task fields apply"
    )
    made.add_argument("--queue", metavar="NAME", help=f"with --submit: name of the queue (default {USUAL})")
    from scheduler.cli.run_flags import SHOWN, add_run_flags

    add_run_flags(made)
    own = ("--parameter", "--sampling-mode", "--n-samples", "--seed", "--out", "--run")
    made.abridge("CMD", *own, *(flag for flag in SHOWN if flag not in ("--sample", "--skip-done")))
    return made


def add_sampling(made: argparse.ArgumentParser) -> None:
    """Add the flags that choose the combinations and their order."""
    made.add_argument(
        "--sampling-mode", choices=MODES, default=MODES[0], help="random order, or the order of the values"
    )
    made.add_argument("--n-samples", metavar="NUMBER", help="maximum number of combinations; none is repeated")
    made.add_argument("--seed", metavar="NUMBER", help="seed of the random order")


def _checked_values(values: Mapping[str, Sequence[str]]) -> Mapping[str, Sequence[str]]:
    for name, texts in values.items():
        if not texts:
            raise UsageError(f"-p {name}: no values given; write them after the name, as in -p lr 0.1 0.01")
    return values


def commands(pattern: str, values: param_grid.Values, args: argparse.Namespace) -> Iterator[Chosen]:
    """Yield each command with its parameter values; if the pattern is wrong, raise UsageError before the first
    command.
    """
    if not values:
        raise UsageError("no parameters: give at least one, as in -p lr 0.1 0.01")
    most = None if args.n_samples is None else any_integer("--n-samples", args.n_samples)
    if most is not None and most < 0:
        raise UsageError(f"--n-samples {most}: give a whole number from 0")
    generator = random.Random(None if args.seed is None else any_integer("--seed", args.seed))
    try:
        param_grid.command(pattern, {name: texts[0] if texts else "" for name, texts in values.items()})
    except param_grid.BadPattern as exc:
        raise UsageError(str(exc)) from exc
    shuffled = args.sampling_mode == MODES[0]
    points = param_grid.shuffled(values, generator.shuffle) if shuffled else param_grid.combinations(values)
    return _filled(pattern, param_grid.first(points, most if most is None else min(most, sys.maxsize)))


def _filled(pattern: str, points: Iterable[dict[str, str]]) -> Iterator[Chosen]:
    for values in points:
        try:
            line = param_grid.command(pattern, values)
            if not line.strip():
                raise UsageError(f"the command is empty, with {values}: write what is to be run")
            yield line, values
        except param_grid.BadPattern as exc:
            raise UsageError(f"{exc}, with {values}") from exc


def show(chosen: Iterable[Chosen], *, as_json: bool = False) -> None:
    """Print one command per line as soon as it is generated; with `as_json`, print each command as a JSON object with
    its parameters.
    """
    for line, values in chosen:
        sys.stdout.write((json.dumps({"Command": line, **values}) if as_json else line) + "\n")
        sys.stdout.flush()


def _refuse_two_modes(args: argparse.Namespace) -> None:
    """Raise UsageError for two flags that each say what is done with the commands."""
    if args.run and args.submit:
        raise UsageError("--run runs the commands here and --submit gives them to the queue: leave one of them out")
    if args.out is not None and (args.run or args.submit):
        does = "--run runs it" if args.run else "--submit submits its rows"
        raise UsageError(f"--out writes a list and {does}: leave one of them out")
    if args.json and args.out is not None:
        raise UsageError("--json prints the commands and --out writes them to a file: leave one of them out")


def _refuse_flags_without_effect(made: Parser, args: argparse.Namespace) -> None:
    """Raise UsageError for flags of a run unless the grid is run, and for task fields unless it is run or submitted."""
    for action in made._actions:
        if action.dest in _OWN or getattr(args, action.dest) == action.default:
            continue
        is_of_submit = action.dest in _OF_SUBMIT or action.dest.startswith("field_")
        if args.run and action.dest != "queue":
            continue
        if args.submit and is_of_submit:
            continue
        flag = action.option_strings[0]
        if action.dest == "queue":
            raise UsageError(f"{flag} has an effect only with --submit: add --submit, or leave it out")
        if is_of_submit:
            raise UsageError(f"{flag} has an effect only with --run or --submit: add one of them, or leave it out")
        raise UsageError(f"{flag} has an effect only with --run: add --run, or leave it out")


def _run(args: argparse.Namespace, values: Mapping[str, Sequence[str]], chosen: Iterator[Chosen]) -> int:
    from scheduler.app.run.previous_runs import RerunOptions
    from scheduler.app.run.task_list import grid_listing
    from scheduler.cli import flags, run
    from scheduler.cli.parsing import settings_from

    listing = grid_listing(flags.checked_fields(flags.task_fields(args)), values, chosen)
    return run.run_listing(listing, args, settings_from(args, *run.SETTINGS), RerunOptions())


def _submit(args: argparse.Namespace, values: Mapping[str, Sequence[str]], chosen: Iterator[Chosen]) -> int:
    from scheduler.cli import flags, submit
    from scheduler.cli.parsing import settings_from

    settings = settings_from(args, "python", "on")
    form = grid_form(flags.checked_fields(flags.task_fields(args)), values)
    rows = (form, grid_rows(form, chosen), ())
    queue = checked_name(args.queue or USUAL)
    return submit.send("", rows, submit.chosen_python(settings), settings, queue, as_json=args.json)
