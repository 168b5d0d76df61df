"""Requests to a run: files in its directory, which its scheduler answers, and a pipe that wakes the scheduler."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.core.control.request_kinds import CONTROLS, RunRequest
from scheduler.core.ports import Answer, Request
from scheduler.errors import FULL, StateError, describe_os_error
from scheduler.runtime.paths import RunPaths, make_private, open_plain
from scheduler.store.machine.locked_files import is_locked

_REQUEST, _ANSWER = ".request", ".answer"
_LATER = ".later"
"""The suffix of a request to which no client expects an answer."""
_LARGEST = 64 * 1024 * 1024


class RequestInbox:
    """The scheduler's end of requests: it returns them in order, including requests that were sent while the run had no
    scheduler.
    """

    def __init__(self, places: RunPaths) -> None:
        self._folder = places.requests
        make_private(self._folder)
        self._open: set[str] = set()
        """The names of requests that were returned but not answered yet; their files stay until they are answered."""
        self._is_first_look = True
        self._remove_stale()
        self._bell = _open_bell(places)

    def _remove_stale(self) -> None:
        """Remove answers that no client has read, and requests that were meant only for an earlier scheduler (drain,
        stop, leave).
        """
        for path in self._folder.glob(f"*{_ANSWER}"):
            _unlink(path)
        for request in _read(self._folder):
            if request.what not in (*CONTROLS, RunRequest.SUBMIT):
                _unlink(self._folder / (request.name + _REQUEST))

    def fileno(self) -> int:
        """Return a descriptor that is readable after a request; -1 if only `collect` can find requests."""
        return self._bell

    def collect(self) -> list[Request]:
        """Return the new requests in order; each request is returned once."""
        is_due = self._is_first_look or self._bell < 0
        with contextlib.suppress(BlockingIOError):
            is_due = bool(self._bell >= 0 and os.read(self._bell, 4096)) or is_due
        self._is_first_look = False
        new = _read(self._folder, self._open) if is_due else []
        self._open.update(request.name for request in new)
        return new

    def answer(self, request: Request, answers: Sequence[Answer]) -> None:
        """Write the answers to a completed request durably, and remove the request."""
        if not request.name:
            return
        if not request.name.endswith(_LATER):
            with contextlib.suppress(OSError):  # a full disk prevents the answer, not the request
                data = [_answer_data(answer) for answer in answers]
                _write(self._folder / (request.name + _ANSWER), data, durable=request.what in CONTROLS)
        _unlink(self._folder / (request.name + _REQUEST))
        self._open.discard(request.name)

    def close(self) -> None:
        """Close the pipe."""
        if self._bell >= 0:
            os.close(self._bell)


def pending(places: RunPaths) -> list[Request]:
    """Return the requests to a run that are not answered yet, in order."""
    return [request for request in _read(places.requests) if request.what in CONTROLS]


def leave(places: RunPaths, request: Request) -> None:
    """Store a request for the next scheduler of the run; the request is durable when this returns. Raise StateError if
    it cannot be written.
    """
    _put(places, request, _LATER)


def _put(places: RunPaths, request: Request, kind: str) -> Path:
    make_private(places.requests)
    asker = f"{os.getpid()}.{threading.get_native_id()}"
    path = places.requests / f"{_next_number(places.requests):020d}.{asker}{kind}{_REQUEST}"
    try:
        _write(path, _request_data(request), durable=request.what in CONTROLS)
    except OSError as exc:
        why = describe_os_error(exc) if exc.errno in FULL else exc.strerror
        raise StateError(f"the request to run {places.number} cannot be written to {path}: {why}") from exc
    return path


def _next_number(folder: Path) -> int:
    """Return a number above the numbers of all requests and answers in the folder.

    Such numbers keep the order of requests independent of the clock. Only simultaneous requests may share a number.
    """
    numbers = (name.partition(".")[0] for name in os.listdir(folder) if name.endswith((_REQUEST, _ANSWER)))
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)


def ask(places: RunPaths, request: Request, patience: float = 5.0) -> Sequence[Answer] | None:
    """Send a request to the living scheduler of a run and return its answers, or None if there are none after
    `patience` seconds.

    A request without an answer stays stored, for that scheduler or the next one. Raise StateError if it cannot be
    written.
    """
    return fetch(places, post(places, request), patience)


def post(places: RunPaths, request: Request) -> Path:
    """Send a request without waiting, and return its file, which `fetch` needs. Raise StateError if it cannot be
    written.
    """
    path = _put(places, request, "")
    _ring(places)
    return path


def fetch(places: RunPaths, path: Path, patience: float = 5.0) -> Sequence[Answer] | None:
    """Return the answers to a request that `post` sent; None if there are none within `patience` seconds."""
    answer = path.with_suffix(_ANSWER)
    end, pause = time.monotonic() + patience, 0.001
    while path.exists():
        if time.monotonic() > end or not is_locked(places.root):
            break
        _ring(places)
        time.sleep(pause)
        pause = min(2 * pause, 0.01)
    if path.exists():
        return None
    try:
        return _answers(answer)
    finally:
        _unlink(answer)


def _answers(path: Path) -> list[Answer]:
    try:
        return [_answer_from(data) for data in json.loads(path.read_bytes())]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _answer_data(answer: Answer) -> dict[str, Any]:
    return {"tasks": answer.tasks, "done": answer.done, "says": answer.says, "facts": dict(answer.facts)}


def _answer_from(data: Mapping[str, Any]) -> Answer:
    return Answer(tuple(data["tasks"]), bool(data["done"]), str(data["says"]), data["facts"])


def _read(folder: Path, known: set[str] | frozenset[str] = frozenset()) -> list[Request]:
    """Return the requests in a folder, oldest first, without those whose names are `known`; remove invalid files."""
    found = []
    for path in sorted(folder.glob(f"*{_REQUEST}")):
        name = path.name.removesuffix(_REQUEST)
        if name in known:
            continue
        try:
            found.append(_request_from(name, json.loads(_read_file(path))))
        except OSError:
            continue  # it was answered meanwhile
        except (ValueError, KeyError, TypeError, AttributeError):
            _unlink(path)
    return found


def _read_file(path: Path) -> bytes:
    """Return the content of a regular file; other files are refused, because a pipe with that name would block the
    scheduler. Raise OSError if the file cannot be read, and ValueError if it is too large.
    """
    with open_plain(path) as file:
        content = file.read(_LARGEST + 1)
    if len(content) > _LARGEST:
        raise ValueError(f"{path} is too large")
    return content


def _request_data(request: Request) -> dict[str, Any]:
    return {"what": request.what, "tasks": request.tasks, "changes": dict(request.said)}


def _request_from(name: str, data: Mapping[str, Any]) -> Request:
    changes = {str(field): str(text) for field, text in data["changes"].items()}
    return Request(str(data["what"]), tuple(int(task) for task in data["tasks"]), changes, name)


def _write(path: Path, values: object, *, durable: bool) -> None:
    """Write a file atomically, owned by the run's owner; unless `durable`, a power failure may lose it."""
    part = path.with_suffix(".part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    with os.fdopen(fd, "w", encoding="utf-8") as file:
        if os.geteuid() == 0:
            owner = path.parent.stat()
            os.fchown(fd, owner.st_uid, owner.st_gid)
        json.dump(values, file)
        file.flush()
        if durable:
            os.fsync(fd)
    part.rename(path)


def _unlink(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.unlink()


def _open_bell(places: RunPaths) -> int:
    """Open a named pipe to which every process of this user can write, even from a container."""
    try:
        if not places.bell.exists():
            os.mkfifo(places.bell, 0o600)
        return os.open(places.bell, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1  # some file systems have no pipes


def _ring(places: RunPaths) -> None:
    """Wake the scheduler of a run, if a scheduler has the pipe open."""
    with contextlib.suppress(OSError):
        fd = os.open(places.bell, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(fd, b"!")
        finally:
            os.close(fd)
