"""`scheduler exec -- CMD`: one job, in line with everybody on this machine, its output here, its exit code."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from scheduler.cli.parsing import Parser, settings_from
from scheduler.cli.run import defaults_from, split_at_command
from scheduler.core.command import ONE_SHOT
from scheduler.core.fields import FIELDS
from scheduler.errors import InputError, UsageError
from scheduler.settings import Settings
from scheduler.wiring import one_task
from scheduler.wiring.choices import Choices, this_python
from scheduler.wiring.listing import Listing, one_listing

TURNED = (
    "buffer", "max_load", "max_gpu_load", "python", "profile", "settle", "margin", "foreign", "foreign_calm", "visible",
    "log_max",
)  # fmt: skip
"""Settings that are flags of `exec`."""


def parser() -> Parser:
    """The flags of `exec`."""
    what = "Run one job now, in line with everybody on this machine: its output here, its exit code."
    made = Parser("exec", what, "scheduler exec --device 2 -- python train.py --lr 0.1").common()
    made.add_argument(
        "command", nargs="?", metavar="COMMAND", help="the whole of it in quotes; or its words behind --; no shell"
    )
    made.add_argument("-d", "--detach", action="store_true", help="print the task's id and go on without this terminal")
    made.add_argument("--json", action="store_true", help="with -d: say what was started as JSON")
    made.add_argument("--python", metavar="EXE", help="what a script of this directory without a program is run by")
    made.add_argument("--log-max", metavar="SIZE", help="its log is kept below this: head and tail (default 1GiB)")
    task = made.add_argument_group("what it needs")
    for field in FIELDS:
        if field.flag and field.column != "ThreadPercentage":  # which means nothing without MPS, and it has none
            action = "append" if field.column == "Env" else "store"
            task.add_argument(field.flag, dest=f"field_{field.attribute}", action=action, metavar="X", help=field.help)
    _add_devices(made.add_argument_group("devices"))
    return made


def _add_devices(made: object) -> None:
    add = made.add_argument  # type: ignore[attr-defined] # argparse does not export what groups are
    add("--devices", default="auto", metavar="WHICH", help="the GPUs it may be given: 0,2-3, UUIDs, all, host (auto)")
    add("--buffer", metavar="SIZE", help="memory kept free on every device (default 512MiB)")
    add("--max-load", metavar="SHARE", help="share of the cores that may be promised (default 1.0)")
    add("--max-gpu-load", metavar="SUM", help="what tasks on one GPU keep busy together (default 2.0)")
    add("--visible", metavar="HOW", help="uuid, index or all: how it is told its GPUs (default uuid)")
    add("--foreign", metavar="HOW", help="headroom, avoid or ignore: what is done about others' memory (headroom)")
    add("--foreign-calm", metavar="TIME", help="how long others must hold still before it joins (2m)")
    add("--profile", metavar="HOW", help="auto, probe, live or off: how an unknown need is learned")
    add("--settle", metavar="TIME", help="time without a new peak that settles it (5s, on GPUs 60s)")
    add("--margin", metavar="M", help="on top of a known peak (default 10%%+256MiB)")


def main(argv: list[str]) -> int:
    """Accept the job, run it, pass its exit code on."""
    flags, behind = split_at_command(argv)
    args = parser().parse_args(flags)
    if args.json and not args.detach:
        raise UsageError("--json says what was started without a terminal: it goes with -d, here the job's output is")
    settings = settings_from(args, *TURNED)
    said = _command(args.command, behind)
    python = this_python(settings)
    defaults = defaults_from(args)
    apart = "Stderr" not in defaults and not args.detach and one_task.streams_differ()
    listing = one_listing(said, {**defaults, **({"Stderr": "apart"} if apart else {})}, python, ONE_SHOT)
    choices = Choices(devices=args.devices, keep_going=True)
    try:
        if args.detach:
            return _detached(listing, choices, settings, python, as_json=args.json)
        return one_task.run(listing, choices, settings, python, one_task.plain_dress).exit_code
    except InputError as exc:
        raise UsageError(of_a_flag(exc)) from exc


def _detached(listing: Listing, choices: Choices, settings: Settings, python: str, *, as_json: bool) -> int:
    """Leave it to a process without a terminal; its id is all that is printed."""
    from scheduler.wiring import detaching, starting

    told = detaching.detach(
        lambda: (starting.begin(listing, choices, settings, python), ()), lambda session: session.first_words()
    )
    if told.trouble:
        raise detaching.as_error(told)
    for sentence in told.hints:
        one_task.hint(sentence)
    facts = {"format": 1, "run": told.number, "task": told.first, "pid": told.pid, "log": told.log}
    sys.stdout.write((json.dumps(facts) if as_json else str(told.first)) + "\n")
    return 0


def _command(quoted: str | None, behind: Sequence[str] | None) -> Sequence[str]:
    if behind is None:
        return [quoted] if quoted is not None else []
    if quoted is not None:
        raise UsageError(f"{quoted!r} stands before --, and the command behind it: leave one of them out")
    return behind


def of_a_flag(exc: InputError) -> str:
    """What a door says of a column, said of the flag."""
    if exc.column is None:
        return str(exc)
    flag = next((field.flag for field in FIELDS if field.column == exc.column and field.flag), "")
    return f"{flag}: {exc.message}" if flag else exc.message
