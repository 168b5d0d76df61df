"""`scheduler devices [disable|enable WHICH --everybody]`: what root lets nobody on this machine start on."""

from __future__ import annotations

import json
import sys

from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import UsageError
from scheduler.view import machine as view
from scheduler.wiring import disabling


def main(argv: list[str]) -> int:
    """Say what is disabled, or disable and enable devices for everybody."""
    parser = Parser(
        "devices",
        "What is disabled for everybody on this machine; what runs there goes on to its end.",
        "scheduler devices disable 2,3 --everybody --why 'a fan is broken'",
    ).common()
    parser.add_argument("what", nargs="?", choices=("list", "disable", "enable"), default="list", help="default: list")
    parser.add_argument("device", nargs="?", metavar="DEVICE", help="as nvidia-smi counts (0,2-3), UUIDs, host, all")
    parser.add_argument("--everybody", action="store_true", help="for all users of this machine; takes root")
    parser.add_argument("--why", default="", metavar="TEXT", help="what everybody is told who waits for it")
    parser.add_argument("--json", action="store_true", help="as JSON")
    args = parser.parse_args(argv)
    settings = settings_from(args)
    if args.what == "list" and (args.why or args.everybody or args.device):
        raise UsageError("devices: say what to do, as in  devices disable 2 --everybody")
    if args.what != "list":
        if not args.device or not args.everybody:
            raise UsageError(f"devices {args.what}: say which and for whom, as in  devices {args.what} 2 --everybody")
        disabling.change(settings, args.device, enable=args.what == "enable", why=args.why)
    found = disabling.disabled(settings)
    if args.json:
        sys.stdout.write(json.dumps({"format": 1, "disabled": found}, indent=1) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in view.disabled_lines(found) or ["nothing is disabled"])
    return 0
