"""The files that travel between head and node: the output and results of attempts, and the arguments of Python calls.

Logs, results, metrics and the values that functions return are copied to the run's directory at the head. So every view
at the head finds them in the same place as the files of a task on its own machine.
"""

from __future__ import annotations

import base64
import contextlib
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain

from scheduler.cluster.frames import Message
from scheduler.core.attempts.launch_spec import TaskPaths
from scheduler.core.ports import Key
from scheduler.runtime import task_launcher
from scheduler.values import dataclass, field

PIECE = 192 * 1024
"""Bytes of a file in one message."""
MOST_UNSENT = 4 << 20
"""The number of bytes that may wait for the link; while more bytes wait, no files are read."""
LONGEST_WHOLE = 16 << 20
"""The size in bytes of the largest result or metrics record that is copied at the end of its attempt."""
LOG, ERRORS, RESULT, METRICS, VALUE = "log", "errors", "result", "metrics", "value"
FOLDER = "given"
"""The folder in the directory of a run that contains the arguments of calls, and the modules that they need."""
GROWING = (LOG, ERRORS)
"""Files that are copied while they grow, like a result of JSON lines; the others are copied when the attempt ends."""


def files_of(places: TaskPaths, key: Key) -> dict[str, str]:
    """Return the files of an attempt that are copied, by name."""
    return {
        LOG: str(places.task_log(*key)),
        ERRORS: str(places.task_errors(*key)),
        RESULT: places.result(*key),
        METRICS: places.metrics(*key),
        VALUE: places.value(*key),
    }


def sizes(places: TaskPaths, key: Key) -> dict[str, int]:
    """Return the number of bytes of each growing file of an attempt that the head already has."""
    files = files_of(places, key)
    return {name: _size(files[name]) for name in GROWING if _size(files[name]) > 0}


@dataclass(slots=True)
class _Followed:
    """The files of one attempt, and how far each was read."""

    files: Mapping[str, str]
    read: dict[str, int] = field(default_factory=dict)
    longest: dict[str, int] = field(default_factory=dict)
    """The size of each file at the last check. A file that has shrunk has lost its middle, and is read again."""
    has_live_result: bool = False
    """True if JSON lines of the result were copied before the end of the attempt."""


class FileSender:
    """The reader at the node: it returns the new parts of files as messages."""

    def __init__(self, places: TaskPaths, has_lines: Callable[[str], bool]) -> None:
        """Prepare to read; `has_lines` tells whether a result consists of JSON lines, which are copied as soon as they
        are written.
        """
        self._places, self._has_lines = places, has_lines
        self._followed: dict[Key, _Followed] = {}

    def follow(self, key: Key, known: Mapping[str, int] | None = None) -> None:
        """Copy the files of an attempt from now on; the head already has the first `known` bytes of each."""
        self._followed[key] = _Followed(files_of(self._places, key), dict(known or {}))

    def forget(self, key: Key) -> None:
        """Stop copying the files of an attempt."""
        self._followed.pop(key, None)

    def growth(self) -> Iterator[Message]:
        """Yield a piece of each file that has grown."""
        for key, followed in self._followed.items():
            for name in GROWING:
                yield from _next_piece(key, followed, name)
            if _size(followed.files[RESULT]) > followed.read.get(RESULT, 0) and self._has_lines(followed.files[RESULT]):
                followed.has_live_result = True
                yield from _next_piece(key, followed, RESULT)

    def rest(self, key: Key) -> Iterator[Message]:
        """Yield everything in the files of an ended attempt that was not sent yet, piece by piece."""
        followed = self._followed.get(key)
        if followed is None:
            return
        if followed.has_live_result:  # the result file may have been replaced since
            followed.read[RESULT], followed.has_live_result = 0, False
        for name in followed.files:
            if name in (*GROWING, VALUE) or _size(followed.files[name]) <= LONGEST_WHOLE:
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
    """Write a piece of a file at the head. Raise OSError if that is impossible."""
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


def given_to(argv: Sequence[str], root: str) -> list[str]:
    """Return the names of the files of a run from which a command reads its call, given as FILE@PLACE."""
    start = f"{root}/{FOLDER}/"
    return [word.removeprefix(start).rpartition("@")[0] for word in argv if word.startswith(start)]


def _modules_of(path: str) -> str:
    """Return the name of the archive with the modules of a call; empty if there is none."""
    if not _is_of_one_call(path):
        return ""
    try:
        with open(path, "rb") as file:
            return str(task_launcher.said_in(file)["modules"])
    except (OSError, ValueError, KeyError):
        return ""


class CallSender:
    """Sends calls to one node, each after the files that it reads, as fast as the node accepts them."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Key, Iterator[Message]]] = deque()
        self._has: set[str] = set()
        """The files shared by several calls that were sent over the present link."""

    def add(self, key: Key, names: Sequence[str], root: str, launch: Message) -> None:
        """Send files of the run in `root`, and then a launch."""
        needed = [*names, *filter(None, (_modules_of(f"{root}/{FOLDER}/{name}") for name in names))]
        new = [name for name in needed if name not in self._has]
        self._has.update(name for name in new if not _is_of_one_call(name))
        files = (piece for name in new for piece in _pieces(f"{root}/{FOLDER}/{name}"))
        self._waiting.append((key, chain(files, [launch])))

    def put_behind(self, key: Key, message: Message) -> bool:
        """Send a message after the launch of an attempt; return False if no launch of that attempt waits."""
        waits = any(key == other for other, _ in self._waiting)
        if waits:
            self._waiting.append((key, iter([message])))
        return waits

    def next(self) -> Message | None:
        """Return the next message, or None."""
        while self._waiting:
            message = next(self._waiting[0][1], None)
            if message is not None:
                return message
            self._waiting.popleft()
        return None

    def drop(self) -> None:
        """Drop all waiting messages, because the link is lost, and the node may lack files that were sent over it."""
        self._waiting.clear()
        self._has.clear()


def _is_of_one_call(name: str) -> bool:
    """Tell whether a file contains the arguments of one call only, as the files of an executor do."""
    return name.endswith(".call")


def _pieces(path: str) -> Iterator[Message]:
    """Yield a file, piece by piece. Yield nothing if the file is gone; its call then does not start."""
    at = 0
    with contextlib.suppress(OSError), open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        while data := file.read(PIECE):
            yield {"given": [os.path.basename(path), at, size, base64.b64encode(data).decode()]}
            at += len(data)


class GivenFiles:
    """The files of a run on its node."""

    def __init__(self, root: str) -> None:
        self._folder = f"{root}/{FOLDER}"
        self._of: dict[Key, list[str]] = {}
        """The files that only one attempt needs."""

    def write(self, name: str, at: int, size: int, text: str) -> None:
        """Write the next piece of a file; the file gets its name when it is complete. Raise OSError if it cannot be
        written.
        """
        part = f"{self._path(name)}.part"
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "wb") as file:
            if not at:
                file.truncate(0)
            if os.fstat(fd).st_size != at:
                return  # an earlier piece could not be written
            file.seek(at)
            data = base64.b64decode(text)
            file.write(data)
        if at + len(data) == size:
            os.replace(part, self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._folder}/{os.path.basename(name)}"

    def missing(self, key: Key, argv: Sequence[str], root: str) -> str:
        """Return the name of a file that a command needs and that this node lacks, or an empty string. Note the files
        that only this attempt needs.
        """
        names = given_to(argv, root)
        self._of[key] = [name for name in names if _is_of_one_call(name)]
        needed = [*names, *filter(None, map(_modules_of, map(self._path, names)))]
        return next((name for name in needed if not os.path.exists(self._path(name))), "")

    def forget(self, key: Key) -> None:
        """Remove the files that only this attempt needed."""
        for name in self._of.pop(key, ()):
            for path in (self._path(name), f"{self._path(name)}.part"):
                if os.path.exists(path):
                    os.unlink(path)
