"""The settings of a run.

A flag overrides an environment variable, which overrides the user's file, which overrides the machine's file, which
overrides the default.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from scheduler import units
from scheduler.errors import UsageError
from scheduler.runtime import site_file
from scheduler.runtime.paths import APPLICATION, tilde
from scheduler.values import dataclass, field, names_of

PREFIX = "SCHEDULER_"
USER_FILE = f"~/.config/{APPLICATION}/config.toml"
"""The user's settings file, unless XDG_CONFIG_HOME names another place than ~/.config."""
MACHINE_FILE = site_file.PLACE


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of one run, with strings converted to numbers."""

    state: str = ""
    leases: str = ""
    num: int = 20
    buffer: int = 512 * units.MIB
    order: str = "batch"
    max_load: float = 1.0
    python: str = ""
    profile: str = "auto"
    profile_epochs: int = 2
    settle: float | None = None
    """The settle time in seconds; None: 5 s on the host, and on GPUs a time that depends on the evidence."""
    unmanaged: str = "headroom"
    unmanaged_calm: float = 120.0
    max_gpu_load: float = 2.0
    visible: str = "uuid"
    launcher_args: str = "yes"
    """The treatment of launchers. With yes, they get the options that their commands lack, such as a port; with no,
    their commands stay as they are."""
    my_columns: str = ""
    queue_idle: float = 600.0
    directory_wait: float = 0.0
    """Seconds for which a task waits for its directory before it fails; 0: without end."""
    window: str = ""
    """The local times in which tasks may start; empty: at any time."""
    preempt: str = "no"
    """The tasks that may ask less urgent resumable tasks to make room. With yes, all tasks may; with no, only tasks
    that request it."""
    preempt_after: float = 300.0
    memory_args: str = ""
    ignore_args: str = ""
    margin: tuple[float, int] = (0.10, 256 * units.MIB)
    profile_id: str = "own"
    log_max: int = units.GIB
    cgroup: str = "auto"
    """The control groups of attempts. With auto, each attempt has a group of its own if this user may create groups;
    with never, attempts are in the scheduler's group."""
    disk_min: tuple[float, int] = (0.02, units.GIB)
    """Nothing is launched while less than this share, or fewer than this many bytes, of a disk of the run are free."""
    metrics: str = ""
    """The names of metrics in the output of tasks, separated by commas; empty: the usual ones; `off`: none."""
    stop_when: str = ""
    """The conditions under which a task is stopped early, such as `val_loss > 2 after 3`; empty: none."""
    keep_best: str = ""
    """The share of the tasks that continues at some steps, such as `1/3 by val_acc at 3,9,27`; empty: all tasks
    continue."""
    on: str = ""
    """The nodes of the run, such as `ssh:gpu1,gpu2 local`; empty: this machine."""
    features: str = ""
    """The features of this machine as a node of runs, such as `a100,nvlink`, which rows may ask for."""
    node_fence: float = 0.0
    """Seconds without news of the scheduler after which a node ends the run's tasks; 0: they live on."""
    notify: str = ""
    """A command or a web hook that is called when a run ends, fails for the first time, or stops launching."""
    source: Mapping[str, str] = field(default_factory=dict)
    """The source of each value that is not a default."""
    ignored: str = ""
    """A sentence about why the machine's file is ignored; empty if it is not ignored."""


YES = "yes"
LEAST_FENCE = 5.0
"""The shortest fence of a node (`node_fence`) that can be set, in seconds."""
MOST = 10**12
"""The largest value of a setting that counts something."""

NOT_SET = frozenset({"source", "ignored"})
"""Fields that cannot be set: they describe the other values."""


def _number(kind: Callable[[str], Any], text: str) -> Any:
    """Return a number; raise ValueError with a readable sentence if the text is not one."""
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a {'whole number' if kind is int else 'number'}") from None


def _path(text: str) -> str:
    """Return a path, which only the kernel can check further."""
    if text.startswith("~") and os.path.expanduser(text).startswith("~"):
        home = text.partition("/")[0]
        raise ValueError(
            f"{home!r} is no user's home directory here" if home != "~" else "there is no home directory: set HOME"
        )
    return text


def _at_least_one(text: str) -> int:
    number: int = _number(int, text)
    if number < 1:
        raise ValueError(f"{number} is below 1")
    if number > MOST:
        raise ValueError(f"{str(number)[:20]}... is above {MOST:,}")
    return number


def _share(text: str) -> float:
    number: float = _number(float, text)
    if not 0 < number <= 1000:
        raise ValueError(f"{text} is not a share above 0")
    return number


def _one_of(*words: str) -> Any:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is not one of {', '.join(words)}")
        return text

    return read


def _margin(text: str) -> tuple[float, int]:
    """Read `10%+256MiB`, `10%` or `256MiB`."""
    share, bytes_ = 0.0, 0
    for part in text.split("+"):
        part = part.strip()
        if part.endswith("%"):
            share = _number(float, part[:-1]) / 100
        else:
            bytes_ = units.parse_size(part)
    if not 0 <= share <= 10:
        raise ValueError(f"{text!r} is not a margin: write it like 10%+256MiB")
    return share, bytes_


def _log_max(text: str) -> int:
    bytes_ = units.parse_size(text)
    if bytes_ < 64 * units.KIB:
        raise ValueError(f"{text!r} is too small for a log: write at least 64KiB")
    return bytes_


def _disk_min(text: str) -> tuple[float, int]:
    """Read `1GiB,2%`, one of the two, or `off`."""
    if text.strip().lower() == "off":
        return 0.0, 0
    share, bytes_ = 0.0, 0
    for part in text.split(","):
        part = part.strip()
        if part.endswith("%"):
            share = _percent(part)
        else:
            bytes_ = units.parse_size(part)
    return share, bytes_


def _percent(text: str) -> float:
    number: float = _number(float, text[:-1])
    if not 0 <= number < 100:
        raise ValueError(f"{text!r} is not a share of a disk")
    return number / 100


def _window(text: str) -> str:
    if text.strip():
        from scheduler.core.queue.start_window import parse  # only where a window is set

        parse(text)
    return text.strip()


def _features(text: str) -> str:
    """Read names of features, separated by commas."""
    names = [name.strip() for name in text.split(",")]
    if any(len(name.split()) != 1 for name in names):
        raise ValueError(f"{text!r} is not a list of features: write it like a100,nvlink")
    return ",".join(names)


def _node_fence(text: str) -> float:
    if text.strip().lower() == "off":
        return 0.0
    seconds = units.parse_duration(text)
    if seconds < LEAST_FENCE:
        raise ValueError(
            f"{text!r} is too short: a link that broke needs some seconds to be made anew; write at least 5s"
        )
    return seconds


def _stop_when(text: str) -> str:
    if text.strip():
        from scheduler.core.metrics.stop_rules import stop_rules  # only where there are rules

        stop_rules(text)
    return text.strip()


def _keep_best(text: str) -> str:
    if text.strip():
        from scheduler.core.metrics.stop_rules import keep_best  # only where there is such a rule

        keep_best(text)
    return text.strip()


def _notify(text: str) -> str:
    """Return a command that can be split into words, or a web address; raise ValueError for any other text."""
    import shlex

    if "://" in text.split(" ", 1)[0] and not text.startswith(("http://", "https://")):
        raise ValueError(f"{text.partition('://')[0]}:// is not a web address: write http:// or https://, or a command")
    try:
        shlex.split(text)
    except ValueError as exc:
        raise ValueError(f"{text!r} cannot be split into words: {str(exc).lower()}") from exc
    return text


READERS: dict[str, Any] = {
    "state": _path,
    "leases": _path,
    "num": _at_least_one,
    "buffer": units.parse_size,
    "order": _one_of("batch", "global"),
    "max_load": _share,
    "python": str,
    "profile": _one_of("auto", "probe", "live", "sequential", "off"),
    "profile_epochs": _at_least_one,
    "settle": units.parse_duration,
    "unmanaged": _one_of("headroom", "avoid", "ignore"),
    "unmanaged_calm": units.parse_duration,
    "max_gpu_load": _share,
    "visible": _one_of("uuid", "index", "all"),
    "launcher_args": _one_of("yes", "no"),
    "my_columns": str,
    "queue_idle": units.parse_duration,
    "directory_wait": units.parse_duration,
    "window": _window,
    "preempt": _one_of("yes", "no"),
    "preempt_after": units.parse_duration,
    "memory_args": str,
    "ignore_args": str,
    "margin": _margin,
    "profile_id": _one_of("own", "same"),
    "log_max": _log_max,
    "cgroup": _one_of("auto", "never"),
    "disk_min": _disk_min,
    "metrics": str,
    "stop_when": _stop_when,
    "keep_best": _keep_best,
    "on": str,
    "features": _features,
    "node_fence": _node_fence,
    "notify": _notify,
}


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str] | None = None) -> Settings:
    """Return the settings from all sources; the first source that sets a name takes precedence."""
    environ = os.environ if environ is None else environ
    names = {*names_of(Settings)} - NOT_SET
    machine = site_file.read(environ)
    place = user_file(environ)
    users = tilde(place)
    own = _toml(place)
    _check_names(own, names, users)
    sources: list[tuple[str, Mapping[str, Any]]] = [
        ("flag", {name: value for name, value in flags.items() if value is not None}),
        ("environment", {name: environ[PREFIX + name.upper()] for name in names if environ.get(PREFIX + name.upper())}),
        (users, own),
        (machine.path, machine.said),
    ]
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for where, given in sources:
        for name in names & given.keys() - values.keys():
            values[name] = _read(name, given[name], where)
            origin[name] = where
    return Settings(**values, source=origin, ignored=machine.why_not)


def user_file(environ: Mapping[str, str]) -> Path:
    """Return the path of the user's file; as XDG demands, a relative XDG_CONFIG_HOME is ignored."""
    base = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        return Path(os.path.expanduser(USER_FILE))
    return Path(base) / APPLICATION / "config.toml"


def _check_names(given: Iterable[str], names: set[str], file: str) -> None:
    """Raise UsageError for a setting whose name does not exist."""
    for name in given:
        if name not in names:
            raise UsageError(f"{file}: there is no setting {name!r}; there are {', '.join(sorted(names))}")


def _read(name: str, given: Any, where: str) -> Any:
    try:
        if isinstance(given, bool) or not isinstance(given, str | int | float):
            raise ValueError(f"{str(given)[:80]} is neither a text nor a number")
        if "\0" in (text := str(given)):
            raise ValueError("it contains a NUL byte")
        return READERS[name](text)
    except (ValueError, ArithmeticError) as exc:
        spelled = f"--{name.replace('_', '-')}" if where == "flag" else f"{name} ({where})"
        raise UsageError(f"{spelled}: {exc}") from exc


def _toml(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    import tomllib  # it takes 4 ms to load, and is only needed for such a file

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}") from exc
