"""The file with which root sets rules for all users of this machine: its place, its validity, its values."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.errors import UsageError, describe_os_error
from scheduler.values import dataclass, field

PLACE = "/etc/gpu-batch-scheduler/machine.toml"
ELSEWHERE = "SCHEDULER_MACHINE_FILE"
"""The environment variable that names another file, for trials. The variable is only read if the usual file does not
exist, so that it cannot bypass the machine's own rules."""
ROOT = 0
_MOST = 1 << 20


@dataclass(frozen=True, slots=True)
class SiteFile:
    """The contents of the site file; empty if the file is ignored."""

    path: str
    said: Mapping[str, Any] = field(default_factory=dict)
    why_not: str = ""
    """A sentence about why the file is ignored, and what to do about it; empty if the file is valid or does not
    exist."""
    there: bool = False


def path(environ: Mapping[str, str]) -> Path:
    """Return the path of the file: the usual one, or the one that the variable ELSEWHERE names if the usual one does
    not exist.
    """
    elsewhere = environ.get(ELSEWHERE, "")
    return Path(elsewhere).absolute() if elsewhere and not os.path.lexists(PLACE) else Path(PLACE)


def read(environ: Mapping[str, str]) -> SiteFile:
    """Return the file's contents. Raise UsageError if root's own file is not valid TOML."""
    place = path(environ)
    try:
        fd = os.open(place, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return SiteFile(str(place))
    except OSError as exc:
        why = f"{describe_os_error(exc)}, so it is ignored: sudo chmod 644 {place}"
        return SiteFile(str(place), why_not=why, there=True)
    try:
        why = _why_not(str(place), os.fstat(fd))
        return SiteFile(str(place), {} if why else _parsed(place, os.read(fd, _MOST)), why, there=True)
    finally:
        os.close(fd)


def _why_not(place: str, status: os.stat_result) -> str:
    """Return why a file is ignored; empty if only root could have written it."""
    if not stat.S_ISREG(status.st_mode):
        return f"{place} is not a file, so it is ignored: sudo scheduler devices init writes one"
    if status.st_uid != ROOT:
        return f"{place} belongs to user {status.st_uid} and not to root, so it is ignored: sudo chown root {place}"
    if status.st_mode & 0o022:
        return f"{place} can be written by users other than root, so it is ignored: sudo chmod 644 {place}"
    return ""


def _parsed(place: Path, text: bytes) -> Mapping[str, Any]:
    import tomllib  # it takes 4 ms to load, and is only needed for such a file

    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as exc:
        raise UsageError(f"{place} cannot be read: {exc}") from exc
