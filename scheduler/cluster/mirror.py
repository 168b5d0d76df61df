"""The files that an attempt leaves on its node, copied to the run's directory at the head: log, result, metrics.

So every view of the head reads the files where it would find those of a task of its own machine.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Iterator, Mapping

from scheduler.cluster.frames import Message
from scheduler.core.attempts.launch_spec import TaskPaths
from scheduler.core.ports import Key
from scheduler.values import dataclass, field

PIECE = 192 * 1024
"""Bytes of a file in one message."""
MOST_UNSENT = 4 << 20
"""Bytes that may wait for the link; more is read later."""
LONGEST_WHOLE = 16 << 20
"""Bytes of the largest file that is copied as a whole at the end of its attempt."""
LOG, ERRORS, RESULT, METRICS = "log", "errors", "result", "metrics"
GROWING = (LOG, ERRORS)
"""Files that are copied while they grow; the others are copied at the end of their attempt."""


def files_of(places: TaskPaths, key: Key) -> dict[str, str]:
    """Return the files of an attempt that are copied, by name."""
    return {
        LOG: str(places.task_log(*key)),
        ERRORS: str(places.task_errors(*key)),
        RESULT: places.result(*key),
        METRICS: places.metrics(*key),
    }


def sizes(places: TaskPaths, key: Key) -> dict[str, int]:
    """Return how much of the growing files of an attempt is here already."""
    files = files_of(places, key)
    return {name: _size(files[name]) for name in GROWING if _size(files[name]) > 0}


@dataclass(slots=True)
class _Followed:
    """The files of one attempt, and how far each was read."""

    files: Mapping[str, str]
    read: dict[str, int] = field(default_factory=dict)
    longest: dict[str, int] = field(default_factory=dict)
    """The size of each file at the last look: one that shrank has lost its middle, and is read anew."""


class FileSender:
    """The node's end: it reads what is new."""

    def __init__(self, places: TaskPaths) -> None:
        self._places = places
        self._followed: dict[Key, _Followed] = {}

    def follow(self, key: Key, known: Mapping[str, int] | None = None) -> None:
        """Copy the files of an attempt from now on, from where the head has them."""
        self._followed[key] = _Followed(files_of(self._places, key), dict(known or {}))

    def forget(self, key: Key) -> None:
        """Copy the files of an attempt no more."""
        self._followed.pop(key, None)

    def growth(self) -> Iterator[Message]:
        """Yield a piece of each file that has grown."""
        for key, followed in self._followed.items():
            for name in GROWING:
                yield from _next_piece(key, followed, name)

    def rest(self, key: Key) -> Iterator[Message]:
        """Yield everything that is left of an ended attempt, piece by piece."""
        followed = self._followed.get(key)
        if followed is None:
            return
        for name in followed.files:
            if name in GROWING or _size(followed.files[name]) <= LONGEST_WHOLE:
                while pieces := [*_next_piece(key, followed, name)]:
                    yield from pieces


def _next_piece(key: Key, followed: _Followed, name: str) -> Iterator[Message]:
    path = followed.files[name]
    size, at = _size(path), followed.read.get(name, 0)
    if size < max(at, followed.longest.get(name, 0)):
        at = followed.read[name] = 0
    followed.longest[name] = size
    if size <= at:
        return
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(at)
        if data := file.read(PIECE):
            followed.read[name] = at + len(data)
            yield {"file": [*key, name, at, base64.b64encode(data).decode()]}


def write(places: TaskPaths, task: int, attempt: int, name: str, at: int, text: str) -> None:
    """Write a piece of a file at the head. Raise OSError."""
    path = files_of(places, (task, attempt))[name]
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.fstat(fd).st_size > at:
            os.ftruncate(fd, at)
        os.pwrite(fd, base64.b64decode(text), at)
    finally:
        os.close(fd)


def _size(path: str) -> int:
    """Return the size of a file; -1 if there is none."""
    try:
        return os.stat(path, follow_symlinks=False).st_size
    except OSError:
        return -1
