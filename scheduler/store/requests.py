"""What other terminals ask of a living run: files in its directory, and a bell that wakes its scheduler."""

from __future__ import annotations

import contextlib
import os
import time

from scheduler.errors import StateError
from scheduler.paths import RunPlaces, make_private

_SUFFIX = ".request"


class Requests:
    """The scheduler's end: a waker whose words are what was asked since it opened."""

    def __init__(self, places: RunPlaces) -> None:
        self._folder = places.requests
        make_private(self._folder)
        self._taken()  # those were for an earlier scheduler of this run
        self._bell = _open_bell(places)

    def fileno(self) -> int:
        """Readable when somebody rang; -1 where there can be no bell, and only a look tells."""
        return self._bell

    def collect(self) -> list[str]:
        """What was asked, in order; each is told once."""
        try:
            heard = self._bell < 0 or os.read(self._bell, 4096)
        except BlockingIOError:
            return []
        return self._taken() if heard else []

    def _taken(self) -> list[str]:
        words = []
        for path in sorted(self._folder.glob(f"*{_SUFFIX}")):
            with contextlib.suppress(OSError):
                words.append(path.read_text(encoding="ascii", errors="replace"))
                path.unlink()
        return words

    def close(self) -> None:
        """Nobody listens any more."""
        if self._bell >= 0:
            os.close(self._bell)


def _open_bell(places: RunPlaces) -> int:
    """A pipe with a name, which every process of this user can write to, in whatever container."""
    try:
        if not places.bell.exists():
            os.mkfifo(places.bell, 0o600)
        return os.open(places.bell, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return -1  # some file systems have none


def ask(places: RunPlaces, word: str, patience: float = 5.0) -> bool:
    """Ask a living run; whether its scheduler took it up within `patience` seconds. Raises StateError."""
    make_private(places.requests)
    path = places.requests / f"{time.time_ns():020d}.{os.getpid()}{_SUFFIX}"
    part = path.with_suffix(".part")
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(word)
            file.flush()
            os.fsync(fd)
        part.rename(path)
    except OSError as exc:
        raise StateError(f"nothing can be asked of run {places.number}: {path}: {exc.strerror}") from exc
    end = time.monotonic() + patience
    while path.exists() and time.monotonic() < end:
        _ring(places)
        time.sleep(0.01)
    return not path.exists()


def _ring(places: RunPlaces) -> None:
    """Not heard where its scheduler has just ended, or has not come up yet."""
    with contextlib.suppress(OSError):
        fd = os.open(places.bell, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.write(fd, b"!")
        finally:
            os.close(fd)
