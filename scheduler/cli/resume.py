"""`scheduler resume [RUN]`: take over a run after a crash, a reboot or Ctrl-C."""

from __future__ import annotations

import argparse
import sys

from scheduler.app import notify
from scheduler.app.observe import run_facts
from scheduler.app.run import detach, run_loop
from scheduler.app.run import resume as resume_run
from scheduler.app.run.options import ResumeOptions, mps_word
from scheduler.cli.flags import add_notify
from scheduler.cli.parsing import Parser, joined_mps, settings_from, show
from scheduler.errors import UsageError
from scheduler.runtime.processes import wait_for
from scheduler.runtime.settings import Settings
from scheduler.ui.terminal import detached
from scheduler.ui.terminal.detached import DetachedStart
from scheduler.ui.terminal.sink import hint


def main(argv: list[str]) -> int:
    """Resume a run: adopt its running tasks, read the results of ended tasks, and start waiting ones."""
    args = _parser().parse_args(joined_mps(argv))
    settings = settings_from(args, "notify")
    notify.check(settings.notify)
    how = ResumeOptions(
        gone=args.takeover,
        env_from_now=args.env_from == "now",
        keep_going=args.keep_going,
        mps="" if args.mps is None else mps_word(f"--mps={args.mps}", args.mps),
    )
    if args.all:
        return _all(args, settings, how)
    info = run_facts.find_run(settings, args.run, warn=False)
    if args.takeover and not (info.elsewhere or info.lost):
        hint(f"run {info.number} belongs to this machine and its journal is whole: --takeover has no effect")
    if args.detach:
        return detach.show(detach.resume(info, settings, how), as_json=args.json)
    return run_loop.run_here(resume_run.take_over(info, settings, how), as_json=args.json, live=not args.plain)


def _parser() -> Parser:
    parser = Parser(
        "resume",
        "Continue a run whose scheduler has ended: running tasks are adopted, waiting and interrupted ones start.\n"
        "No task runs twice.",
        "scheduler resume r12",
    ).common()
    parser.run()
    parser.add_argument("--all", action="store_true", help="resume every unfinished run, each in the background")
    parser.add_argument("-d", "--detach", action="store_true", help="run in the background; return once taken over")
    parser.add_argument(
        "--takeover",
        action="store_true",
        help="resume a run whose machine is gone for good, or whose journal lost its end: tasks that are not known to "
        "have ended start again",
    )
    parser.add_argument("--keep-going", action="store_true", help="continue even if many rows in a row fail alike")
    parser.add_argument(
        "-m", "--mps", metavar="on|auto|join|off", help="whether to use MPS (default: as the run was started)"
    )
    parser.add_argument("--plain", action="store_true", help="print lines, not the live view")
    add_notify(parser)
    parser.add_argument("--json", action="store_true", help="print the results as JSON at the end")
    parser.add_argument(
        "--env-from",
        choices=("first", "now"),
        default="first",
        help="environment, umask and limits of the tasks: first: as the run was first started, with secrets from this "
        "shell (default); now: this shell's, with its Python",
    )
    return parser


def _all(args: argparse.Namespace, settings: Settings, how: ResumeOptions) -> int:
    """Resume every unfinished run and print the result for each; without --detach, wait until these runs end."""
    if args.run is not None or args.takeover:
        raise UsageError("resume --all takes neither a run nor --takeover: resume that run on its own")
    starts = []
    for start_ in detach.resume_all(settings, how):
        starts.append(start_)
        _say(args, detached.one_of_all(start_))
        detached.hints(f"run {start_.number}: {sentence}" for sentence in start_.hints)
    if not starts:
        _say(args, "this machine has no unfinished run: nothing to do")
    codes = [start_.exit_code for start_ in starts] if args.detach else [_wait(args, start_) for start_ in starts]
    if args.json:
        runs = [{**start_.to_dict(), "exit_code": code} for start_, code in zip(starts, codes, strict=True)]
        show((), {"runs": runs}, as_json=True)
    return max(codes, default=0)


def _say(args: argparse.Namespace, line: str) -> None:
    (sys.stderr if args.json else sys.stdout).write(line + "\n")


def _wait(args: argparse.Namespace, started: DetachedStart) -> int:
    """Wait until a resumed run ends, and return its exit code."""
    if started.trouble:
        return started.exit_code
    try:
        code = wait_for(started.pid)
    except KeyboardInterrupt:
        _say(args, "stopped waiting; the runs continue in the background")
        raise
    _say(args, f"run {started.number}  ended: exit {code}")
    return code
