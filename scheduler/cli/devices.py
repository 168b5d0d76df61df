"""`scheduler devices [disable|enable WHICH]`: what this machine has, and what my runs may start on."""

from __future__ import annotations

import json
import sys
from argparse import Namespace

from scheduler.cli import asking
from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import UsageError
from scheduler.settings import Settings
from scheduler.view import machine
from scheduler.view.sink import hint


def main(argv: list[str]) -> int:
    """List them, or keep my runs from some of them."""
    parser = Parser(
        "devices",
        "This machine's devices; disable and enable act on what my unfinished runs start from now on.",
        "scheduler devices disable 2",
    ).common()
    parser.add_argument("what", nargs="?", choices=("list", "disable", "enable"), default="list", help="default: list")
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="as nvidia-smi counts, like 2 or 0-1; a UUID; host")
    parser.add_argument("--run", metavar="RUN", help="only this run of mine")
    parser.add_argument("--everybody", action="store_true", help="for all users of this machine; takes root")
    parser.add_argument("--why", default="", metavar="TEXT", help="with --everybody: what whoever waits for it is told")
    parser.add_argument("--json", action="store_true", help="as JSON")
    args = parser.parse_args(argv)
    settings = settings_from(args)
    from scheduler.wiring import machine as here

    if args.why and not args.everybody:
        raise UsageError("--why goes with --everybody: one's own runs need no reason")
    if args.everybody:
        return _for_everybody(args, settings)
    if args.what != "list":
        return _for_mine(args, settings)
    if args.device or args.run:
        raise UsageError("devices: what is to be kept from my runs stands behind disable, as in devices disable 2")
    from scheduler.wiring import disabling

    facts = here.devices(settings)
    disabled = disabling.disabled(settings)
    if args.json:
        sys.stdout.write(json.dumps({"format": 1, "devices": facts, "disabled": disabled}, indent=1) + "\n")
    else:
        lines = [*machine.device_lines(facts), *machine.disabled_lines(disabled)]
        sys.stdout.writelines(line + "\n" for line in lines)
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
    from scheduler.wiring import disabling

    if args.what == "list" or not args.device or args.run:
        raise UsageError("devices: say what for everybody, as in scheduler devices disable 2 --everybody")
    disabling.change(settings, args.device, enable=args.what == "enable", why=args.why)
    found = disabling.disabled(settings)
    if args.json:
        sys.stdout.write(json.dumps({"format": 1, "disabled": found}, indent=1) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in machine.disabled_lines(found) or ["nothing is disabled"])
    return 0
