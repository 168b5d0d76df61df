"""The state of the shell that started a run, stored for `resume`: variables without secrets, umask and limits."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.core.tasks.redaction import looks_secret
from scheduler.errors import StateError
from scheduler.values import dataclass, replace

FORMAT = 1
_LIMITS = tuple(sorted(name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"))
_OURS = ("_", "SCHEDULER_NOTIFY")
"""Variables that are not passed to tasks: the path of this command, and the address of notifications, which may be
secret.
"""
_OF_ONE_MACHINE = frozenset({
    "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES", "HOSTNAME", "HOST", "DISPLAY", "SSH_AUTH_SOCK", "SSH_CLIENT",
    "SSH_CONNECTION", "SSH_TTY", "XDG_RUNTIME_DIR", "XDG_SESSION_ID", "DBUS_SESSION_BUS_ADDRESS", "TMPDIR", "HOME",
    "SCHEDULER_STATE", "SCHEDULER_LEASES", "XDG_STATE_HOME", "LD_LIBRARY_PATH",
})  # fmt: skip
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""The values to which Python itself sets LC_CTYPE in a C locale."""

Limit = tuple[int, int]
"""The soft and the hard limit; -1: no limit."""


def is_of_one_machine(name: str) -> bool:
    """Tell whether a variable has a meaning on one machine only; a task on a node gets the value that the variable has
    on the node.
    """
    return name in _OF_ONE_MACHINE or name.startswith("SLURM")


@dataclass(frozen=True, slots=True)
class ShellState:
    """The state that a process passes to its children, without its working directory."""

    environ: Mapping[str, str]
    umask: int
    limits: Mapping[str, Limit]
    withheld: tuple[str, ...] = ()
    """The names of secrets, which are not in `environ` and whose values are not stored."""

    def to_dict(self) -> dict[str, Any]:
        """Return the state as JSON values, without the values of variables whose names look like secrets."""
        secret = [name for name in self.environ if looks_secret(name)]
        return {
            "format": FORMAT,
            "environ": {name: text for name, text in self.environ.items() if name not in secret},
            "withheld": sorted({*secret, *self.withheld}),
            "umask": self.umask,
            "limits": self.limits,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ShellState:
        """Return the state that `to_dict` wrote; raise KeyError, TypeError or ValueError for anything else."""
        limits = {str(name): (int(soft), int(hard)) for name, (soft, hard) in data["limits"].items()}
        return cls(dict(data["environ"]), int(data["umask"]), limits, tuple(data["withheld"]))

    def secrets(self) -> dict[str, str]:
        """Return the variables that `to_dict` leaves out."""
        return {name: text for name, text in self.environ.items() if looks_secret(name)}

    def beyond(self, other: ShellState) -> dict[str, Any]:
        """Return the umask and the limits that differ from those of `other`; a limit is reduced to the hard limit of
        `other`.
        """
        said: dict[str, Any] = {"umask": self.umask} if self.umask != other.umask else {}
        limits = {
            name: _within(limit, other.limits[name]) for name, limit in self.limits.items() if name in other.limits
        }
        changed = {name: limit for name, limit in limits.items() if limit != tuple(other.limits[name])}
        return {**said, "limits": changed} if changed else said

    def out_of_reach(self, other: ShellState) -> list[str]:
        """Return a sentence about each soft limit that exceeds the hard limit of another state."""
        return [
            f"the run was started with {_limit(name, soft)}; this shell allows at most "
            f"{other.limits[name][1]:,}, which its tasks get"
            for name, (soft, _) in self.limits.items()
            if name in other.limits and _within((soft, -1), other.limits[name])[0] != soft
        ]


def this_shell() -> ShellState:
    """Return the state of this process, including changes by a program that uses this package."""
    environ = dict(os.environ)
    for name in _OURS:
        environ.pop(name, None)
    if environ.get("LC_CTYPE") in _COERCED and "LC_CTYPE" not in _first_environment():
        del environ["LC_CTYPE"]
    return ShellState(environ, _umask(), {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS})


def keep(path: Path, shell: ShellState, **more: Any) -> None:
    """Write a state durably, readable by its owner only, without the values of variables whose names look like
    secrets.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.part")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump({**shell.to_dict(), **more}, file, indent=1)
        file.flush()
        os.fsync(fd)
    temporary.rename(path)


def kept(path: Path) -> ShellState | None:
    """Return the state that `keep` wrote; None if there is no file. Raise StateError if it cannot be read."""
    try:
        return ShellState.from_dict(json.loads(path.read_text(encoding="ascii")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise StateError(
            f"{path}, the environment that the run was started with, cannot be read ({exc}): "
            "scheduler resume --env-from now uses the environment of this shell"
        ) from exc


def with_secrets(first: ShellState, now: Mapping[str, str]) -> ShellState:
    """Return the first shell's state with the secrets whose values `now` has; `withheld` names the missing ones."""
    found = {name: now[name] for name in first.withheld if name in now}
    missing = tuple(name for name in first.withheld if name not in found)
    return replace(first, environ={**first.environ, **found}, withheld=missing)


def _within(wanted: Limit, here: Limit) -> Limit:
    """Return a limit that does not exceed the hard limit of this process, which only root may raise."""
    hard = _lower(wanted[1], here[1])
    return _lower(wanted[0], hard), hard


def _lower(one: int, other: int) -> int:
    if resource.RLIM_INFINITY in (one, other):
        return max(one, other)
    return min(one, other)


def _limit(name: str, limit: int) -> str:
    """Return a limit in words, with its option of `ulimit`."""
    short = name.removeprefix("RLIMIT_").lower()
    return f"no limit of {short}" if limit == resource.RLIM_INFINITY else f"{short} limited to {limit:,}"


def _first_environment() -> set[str]:
    """Return the names of the environment variables with which this process started."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return set()
    return {os.fsdecode(entry.partition(b"=")[0]) for entry in entries}


def _umask() -> int:
    """Return the umask, read from /proc, because Python can only read it by changing it, which would affect files that
    other threads create.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
