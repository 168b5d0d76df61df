"""The SQLite database of a journal: connections, checksums of rows, and error messages."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from zlib import crc32

from scheduler.errors import Newer, StateError
from scheduler.runtime.paths import owner_beside_root
from scheduler.store.run import schema

Owner = tuple[int, int] | None
"""A user id and a group id; None: the ids of this process."""
_DISK_ERRORS = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
DATABASE_ERRORS = (sqlite3.Error, UnicodeDecodeError)
"""The errors that a statement may raise; the second occurs if a damaged page holds a name that is not UTF-8."""
_MIN_FREE = 64 * 1024
"""The least free bytes that SQLite needs to write anything to a journal."""
_SEEDS = {table: crc32(table.encode()) for table in ("meta", "forms", "terms", "submitted", "events")}


def checksum(table: str, row: tuple[object, ...]) -> int:
    """Return the checksum of a row; it depends on the table, so that a row is not valid in another table."""
    return crc32(ascii(row).encode(), _SEEDS[table])


def run_number(journal: Path) -> str:
    """Return the number of the run to which a journal belongs."""
    return journal.parent.name


def newer(path: Path, what: str) -> Newer:
    """Return the error for a journal with content that only a newer version of this project writes."""
    return Newer(f"run {run_number(path)} was written by a newer version ({what}): use that version")


def damaged(path: Path, what: str) -> StateError:
    """Return the error for a journal whose content is not the content that was written."""
    return StateError(
        f"the journal of run {run_number(path)} is damaged ({what}): move {path.parent} away; the logs of its tasks "
        "are in that directory"
    )


def translated(path: Path, exc: Exception) -> StateError:
    """Return this project's error for an error of SQLite."""
    if isinstance(exc, sqlite3.OperationalError):
        return StateError(f"the journal {path} cannot be used: {_reason(path, exc)}")
    return damaged(path, str(exc))


@contextmanager
def acting_as(owner: Owner) -> Iterator[None]:
    """Take on the identity of a user for the block.

    This protects files: SQLite removes files whose names are stored next to a database, and as root it would also
    remove files of other users.
    """
    if owner is None:
        yield
        return
    user, group = os.geteuid(), os.getegid()
    os.setegid(owner[1])
    os.seteuid(owner[0])
    try:
        yield
    finally:
        os.seteuid(user)
        os.setegid(group)


def connect(path: Path, mode: str, writer: bool = True) -> sqlite3.Connection:
    """Open a journal; `mode` is the mode in SQLite's URI. Raise StateError if it cannot be opened."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
        connection.execute(schema.BUSY)
        for statement in schema.OPEN if writer else ():
            connection.execute(statement)
    except DATABASE_ERRORS as exc:
        raise StateError(f"the journal {path} cannot be opened: {_reason(path, exc)}") from exc
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """Open a journal for reading; on a full disk, open a copy in memory. Raise StateError if it cannot be opened.

    A damaged journal is opened too: the first statement that reads it raises the error.
    """
    connection = connect(path, "rw", writer=False)
    try:
        connection.execute(schema.LOOK)
    except DATABASE_ERRORS as exc:
        if _primary(exc) in _DISK_ERRORS:
            connection.close()
            return _copy(path)
    return connection


def _copy(path: Path) -> sqlite3.Connection:
    """Copy a journal into memory in its present state.

    To read a journal, SQLite creates a file next to it, which fails on a full disk. Without that file, a journal with a
    write-ahead log can only be read under an exclusive lock, so the journal is copied to hold the lock only for a short
    time. A journal with a living writer is never copied, because its writer has created that file.
    """
    log = Path(f"{path}-wal")
    has_log = log.exists() and log.stat().st_size > 0
    copy = sqlite3.connect(":memory:", isolation_level=None)
    try:
        with closing(connect(path, "rw" if has_log else "ro&immutable=1", writer=False)) as source:
            if has_log:
                source.execute(schema.ALONE)
            source.backup(copy)
    except DATABASE_ERRORS as exc:
        raise StateError(f"the journal {path} cannot be read: {_reason(path, exc)}") from exc
    return copy


def _reason(path: Path, exc: Exception) -> str:
    """Return SQLite's error message; if the disk is full, return the cause and the next step instead."""
    if _primary(exc) in _DISK_ERRORS:
        with suppress(OSError):
            disk = os.statvfs(path.parent)
            if disk.f_bavail * disk.f_frsize < _MIN_FREE or (disk.f_files and not disk.f_favail):
                return f"the disk is full: free some space for {path.parent}, then try again"
    return str(exc)


def _primary(exc: Exception) -> int:
    """Return the primary code of an SQLite error; the higher bits of its code only tell where in SQLite it occurred."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF


def is_unwritten(path: Path) -> bool:
    """Tell whether no list was ever accepted in a journal; False if that is not certain."""
    if not path.exists():
        return True
    try:
        with acting_as(owner_beside_root(path)), closing(connect_reader(path)) as connection:
            if not connection.execute(schema.GET_TABLES).fetchone()[0]:
                return True
            return connection.execute(schema.GET_ACCEPTED).fetchone() is None
    except (StateError, *DATABASE_ERRORS):
        return False
