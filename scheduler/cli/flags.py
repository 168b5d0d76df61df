"""Flags that several verbs share, each defined once (settings, task fields, MPS, notifications), and their parsing."""

from __future__ import annotations

import argparse
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from scheduler.errors import InputError, UsageError

if TYPE_CHECKING:
    from scheduler.simulation.workload import MeasuredTask


class SettingFlag(NamedTuple):
    """The description of a setting's flag for `--help`; the flag has the name of the setting."""

    metavar: str
    help: str


SETTINGS = {
    "num": SettingFlag("ROWS", "rows per batch (default 20)"),
    "order": SettingFlag(
        "batch|global",
        "rank by batch, then priority; or by priority alone (default: batch for lists with a column Filename, and "
        "where --num is given; else global)",
    ),
    "python": SettingFlag(
        "PYTHON",
        "interpreter for rows whose Executable is -1 or empty: a path, a name, conda:NAME or an environment's folder "
        "(default: the active environment)",
    ),
    "log_max": SettingFlag("SIZE", "maximum size of a task's log; the middle is dropped beyond it (default 1GiB)"),
    "buffer": SettingFlag("SIZE", "memory kept free on every device (default 512MiB)"),
    "max_load": SettingFlag("SHARE", "share of the CPU cores that may be reserved (default 1.0)"),
    "max_gpu_load": SettingFlag(
        "LOAD", "maximum summed GPU utilisation of co-located tasks, 2.0 = 200 %% (default 2.0)"
    ),
    "visible": SettingFlag("uuid|index|all", "how tasks see their GPUs: uuid, index, or all (default uuid)"),
    "unmanaged": SettingFlag(
        "headroom|avoid|ignore",
        "policy for GPUs with unmanaged memory: headroom keeps extra memory free, avoid does not start there, ignore "
        "(default headroom)",
    ),
    "unmanaged_calm": SettingFlag(
        "TIME", "how long unmanaged memory must be stable before tasks start on that device (default 2m)"
    ),
    "profile": SettingFlag(
        "auto|probe|live|sequential|off",
        "how unknown memory needs are learned: auto, probe, live or off (default auto); sequential profiles every task "
        "of a batch, one after the other, then packs the batch by peak plus buffer alone",
    ),
    "profile_epochs": SettingFlag("EPOCHS", "epochs of a probe (default 2)"),
    "profile_id": SettingFlag("own|same", "whether a probe gets an id of its own (default own)"),
    "settle": SettingFlag(
        "TIME",
        "time without a new peak after which a task has settled (default 5s; on GPUs automatic, at most 60s)",
    ),
    "margin": SettingFlag("SHARE+SIZE", "memory reserved above a known peak (default 10%%+256MiB)"),
    "metrics": SettingFlag(
        "NAMES",
        "metrics that are read from the output of tasks, the most important first (default: the usual names, such as "
        "loss and val_acc); off reads none",
    ),
    "stop_when": SettingFlag(
        "RULE", "stop a task early by its metrics: 'val_loss > 2 after 3', 'val_loss is nan'; may be repeated"
    ),
    "keep_best": SettingFlag(
        "SHARE", "let only the best tasks go on: 1/3, with --by and --at (successive halving that waits for no task)"
    ),
    "window": SettingFlag(
        "TIMES", "local times in which tasks may start: 20:00-07:00, or mon-fri 20:00-07:00,sat-sun 00:00-24:00"
    ),
    "my_columns": SettingFlag("COLUMNS", "columns of your own whose names look like misspelled task fields"),
    "on": SettingFlag(
        "NODES",
        "run on other machines: ssh:HOST,HOST,... over ssh, slurm for the nodes of this allocation, ray or "
        "ray://HOST:PORT for those of a Ray cluster, local for this one; may be repeated (default: this one "
        "alone)",
    ),
    "node_fence": SettingFlag(
        "TIME",
        "with --on: a machine that has not heard from the scheduler for this long ends its tasks, so that they can "
        "start again on others (at least 5s; default off)",
    ),
    "memory_args": SettingFlag("ARGUMENTS", "arguments that determine a script's memory; all others do not"),
    "ignore_args": SettingFlag("ARGUMENTS", "arguments that do not change a script's memory"),
}
"""The settings that are flags; the help page of each verb shows them in its own order."""
DEVICE_SETTINGS = ("buffer", "max_load", "max_gpu_load", "unmanaged", "unmanaged_calm", "visible")
LEARNING_SETTINGS = ("profile", "profile_epochs", "profile_id", "settle", "margin", "memory_args", "ignore_args")
RUN_SETTINGS = (
    "num", "order", "python", "log_max", "metrics", "stop_when", "keep_best", "my_columns", "window",
    "launcher_args", "on", "node_fence",
    *DEVICE_SETTINGS, *LEARNING_SETTINGS,
)  # fmt: skip

DEVICES = (
    "GPUs as nvidia-smi numbers them (0,2-3), MIG instances (0.1), UUIDs, all, or host; each may have a budget: "
    "0:10GiB,host:12GiB (default: every GPU that this shell may use, with the host's RAM)"
)
SLOTS = "; or slots for one task each, under any names: 'slots:0;0;1,2'"
LARGEST = 10**12


def add_settings(group: argparse._ActionsContainer, *names: str, **helps: str) -> None:
    """Add the flags of settings; `helps` replaces the help of a flag whose default differs in this verb."""
    for name in names:
        flag = SETTINGS[name]
        group.add_argument(f"--{name.replace('_', '-')}", metavar=flag.metavar, help=helps.get(name, flag.help))


def add_launcher_args(group: argparse._ActionsContainer) -> None:
    """Add `--no-launcher-args`."""
    group.add_argument(
        "--no-launcher-args",
        dest="launcher_args",
        action="store_const",
        const="no",
        help="leave commands of accelerate and deepspeed as they are; else they get a port, and device options that "
        "contradict the task's GPUs are refused",
    )


def add_early_stop(group: argparse._ActionsContainer) -> None:
    """Add the flags for rules that stop tasks early because of their metrics."""
    rule, share = SETTINGS["stop_when"], SETTINGS["keep_best"]
    group.add_argument("--stop-when", action="append", metavar=rule.metavar, help=rule.help)
    group.add_argument("--keep-best", metavar=share.metavar, help=share.help)
    group.add_argument(
        "--by",
        metavar="METRIC",
        help="the metric of --keep-best; low values are best for losses and errors, high values for all others; "
        "min:METRIC or max:METRIC overrides this",
    )
    group.add_argument("--at", metavar="STEPS", help="the steps (epochs) at which --keep-best compares: 3,9,27")


def join_early_stop(args: argparse.Namespace) -> None:
    """Join several `--stop-when` rules into one string, and join `--keep-best`, `--by` and `--at` into another
    string.
    """
    if args.stop_when is not None:
        args.stop_when = ", ".join(args.stop_when)
    for flag, word in (("--by", args.by), ("--at", args.at)):
        if word is not None and args.keep_best is None:
            raise UsageError(f"{flag} {word} has an effect only with --keep-best: add --keep-best 1/3")
    if args.keep_best is not None:
        words = [args.keep_best, *(["by", args.by] if args.by is not None else [])]
        args.keep_best = " ".join([*words, *(["at", args.at] if args.at is not None else [])])


def add_devices(group: argparse._ActionsContainer, *, slots: bool = False) -> None:
    """Add `--devices`, which selects the devices of a run; with `slots`, the flag accepts slots too."""
    group.add_argument("--devices", default="auto", metavar="DEVICES", help=DEVICES + (SLOTS if slots else ""))


class _Joined(argparse.Action):
    """An option that may be given several times; its values are joined into one string, separated by blanks."""

    def __call__(self, parser: object, namespace: object, values: object, option_string: str | None = None) -> None:
        """Append a value to the string, or the constant of an option that has no value."""
        before, added = getattr(namespace, self.dest), self.const or values
        setattr(namespace, self.dest, f"{before} {added}" if before else added)


def add_on(group: argparse._ActionsContainer) -> None:
    """Add `--on` and `--on-insecure`."""
    group.add_argument("--on", action=_Joined, metavar=SETTINGS["on"].metavar, help=SETTINGS["on"].help)
    group.add_argument(
        "--on-insecure",
        dest="on",
        action=_Joined,
        nargs=0,
        const="insecure",
        help="use a Ray cluster that takes orders from anyone who reaches it",
    )


def add_mps(group: argparse._ActionsContainer) -> None:
    """Add the flags of NVIDIA MPS."""
    group.add_argument(
        "-m",
        "--mps",
        metavar="on|auto|join|off",
        default="off",
        help="let tasks on one GPU run kernels at the same time: on (or no value) starts a private daemon, auto uses "
        "MPS where it works, join uses the daemon that already runs, off (default)",
    )
    group.add_argument(
        "--mps-fence", default="on", metavar="on|off", help="limit each task to its reserved memory (default on)"
    )
    group.add_argument(
        "--mps-exclusive", action="store_true", help="as root: only MPS clients may use the GPUs until the run ends"
    )

    group.add_argument(
        "--fence",
        metavar="torch|dmem",
        default="",
        help="without --mps: limit the GPU memory of each task to its reservation; torch: by PyTorch itself (2.10 or "
        "newer), dmem: by the kernel's control groups (Linux 6.14 or newer)",
    )
    group.add_argument(
        "--power-cap",
        metavar="WATTS",
        help="as root: limit the power of each GPU, such as 250W; the earlier limit is restored when the run ends",
    )


def add_notify(group: argparse._ActionsContainer) -> None:
    """Add `--notify`."""
    group.add_argument(
        "--notify",
        metavar="COMMAND|URL",
        help="a command or a web hook (https://...) to call when the run ends, when its first task fails, and when "
        "it stops launching by itself",
    )


FIELD_VALUES = {
    "Name": "NAME", "Env": "NAME=VALUE", "Stdout": "FILE", "Stderr": "FILE", "After": "TASKS", "Begin": "TIME|DATE",
    "Preempt": "yes|no", "PreemptAfter": "TIME", "Priority": "N", "GPUs": "N", "Memory": "SIZE", "HostMemory": "SIZE",
    "CPUs": "CORES", "Timeout": "TIME", "Grace": "TIME",
    "StopSignal": "SIGNAL", "Retries": "N", "RetryOn": "OUTCOMES", "Resumable": "yes|no", "Device": "DEVICE",
    "Node": "NODE,…", "Features": "FEATURE,…", "Prefer": "DEVICE", "ThreadPercentage": "PERCENT|auto",
    "Exclusive": "yes|no",
}  # fmt: skip
"""The metavar for the value of each task field in `--help`, by column."""


def add_task_fields(group: argparse._ActionsContainer, leave_out: Container[str] = ()) -> None:
    """Add a flag for each task field, except for the columns in `leave_out`."""
    from scheduler.core.tasks.fields import FIELDS, SWITCHES

    for field in FIELDS:
        if field.column in SWITCHES and field.column not in leave_out:
            group.add_argument(
                field.flag, dest=f"field_{field.attribute}", action="store_const", const="yes", help=field.help
            )
        elif field.flag and field.column not in leave_out:
            action = "append" if field.column == "Env" else "store"
            names = (field.flag, *field.aliases)
            group.add_argument(
                *names,
                dest=f"field_{field.attribute}",
                action=action,
                metavar=FIELD_VALUES[field.column],
                help=field.help,
            )


def task_fields(args: argparse.Namespace) -> dict[str, str]:
    """Return the task fields that the command line gives, as strings by column."""
    from shlex import join

    from scheduler.core.tasks.fields import FIELDS

    values = {field.column: getattr(args, f"field_{field.attribute}", None) for field in FIELDS}
    given = {column: value for column, value in values.items() if value is not None}
    return {column: join(value) if isinstance(value, list) else value for column, value in given.items()}


def checked_fields(texts: Mapping[str, str]) -> Mapping[str, str]:
    """Return the task fields, with Begin as an absolute time. Raise UsageError that names the flag of an
    invalid value.
    """
    from scheduler.core.tasks import begin
    from scheduler.core.tasks.fields import BEGIN, FIELDS
    from scheduler.runtime import clock

    by_column, checked = {field.column: field for field in FIELDS}, dict(texts)
    for column, text in texts.items():
        field = by_column[column]
        try:
            if column == BEGIN:
                checked[column] = text = begin.absolute(text, clock.wall())
            field.read(text)
        except (ValueError, ArithmeticError) as exc:
            raise UsageError(f"{field.flag}: {exc}") from exc
    return checked


def about_flag(exc: InputError) -> str:
    """Return the message of an input error, with the name of the flag instead of the column's name."""
    if exc.column is None:
        return str(exc)
    from scheduler.core.tasks.fields import FIELDS

    flag = next((field.flag for field in FIELDS if field.column == exc.column and field.flag), "")
    return f"{flag}: {exc.message}" if flag else exc.message


def split_at_command(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """Split the arguments at `--` into the flags and the command; the command is None without `--`."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def whole_number(flag: str, text: str, least: int = 1, most: int = LARGEST, given: str = "") -> int:
    """Read a whole number within bounds; raise UsageError that names the flag. `given` is the whole value of a flag
    that accepts several numbers.
    """
    if not (text.isascii() and text.isdecimal()) or not least <= int(text) <= most:
        bounds = f"from {least} to {most:,}" if most < LARGEST else f"of at least {least}"
        raise UsageError(f"{flag} {given or text}: {f'{text!r} is not' if given else 'give'} a whole number {bounds}")
    return int(text)


def whole_numbers(flag: str, text: str, most: int) -> list[int]:
    """Read whole numbers of at least 1, separated by commas and all different."""
    return [whole_number(flag, number, most=most, given=text) for number in listed(flag, text)]


def optional_count(flag: str, text: str | None, least: int = 1) -> int | None:
    """Read a whole number; return None if the flag was not given."""
    return None if text is None else whole_number(flag, text, least)


def any_integer(flag: str, text: str) -> int:
    """Read a whole number that may be negative."""
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{flag} {text}: give a whole number, such as 1") from None


def positive_number(flag: str, text: str, most: float = 1e6) -> float:
    """Read a number above 0 and up to `most`."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= most:
        raise UsageError(f"{flag} {text}: give a number above 0, such as 16")
    return number


def share(flag: str, text: str) -> float:
    """Read a share: a number from 0 to below 1."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise UsageError(f"{flag} {text}: give a share from 0 to below 1, such as 0.1")
    return number


def listed(flag: str, text: str) -> list[str]:
    """Read different values, separated by commas."""
    values = [value.strip() for value in text.split(",") if value.strip()]
    if not values or len(set(values)) < len(values):
        raise UsageError(f"{flag} {text!r}: give different values, separated by commas")
    return values


def listed_words(flag: str, text: str, known: Sequence[str]) -> list[str]:
    """Read one or more of the known words, separated by commas."""
    values = listed(flag, text)
    for value in values:
        if value not in known:
            raise UsageError(f"{flag} {text}: {value!r} is not one of {', '.join(known)}")
    return values


def duration(flag: str, text: str) -> float:
    """Read a duration such as 90s, 10min or 30d, in seconds."""
    from scheduler.units import parse_duration

    try:
        return parse_duration(text)
    except ValueError as exc:
        raise UsageError(f"{flag}: {exc}") from exc


def assumed_task(text: str | None) -> MeasuredTask:
    """Read `--assume`: a duration and a peak, such as `10min,4GiB`, or only one of the two."""
    from scheduler.simulation.workload import MeasuredTask
    from scheduler.units import parse_duration, parse_size
    from scheduler.values import replace

    task = MeasuredTask()
    for part in filter(None, (text or "").split(",")):
        try:
            task = replace(task, seconds=parse_duration(part))
        except ValueError:
            try:
                task = replace(task, peak=parse_size(part))
            except ValueError as exc:
                raise UsageError(f"--assume {text}: {part!r} is neither a time (10min) nor a size (4GiB)") from exc
    return task
