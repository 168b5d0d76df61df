"""What people ask of a run: files in its directory, answered once they are done, and a bell for its scheduler."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from scheduler.core.control import CONTROLS
from scheduler.core.ports import Answer, Request
from scheduler.errors import StateError
from scheduler.paths import RunPlaces, make_private
from scheduler.store.locks import is_locked

_REQUEST, _ANSWER = ".request", ".answer"
_LATER = ".later"
"""Ends the name of a request whose answer nobody waits for."""
_LARGEST = 64 * 1024 * 1024


class Requests:
    """The scheduler's end: what was asked, in order, also while the run had no scheduler."""

    def __init__(self, places: RunPlaces) -> None:
        self._folder = places.requests
        make_private(self._folder)
        self._told: set[str] = set()
        """What is being dealt with; the file stays until it is answered."""
        self._unheard = True
        self._forget_earlier()
        self._bell = _open_bell(places)

    def _forget_earlier(self) -> None:
        """Answers nobody fetched, and what was asked of an earlier scheduler alone: to drain, to stop, to leave."""
        for path in self._folder.glob(f"*{_ANSWER}"):
            _unlink(path)
        for request in _read(self._folder):
            if request.what not in CONTROLS:
                _unlink(self._folder / (request.name + _REQUEST))

    def fileno(self) -> int:
        """Readable when somebody rang; -1 where there can be no bell, and only a look tells."""
        return self._bell

    def collect(self) -> list[Request]:
        """What was asked, in order; each is told once."""
        heard = self._unheard or self._bell < 0
        with contextlib.suppress(BlockingIOError):
            heard = bool(self._bell >= 0 and os.read(self._bell, 4096)) or heard
        self._unheard = False
        fresh = _read(self._folder, self._told) if heard else []
        self._told.update(request.name for request in fresh)
        return fresh

    def answer(self, request: Request, answers: Sequence[Answer]) -> None:
        """It is done, durably: say so to whoever waits, and never do it again."""
        if not request.name:
            return
        if not request.name.endswith(_LATER):
            with contextlib.suppress(OSError):  # a full disk keeps nobody from doing what was asked
                told = [asdict(answer) for answer in answers]
                _write(self._folder / (request.name + _ANSWER), told, durable=request.what in CONTROLS)
        _unlink(self._folder / (request.name + _REQUEST))
        self._told.discard(request.name)

    def close(self) -> None:
        """Nobody listens any more."""
        if self._bell >= 0:
            os.close(self._bell)


def pending(places: RunPlaces) -> list[Request]:
    """What was asked of a run and is not done yet, in order."""
    return [request for request in _read(places.requests) if request.what in CONTROLS]


def leave(places: RunPlaces, request: Request) -> None:
    """Put a request where the next scheduler of the run finds it; durable when it returns. Raises StateError."""
    _put(places, request, _LATER)


def _put(places: RunPlaces, request: Request, kind: str) -> Path:
    make_private(places.requests)
    path = places.requests / f"{time.time_ns():020d}.{os.getpid()}{kind}{_REQUEST}"
    try:
        said = {"what": request.what, "tasks": request.tasks, "said": dict(request.said)}
        _write(path, said, durable=request.what in CONTROLS)
    except OSError as exc:
        raise StateError(f"nothing can be asked of run {places.number}: {path}: {exc.strerror}") from exc
    return path


def ask(places: RunPlaces, request: Request, patience: float = 5.0) -> Sequence[Answer] | None:
    """Ask the living scheduler of a run; what became of it, or None: it has not answered within `patience` seconds.

    Then the request stays where it is, for that scheduler or the next one. Raises StateError.
    """
    return fetch(places, post(places, request), patience)


def post(places: RunPlaces, request: Request) -> Path:
    """Ask, and do something else meanwhile: `fetch` tells what became of it. Raises StateError."""
    path = _put(places, request, "")
    _ring(places)
    return path


def fetch(places: RunPlaces, path: Path, patience: float = 5.0) -> Sequence[Answer] | None:
    """What became of what was asked; as `ask`."""
    answer = path.with_suffix(_ANSWER)
    end, pause = time.monotonic() + patience, 0.001
    while path.exists():
        if time.monotonic() > end or not is_locked(places.lock):
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
        said = json.loads(path.read_bytes())
        return [Answer(tuple(one["tasks"]), bool(one["done"]), str(one["says"]), one.get("facts", {})) for one in said]
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _read(folder: Path, known: set[str] | frozenset[str] = frozenset()) -> list[Request]:
    """The requests that lie there, oldest first; what makes no sense is taken away."""
    found = []
    for path in sorted(folder.glob(f"*{_REQUEST}")):
        name = path.name.removesuffix(_REQUEST)
        if name in known:
            continue
        try:
            if path.stat().st_size > _LARGEST:
                raise ValueError(f"{path} is too large")
            found.append(_request(name, json.loads(path.read_bytes())))
        except OSError:
            continue  # it was taken meanwhile
        except (ValueError, KeyError, TypeError, AttributeError):
            _unlink(path)
    return found


def _request(name: str, said: Mapping[str, Any]) -> Request:
    changes = {str(what): str(text) for what, text in said["said"].items()}
    return Request(str(said["what"]), tuple(int(task) for task in said["tasks"]), changes, name)


def _write(path: Path, values: object, *, durable: bool) -> None:
    """A whole file or none, of the run's owner even where root writes it; a question may be lost with the machine."""
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


def _open_bell(places: RunPlaces) -> int:
    """A pipe with a name, which every process of this user can write to, in whatever container."""
    try:
        if not places.bell.exists():
            os.mkfifo(places.bell, 0o600)
        return os.open(places.bell, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1  # some file systems have none


def _ring(places: RunPlaces) -> None:
    """Not heard where its scheduler has just ended, or has not come up yet."""
    with contextlib.suppress(OSError):
        fd = os.open(places.bell, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(fd, b"!")
        finally:
            os.close(fd)
