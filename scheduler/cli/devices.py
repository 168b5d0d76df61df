"""`scheduler devices [disable|enable|reserve|init]`: list devices, and control which users may start tasks on them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from scheduler.cli import request_flags
from scheduler.cli.flags import duration
from scheduler.cli.parsing import Parser, settings_from, show
from scheduler.errors import UsageError
from scheduler.runtime.settings import Settings
from scheduler.ui.terminal.sink import hint
from scheduler.ui.verbs import status

VERBS = ("list", "disable", "enable", "reserve", "give-up", "init")
ONLY_WITH = (
    ("why", ("reserve",), "--why goes with reserve and with --all-users: your own runs need no reason"),
    ("for_", ("reserve",), "--for goes with reserve"),
    ("user", ("reserve",), "--user goes with reserve"),
    ("end", ("reserve",), "--end goes with reserve"),
)


def main(argv: list[str]) -> int:
    """List, disable, enable or reserve devices, or prepare the machine for several users."""
    args = _parser().parse_args(argv)
    settings = settings_from(args)
    for name, verbs, sentence in ONLY_WITH:
        if getattr(args, name) and args.what not in verbs and not (name == "why" and args.all_users):
            raise UsageError(sentence)
    if args.what == "init":
        return _init(args, settings)
    if args.what == "reserve":
        return _reserve(args, settings)
    if args.what == "give-up":
        return _give_up(args, settings)
    if args.all_users:
        return _for_all_users(args, settings)
    return _for_mine(args, settings) if args.what != "list" else _list(args, settings)


def _parser() -> Parser:
    parser = Parser(
        "devices",
        "List this machine's devices, or change who may use them. disable and enable set whether your unfinished\n"
        "runs may start tasks on a device; with --all-users, the runs of all users. reserve keeps a device for one\n"
        "user for a time: tasks of others no longer start there, running ones finish. give-up gives up a node\n"
        "(run --on) that is away: its tasks count as lost and start again elsewhere. init prepares a machine for\n"
        "several users.",
        "scheduler devices reserve 0-1 --for 4h --why 'a deadline'",
    ).common()
    parser.add_argument("what", nargs="?", choices=VERBS, default="list", help="what to do (default list)")
    parser.add_argument(
        "device", nargs="?", metavar="DEVICE", help="a number as in nvidia-smi, such as 2 or 0-1; a UUID; host; a node"
    )
    parser.add_argument("--run", metavar="RUN", help="only this run")
    parser.add_argument(
        "--all-users", action="store_true", help="for all users; only root and the users in machine.toml may do that"
    )
    parser.add_argument("--for", dest="for_", metavar="TIME", help="with reserve: for how long, such as 4h or 2d")
    parser.add_argument(
        "--user", default="", metavar="USER", help="with reserve, as root: for which user (default: yourself)"
    )
    parser.add_argument(
        "--end", action="store_true", help="with reserve: end the reservation now (without DEVICE: all yours)"
    )
    parser.add_argument("--why", default="", metavar="TEXT", help="reason shown to users who wait for the device")
    parser.json()
    return parser


def _list(args: Namespace, settings: Settings) -> int:
    if args.device or args.run:
        raise UsageError("devices: say what to do with them, such as scheduler devices disable 2")
    from scheduler.app.control import device_reservations
    from scheduler.app.control import devices as here

    facts = here.devices(settings)
    closed = device_reservations.told(settings, {one["key"]: one["device"] for one in facts})
    lines = [*status.device_lines(facts), *status.closed_lines(closed)]
    show(lines, {"devices": facts, **closed}, as_json=args.json)
    return 0


def _for_mine(args: Namespace, settings: Settings) -> int:
    """Disable or enable devices for this user's unfinished runs; later runs are not affected."""
    from scheduler.app.control.devices import users_of

    if not args.device:
        raise UsageError(f"devices {args.what}: name a device, such as scheduler devices {args.what} 2")
    code = request_flags.ask(args, users_of(settings, args.device, args.run), "limit", {args.what: args.device})
    if args.what == "disable" and not args.run:
        hint("runs that start later may still use it: choose their devices with scheduler run --devices")
    return code


def _for_all_users(args: Namespace, settings: Settings) -> int:
    """Disable or enable devices for all users; running tasks continue."""
    from scheduler.app.control import device_reservations

    if args.what == "list" or not args.device or args.run:
        raise UsageError(
            "--all-users goes with disable or enable and a device: scheduler devices disable 2 --all-users"
        )
    if args.what == "enable":
        device_reservations.enable(settings, args.device)
    else:
        device_reservations.disable(settings, args.device, args.why)
    return _show_drained(args, settings, "disabled", "nothing is disabled")


def _reserve(args: Namespace, settings: Settings) -> int:
    """Reserve devices for a user, or end a reservation early."""
    from scheduler.app.control import device_reservations

    if args.run or args.all_users:
        raise UsageError("devices reserve applies to one user: leave --run and --all-users out")
    if args.end:
        if args.for_ or args.user or args.why:
            raise UsageError("devices reserve --end takes only a device: leave --for, --user and --why out")
        device_reservations.end(settings, args.device or "all")
        return _show_drained(args, settings, "reserved", "nothing is reserved")
    if not args.device or not args.for_:
        raise UsageError("devices reserve: give a device and a time, such as scheduler devices reserve 2 --for 4h")
    device_reservations.reserve(settings, args.device, duration("--for", args.for_), args.user, args.why)
    return _show_drained(args, settings, "reserved", "nothing is reserved")


def _show_drained(args: Namespace, settings: Settings, kind: str, nothing: str) -> int:
    """Print the devices that are disabled now, or the devices that are reserved, depending on `kind`."""
    from scheduler.app.control import device_reservations

    found: Mapping[str, Any] = {"disabled": {}, "reserved": [], kind: device_reservations.named(settings)[kind]}
    show(status.closed_lines(found) or [nothing], {kind: found[kind]}, as_json=args.json)
    return 0


def _give_up(args: Namespace, settings: Settings) -> int:
    """Give up a node that cannot be reached: its running tasks count as lost."""
    from scheduler.app.control.devices import give_up

    if not args.device or args.all_users:
        raise UsageError("devices give-up: name a node of your runs, such as scheduler devices give-up gpu2")
    results = give_up(settings, args.device, args.run)
    show((line for r in results for line in r.lines()), {"runs": [r.to_dict() for r in results]}, as_json=args.json)
    return 0 if all(r.done for r in results) else 1


def _init(args: Namespace, settings: Settings) -> int:
    """Prepare the machine for several users."""
    from scheduler.app.control import machine_init

    if args.device or args.run or args.all_users:
        raise UsageError("devices init prepares the whole machine: leave the other arguments out")
    done = machine_init.prepare(settings)
    show(done, {"done": done}, as_json=args.json)
    return 0
