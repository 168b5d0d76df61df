"""`scheduler top [RUN|--all]`: watch a run or the whole machine live."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import TYPE_CHECKING

from scheduler.app.observe import run_facts
from scheduler.cli.parsing import Parser, settings_from, show
from scheduler.errors import UsageError
from scheduler.runtime.settings import Settings
from scheduler.ui.terminal.sink import hint

if TYPE_CHECKING:
    from scheduler.app.observe.monitor import RunMonitor


def main(argv: list[str]) -> int:
    """Show the live view until the run ends or q is pressed; without a terminal, print the view once."""
    parser = Parser(
        "top",
        "Watch a run live: devices, running tasks, waiting tasks. q leaves the view, and the run continues.\n"
        "Without a terminal the view is printed once.",
        "scheduler top r12\n         scheduler top --all",
    ).common()
    parser.add_argument(
        "run", nargs="?", metavar="RUN", help="a run: r3 or its name (default: the latest run, one that is alive first)"
    )
    parser.add_argument(
        "--all", action="store_true", help="the whole machine: devices, reservations of all users, your runs"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--plain", action="store_true", help="print lines, once")
    how.add_argument("--json", action="store_true", help="print JSON, once")
    how.add_argument(
        "--web",
        action="store_true",
        help="serve a page for the browser, on this machine only; its address contains a secret token",
    )
    parser.add_argument("--port", type=int, metavar="N", help="port of --web (default 7717, or a free one)")
    args = parser.parse_args(argv)
    if args.all and args.run is not None:
        raise UsageError(f"top {args.run} --all: --all shows the whole machine: leave one of them out")
    if args.port is not None and not args.web:
        raise UsageError(f"--port {args.port} has an effect only with --web")
    if args.port is not None and not 0 <= args.port < 1 << 16:
        raise UsageError(f"--port {args.port}: give a port from 0 (any free one) to 65535")
    settings = settings_from(args)
    if args.web:
        return _web(args, settings)
    return _machine(args, settings) if args.all else _run(args, settings)


def _run(args: argparse.Namespace, settings: Settings) -> int:
    info = run_facts.find_run(settings, args.run)
    from scheduler.app.observe.monitor import RunMonitor
    from scheduler.ui.live.run_screen import plain
    from scheduler.ui.terminal import closing, panels

    with contextlib.closing(RunMonitor(info, settings)) as run:
        picture = run.picture()
        if dead := run.reader.dead:
            hint(run.stands)
        if args.json or args.plain or not run.goes_on() or not _live_run(run):
            show(plain(picture, run.reader.varies, panels.WIDE), picture.to_dict(), as_json=args.json)
        elif not run.goes_on():
            sys.stdout.writelines(line + "\n" for line in closing.total_lines(run.reader.totals(), info.number))
        if not run.goes_on() and not dead:
            hint(run.stands)
    return 0


def _live_run(run: RunMonitor) -> bool:
    """Show a run until it ends or the user leaves the view; return False if the view cannot be drawn."""
    if not sys.stdout.isatty():
        return False
    from scheduler.app.live.tasks import screen_of
    from scheduler.app.live.terminal_view import on_terminal

    with contextlib.ExitStack() as stack:
        screen = screen_of(run.info, run.reader.brain, run.reader.history, stack)
        make = lambda width, height: screen.lines(run.picture(), width, height, run.recent())  # noqa: E731 - what is drawn
        return on_terminal(sys.stdout, screen, make, lambda: not run.goes_on())


def _machine(args: argparse.Namespace, settings: Settings) -> int:
    from scheduler.app.observe.machine_status import MachineMonitor
    from scheduler.ui.verbs import status

    with contextlib.closing(MachineMonitor(settings)) as machine:
        if args.json or args.plain or not _live_machine(settings):
            show(status.lines(machine.facts()), machine.facts(), as_json=args.json)
    return 0


def _live_machine(settings: Settings) -> bool:
    """Show the machine until the user leaves the view; return False if the view cannot be drawn."""
    if not sys.stdout.isatty():
        return False
    from scheduler.app.live.machine import MachineView
    from scheduler.app.live.terminal_view import on_terminal
    from scheduler.ui.live.machine_screen import MachineScreen

    with contextlib.closing(MachineView(settings)) as view:
        screen = MachineScreen(view.open)
        make = lambda width, height: screen.lines(view.picture, width, height)  # noqa: E731 - what is drawn
        try:
            return on_terminal(sys.stdout, screen, make, lambda: False)
        finally:
            screen.close()


def _web(args: argparse.Namespace, settings: Settings) -> int:
    from scheduler.app.observe import web

    info = None if args.all else run_facts.find_run(settings, args.run)
    web.serve(settings, info, args.port, _say)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
