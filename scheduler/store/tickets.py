"""Tickets: one locked file in the lease directory for each scheduler that waits for room; nobody writes another's."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scheduler.core.model import Ticket, Waiter
from scheduler.shim import BLOCK, pack_block, unpack_block
from scheduler.store import hearsay
from scheduler.store.locks import is_free, make_locked

VERSION = 1
_NAME = re.compile(r"ticket\.(\d+)\.([0-9a-f-]+)\Z")
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC


class Tickets:
    """This run's ticket, and a look at everybody else's; the directory's mutex has to be held for all but `leave`."""

    def __init__(self, directory: int, uid: int, run: str) -> None:
        self._directory = directory
        self._uid = uid
        self._run = run
        self._name = f"ticket.{uid}.{run}"
        self._fd = -1

    def show(self, ticket: Ticket | None) -> None:
        """Write what this run waits for; None: nothing. A directory that takes no file costs it its turn only."""
        if ticket is None:
            self.leave()
            return
        now = _boot_seconds()
        said = {name: value for name, value in asdict(ticket).items() if name != "waited"}
        block = pack_block({"version": VERSION, **said, "since": now - ticket.waited, "looked": now})
        with contextlib.suppress(OSError):
            if self._fd < 0:
                self._fd = make_locked(self._directory, self._name, block)
            else:
                os.pwrite(self._fd, block, 0)

    def leave(self) -> None:
        """Take it away, if there is one."""
        if self._fd < 0:
            return
        with contextlib.suppress(OSError):
            os.unlink(self._name, dir_fd=self._directory)
        os.close(self._fd)
        self._fd = -1

    def forget(self) -> None:
        """Take away what an earlier scheduler of this run may have left, too."""
        self.leave()
        with contextlib.suppress(OSError):
            os.unlink(self._name, dir_fd=self._directory)

    def others(self, names: Iterable[str]) -> list[Waiter]:
        """Everybody else who waits, of all that lies in the directory; dead tickets of this user are removed."""
        return [waiter for waiter in _waiting(self._directory, names, self._uid) if waiter.name != self._name]


def waiters(directory: Path) -> list[Waiter]:
    """The same by the directory's name, for views: who began to wait first comes first."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return []
    try:
        return sorted(_waiting(fd, os.listdir(fd)), key=lambda waiter: -waiter.ticket.waited)
    finally:
        os.close(fd)


def _waiting(directory: int, names: Iterable[str], clean: int = -1) -> list[Waiter]:
    """Every living ticket; dead ones of the user `clean` are removed."""
    found = [(name, match) for name in names if (match := _NAME.match(name))]
    looks = [_look(directory, name, match, clean) for name, match in found]
    return [waiter for waiter in looks if waiter is not None]


def _look(directory: int, name: str, match: re.Match[str], clean: int) -> Waiter | None:
    """One file: somebody who waits, or None for what is dead, planted or gone."""
    try:
        fd = os.open(name, _READ, dir_fd=directory)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != int(match[1]):
            return None
        if is_free(fd):
            if status.st_uid == clean:
                os.unlink(name, dir_fd=directory)
            return None
        return _parsed(name, match, unpack_block(os.pread(fd, BLOCK, 0)) or {})
    except (OSError, ValueError, OverflowError, TypeError, KeyError, AttributeError):
        return None  # whoever writes nonsense waits without a turn
    finally:
        os.close(fd)


def _parsed(name: str, match: re.Match[str], said: Mapping[str, Any]) -> Waiter | None:
    if said.get("version") != VERSION:
        return None
    now = _boot_seconds()
    ticket = Ticket(
        hearsay.size(said["task"]),
        tuple(str(key) for key in said["devices"]),
        tuple(None if bytes_ is None else hearsay.size(bytes_) for bytes_ in said["gpus"]),
        None if said["host"] is None else hearsay.size(said["host"]),
        hearsay.amount(said["cores"]),
        hearsay.amount(said["busy"]),
        bool(said["alone"]),
        hearsay.amount(now - float(said["since"])),
        bool(said["closed"]),
    )
    return Waiter(name, int(match[1]), match[2], ticket, hearsay.amount(now - float(said["looked"])))


def _boot_seconds() -> float:
    """A clock that all processes of the machine share, and nobody sets."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)
