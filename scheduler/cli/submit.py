"""`scheduler submit`: add tasks to the user's standing queue on this machine, print their ids and return."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.app.queue.submit import submit
from scheduler.cli import flags
from scheduler.cli.parsing import Parser, settings_from
from scheduler.core.tasks.fields import RowForm
from scheduler.errors import InputError, UsageError
from scheduler.runtime.python_envs import Python
from scheduler.runtime.settings import Settings
from scheduler.store.queue.queue_link import USUAL, checked_name
from scheduler.units import ranges

if TYPE_CHECKING:
    from scheduler.core.tasks.row_source import InputRow

SETTINGS = ("python", "my_columns", "launcher_args", "on")
LISTS = (".csv", ".tsv", ".tab", ".jsonl", ".ndjson")
"""The suffixes of files that are lists of tasks."""
NAMES = {"stdin": "standard input", "": "the grid"}
"""The names, in messages, of sources that are not files. The source `""` means a grid in a message about an empty
source, because the other source without a file, a single command, is never empty.
"""
Rows = tuple[RowForm, Iterable["InputRow"], Sequence[str]]
"""The form of some rows, the rows, and warnings about them. The list of warnings is complete once all rows have been
read.
"""


def parser() -> Parser:
    """Build the parser of `submit`."""
    what = "Add tasks to your standing queue on this machine, print their ids and return. The first task starts it."
    examples = (
        "scheduler submit --memory 8GiB -- python train.py --lr 0.1\n         scheduler submit 'make data && ./train'"
    )
    more_words = "write a command of several words after --, or in quotes"
    made = Parser("submit", what, examples, more_words=more_words).common()
    made.add_argument(
        "what",
        nargs="?",
        metavar="LINE|FILE",
        help="a line for a shell, in quotes; or a list of tasks (.csv, .tsv, .jsonl). -- COMMAND alone is one task, "
        "after a list it is run for every row",
    )
    made.add_argument("--stdin", action="store_true", help="each line of standard input is a shell command")
    made.add_argument("--queue", default=USUAL, metavar="NAME", help=f"name of the queue (default {USUAL})")
    flags.add_settings(made, *SETTINGS[:2])
    flags.add_launcher_args(made)
    flags.add_on(made)
    made.json()
    fields = made.add_argument_group("task fields (for a list: defaults for rows without a value of their own)")
    flags.add_task_fields(fields, leave_out=("ThreadPercentage",))  # it has an effect only under MPS
    return made


def main(argv: list[str]) -> int:
    """Submit the tasks that the command line names, and print their ids."""
    argv, words = flags.split_at_command(argv)
    args = parser().parse_args(argv)
    settings = settings_from(args, *SETTINGS)
    fields = flags.checked_fields(flags.task_fields(args))
    python = chosen_python(settings)
    if args.stdin:
        if args.what is not None or words is not None:
            raise UsageError("--stdin reads all commands from standard input: leave the other command out")
        source, rows = "stdin", _lines(fields)
    elif args.what is not None and _is_list(args.what):
        source, rows = args.what, _list(args.what, words, fields, settings, python)
    else:
        source, rows = "", _one(args.what, words, fields, python)
    return send(source, rows, python, settings, checked_name(args.queue), as_json=args.json)


def send(source: str, rows: Rows, python: Python, settings: Settings, queue: str, *, as_json: bool) -> int:
    """Submit rows to a queue and print their ids; in errors, `source` names the list, or is empty for a single
    command.
    """
    form, cells, warnings = rows
    try:
        accepted = submit(form, cells, python, settings, queue)
    except InputError as exc:
        raise _named(exc, source) from exc
    print_hints((*warnings, *accepted.hints))
    if not accepted.tasks:
        print_hints([f"nothing was submitted: {NAMES.get(source, source)} has no task"])
    if as_json:
        facts = {"format": 1, "run": accepted.run, "queue": queue, "tasks": accepted.tasks}
        sys.stdout.write(json.dumps(facts) + "\n")
    else:
        sys.stdout.write(f"{ranges(accepted.tasks)}\n" if accepted.tasks else "")
    return 0


def print_hints(hints: Iterable[str]) -> None:
    """Print the hints about a submission on standard error."""
    for sentence in hints:
        sys.stderr.write(f"hint:   {sentence}\n")


def chosen_python(settings: Settings) -> Python:
    """Return the interpreter that `-1` means in tasks of this shell."""
    from scheduler.app.run.options import chosen_python as chosen

    return chosen(settings)


def one_command(words: Sequence[str], fields: Mapping[str, str], python: Python, append: str = "none") -> Rows:
    """Return the row of one command. Its fields become cells and not part of the form, so that different commands share
    few forms.
    """
    from scheduler.inputs import one_command as command

    form, rows = command.cells(words, fields, python.path, append)
    return form, rows, ()


def _one(line: str | None, words: Sequence[str] | None, fields: Mapping[str, str], python: Python) -> Rows:
    """Return the row of one command, given as words after `--` or as a line for a shell."""
    if words is not None:
        if line is not None:
            raise UsageError(f"give the command once: {line!r} stands before -- and another command after it")
        return one_command(words, fields, python)
    if line is None or not line.strip():
        raise UsageError("no command was given: write it like  scheduler submit -- python train.py --lr 0.1")
    from scheduler.inputs import table
    from scheduler.inputs.lines import form_of_lines

    if os.path.isfile(line):
        table.refuse_script(line)
    form = form_of_lines(fields)
    cells = [line, *form.defaults.values()]
    form = RowForm((*form.columns, *form.defaults), {}, form.append, form.template)
    return form, [(1, cells, form.terms(cells), 0)], ()


def _lines(fields: Mapping[str, str]) -> Rows:
    """Return the lines of standard input as rows."""
    from scheduler.app.run.task_list import stdin_listing

    listing = stdin_listing(fields, multiline=False, at_once=True)
    return listing.form, listing.rows, ()


def _is_list(text: str) -> bool:
    return text.lower().endswith(LISTS) and (os.path.exists(text) or len(text.split()) == 1)


def _list(
    path: str, template: Sequence[str] | None, fields: Mapping[str, str], settings: Settings, python: Python
) -> Rows:
    """Return the rows of a list file."""
    from scheduler.app.run.task_list import csv_listing

    listing = csv_listing(
        path,
        header=0,
        defaults=fields,
        append="both" if template is None else "none",
        python=python.path,
        template=template or (),
        mine=settings.my_columns,
    )
    rows = list(listing.rows)
    return listing.form, rows, listing.warnings()


def _named(exc: InputError, source: str) -> UsageError:
    """Return an error about a refused row that names its list, or the flag if the row is a single command."""
    return InputError(source, exc.message, exc.row, exc.column) if source else UsageError(flags.about_flag(exc))
