"""`scheduler wait [RUN|ID…]`: wait until tasks or a run have ended, and return their exit code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from scheduler.cli import request_flags
from scheduler.cli.parsing import show
from scheduler.ui.text import clean
from scheduler.units import count

if TYPE_CHECKING:
    from scheduler.app.observe.wait import WaitResult


def main(argv: list[str]) -> int:
    """Wait, and print the final states. Return the exit code of a single task; for several tasks, return 0 if all
    succeeded, else 1.
    """
    parser = request_flags.parser(
        "wait",
        "Wait until a run or tasks have ended. The exit code is that of the task where one is named; otherwise 0: all\n"
        "succeeded, 1: some did not, or their scheduler has ended.",
        "scheduler wait 17 && scheduler logs 17",
    )
    args = parser.parse_args(argv)
    targets = request_flags.targets_of(args)
    from scheduler.app.observe.wait import wait_all
    from scheduler.ui.terminal.sink import hint

    waited = wait_all(targets, hint)
    one = len(waited) == 1
    code = waited[0].exit_code if one else max((min(w.exit_code, 1) for w in waited), default=0)
    show(map(_line, waited), {"exit_code": code, "runs": _facts(waited)}, as_json=args.json)
    return code


def _facts(waited: Sequence[WaitResult]) -> list[dict[str, object]]:
    return [
        {
            "run": w.info.number,
            "exit_code": w.exit_code,
            "unfinished": w.left,
            "states": {str(state): number for state, number in Counter(w.states.values()).items()},
            "tasks": [{"id": task, "state": str(state)} for task, state in w.states.items()],
        }
        for w in waited
    ]


def _line(waited: WaitResult) -> str:
    run = waited.info.number
    if len(waited.states) == 1:
        states = "".join(f"task {task} {state}" for task, state in waited.states.items())
    else:
        states = ", ".join(f"{number:,} {state}" for state, number in Counter(waited.states.values()).items())
    code = f", exit {waited.exit_code}" if waited.exit_code > 1 else ""
    line = f"run {run}  {clean(waited.info.what)}: {states}{code}"
    if not waited.left:
        return line
    return f"{line}; {count(waited.left, 'task')} not ended, and no scheduler: scheduler resume r{run} continues"
