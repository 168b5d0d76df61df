"""`scheduler stop [RUN]`: stop a run from another terminal: drain it, stop its tasks, or only its scheduler."""

from __future__ import annotations

from scheduler.app.observe import run_facts
from scheduler.cli.parsing import Parser, settings_from, show
from scheduler.core.control.request_kinds import RunRequest
from scheduler.core.ports import Request
from scheduler.errors import StateError
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import RunInfo
from scheduler.store.run.requests import ask
from scheduler.units import count

ABANDON = "abandon"
DONE = {
    RunRequest.DRAIN: "no more tasks start, running tasks finish; scheduler stop r{} --now stops them too",
    RunRequest.STOP: (
        "running tasks are being stopped (stop signal, grace, KILL); scheduler resume r{} continues the run"
    ),
    RunRequest.LEAVE: "its scheduler ends, running tasks continue; scheduler resume r{} takes them over",
}


def main(argv: list[str]) -> int:
    """Send the request to the run's scheduler, and print how the scheduler will carry it out."""
    parser = Parser(
        "stop",
        "Stop a run as Ctrl-C in its terminal does: start no more tasks, let running ones finish.",
        "scheduler stop r12 --now",
    ).common()
    parser.run()
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--now",
        action="store_const",
        dest="how",
        const=RunRequest.STOP,
        default=RunRequest.DRAIN,
        help="stop running tasks too",
    )
    how.add_argument(
        "--leave",
        action="store_const",
        dest="how",
        const=RunRequest.LEAVE,
        help="end only the scheduler; tasks continue",
    )
    how.add_argument(
        "--abandon",
        action="store_const",
        dest="how",
        const=ABANDON,
        help="give the run up for good, also where its scheduler died: stop its running tasks, cancel all others",
    )
    parser.json()
    args = parser.parse_args(argv)
    info = run_facts.find_run(settings_from(args), args.run)
    if args.how == ABANDON:
        return _abandon(info, settings_from(args), as_json=args.json)
    _must_live(info)
    if ask(info.places, Request(args.how)) is None:
        _must_live(run_facts.find_run(settings_from(args), f"r{info.number}"))
        raise StateError(
            f"the scheduler of run {info.number} has not answered for 5 s: it acts on the request as soon as it can; "
            f"if it has ended, scheduler resume r{info.number} continues the run"
        )
    sentence = DONE[args.how].format(info.number)
    facts = {"run": info.number, "asked": args.how, "says": sentence}
    show([f"run {info.number}  {info.what}: {sentence}"], facts, as_json=args.json)
    return 0


def _abandon(info: RunInfo, settings: Settings, *, as_json: bool) -> int:
    """Cancel all tasks of a run, and end its scheduler once the running tasks have been stopped."""
    from scheduler.app.control.abandon import abandon

    stopped, cancelled = abandon(info, settings)
    what = [f"{count(stopped, 'running task')} being stopped"] if stopped else []
    what += [f"{count(cancelled, 'task')} cancelled"] if cancelled else []
    sentence = "abandoned: " + (", ".join(what) or "it had no unfinished task")
    facts = {"run": info.number, "asked": ABANDON, "says": sentence}
    show([f"run {info.number}  {info.what}: {sentence}"], facts, as_json=as_json)
    return 0


def _must_live(info: RunInfo) -> None:
    """Raise StateError if a run has no scheduler on this machine."""
    if info.elsewhere:
        raise StateError(f"run {info.number} belongs to {info.elsewhere}: stop it there")
    if not info.alive:
        raise StateError(
            f"run {info.number} has no scheduler, so it starts no more tasks: scheduler list r{info.number} shows "
            f"whether tasks still run, scheduler resume r{info.number} continues it"
        )
