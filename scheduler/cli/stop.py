"""`scheduler stop [RUN]`: end a living run from another terminal, gently, at once, or leaving what runs."""

from __future__ import annotations

import json
import sys

from scheduler.cli.parsing import Parser, settings_from
from scheduler.core.ports import Request
from scheduler.errors import StateError
from scheduler.store.requests import ask
from scheduler.store.runs import RunInfo
from scheduler.wiring import reading

DONE = {
    "drain": "nothing more is started, running tasks end by themselves; once more with --now stops them",
    "stop": "running tasks are stopped (stop signal, grace, KILL); what did not end well waits for scheduler resume {}",
    "leave": "its scheduler goes, running tasks run on; scheduler resume {} takes them over",
}


def main(argv: list[str]) -> int:
    """Ask its scheduler, and say what that does now."""
    parser = Parser("stop", "End a living run, as Ctrl-C in its terminal does.", "scheduler stop 12 --now").common()
    parser.add_argument("run", nargs="?", metavar="RUN", help="number or name; without it the latest")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--now", action="store_const", dest="how", const="stop", default="drain", help="running tasks too")
    how.add_argument("--leave", action="store_const", dest="how", const="leave", help="only its scheduler goes")
    parser.add_argument("--json", action="store_true", help="as JSON")
    args = parser.parse_args(argv)
    info = reading.find_run(settings_from(args), args.run)
    _must_live(info)
    if ask(info.places, Request(args.how)) is None:
        _must_live(reading.find_run(settings_from(args), str(info.number)))
        raise StateError(
            f"the scheduler of run {info.number} has not answered for 5 s: it does what was asked once it goes on, "
            f"or scheduler resume {info.number} goes on where it has ended"
        )
    said = DONE[args.how].format(info.number)
    if args.json:
        sys.stdout.write(json.dumps({"format": 1, "run": info.number, "asked": args.how, "says": said}) + "\n")
    else:
        sys.stdout.write(f"run {info.number}  {info.what}: {said}\n")
    return 0


def _must_live(info: RunInfo) -> None:
    if info.elsewhere:
        raise StateError(f"run {info.number} belongs to {info.elsewhere}: stop it there")
    if not info.alive:
        raise StateError(
            f"run {info.number} has no scheduler, so nothing more of it starts: scheduler list {info.number} shows "
            f"whether tasks still run, scheduler resume {info.number} goes on with it"
        )
