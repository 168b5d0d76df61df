"""The shell a run was started from, kept for `resume`: its variables without secrets, its umask, its limits."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scheduler.core.confidential import looks_secret
from scheduler.errors import StateError
from scheduler.values import dataclass

FORMAT = 1
_LIMITS = tuple(sorted(name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE"))
_OURS = ("_", "SCHEDULER_NOTIFY")
"""The path of our own command, and whom we tell: who knows the address of a web hook can write there. No task's."""
_COERCED = ("C.UTF-8", "C.utf8", "UTF-8")
"""What Python sets LC_CTYPE to, for itself and its children, in a C locale."""

Limit = tuple[int, int]
"""Soft and hard; -1 is none."""


@dataclass(frozen=True, slots=True)
class Shell:
    """What a process passes on to those it starts, besides its directory."""

    environ: Mapping[str, str]
    umask: int
    limits: Mapping[str, Limit]
    withheld: tuple[str, ...] = ()
    """Names whose values were kept nowhere, and which are not in `environ`."""

    def beyond(self, other: Shell) -> dict[str, Any]:
        """The umask and limits in which it differs from another one, as far as that one's hard limits allow."""
        said: dict[str, Any] = {"umask": self.umask} if self.umask != other.umask else {}
        limits = {
            name: _within(limit, other.limits[name]) for name, limit in self.limits.items() if name in other.limits
        }
        changed = {name: limit for name, limit in limits.items() if limit != tuple(other.limits[name])}
        return {**said, "limits": changed} if changed else said

    def out_of_reach(self, other: Shell) -> list[str]:
        """Sentences about the soft limits that are above the hard ones of another."""
        return [
            f"the run was started with {name[7:].lower()} limited to {_number(soft)}, and this shell may have "
            f"{_number(other.limits[name][1])} at most: its tasks get that"
            for name, (soft, _) in self.limits.items()
            if name in other.limits and _within((soft, -1), other.limits[name])[0] != soft
        ]


def this_shell() -> Shell:
    """Ours: what the scheduler was started with, and what a program that uses it has set since."""
    environ = dict(os.environ)
    for name in _OURS:
        environ.pop(name, None)
    if environ.get("LC_CTYPE") in _COERCED and "LC_CTYPE" not in _first_environment():
        del environ["LC_CTYPE"]
    return Shell(environ, _umask(), {name: resource.getrlimit(getattr(resource, name)) for name in _LIMITS})


def keep(path: Path, shell: Shell) -> None:
    """Write it durably, for its owner's eyes only, and without the values of names that look like secrets."""
    open_, withheld = {}, []
    for name, text in shell.environ.items():
        if looks_secret(name):
            withheld.append(name)
        else:
            open_[name] = text
    said = {
        "format": FORMAT,
        "environ": open_,
        "withheld": sorted({*withheld, *shell.withheld}),
        "umask": shell.umask,
        "limits": shell.limits,
    }
    temporary = path.with_suffix(".part")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="ascii") as file:
        json.dump(said, file, indent=1)
        file.flush()
        os.fsync(fd)
    temporary.rename(path)


def kept(path: Path) -> Shell | None:
    """What `keep` wrote; None for a run of a version that kept nothing. Raises StateError where it cannot be read."""
    try:
        said = json.loads(path.read_text(encoding="ascii"))
        limits = {str(name): (int(soft), int(hard)) for name, (soft, hard) in said["limits"].items()}
        return Shell(dict(said["environ"]), int(said["umask"]), limits, tuple(said["withheld"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise StateError(
            f"{path}, the environment that the run was started with, cannot be read ({exc}): "
            "scheduler resume --env-from now takes this shell's"
        ) from exc


def with_secrets(first: Shell, now: Mapping[str, str]) -> Shell:
    """The first shell, with the secrets that the one we are in has; `withheld` are those it has not."""
    found = {name: now[name] for name in first.withheld if name in now}
    missing = tuple(name for name in first.withheld if name not in found)
    return replace(first, environ={**first.environ, **found}, withheld=missing)


def _within(wanted: Limit, here: Limit) -> Limit:
    """A limit as far as it can be had: nobody but root may raise a hard one."""
    hard = _lower(wanted[1], here[1])
    return _lower(wanted[0], hard), hard


def _lower(one: int, other: int) -> int:
    if resource.RLIM_INFINITY in (one, other):
        return max(one, other)
    return min(one, other)


def _number(limit: int) -> str:
    return "nothing" if limit == resource.RLIM_INFINITY else f"{limit:,}"


def _first_environment() -> set[str]:
    """The names in the environment that this process began with."""
    try:
        entries = Path("/proc/self/environ").read_bytes().split(b"\0")
    except OSError:
        return set()
    return {os.fsdecode(entry.partition(b"=")[0]) for entry in entries}


def _umask() -> int:
    """Read, not set and set back: another thread might be making a file meanwhile."""
    for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
        if line.startswith("Umask:"):
            return int(line.split()[1], 8)
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
