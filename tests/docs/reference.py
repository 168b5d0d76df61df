"""The reference pages, made from the code: `python -m tests.docs.reference FOLDER` writes them, a test compares."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import scheduler
from scheduler.cli.main import VERBS
from scheduler.cli.run_flags import parser
from scheduler.core.events import Event
from scheduler.core.model import State
from scheduler.core.reporting.columns import COLUMNS
from scheduler.core.tasks.fields import FIELDS
from scheduler.runtime.paths import APPLICATION
from scheduler.runtime.settings import MACHINE_FILE, PREFIX, READERS, USER_FILE, Settings
from scheduler.ui.export import prometheus
from tests.docs.json_shapes import PRINTS, described

SETTINGS = {
    "state": (
        "directory",
        "by the system",
        "The directory of all runs and profiles. It must be on a local file system.",
    ),
    "leases": ("directory", "by the system", "The directory in which the schedulers of a machine keep their leases."),
    "num": ("rows", "20", "Rows in a batch. Rows of one batch are ranked together."),
    "buffer": ("size", "512MiB", "Memory of every device that is never reserved."),
    "order": ("batch, global", "batch", "Rank by priority inside each batch, or over the whole list."),
    "max_load": ("share", "1.0", "Share of the cores that may be reserved."),
    "python": ("command", "active environment", "The Python that `-1` in the column Executable means."),
    "profile": (
        "auto, probe, live, sequential, off",
        "auto",
        (
            "How unknown needs are learned: in the cheapest way, by probes, during the real run, or not at all. "
            "`sequential` is the procedure of the batch-by-batch original: each task of a batch is profiled alone, "
            "then the batch is packed on the first GPU by these peaks plus the buffer, and the next batch starts when "
            "all of its tasks have ended."
        ),
    ),
    "profile_epochs": ("epochs", "2", "Epochs of a probe."),
    "settle": (
        "time",
        "5s; on GPUs automatic, at most 60s",
        "Time without a new peak after which a task has settled.",
    ),
    "unmanaged": (
        "headroom, avoid, ignore",
        "headroom",
        "On a GPU with unmanaged processes: keep memory free for their growth, start nothing, or ignore them.",
    ),
    "unmanaged_calm": (
        "time",
        "2m",
        "Time for which unmanaged memory must not grow before a task starts on that device.",
    ),
    "max_gpu_load": (
        "sum of utilisation",
        "2.0",
        "Maximum summed GPU utilisation of co-located tasks; 2.0 means 200 %.",
    ),
    "visible": ("uuid, index, all", "uuid", "How CUDA_VISIBLE_DEVICES names the GPUs of a task."),
    "launcher_args": (
        "yes, no",
        "yes",
        (
            "Whether commands of accelerate, deepspeed and torchrun that name no port get that of their attempt, and "
            "device options that contradict the task's GPUs are refused; `no` is the flag `--no-launcher-args`."
        ),
    ),
    "on": (
        "nodes",
        "–",
        "Machines on which the tasks run, such as `ssh:gpu1,gpu2 local`; by default this one.",
    ),
    "features": (
        "names",
        "–",
        "Features of this machine as a node of runs, such as `a100,nvlink`; rows ask for them in a column Features.",
    ),
    "node_fence": (
        "time",
        "off",
        "With `on`: a machine that has not heard from the scheduler for this long ends its tasks. At least 5s.",
    ),
    "window": (
        "times",
        "–",
        "Local times in which tasks may start: `20:00-07:00`, `mon-fri 20:00-07:00,sat-sun 00:00-24:00`.",
    ),
    "preempt": (
        "yes, no",
        "no",
        "Whether every task may ask less urgent Resumable ones to make room; else only those that say so.",
    ),
    "preempt_after": ("time", "5m", "Time that such a task waits before it asks."),
    "directory_wait": (
        "time",
        "0s",
        "Time for which a task waits for its directory before it fails; 0s: without end. A queue has 10m by default.",
    ),
    "queue_idle": ("time", "10m", "Time without anything to do after which the scheduler of a queue ends."),
    "stop_when": (
        "rules",
        "–",
        "Conditions under which a task is stopped early: `val_loss > 2 after 3, val_loss is nan`.",
    ),
    "keep_best": (
        "rule",
        "–",
        (
            "Tasks that go on at some steps, by successive halving: `1/3 by val_acc at 3,9,27`. `run` also has it as "
            "`--keep-best 1/3 --by val_acc --at 3,9,27`."
        ),
    ),
    "metrics": (
        "names",
        "the usual ones",
        (
            "Metrics that are read from the output of tasks, the most important first; `off` reads none. By default "
            "loss, acc, accuracy, f1, ppl, lr, bleu and similar names are found, also as val_loss or train/acc, in "
            "`loss=0.3`, `loss: 0.3` and `loss 0.3`."
        ),
    ),
    "my_columns": ("names", "–", "Columns of your own whose names look like misspelled task fields."),
    "memory_args": ("names", "learned", "Only these arguments of a script determine its memory."),
    "ignore_args": ("names", "learned", "These arguments of a script do not change its memory."),
    "margin": (
        "share and size",
        "10%+256MiB",
        "What is added to a known peak when memory is reserved. Without it the tasks on one GPU share it.",
    ),
    "profile_id": ("own, same", "own", "Whether a probe gets an id of its own in the command, or that of its task."),
    "log_max": ("size", "1GiB", "Size above which the middle of a task's log is removed; head and tail are kept."),
    "cgroup": ("auto, never", "auto", "Whether each attempt gets a control group of its own, if that is allowed."),
    "disk_min": ("share, size", "2%, 1GiB", "Nothing is started while a disk in use has less free space than this."),
    "notify": (
        "command or URL",
        "–",
        "Command or web hook to call when a run ends, fails for the first time, or stops starting tasks.",
    ),
}
"""Unit, default and meaning of every setting."""

STATES = {
    "waiting": "Accepted and not started; `scheduler why ID` gives the reason.",
    "blocked": "Waits for other tasks to end (`After`), or for its time (`Begin`).",
    "held": "Not started until `scheduler release`.",
    "probing": "An attempt runs a few epochs to measure what the task needs.",
    "running": "An attempt runs.",
    "succeeded": "Ended with exit code 0.",
    "failed": "Ended with another exit code or a signal, or could not be started, and has no retries left.",
    "oom": "Ran out of memory on every attempt, the last one alone on its device.",
    "timeout": "Reached its time limit and was stopped.",
    "interrupted": "Was stopped by the scheduler, a reboot or a lost shim; `resume` starts it again.",
    "cancelled": "Ended by `scheduler cancel`.",
    "pruned": "Stopped early by its metrics (`--stop-when`, `--keep-best`); this is no failure.",
    "refused": "Needs more memory than any device here has.",
    "skipped": "Not run, because the same row succeeded in an earlier run of the list (`--skip-done`), or a task "
    "that it depends on ended without success.",
}
"""The definition of every state."""

RESULTS = {
    "id": "Number of the task, unique for the user on this machine.",
    "key": "Text that is the same for all attempts and later runs of a row.",
    "row": "Line of the row in its file.",
    "name": "Name of the task.",
    "state": "See [states](states.md).",
    "exit_code": "Exit code of the last attempt; empty where a signal ended it.",
    "reason": "Reason for the state, in words: of a failed task its last error (`ValueError: …`), else the last line "
    "that it printed; and what it used on GPUs that it was not given.",
    "priority": "Priority of the row; a smaller number starts first.",
    "batch": "Number of the batch, from 1.",
    "attempts": "Number of attempts.",
    "ooms": "Number of attempts that ran out of memory.",
    "device": "Devices of the last attempt.",
    "node": "Node on which the last attempt ran, in runs on several machines; else empty.",
    "gpus": "Number of GPUs of the last attempt.",
    "reserved_bytes": "Memory reserved on the devices at the end of the last attempt.",
    "peak_bytes": "Highest memory that the last attempt used on its devices.",
    "host_reserved_bytes": "RAM reserved at the end of the last attempt.",
    "host_peak_bytes": "Highest RAM that the last attempt used.",
    "source": "How the need was known; see *source* in the [glossary](../glossary.md#memory).",
    "submitted": "When the task was accepted.",
    "started": "When the last attempt started.",
    "ended": "When the last attempt ended.",
    "waited_s": "Seconds from acceptance to the start of the last attempt.",
    "ran_s": "Seconds that the last attempt ran.",
    "neighbours_max": "Highest number of other attempts of the run that shared a device with it at one moment.",
    "stretched": "How many times longer an epoch took beside neighbours than alone.",
    "command": "The command, with secrets replaced.",
    "directory": "Working directory.",
    "log": "Path of the log of the last attempt.",
    "done_by": "Earlier run that completed a skipped row.",
    "skipped_for": "Task (`17`) or run (`r3`) for which the task is skipped: it ended without success.",
    "mps": "`client` of MPS, or `turns` if it took turns; empty without MPS, or if it ended before the check.",
    "thread_percentage": "Share of the GPU's threads under MPS.",
    "fenced": "True if MPS limited the attempt to the reservation that it had last; empty without MPS.",
    "energy_wh": "Watt hours of its attempts on GPUs, by the measured power; an estimate where tasks shared a GPU.",
    "epoch_energy_wh": "`energy_wh` for each of its epochs, once it has succeeded; failed attempts count, too.",
}
"""The description of every column of results."""

TASKS_ARE_TOLD = (
    ("SCHEDULER_TASK_ID", "id of the task; a probe has one of its own"),
    ("SCHEDULER_ATTEMPT", "number of the attempt, from 1"),
    ("SCHEDULER_KEY", "text that is the same for all attempts and later runs of a row"),
    ("SCHEDULER_NAME", "name of the task"),
    ("SCHEDULER_RUN", "number of the run"),
    ("SCHEDULER_PURPOSE", "`run` or `probe`"),
    ("SCHEDULER_EPOCHS", "number of epochs that this attempt trains"),
    ("SCHEDULER_MEMORY_BYTES", "bytes reserved on each device"),
    ("SCHEDULER_HOST_MEMORY_BYTES", "bytes of RAM reserved"),
    ("SCHEDULER_GPU_INDICES", "indices of the GPUs; empty on a machine without GPUs"),
    ("SCHEDULER_TASK_DIR", "directory for files of the task; kept unless it is empty"),
    (
        "SCHEDULER_RESULT",
        (
            "a flat JSON object written here (at most 64 KiB) becomes the columns `result.*`; if it is rewritten while "
            "the task runs, or JSON lines are appended, its numbers become curves (by `step` or `epoch`). What "
            "cannot be read is ignored; the row's `reason`, `why` and the run's log say so"
        ),
    ),
    ("SCHEDULER_PROGRESS", '"3/10" written here is progress; the usual epoch lines on stdout are progress too'),
    ("MASTER_PORT", "network port that is kept for the attempt: no other attempt on this machine is told it"),
    ("PET_MASTER_PORT", "the same port, for torchrun"),
)

JSON = """\
Names with their values: `text`, `integer`, `number`, `boolean`; a value with `?` may be null. A name with `?` may be
missing, `*` stands for every other name. Sizes are bytes, durations are seconds; moments are ISO 8601 where they are
text, and seconds since the epoch where they are numbers. `format` is raised when a name goes or changes its meaning.
"""


def pages() -> dict[str, str]:
    """Return the text of every page by its file name."""
    return {
        "index.md": _index(),
        "cli.md": _page("Commands", "Every verb, as its `--help` prints it; `run` and `grid`: `--help-all`.", _verbs()),
        "task-fields.md": _page("Task fields", "What a row of a list can set, as columns or as flags.", _fields()),
        "settings.md": _page(
            "Settings",
            "What can be set for a run, a user or a machine, by a flag, a variable or a file.",
            _settings(),
        ),
        "states.md": _page("States", "Where a task stands.", [_table(("state", "meaning"), _described(State, STATES))]),
        "task-environment.md": _page(
            "Task environment",
            "Variables in the environment of every task.",
            [_table(("variable", "value"), TASKS_ARE_TOLD)],
        ),
        "results.md": _page(
            "Results", "Columns of `scheduler results`, of its JSON and CSV, and of the DataFrame.", _results()
        ),
        "json.md": _page("JSON", "What `--json` prints, verb by verb.", [JSON, *_json()]),
        "metrics.md": _page("Metrics", "What `scheduler status --prometheus` prints.", _metrics()),
        "python.md": _page(
            "Python", "What `import scheduler` offers. Nothing of it is loaded before it is used.", _python()
        ),
        "events.md": _page("Events", "The rows of a run's journal. Every view replays them.", _events()),
    }


def _index() -> str:
    rows = (
        ("[Commands](cli.md)", "every verb and its flags"),
        ("[Task fields](task-fields.md)", "columns of a list"),
        ("[Settings](settings.md)", "flags, variables and files"),
        ("[States](states.md)", "where a task stands"),
        ("[Task environment](task-environment.md)", "variables that every task gets"),
        ("[Results](results.md)", "columns of results"),
        ("[JSON](json.md)", "what `--json` prints"),
        ("[Metrics](metrics.md)", "for Prometheus"),
        ("[Events](events.md)", "rows of the journal"),
        ("[Python](python.md)", "functions and classes of the module `scheduler`"),
    )
    return _page(
        "Reference",
        "Made from the code by `./scripts/reference`; a test keeps it true.",
        [_table(("page", "what"), rows)],
    )


def _page(title: str, first: str, parts: Iterable[str]) -> str:
    return "\n".join([f"# {title}\n\n{first}\n", *parts])


def _verbs() -> list[str]:
    return [f"## scheduler {verb}\n\n```\n{_help_of(verb)}```\n" for verb in VERBS]


def _fields() -> list[str]:
    rows = [(f.column, f.help, f.default or "–", f"`{f.flag}`" if f.flag else "–") for f in FIELDS]
    return [
        _table(("column", "meaning", "default", "flag"), rows),
        "Columns may have any order, and their names any case. Your own columns come back in the results.\n",
        "A name that resembles a field's is refused, unless a placeholder uses it or `--my-columns` names it.\n",
    ]


def _settings() -> list[str]:
    flags = parser().format_help()
    named = [f.name for f in fields(Settings) if f.name in READERS]
    rows = []
    for name in named:
        unit, default, meaning = SETTINGS[name]
        rows.append((name, meaning, unit, default, _flag(name, flags), PREFIX + name.upper()))
    return [
        _table(("name", "meaning", "unit or values", "default", "flag", "environment"), rows),
        f"A flag counts before a variable, then `{USER_FILE}`, then `{MACHINE_FILE}`.\n",
        f"With `XDG_CONFIG_HOME` the user's file is `$XDG_CONFIG_HOME/{APPLICATION}/config.toml`.\n",
    ]


def _results() -> list[str]:
    return [
        _table(("column", "description"), _described(COLUMNS, RESULTS)),
        "Then come the file's own columns, then `result.*`. Times are ISO 8601 with an offset, sizes are bytes.\n",
    ]


def _json() -> list[str]:
    return [f"## scheduler {verb} --json\n\n{_json_of(verb)}" for verb in PRINTS]


def _metrics() -> list[str]:
    rows = [(f"`{f.name}`", f.labels or "–", f.help) for f in prometheus.FAMILIES]
    return [
        _table(("name", "labels", "meaning"), rows),
        "All are gauges in the text format of Prometheus, for example for the textfile collector of node_exporter.\n",
    ]


def _events() -> list[str]:
    rows = [(cls.kind, " ".join((cls.__doc__ or "").split("\n\n")[0].split())) for cls in get_args(Event)]
    return [_table(("event", "meaning"), rows)]


OLDER = ("ConfigManager", "GPUTask", "GPUTaskScheduler")
"""Names of the older tools, which a page of their own describes."""


def _python() -> list[str]:
    names = [name for name in (*scheduler.__all__, "map") if name not in OLDER]
    return [
        part for name in sorted(names, key=str.lower) for part in _public(f"scheduler.{name}", getattr(scheduler, name))
    ]


def _public(name: str, what: Any) -> Iterator[str]:
    """Yield the parts about a function or a class, and about what is public in it."""
    yield f"## {name}\n\n```\n{name}{_parameters(what)}\n```\n\n{inspect.getdoc(what)}\n"
    if not isinstance(what, type):
        return
    rows = []
    for own, member in vars(what).items():
        if own.startswith("_") or not getattr(member, "__doc__", None):
            continue
        if isinstance(member, property):
            rows.append((f"`.{own}`", inspect.getdoc(member)))
        elif inspect.isfunction(member):
            rows.append((f"`.{own}{_parameters(member)}`", inspect.getdoc(member)))
    if rows:
        yield _table(("member", "what"), [(own, " ".join(str(text).split())) for own, text in rows])


def _parameters(what: Any) -> str:
    """Return the parameters of a function or a class with their defaults, without their types."""
    try:
        signature = inspect.signature(what)
    except (ValueError, TypeError):  # an error has those of every exception
        return ""
    found = [one.replace(annotation=one.empty) for one in signature.parameters.values() if one.name != "self"]
    return str(signature.replace(parameters=found, return_annotation=signature.empty))


def _described(names: Iterable[str], meanings: dict[str, str]) -> list[tuple[str, str]]:
    """Pair every name with its meaning; a name without one raises KeyError, and so fails the test."""
    return [(str(name), meanings[str(name)]) for name in names]


def _flag(name: str, flags: str) -> str:
    """Return the flag of a setting, or a dash where there is none."""
    flag = f"--{name.replace('_', '-')}"
    return f"`{flag}`" if f"{flag} " in flags else "–"


def _help_of(verb: str) -> str:
    """Return what a verb's --help prints."""
    command = [sys.executable, "-m", "scheduler", verb, "--help-all" if verb in ("run", "grid") else "--help"]
    environ = {**os.environ, "COLUMNS": "78"}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environ).stdout


def _json_of(verb: str) -> str:
    """Return the shapes of all that a verb prints as JSON."""
    shapes = [f"{case}:\n\n```\n{described(shape)}\n```\n" for case, shape in PRINTS[verb]]
    return "\n".join(one.removeprefix(":\n\n") for one in shapes)


def _table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    lines += ["| " + " | ".join(str(cell).replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write(folder: Path) -> None:
    """Write all pages into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
