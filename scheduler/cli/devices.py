"""`scheduler devices [disable|enable WHICH]`: what this machine has, and what my runs may start on."""

from __future__ import annotations

import json
import sys

from scheduler.cli import asking
from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import UsageError
from scheduler.view import machine


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
    parser.add_argument("--json", action="store_true", help="as JSON")
    args = parser.parse_args(argv)
    settings = settings_from(args)
    from scheduler.wiring import machine as here

    if args.what != "list":
        if not args.device:
            raise UsageError(f"devices {args.what}: say which, like scheduler devices {args.what} 2")
        return asking.ask(args, here.users_of(settings, args.device, args.run), "limit", {args.what: args.device})
    if args.device or args.run:
        raise UsageError("devices: what is to be kept from my runs stands behind disable, as in devices disable 2")
    facts = here.devices(settings)
    if args.json:
        sys.stdout.write(json.dumps({"format": 1, "devices": facts}, indent=1) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in machine.device_lines(facts))
    return 0
