"""`scheduler devices [disable|enable|reserve|init]`: what this machine has, and who may start on it."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from scheduler.cli import asking
from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import UsageError
from scheduler.settings import Settings
from scheduler.units import parse_duration
from scheduler.view import machine
from scheduler.view.sink import hint

VERBS = ("list", "disable", "enable", "reserve", "init")
ONLY_WITH = (
    ("why", ("reserve",), "--why goes with reserve, and with --everybody: one's own runs need no reason"),
    ("for_", ("reserve",), "--for goes with reserve"),
    ("user", ("reserve",), "--user goes with reserve"),
    ("end", ("reserve",), "--end goes with reserve"),
)


def main(argv: list[str]) -> int:
    """List them, keep my runs from some of them, or say who may start there."""
    args = _parser().parse_args(argv)
    settings = settings_from(args)
    for name, verbs, sentence in ONLY_WITH:
        if getattr(args, name) and args.what not in verbs and not (name == "why" and args.everybody):
            raise UsageError(sentence)
    if args.what == "init":
        return _init(args, settings)
    if args.what == "reserve":
        return _reserve(args, settings)
    if args.everybody:
        return _for_everybody(args, settings)
    return _for_mine(args, settings) if args.what != "list" else _list(args, settings)


def _parser() -> Parser:
    parser = Parser(
        "devices",
        "This machine's devices. disable and enable act on what my unfinished runs start from now on, or with\n"
        "--everybody on all users'; reserve keeps a device for one user for a time: nobody else's task starts there,\n"
        "and what runs there ends by itself. init prepares the machine for several users, as root.",
        "scheduler devices reserve 0-1 --for 4h --why 'a deadline'",
    ).common()
    parser.add_argument("what", nargs="?", choices=VERBS, default="list", help="default: list")
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="as nvidia-smi counts, like 2 or 0-1; a UUID; host")
    parser.add_argument("--run", metavar="RUN", help="only this run of mine")
    parser.add_argument(
        "--everybody", action="store_true", help="for all users of this machine; takes root, or whom machine.toml names"
    )
    parser.add_argument("--for", dest="for_", metavar="TIME", help="with reserve: how long, like 4h or 2d")
    parser.add_argument("--user", default="", metavar="USER", help="with reserve, as root: for whom; default: yourself")
    parser.add_argument("--end", action="store_true", help="with reserve: end it now; without a DEVICE all of mine")
    parser.add_argument("--why", default="", metavar="TEXT", help="what whoever waits for it is told")
    parser.add_argument("--json", action="store_true", help="as JSON")
    return parser


def _list(args: Namespace, settings: Settings) -> int:
    if args.device or args.run:
        raise UsageError("devices: what is to be kept from my runs stands behind disable, as in devices disable 2")
    from scheduler.wiring import closures
    from scheduler.wiring import machine as here

    facts = here.devices(settings)
    closed = closures.told(settings, {one["key"]: one["device"] for one in facts})
    if args.json:
        _write({"format": 1, "devices": facts, **closed})
    else:
        _say([*machine.device_lines(facts), *machine.closed_lines(closed)])
    return 0


def _for_mine(args: Namespace, settings: Settings) -> int:
    """Ask it of my unfinished runs; those that are started later are told what they may use when they are."""
    from scheduler.wiring.machine import users_of

    if not args.device:
        raise UsageError(f"devices {args.what}: say which, like scheduler devices {args.what} 2")
    code = asking.ask(args, users_of(settings, args.device, args.run), "limit", {args.what: args.device})
    if args.what == "disable" and not args.run:
        hint("runs that are started later may use it: scheduler run --devices says which they have")
    return code


def _for_everybody(args: Namespace, settings: Settings) -> int:
    """Take devices out of service for all users, or put them back; what runs there goes on."""
    from scheduler.wiring import closures

    if args.what == "list" or not args.device or args.run:
        raise UsageError("devices: say what for everybody, as in scheduler devices disable 2 --everybody")
    if args.what == "enable":
        closures.enable(settings, args.device)
    else:
        closures.disable(settings, args.device, args.why)
    return _closed(args, settings, "disabled", "nothing is disabled")


def _reserve(args: Namespace, settings: Settings) -> int:
    """Keep devices for a user, or end that before its time."""
    from scheduler.wiring import closures

    if args.run or args.everybody:
        raise UsageError("devices reserve is about users: leave --run and --everybody out")
    if args.end:
        if args.for_ or args.user or args.why:
            raise UsageError("devices reserve --end ends a reservation: leave --for, --user and --why out")
        closures.end(settings, args.device or "all")
        return _closed(args, settings, "reserved", "nothing is reserved")
    if not args.device or not args.for_:
        raise UsageError("devices reserve: say which and how long, like scheduler devices reserve 2 --for 4h")
    try:
        seconds = parse_duration(args.for_)
    except ValueError as exc:
        raise UsageError(f"--for: {exc}") from exc
    closures.reserve(settings, args.device, seconds, args.user, args.why)
    return _closed(args, settings, "reserved", "nothing is reserved")


def _closed(args: Namespace, settings: Settings, kind: str, nothing: str) -> int:
    """What is closed by now."""
    from scheduler.wiring import closures

    found: Mapping[str, Any] = {"disabled": {}, "reserved": [], kind: closures.named(settings)[kind]}
    if args.json:
        _write({"format": 1, kind: found[kind]})
    else:
        _say(machine.closed_lines(found) or [nothing])
    return 0


def _init(args: Namespace, settings: Settings) -> int:
    """Prepare the machine for several users."""
    from scheduler.wiring import preparing

    if args.device or args.run or args.everybody:
        raise UsageError("devices init prepares the whole machine: leave the rest out")
    done = preparing.prepare(settings)
    if args.json:
        _write({"format": 1, "done": done})
    else:
        _say(done)
    return 0


def _write(found: object) -> None:
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


def _say(lines: list[str]) -> None:
    sys.stdout.writelines(line + "\n" for line in lines)
