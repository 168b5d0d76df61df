"""The flags of `run`, which `grid` and `profiles learn` accept as well.

This module can show the help of `run` without loading the code of a run.
"""

from __future__ import annotations

from scheduler.cli import flags
from scheduler.cli.parsing import Parser
from scheduler.core.tasks.command import APPEND

SHOWN = (
    "--sample", "--dry-run", "--detach", "--jobs", "--name", "--devices", "--gpus", "--memory", "--stop-when",
    "--skip-done",
)  # fmt: skip
"""The flags that `--help` shows; `--help-all` shows all flags."""


def main(argv: list[str]) -> int:
    """Print the help of `run`; the command line must request it."""
    parser().parse_args(argv)
    return 0


def parser(verb: str = "run") -> Parser:
    """Build the parser of `run`, or of `profiles learn`, which accepts the flags of `run`."""
    what = (
        "Run a list of tasks, several per GPU, packed by measured memory."
        if verb == "run"
        else "Measure the unknown memory needs of a list with probes, and run nothing else of it."
    )
    examples = f"scheduler {verb} jobs.csv --num 20\n         scheduler {verb} table.csv -- python train.py --lr {{lr}}"
    made = Parser(verb, what, examples).common()
    _add_list(made)
    add_run_flags(made)
    if verb == "run":
        again = made.add_argument_group("lists that were run before")
        again.add_argument("--new", action="store_true", help="start although a run of this file has not ended")
        again.add_argument("--skip-done", action="store_true", help="skip rows that succeeded in an earlier run")
    made.abridge("[FILE] [-- COMMAND]", *SHOWN)
    return made


def _add_list(made: Parser) -> None:
    """Add the flags that select the list and say how to read it."""
    made.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="a CSV, TSV or JSON lines (.jsonl) file (default scheduler_files/commands_1.csv). -- COMMAND after it is "
        "run for every row, with {lr} replaced by the cell of column lr. -: run each line of standard input as a "
        "shell command, as it arrives",
    )
    made.add_argument("--follow", metavar="FILE", help="run each line of a file as a command, also lines added later")
    made.add_argument(
        "--multiline", action="store_true", help="commands span several lines; a blank line or a NUL ends each"
    )
    made.add_argument(
        "--sample", action="store_true", help="copy ten small trainings to ./scheduler_samples and run them"
    )
    made.add_argument(
        "--header",
        default="0",
        metavar="ROW|None",
        help="row number of the header, from 0; None: no header (default 0)",
    )
    made.add_argument(
        "--append", choices=APPEND, help="what is appended to the arguments (default both; to a COMMAND: none)"
    )


def add_run_flags(made: Parser) -> None:
    """Add the flags of a run that do not depend on the source of its tasks."""
    flags.add_settings(made, "num", "order", "python", "log_max", "metrics", "my_columns", "window")
    flags.add_early_stop(made.add_argument_group("early stop of tasks by their metrics"))
    made.add_argument(
        "-j", "--jobs", metavar="TASKS", help="maximum number of tasks of this run at once; 0: start none yet"
    )
    made.add_argument("--name", default="", help="a name for the run")
    made.add_argument("--plain", action="store_true", help="print lines, not the live view")
    made.add_argument(
        "--dry-run", action="store_true", help="check the list and show when each task would start; start nothing"
    )
    made.add_argument("-d", "--detach", action="store_true", help="run in the background; return once accepted")
    made.add_argument(
        "--json", action="store_true", help="print the results as JSON at the end; with --dry-run, the plan"
    )
    flags.add_notify(made)
    made.add_argument(
        "--keep-going",
        action="store_true",
        help="continue even if the first 5 rows, or 20 later rows in a row, fail with the same error",
    )
    made.add_argument(
        "--max-failures", metavar="TASKS", help="start no more tasks once N have failed, timed out or run out of memory"
    )
    devices = made.add_argument_group("devices")
    flags.add_devices(devices, slots=True)
    flags.add_settings(devices, *flags.DEVICE_SETTINGS)
    flags.add_on(devices)
    flags.add_settings(devices, "node_fence")
    flags.add_launcher_args(devices)
    devices.add_argument("--slots", metavar="TASKS", help="number of tasks per device, regardless of memory")
    devices.add_argument("--max-per-device", metavar="TASKS", help="maximum of tasks per device, if memory allows")
    flags.add_mps(made.add_argument_group("NVIDIA MPS"))
    flags.add_settings(made.add_argument_group("memory profiles"), *flags.LEARNING_SETTINGS)
    fields = made.add_argument_group("task fields (defaults for rows without a value of their own)")
    flags.add_task_fields(fields, leave_out=("Name",))
