"""`scheduler run FILE`: accept a list of tasks and run it to its end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from scheduler.app import notify
from scheduler.app.run import run_loop
from scheduler.app.run import start as run_start
from scheduler.app.run.options import MPS_WORDS, RunOptions, fence_word, mps_word, run_name, this_python, watts
from scheduler.app.run.previous_runs import RerunOptions
from scheduler.app.run.session import RunSession
from scheduler.app.run.task_list import TaskList, csv_listing, follow_listing, stdin_listing
from scheduler.cli import flags, samples
from scheduler.cli.parsing import joined_mps, settings_from
from scheduler.cli.run_flags import parser
from scheduler.errors import UsageError
from scheduler.runtime.settings import Settings
from scheduler.ui.terminal.sink import hint

SETTINGS = (*flags.RUN_SETTINGS, "notify")
"""The settings that are flags of `run`."""
STDIN = "-"
DEFAULT_FILES = ("scheduler_files/commands_1.csv", "scheduler_files/commands.csv")


def main(argv: list[str], *, learn_only: bool = False, verb: str = "run") -> int:
    """Accept a list, run it, and return its exit code."""
    argv, template = flags.split_at_command(argv)
    args = parser(verb).parse_args(joined_mps(argv))
    if learn_only:
        _force_probes(args)
    flags.join_early_stop(args)
    settings = settings_from(args, *SETTINGS)
    listing = _listing(args, template, settings, this_python(settings))
    rerun = RerunOptions() if learn_only else RerunOptions(args.new, args.skip_done)
    return run_listing(listing, args, settings, rerun, learn_only=learn_only)


def _force_probes(args: argparse.Namespace) -> None:
    """Set the profile mode to `probe`, the only mode in which `profiles learn` can measure tasks."""
    if args.profile not in (None, "probe"):
        raise UsageError(f"profiles learn always uses probes: leave --profile {args.profile} out")
    args.profile = "probe"


def run_listing(
    listing: TaskList, args: argparse.Namespace, settings: Settings, rerun: RerunOptions, *, learn_only: bool = False
) -> int:
    """Run a list, plan it (`--dry-run`), or run it in the background, depending on the flags."""
    options = _options(args, keep_going=args.keep_going or listing.door != "list", learn_only=learn_only)
    if args.dry_run and args.detach:
        raise UsageError("--dry-run starts nothing that could run in the background: leave --detach out")
    notify.check(settings.notify)
    if args.dry_run:
        from scheduler.app.run import dry_run

        return dry_run.plan(listing, options, settings, rerun, sys.stdout, as_json=args.json)
    if args.detach:
        return start_detached(listing, options, settings, rerun, as_json=args.json)
    typed = getattr(args, "file", None) == STDIN  # a user who types commands must see them
    live = not args.plain and not typed
    return start(listing, options, settings, rerun, as_json=args.json, live=live)


def _options(args: argparse.Namespace, *, keep_going: bool, learn_only: bool) -> RunOptions:
    return RunOptions(
        devices=args.devices,
        slots=flags.optional_count("--slots", args.slots),
        jobs=flags.optional_count("-j", args.jobs, 0),
        max_per_device=flags.optional_count("--max-per-device", args.max_per_device),
        name=run_name("--name ", args.name),
        learn_only=learn_only,
        keep_going=keep_going,
        max_failures=flags.optional_count("--max-failures", args.max_failures),
        mps=_mps(args),
        mps_fence=_is_on("--mps-fence", args.mps_fence),
        mps_exclusive=args.mps_exclusive,
        fence=fence_word(args.fence, _mps(args)),
        power_cap=watts(args.power_cap),
    )


def _listing(args: argparse.Namespace, template: list[str] | None, settings: Settings, python: str) -> TaskList:
    """Open the list of tasks that the command line names."""
    defaults = flags.checked_fields(flags.task_fields(args))
    if args.file == STDIN:
        _refuse_beside_lines("-", args, template)
        at_once = args.detach or args.dry_run
        if at_once and os.isatty(0):
            hint("reading commands from this terminal, one per line; Ctrl-D ends them")
        return stdin_listing(defaults, multiline=args.multiline, at_once=at_once)
    if args.follow is not None:
        _refuse_beside_lines("--follow", args, template)
        return follow_listing(args.follow, defaults, settings, multiline=args.multiline, anew=args.new)
    if args.multiline:
        raise UsageError("--multiline needs commands as lines: scheduler run - --multiline, or --follow FILE")
    if args.sample and (args.file is not None or template is not None):
        raise UsageError("--sample runs the sample tasks: leave the other list out")
    path = samples.unpack() if args.sample else _file(args.file)
    if template is not None:
        _check_table(template, args)
    return csv_listing(
        path,
        header=header(args.header),
        defaults=defaults,
        append=args.append or ("both" if template is None else "none"),
        python=python,
        template=template or (),
        mine=settings.my_columns,
    )


def _refuse_beside_lines(source: str, args: argparse.Namespace, template: list[str] | None) -> None:
    """Raise UsageError for flags that have no meaning if every line of the input is a whole command."""
    for flag, given in {
        "-- COMMAND": template is not None,
        "--header": args.header != "0",
        "--append": args.append is not None,
        "--num": args.num is not None and not (args.detach or args.dry_run),
        "--sample": args.sample,
        "--new": source == STDIN and args.new,
        "--skip-done": args.skip_done,
        "another list": source != STDIN and args.file is not None,
        "--dry-run": source != STDIN and args.dry_run,
    }.items():
        if given:
            raise UsageError(f"{flag} does not go with {source}, where every line is a whole command: leave it out")


def _mps(args: argparse.Namespace) -> str:
    """Return the requested MPS mode; raise UsageError for flags that need MPS if it is off."""
    how = mps_word(f"--mps={args.mps}", args.mps)
    if how == "off" and args.field_thread_percentage is not None:
        raise UsageError(f"--thread-percentage {args.field_thread_percentage} has an effect only under MPS: add --mps")
    if how == "off" and (args.mps_exclusive or args.mps_fence != "on"):
        raise UsageError("--mps-exclusive and --mps-fence have an effect only under MPS: add --mps")
    if args.mps_exclusive and how != "on":
        raise UsageError(f"--mps-exclusive needs a daemon of your own: write --mps, not --mps={how}")
    return how


def _is_on(flag: str, text: str) -> bool:
    how = MPS_WORDS.get(text.lower(), "")
    if how not in ("on", "off"):
        raise UsageError(f"{flag} {text}: write on or off")
    return how == "on"


def _check_table(template: list[str], args: argparse.Namespace) -> None:
    """Raise UsageError for flags that have no meaning together with a command after `--`."""
    from scheduler.inputs.table import check_template

    check_template(template)
    if args.append not in (None, "none"):
        raise UsageError(
            f"--append {args.append}: nothing is appended to a command after --; write {{epochs}} or {{id}} in it"
        )
    if args.header.lower() == "none":
        raise UsageError("--header None: the placeholders of the command need a header that names the columns")


def start(
    listing: TaskList, options: RunOptions, settings: Settings, rerun: RerunOptions, *, as_json: bool, live: bool
) -> int:
    """Accept a list, run it in the foreground, and return its exit code."""
    session = run_start.begin(listing, options, settings, rerun)
    for warning in listing.warnings():
        hint(warning)
    if session is None:
        return _report_empty(listing)
    return run_loop.run_here(session, as_json=as_json, live=live)


def start_detached(
    listing: TaskList, options: RunOptions, settings: Settings, rerun: RerunOptions, *, as_json: bool
) -> int:
    """Accept a list and run it in a process without a terminal; return as soon as the list is accepted."""
    from scheduler.app.run import detach

    def begin() -> tuple[RunSession | None, Sequence[str]]:
        session = run_start.begin(listing, options, settings, rerun)
        if session is None:
            return None, listing.warnings()
        disk_full = session.disks()()  # nothing else would say so: the list is accepted, and waits
        return session, [*listing.warnings(), *session.notes_on_earlier, *([disk_full] if disk_full else [])]

    started = detach.detach(begin)
    if not started.number and not started.trouble:
        return _report_empty(listing)
    return detach.show(started, as_json=as_json)


def _report_empty(listing: TaskList) -> int:
    """Print that a list has no tasks, and return exit code 0."""
    lacks = "has a header and no rows" if listing.door == "list" else "has no commands"
    sys.stdout.write(f"{listing.what} {lacks}: nothing to run\n")
    return 0


def header(text: str) -> int | None:
    """Read `--header N|None`; None means that the file has no header."""
    if text.lower() == "none":
        return None
    if not text.isdecimal():
        raise UsageError(f"--header {text}: give the row number of the header, from 0, or None")
    return int(text)


def _file(given: str | None) -> str:
    """Return the path of the list: the given path, or the first default file that exists."""
    if given is not None:
        return given
    for path in DEFAULT_FILES:
        if Path(path).is_file():
            return path
    raise UsageError(f"give a CSV file: neither {DEFAULT_FILES[0]} nor {DEFAULT_FILES[1]} exists in this directory")
