"""Devices that are closed to others: taken out of service, or reserved for a user; files in the lease directory."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

from scheduler import machinefile
from scheduler.errors import LeaseError
from scheduler.shim import BLOCK, pack_block, unpack_block
from scheduler.store import hearsay
from scheduler.store.houserules import DISABLE, RESERVE
from scheduler.values import dataclass

VERSION = 1
MOST_WORDS = 200
"""Characters of a reason: a record has a fixed size."""
_NAME = re.compile(r"closed\.(\d+)\.([0-9a-f]{8})\Z")
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC

May = Callable[[int, str], bool]
"""Whether a user may do that: `reserve` or `disable`."""


@dataclass(frozen=True, slots=True)
class Closure:
    """One device that is closed, by whom, for whom it is kept, until when and why."""

    device: str
    by: int
    """The user who says so: the file's owner, whatever stands in it."""
    user: int | None = None
    """For whom it is kept; None: nobody starts there."""
    until: float = 0.0
    """When that ends, in seconds since the epoch; 0: when somebody ends it."""
    why: str = ""
    name: str = ""
    """Its file."""

    @property
    def asks(self) -> str:
        """What one must be allowed for it to count."""
        return DISABLE if self.user is None else RESERVE


def standing(directory: int, names: Iterable[str], may: May, now: float) -> list[Closure]:
    """All that count now of what lies in a directory; what others planted, or may not say, counts for nothing."""
    return [one for one in _all(directory, names) if may(one.by, one.asks) and not 0 < one.until <= now]


def look(directory: Path, may: May) -> list[Closure]:
    """The same by the directory's name, for views."""
    try:
        with _opened(directory) as fd:
            return standing(fd, os.listdir(fd), may, time.time())
    except OSError:
        return []


def for_others(closures: Iterable[Closure], uid: int, name: Callable[[int], str]) -> Mapping[str, str]:
    """The devices on which a user starts nothing, each with why; `name` is what people call a user."""
    return {one.device: sentence(one, name) for one in closures if one.user != uid}


def sentence(closure: Closure, name: Callable[[int], str]) -> str:
    """Why others start nothing there."""
    why = f" ({closure.why})" if closure.why else ""
    if closure.user is None:
        return f"it is disabled by {name(closure.by)}{why}"
    until = f" until {_moment(closure.until)}" if closure.until else ""
    return f"it is reserved for {name(closure.user)}{until}{why}"


def _moment(at: float) -> str:
    """As people say it: the hour where it is today, else with the day."""
    then, now = time.localtime(at), time.localtime()
    form = "%H:%M" if then[:3] == now[:3] else "%a %H:%M" if 0 < at - time.time() < 5 * 86400 else "%Y-%m-%d %H:%M"
    return time.strftime(form, then)


def close(directory: Path, closures: Iterable[Closure]) -> None:
    """Say so from now on, each in a file of its own, which nobody but this user and root can take away."""
    with contextlib.suppress(OSError):  # it is said below, with the file that cannot be written
        _clear(directory)
    for one in closures:
        said = {"device": one.device, "user": one.user, "until": one.until, "why": one.why[:MOST_WORDS]}
        path = directory / f"closed.{os.getuid()}.{os.urandom(4).hex()}"
        try:
            _write(path, pack_block({"version": VERSION, **said}))
        except OSError as exc:
            raise LeaseError(f"{path} cannot be written: {exc.strerror}") from exc


def _clear(directory: Path) -> None:
    """This user's own whose time is over need not lie there any more."""
    with _opened(directory) as fd:
        mine = [one for one in _all(fd, os.listdir(fd)) if one.by == os.getuid() and 0 < one.until <= time.time()]
    for _ in end(directory, mine):
        pass


def _write(path: Path, block: bytes) -> None:
    """Whole or not at all: it has its name once it can be read."""
    part = path.with_name(f".{path.name}")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        os.fchmod(fd, 0o644)
        os.write(fd, block)
        os.rename(part, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    finally:
        os.close(fd)


def end(directory: Path, closures: Iterable[Closure]) -> Iterator[Closure]:
    """Take them away; whatever is another user's stays, unless one is root. Tells which are gone."""
    for one in closures:
        try:
            os.unlink(directory / one.name)
        except FileNotFoundError:
            continue
        except PermissionError:
            continue
        yield one


def _all(directory: int, names: Iterable[str]) -> list[Closure]:
    found = sorted([match for name in names if (match := _NAME.match(name))], key=itemgetter(0))
    closures = [_read(directory, match[0], int(match[1])) for match in found]
    return [one for one in closures if one is not None]


@contextlib.contextmanager
def _opened(directory: Path) -> Iterator[int]:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def _read(directory: int, name: str, owner: int) -> Closure | None:
    """One file; None for what is planted, damaged or gone."""
    try:
        fd = os.open(name, _READ, dir_fd=directory)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != owner:
            return None
        return _parsed(name, status.st_uid, unpack_block(os.pread(fd, BLOCK, 0)) or {})
    except (OSError, ValueError, OverflowError, TypeError, KeyError, AttributeError):
        return None
    finally:
        os.close(fd)


def _parsed(name: str, by: int, said: Mapping[str, Any]) -> Closure | None:
    """Only root keeps a device for somebody else than itself."""
    if said.get("version") != VERSION:
        return None
    user = said["user"]
    if by != machinefile.ROOT and user is not None and user != by:
        return None
    until = hearsay.amount(said["until"])
    why = str(said["why"])[:MOST_WORDS]
    return Closure(str(said["device"]), by, None if user is None else int(user), until, why, name)
