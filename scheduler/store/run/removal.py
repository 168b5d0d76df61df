"""The removal of ended runs from the disk; each run is locked meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from scheduler.errors import StateError, StillRunning
from scheduler.runtime.paths import RunPaths, StatePaths
from scheduler.runtime.shim import ClaimState, claim_state, read_claim
from scheduler.store.run.journal_database import is_unwritten
from scheduler.store.run.run_lock import Hold

GOING = ".removed-"
"""The prefix of the name to which a run is renamed before its removal, so that a killed removal leaves no incomplete
run.
"""


def remove(places: StatePaths, number: int, check: Callable[[], None]) -> int:
    """Remove a run and return its size in bytes. Raise StillRunning if the run is locked, and the errors of `check`.

    `check` is called while this process holds the run's lock, so that the run cannot be resumed meanwhile.
    """
    run = places.run(number)
    with _held(run):
        check()
        freed = _bytes_under(run.root)
        going = places.runs / f"{GOING}{number}"
        try:
            run.root.rename(going)
        except OSError as exc:
            raise StateError(f"run {number} cannot be removed from {run.root}: {exc.strerror}") from exc
    finish(places)
    return freed


def finish(places: StatePaths) -> None:
    """Remove runs that were renamed for removal, including those of killed removals."""
    import shutil  # takes 2 ms, which no reader of runs has to wait

    for left in places.runs.glob(f"{GOING}*"):
        shutil.rmtree(left, ignore_errors=True)


def clear_up(places: StatePaths) -> None:
    """Rename runs that killed starts left without an accepted list; `finish` removes them.

    Call this while the counter is locked: a new run is created and locked while its creator holds the counter, so it is
    not renamed.
    """
    for name in os.listdir(places.runs):
        if name.isdigit() and never_began(run := places.run(int(name))):
            with contextlib.suppress(StateError, OSError), _held(run):
                run.root.rename(places.runs / f"{GOING}{name}")


def never_began(run: RunPaths) -> bool:
    """Return whether the list of a run was never accepted; False if that is not certain."""
    if run.log.exists():
        return False
    with contextlib.suppress(OSError), os.scandir(run.tasks) as found:
        if any(found):
            return False
    return is_unwritten(run.journal)


def claims(run: RunPaths) -> Iterator[tuple[int, int, Path, int]]:
    """Yield the task, the attempt and the file of each claim of a run, and the pid of its living shim (0: none). The
    journal is not needed for this.
    """
    for path in run.tasks.glob("*/.claim.*"):
        task, attempt = path.parent.name, path.name.removeprefix(".claim.")
        if not (task.isdigit() and attempt.isdigit()):
            continue
        locked = claim_state(str(path)) is ClaimState.LOCKED
        claim = read_claim(str(path)) if locked else None
        yield int(task), int(attempt), path, claim.shim if claim is not None else -1 if locked else 0


@contextlib.contextmanager
def _held(run: RunPaths) -> Iterator[None]:
    try:
        hold = Hold(run)
    except StillRunning:
        raise StillRunning(f"run {run.number} is alive: scheduler stop r{run.number} ends it first") from None
    try:
        yield
    finally:
        hold.close()


def _bytes_under(root: Path) -> int:
    """Return the bytes that a directory occupies on disk."""
    total = 0
    for folder, _, files in os.walk(root):
        for name in files:
            with contextlib.suppress(OSError):
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
    return total
