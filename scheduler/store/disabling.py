"""Devices that the administrator has disabled for everybody: one file of root's in the lease directory."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from scheduler.errors import LeaseError
from scheduler.shim import BLOCK, pack_block, unpack_block

NAME = "disabled"
VERSION = 1
ROOT = 0


def disabled(directory: int) -> Mapping[str, str]:
    """Each disabled device with why; nothing where the file is not root's own, whoever else has made it."""
    try:
        fd = os.open(NAME, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    except OSError:
        return {}
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != ROOT:
            return {}
        said = unpack_block(os.pread(fd, BLOCK, 0)) or {}
        return {str(key): str(why) for key, why in said.get("devices", {}).items()}
    except (OSError, ValueError, AttributeError):
        return {}
    finally:
        os.close(fd)


def look(directory: Path) -> Mapping[str, str]:
    """The same by the directory's name, for views."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return {}
    try:
        return disabled(fd)
    finally:
        os.close(fd)


def disable(directory: Path, devices: Mapping[str, str]) -> None:
    """Say from now on that nothing starts on these, and on all others again; root's word only. Raises LeaseError."""
    path, part = directory / NAME, directory / f".{NAME}.{os.getpid()}"
    try:
        if not devices:
            path.unlink(missing_ok=True)
            return
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        try:
            os.fchmod(fd, 0o644)
            os.write(fd, pack_block({"version": VERSION, "devices": dict(devices)}))
        finally:
            os.close(fd)
        part.rename(path)
    except OSError as exc:
        with contextlib.suppress(OSError):
            part.unlink()
        raise LeaseError(f"{path} cannot be written: {exc.strerror}") from exc
