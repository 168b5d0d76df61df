"""One frozen Settings: flags over environment over the user's file over the machine's file over defaults."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, fields
from pathlib import Path
from typing import Any

from scheduler import machinefile, units
from scheduler.errors import UsageError
from scheduler.values import dataclass

PREFIX = "SCHEDULER_"
USER_FILE = "~/.config/gpu-batch-scheduler/config.toml"
MACHINE_FILE = machinefile.PLACE


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be set for a run; texts as people write them are numbers here."""

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
    """None: 5 s on the host, 60 s on GPUs."""
    foreign: str = "headroom"
    foreign_calm: float = 120.0
    max_gpu_load: float = 2.0
    visible: str = "uuid"
    memory_args: str = ""
    ignore_args: str = ""
    margin: tuple[float, int] = (0.10, 256 * units.MIB)
    profile_id: str = "own"
    log_max: int = units.GIB
    shim: str = "auto"
    """auto: compiled where it was compiled before; python: never; c: compiled before the run begins, if that goes."""
    cgroup: str = "auto"
    """auto: each attempt is in a control group of its own where this user may make them; never: in ours."""
    disk_min: tuple[float, int] = (0.02, units.GIB)
    """Nothing is launched while less than this share, or less than so many bytes, of a disk of ours is free."""
    notify: str = ""
    """A command or a web hook that is told of a run's end, of its first failure, and when it stops launching."""
    source: Mapping[str, str] = field(default_factory=dict)
    """Where each value that is not a default came from."""
    ignored: str = ""
    """Why the machine's file does not count, where there is one that does not."""


NOT_SET = frozenset({"source", "ignored"})
"""What nobody sets: it says how the rest came about."""


def _number(kind: Callable[[str], Any], text: str) -> Any:
    """A number; what is none is said in our words."""
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a {'whole number' if kind is int else 'number'}") from None


def _at_least_one(text: str) -> int:
    number: int = _number(int, text)
    if number < 1:
        raise ValueError(f"{number} is below 1")
    return number


def _share(text: str) -> float:
    number: float = _number(float, text)
    if not 0 < number <= 1000:
        raise ValueError(f"{text} is not a share above 0")
    return number


def _one_of(*words: str) -> Any:
    def read(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
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
        raise ValueError(f"{text!r} is no margin: write it like 10%+256MiB")
    return share, bytes_


def _log_max(text: str) -> int:
    bytes_ = units.parse_size(text)
    if bytes_ < 64 * units.KIB:
        raise ValueError(f"{text!r} is too little to keep head and tail of a log: at least 64KiB")
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
        raise ValueError(f"{text!r} is no share of a disk")
    return number / 100


def _notify(text: str) -> str:
    """A command, as the shell reads words, or an address."""
    import shlex

    if "://" in text.split(" ", 1)[0] and not text.startswith(("http://", "https://")):
        raise ValueError(f"{text.partition('://')[0]}:// is no web address: write http:// or https://, or a command")
    try:
        shlex.split(text)
    except ValueError as exc:
        raise ValueError(f"{text!r} cannot be split into words: {str(exc).lower()}") from exc
    return text


READERS: dict[str, Any] = {
    "state": str,
    "leases": str,
    "num": _at_least_one,
    "buffer": units.parse_size,
    "order": _one_of("batch", "global"),
    "max_load": _share,
    "python": str,
    "profile": _one_of("auto", "probe", "live", "off"),
    "profile_epochs": _at_least_one,
    "settle": units.parse_duration,
    "foreign": _one_of("headroom", "avoid", "ignore"),
    "foreign_calm": units.parse_duration,
    "max_gpu_load": _share,
    "visible": _one_of("uuid", "index", "all"),
    "memory_args": str,
    "ignore_args": str,
    "margin": _margin,
    "profile_id": _one_of("own", "same"),
    "log_max": _log_max,
    "shim": _one_of("auto", "python", "c"),
    "cgroup": _one_of("auto", "never"),
    "disk_min": _disk_min,
    "notify": _notify,
}


def read_settings(flags: Mapping[str, str | None], environ: Mapping[str, str] | None = None) -> Settings:
    """Join all sources; the first that says something about a name wins."""
    environ = os.environ if environ is None else environ
    names = {f.name for f in fields(Settings)} - NOT_SET
    machine = machinefile.read(environ)
    own = _toml(Path(USER_FILE).expanduser())
    _check_names(own, names)
    sources: list[tuple[str, Mapping[str, Any]]] = [
        ("flag", {name: value for name, value in flags.items() if value is not None}),
        ("environment", {name: environ[PREFIX + name.upper()] for name in names if environ.get(PREFIX + name.upper())}),
        (USER_FILE, own),
        (machine.path, machine.said),
    ]
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for where, said in sources:
        for name in names & said.keys() - values.keys():
            values[name] = _read(name, str(said[name]), where)
            origin[name] = where
    return Settings(**values, source=origin, ignored=machine.why_not)


def _check_names(said: Iterable[str], names: set[str]) -> None:
    """Refuse what nobody would heed: a setting with a slip in its name."""
    for name in said:
        if name not in names:
            raise UsageError(f"{USER_FILE}: there is no setting {name!r}; there are {', '.join(sorted(names))}")


def _read(name: str, text: str, where: str) -> Any:
    try:
        return READERS[name](text)
    except (ValueError, ArithmeticError) as exc:
        spelled = f"--{name.replace('_', '-')}" if where == "flag" else f"{name} ({where})"
        raise UsageError(f"{spelled}: {exc}") from exc


def _toml(path: Path) -> Mapping[str, Any]:
    if not path.is_file():
        return {}
    import tomllib  # 4 ms that a machine without such a file never pays

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise UsageError(f"{path} cannot be read: {exc}") from exc
