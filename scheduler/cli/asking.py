"""What the verbs that change something share: whom they mean, and how they tell what became of it."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.cli.parsing import Parser, settings_from

if TYPE_CHECKING:
    from scheduler.wiring.addressing import Target
    from scheduler.wiring.asking import Told

IDS = "tasks: 17, 17-40,52, last"


def parser(
    verb: str, description: str, example: str, of_run: str = "all of its tasks that this can be done to"
) -> Parser:
    """The flags of a verb that means tasks by id or a run."""
    made = Parser(verb, description, example).common()
    made.add_argument("who", nargs="*", metavar="ID|RUN", help=f"{IDS}; or a run by name; without it the latest run")
    made.add_argument("--run", metavar="RUN", help=f"a run by number or name: {of_run}")
    made.add_argument("--task", metavar="ID", help="tasks by id, where a number alone could be a run too")
    made.add_argument("--json", action="store_true", help="as JSON")
    return made


def meant(args: argparse.Namespace) -> list[Target]:
    """Whom the command line means."""
    from scheduler.wiring.addressing import runs_or_tasks

    return runs_or_tasks(settings_from(args), args.who, args.run, args.task)


def ask(args: argparse.Namespace, targets: Sequence[Target], what: str, said: Mapping[str, str] | None = None) -> int:
    """Ask it of each run, say what became of it; the exit code: 0 all of it was or will be done, 1 not all."""
    from scheduler.wiring import asking

    return show([asking.ask(target, what, said) for target in targets], as_json=args.json)


def show(told: Sequence[Told], *, as_json: bool) -> int:
    """Print the answers of each run."""
    from scheduler.view import answers  # not for who only waits

    if as_json:
        runs = [answers.facts(t.info.number, t.info.what, t.answers, recorded=t.recorded) for t in told]
        sys.stdout.write(json.dumps({"format": 1, "runs": runs}, indent=1) + "\n")
    else:
        for t in told:
            shown = answers.lines(t.info.number, t.info.what, t.answers, recorded=t.recorded)
            sys.stdout.writelines(line + "\n" for line in shown)
    return 0 if all(t.done for t in told) else 1
