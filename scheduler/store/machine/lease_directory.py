"""The lease directory, where all schedulers of a machine meet: its path, and whether it can be trusted."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from scheduler.errors import LeaseError
from scheduler.runtime.users import user_name_soon
from scheduler.store.machine.locked_files import holder, is_held_long, open_directory, why_not_lockable

RUNTIME = Path("/run/gpu-batch-scheduler")
FALLBACK = Path("/tmp/.gpu-batch-scheduler")


def find_directory(said: str | None) -> Path:
    """Return the lease directory: the one that `said` names, else the administrator's, else one under /tmp that the
    first user creates.
    """
    if said:
        return Path(said).absolute()
    return RUNTIME if RUNTIME.is_dir() else FALLBACK


def make_directory(said: str | None) -> Path:
    """Return the lease directory, and create it if it is missing. Raise LeaseError if it cannot be trusted."""
    directory = find_directory(said)
    os.close(open_trusted(directory))
    return directory


def open_trusted(path: Path) -> int:
    """Open the lease directory, and create it if it is missing. Raise LeaseError if it cannot be trusted or locked."""
    try:
        if not path.exists():
            path.mkdir(parents=True)
            path.chmod(0o1777)
    except FileExistsError:
        pass
    except OSError as exc:
        why = f"cannot make the lease directory {path}: {exc.strerror}"
        raise LeaseError(f"{why}; name another with SCHEDULER_LEASES") from exc
    try:
        fd = open_directory(path)
    except OSError as exc:
        if exc.errno == errno.EMFILE:  # a limit of this process: the directory is all right
            raise
        why = f"the lease directory {path} cannot be used ({(exc.strerror or str(exc)).lower()})"
        raise LeaseError(f"{why}: move it away, or name another with SCHEDULER_LEASES") from exc
    try:
        _check(path, os.fstat(fd))
        if why := why_not_lockable(fd):
            raise LeaseError(
                f"the lease directory {path} cannot be locked ({why}): name one on a local disk with SCHEDULER_LEASES"
            )
    except LeaseError:
        os.close(fd)
        raise
    return fd


def distrust(directory: Path) -> str:
    """Return why leases in a directory cannot be trusted or written, with the cure; an empty string if they can.

    The string is also empty for a directory that does not exist, because the first run creates it.
    """
    if not os.path.lexists(directory):
        return ""
    try:
        fd = open_trusted(directory)
    except LeaseError as exc:
        return str(exc)
    try:
        if not os.access(directory, os.W_OK | os.X_OK):
            owner = os.fstat(fd).st_uid
            return f"you may not write in the lease directory {directory}: {_cure(directory, owner)}"
        if not is_held_long(fd):
            return ""
        locked = f"the lease directory {directory} is locked by {holder(fd)}"
        return f"{locked}, and nothing starts until it is unlocked: end that process, or ask its user to"
    finally:
        os.close(fd)


def of_another_user(directory: Path) -> str:
    """Return a sentence that names the owner of a lease directory, if this owner can remove the leases of other users
    there.

    The string is empty if the directory belongs to root or to this user, or does not exist.
    """
    who = owned_by(directory)
    if not who:
        return ""
    return (
        f"another user controls the lease directory {directory}{who}: this run makes its lost leases again "
        "within a second; as root, while nothing runs: scheduler devices init makes a lease directory of root's"
    )


def owned_by(directory: Path) -> str:
    """Return, as the end of a sentence, which user other than root and this user may remove any lease; empty if no such
    user exists.
    """
    try:
        uid = os.lstat(directory).st_uid
    except OSError:
        return ""
    if uid in (0, os.getuid()):
        return ""
    return f", which belongs to {user_name_soon(uid)} (user {uid}), who can remove the leases of others there"


def _check(path: Path, status: os.stat_result) -> None:
    """Raise LeaseError for a directory in which other users could remove or replace this user's leases, or in which
    this user may not write.
    """
    open_to_others = status.st_mode & 0o022
    if open_to_others and not status.st_mode & stat.S_ISVTX:
        raise LeaseError(f"{path} can be written by others and is not sticky: {_cure(path, status.st_uid)}")
    if status.st_uid not in (0, os.getuid()) and not open_to_others:
        raise LeaseError(
            f"{path} belongs to user {status.st_uid} and you may not write there: {_cure(path, status.st_uid)}"
        )


def _cure(path: Path, owner: int) -> str:
    """Return the command that makes a lease directory usable for all users. If another user owns the directory, the
    command creates a new one, because the old one would stay under that user's control.
    """
    if owner == 0:
        return f"sudo chmod 1777 {path}"
    if owner == os.getuid():
        return f"chmod 1777 {path}"
    return "sudo scheduler devices init makes one of root's, or name another with SCHEDULER_LEASES for all users"
