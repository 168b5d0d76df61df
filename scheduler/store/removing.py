"""Takes an ended run off the disk, unless somebody holds it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from scheduler.errors import StateError, StillRunning
from scheduler.paths import Places, RunPlaces
from scheduler.store.locks import take_lock

GOING = ".removed-"
"""What is being removed is called so first, so that a removal that was killed leaves no half of a run."""


def remove(places: Places, number: int, check: Callable[[], None]) -> int:
    """Remove a run; the bytes it took. Raises StillRunning where somebody holds it, and whatever `check` raises.

    `check` is called while the run is held, so that nobody resumes it meanwhile.
    """
    run = places.run(number)
    with _held(run, number):
        check()
        freed = _bytes_under(run.root)
        going = places.runs / f"{GOING}{number}"
        try:
            run.root.rename(going)
        except OSError as exc:
            raise StateError(f"run {number} cannot be removed from {run.root}: {exc.strerror}") from exc
    finish(places)
    return freed


def finish(places: Places) -> None:
    """Take away what is on its way out, also from removals that were killed."""
    for left in places.runs.glob(f"{GOING}*"):
        shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _held(run: RunPlaces, number: int) -> Iterator[None]:
    try:
        fd = os.open(run.lock, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        yield
        return
    try:
        take_lock(fd)
        yield
    except BlockingIOError:
        raise StillRunning(f"run {number} is alive: scheduler stop {number} ends it first") from None
    finally:
        os.close(fd)


def _bytes_under(root: Path) -> int:
    """What a directory takes on the disk."""
    total = 0
    for folder, _, files in os.walk(root):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total
