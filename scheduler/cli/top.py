"""`scheduler top [RUN|--all]`: a run of any terminal, or the whole machine, live."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import UsageError
from scheduler.settings import Settings
from scheduler.view.sink import hint
from scheduler.wiring import reading

if TYPE_CHECKING:
    from scheduler.view.panels import Line


def main(argv: list[str]) -> int:
    """Show until it is over or somebody presses q; once where nobody looks at a terminal."""
    parser = Parser(
        "top",
        "A run of any terminal, live: devices, what runs, what waits. q leaves the view. Into a pipe it is shown once.",
        "scheduler top 12\n         scheduler top --all",
    ).common()
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="number or name; without it the latest, living ones first"
    )
    parser.add_argument("--all", action="store_true", help="the whole machine: devices, everybody's promises, my runs")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--plain", action="store_true", help="once, as lines")
    how.add_argument("--json", action="store_true", help="once, as JSON")
    how.add_argument(
        "--web", action="store_true", help="in the browser: a page on this machine alone, for whoever has its address"
    )
    parser.add_argument("--port", type=int, metavar="N", help="of --web; without it 7717, or a free one")
    args = parser.parse_args(argv)
    if args.all and args.run is not None:
        raise UsageError(f"top {args.run} --all: --all is the whole machine, leave one of them out")
    if args.port is not None and not (args.web and 0 <= args.port < 1 << 16):
        raise UsageError(f"--port {args.port}: a port from 0 (any free one) to 65535, together with --web")
    settings = settings_from(args)
    if args.web:
        return _web(args, settings)
    return _machine(args, settings) if args.all else _run(args, settings)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    info = reading.find_run(settings, args.run)
    from scheduler.view import closing, panels, top
    from scheduler.wiring.lookout import Attached

    keys = panels.WATCHING.format(run=info.number)
    with contextlib.closing(Attached(info, settings)) as run:
        picture = run.picture()
        if args.json:
            sys.stdout.write(top.as_json(picture) + "\n")
        elif not run.goes_on() or not _live(
            args,
            lambda width, height: panels.lines(run.picture(), width, height, run.recent(), keys=keys),
            lambda: not run.goes_on(),
        ):
            sys.stdout.writelines(line + "\n" for line in panels.plain(picture, panels.WIDE))
        elif not run.goes_on():
            sys.stdout.writelines(line + "\n" for line in closing.total_lines(run.telling.totals(), info.number))
        if not run.goes_on():
            hint(run.stands)
    return 0


def _machine(args: argparse.Namespace, settings: Settings) -> int:
    from scheduler.view import machine, panels
    from scheduler.wiring.lookout import Everything

    with contextlib.closing(Everything(settings)) as everything:
        if args.json:
            sys.stdout.write(json.dumps(everything.facts(), indent=1) + "\n")
        elif not _live(args, lambda width, height: panels.machine(everything.facts(), width, height), lambda: False):
            sys.stdout.writelines(line + "\n" for line in machine.lines(everything.facts()))
    return 0


def _web(args: argparse.Namespace, settings: Settings) -> int:
    from scheduler.wiring import browsing

    info = None if args.all else reading.find_run(settings, args.run)
    browsing.serve(settings, info, args.port, _say)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _live(args: argparse.Namespace, make: Callable[[int, int], Sequence[Line]], over: Callable[[], bool]) -> bool:
    """Whether it could be shown live."""
    from scheduler.wiring.watching import on_terminal

    return not args.plain and on_terminal(sys.stdout, make, over)
