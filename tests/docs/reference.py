"""The reference, made from the code: `python -m tests.docs.reference` prints it, a test compares."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import fields
from typing import get_args

from scheduler.cli.main import VERBS
from scheduler.cli.run import parser
from scheduler.core.columns import COLUMNS
from scheduler.core.events import Event
from scheduler.core.fields import FIELDS, RESERVED
from scheduler.core.model import State
from scheduler.settings import MACHINE_FILE, PREFIX, READERS, USER_FILE, Settings
from scheduler.view import prometheus
from scheduler.view.schemas import PRINTS, described

TASKS_ARE_TOLD = (
    ("SCHEDULER_TASK_ID", "its id; a probe has one of its own"),
    ("SCHEDULER_ATTEMPT", "which try this is, from 1"),
    ("SCHEDULER_KEY", "the same for all attempts and later runs of a row"),
    ("SCHEDULER_NAME", "its name"),
    ("SCHEDULER_RUN", "the number of its run"),
    ("SCHEDULER_PURPOSE", "run or probe"),
    ("SCHEDULER_EPOCHS", "how many epochs this attempt trains"),
    ("SCHEDULER_MEMORY_BYTES", "what it is promised on each device"),
    ("SCHEDULER_HOST_MEMORY_BYTES", "what it is promised of the host's RAM"),
    ("SCHEDULER_GPU_INDICES", "its GPUs; empty on a machine without"),
    ("SCHEDULER_TASK_DIR", "a folder that is kept; removed when empty"),
    ("SCHEDULER_RESULT", "a flat JSON object left here (64 KiB at most) becomes columns `result.*`"),
    ("SCHEDULER_PROGRESS", '"3/10" written here is progress; the usual epoch lines on stdout are too'),
)


JSON = """\
## What --json prints

Names with their values: `text`, `integer`, `number`, `boolean`; with `?` one may be null. A name with `?` may be
missing, `*` stands for every other name. Sizes are bytes, times seconds; moments are ISO 8601 where they are text and
seconds since the epoch where they are numbers. `format` grows when a name goes or means something else.
`scheduler/view/schemas.py` makes JSON Schemas of the same table.
"""


def page() -> str:
    """The whole page."""
    named = [f for f in fields(Settings) if f.name in READERS]
    flags = parser().format_help()
    settings = [(f.name, _flag(f.name, flags), PREFIX + f.name.upper()) for f in named]
    columns = [(f.column, f.flag or "–", f.default or "–", f.help) for f in FIELDS]
    reserved = "; ".join(f"{name} ({why})" for name, why in RESERVED.items())
    events = [(cls.kind, (cls.__doc__ or "").splitlines()[0]) for cls in get_args(Event)]
    parts = [
        "# Reference\n\nMade from the code by `scripts/reference`; a test keeps it true.\n",
        "## Verbs\n",
        *(f"### scheduler {verb}\n\n```\n{help_of(verb)}```\n" for verb in VERBS),
        table("Task fields", ("column", "flag", "default", "what"), columns),
        "Column names in any order and case; other columns are your own and come back in the results.\n",
        f"Refused, because they are not there yet: {reserved}.\n",
        table("Settings", ("name", "flag", "environment"), settings),
        f"Flags come before the environment, that before `{USER_FILE}`, that before `{MACHINE_FILE}`.\n",
        table("States", ("state",), [(state,) for state in State]),
        table("What a task is told", ("variable", "what"), TASKS_ARE_TOLD),
        table("Results columns", ("column",), [(name,) for name in COLUMNS]),
        "Then come the file's own columns, then `result.*`. Times are ISO 8601 with an offset, sizes are bytes.\n",
        JSON,
        *(f"### scheduler {verb} --json\n\n{json_of(verb)}" for verb in PRINTS),
        table(
            "Metrics",
            ("`status --prometheus`", "labels", "what"),
            [(f"`{f.name}`", f.labels or "–", f.help) for f in prometheus.FAMILIES],
        ),
        "All are gauges, in Prometheus' text format: for node_exporter's textfile collector, for example.\n",
        table("Events", ("event", "what"), events),
    ]
    return "\n".join(parts)


def _flag(name: str, flags: str) -> str:
    """The flag of a setting, where there is one."""
    flag = f"--{name.replace('_', '-')}"
    return flag if f"{flag} " in flags else "–"


def help_of(verb: str) -> str:
    """What the verb says of itself."""
    command = [sys.executable, "-m", "scheduler", verb, "--help"]
    environ = {**os.environ, "COLUMNS": "110"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout


def json_of(verb: str) -> str:
    """All that it prints."""
    said = [f"{case}:\n\n```\n{described(shape)}\n```\n" for case, shape in PRINTS[verb]]
    return "\n".join(one.removeprefix(":\n\n") for one in said)


def table(title: str, header: tuple[str, ...], rows: object) -> str:
    """A Markdown table under a heading."""
    lines = [f"## {title}\n", "| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
