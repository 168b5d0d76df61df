"""`scheduler resume [RUN]`: take a run over after a crash, a reboot or Ctrl-C."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from scheduler.cli.parsing import Parser, joined_mps, settings_from
from scheduler.cli.run import add_notify
from scheduler.errors import UsageError
from scheduler.processes import wait_for
from scheduler.settings import Settings
from scheduler.view import detached
from scheduler.view.sink import hint
from scheduler.wiring import detaching, notifying, reading, starting
from scheduler.wiring.choices import Resuming, mps_word
from scheduler.wiring.detaching import Told
from scheduler.wiring.running import Session


def main(argv: list[str]) -> int:
    """Adopt what runs, read what ended, start what waits."""
    parser = Parser(
        "resume",
        "Take a run over that no scheduler holds: nothing runs twice, nothing is forgotten.",
        "scheduler resume 12",
    ).common()
    parser.add_argument("run", nargs="?", metavar="RUN", help="number or name; without it the latest")
    parser.add_argument("--all", action="store_true", help="every unfinished run, each in a scheduler without terminal")
    parser.add_argument(
        "-d", "--detach", action="store_true", help="go on without this terminal, return once taken over"
    )
    parser.add_argument(
        "--takeover",
        action="store_true",
        help="of a run whose machine is gone for good: what ran there is taken for dead and starts again here",
    )
    parser.add_argument("--keep-going", action="store_true", help="go on even if the next rows all fail alike")
    parser.add_argument("-m", "--mps", metavar="HOW", help="on, off, auto or join: from now on, not as it was begun")
    parser.add_argument("--plain", action="store_true", help="lines, not the live view that a terminal gets")
    add_notify(parser)
    parser.add_argument("--json", action="store_true", help="at the end, print the results as JSON on standard output")
    parser.add_argument(
        "--env-from",
        choices=("first", "now"),
        default="first",
        help="tasks get the environment, umask and limits that the run was first started with, besides secrets, which "
        "come from this shell (first, the default); or all of this shell's, its python too (now)",
    )
    args = parser.parse_args(joined_mps(argv))
    settings = settings_from(args, "notify")
    notifying.check(settings.notify)
    how = Resuming(
        gone=args.takeover,
        env_from_now=args.env_from == "now",
        keep_going=args.keep_going,
        mps="" if args.mps is None else mps_word(f"--mps={args.mps}", args.mps),
    )
    if args.all:
        return _all(args, settings, how)
    info = reading.find_run(settings, args.run)
    if args.takeover and not info.elsewhere:
        hint(f"run {info.number} belongs to this machine: --takeover is not needed")
    if args.detach:
        return detaching.show(detaching.resume(info, settings, how), as_json=args.json)
    return _here(starting.take_over(info, settings, how), as_json=args.json, live=not args.plain)


def _here(session: Session, *, as_json: bool, live: bool) -> int:
    try:
        ended = session.go(sys.stderr if as_json else sys.stdout, session.resuming_words(), live=live)
        if as_json:
            session.write_json(sys.stdout)
    finally:
        session.close()
    return ended.exit_code


def _all(args: argparse.Namespace, settings: Settings, how: Resuming) -> int:
    """Say of each unfinished run what was done; without --detach, wait for those that were taken over."""
    if args.run is not None or args.takeover:
        raise UsageError("resume --all takes neither a run nor --takeover: give one of them, with its number")
    done = []
    for told in detaching.resume_all(settings, how):
        done.append(told)
        _say(args, detached.one_of_all(told))
        detached.hints(f"run {told.number}: {sentence}" for sentence in told.hints)
    if not done:
        _say(args, "no run of this machine is unfinished: nothing to do")
    codes = [told.exit_code for told in done] if args.detach else [_wait(args, told) for told in done]
    if args.json:
        runs = [{**asdict(told), "exit_code": code} for told, code in zip(done, codes, strict=True)]
        sys.stdout.write(json.dumps({"format": 1, "runs": runs}, indent=1) + "\n")
    return max(codes, default=0)


def _say(args: argparse.Namespace, line: str) -> None:
    (sys.stderr if args.json else sys.stdout).write(line + "\n")


def _wait(args: argparse.Namespace, told: Told) -> int:
    """The exit code of a run that was taken over, once it ends."""
    if told.trouble:
        return told.exit_code
    try:
        code = wait_for(told.pid)
    except KeyboardInterrupt:
        _say(args, "no longer waited for: what was taken over goes on")
        raise
    _say(args, f"run {told.number}  ended: exit {code}")
    return code
