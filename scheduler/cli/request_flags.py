"""The shared parts of verbs that change tasks or runs: the flags that select tasks, and the printing of answers."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.cli.parsing import Parser, settings_from, show

if TYPE_CHECKING:
    from scheduler.app.control.targets import Target

IDS = "tasks: 17, 17-40,52, last, r3.12 (12th task of run 3), or a unique name"


def parser(verb: str, description: str, example: str, of_run: str = "all its tasks to which this applies") -> Parser:
    """Build the parser of a verb that accepts tasks by id, or a run."""
    made = Parser(verb, description, example).common()
    made.add_argument(
        "who", nargs="*", metavar="ID|RUN", help=f"{IDS}; or a run: r3 or a name (default: the latest run)"
    )
    made.add_argument("--run", metavar="RUN", help=f"a run by number or name: {of_run}")
    made.add_argument("--task", metavar="ID", help="tasks by id")
    return made.json()


def targets_of(args: argparse.Namespace) -> list[Target]:
    """Return the tasks or the runs that the command line names."""
    from scheduler.app.control.targets import runs_or_tasks

    return runs_or_tasks(settings_from(args), args.who, args.run, args.task)


def ask(args: argparse.Namespace, targets: Sequence[Target], what: str, values: Mapping[str, str] | None = None) -> int:
    """Send a request to each run and print the answers; return 0 if all parts of the request were carried out or
    recorded, else 1.
    """
    from scheduler.app.control import run_requests

    results = [run_requests.ask(target, what, values) for target in targets]
    show((line for r in results for line in r.lines()), {"runs": [r.to_dict() for r in results]}, as_json=args.json)
    return 0 if all(r.done for r in results) else 1
