"""Profiles that are stored across runs, in one small database for each user and machine."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from scheduler.core.profiling.class_profile import Observation, Profile, StoredProfile
from scheduler.core.profiling.task_class import TaskClass
from scheduler.errors import StateError
from scheduler.runtime.paths import owner_beside_root
from scheduler.store.profile_records import from_dict, to_dict
from scheduler.store.run import schema

_TEMPORARY = frozenset({
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
})  # fmt: skip


class ProfileStore:
    """The profiles of one user; a failure never stops a run.

    A failure to read or write is described in `trouble`, and the profiles concerned are learned again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = ""
        """A sentence about the database file if it could not be used; otherwise empty."""
        self._learned = False
        self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        if owner_beside_root(self.path):  # as root: a link there may lead anywhere, and reading may remove files
            return self._do_without(PermissionError("they belong to another user"))
        try:
            return self._connect()
        except (sqlite3.DatabaseError, ValueError) as exc:
            return self._do_without(exc) if _is_temporary(exc) else self._set_aside(exc)

    def _do_without(self, exc: Exception) -> sqlite3.Connection:
        """Use an empty database in memory instead; leave the file unchanged, because it may be intact."""
        self.trouble = (
            f"the profiles {self.path} cannot be used now ({exc}): this run starts without profiles and stores none"
        )
        connection = sqlite3.connect(":memory:", isolation_level=None)
        for statement in schema.CREATE_PROFILES:
            connection.execute(statement)
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=5.0)
        try:
            os.chmod(self.path, 0o600)
            with contextlib.suppress(sqlite3.OperationalError):  # another process has it open: it stays as it is
                connection.execute(schema.AHEAD)
            for statement in (schema.LATER, *schema.CREATE_PROFILES):
                connection.execute(statement)
            version = dict(connection.execute(schema.GET_PROFILES_META)).get("format")
            if version is None:
                connection.execute(schema.PUT_PROFILES_META, ("format", str(schema.PROFILES_VERSION)))
            elif version != str(schema.PROFILES_VERSION):
                raise ValueError(f"its format is {version}, this version reads format {schema.PROFILES_VERSION}")
            connection.execute(schema.GET_PROFILES).fetchone()
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_aside(self, exc: Exception) -> sqlite3.Connection:
        aside = self.path.with_name(f"{self.path.name}.aside-{int(time.time())}")
        try:
            self.path.rename(aside)
            connection = self._connect()
        except (OSError, sqlite3.DatabaseError) as again:
            raise StateError(f"the profiles {self.path} cannot be used ({again}): move the file away") from again
        self.trouble = f"the profiles {self.path} could not be used ({exc}): set aside as {aside.name}, learned again"
        return connection

    def close(self) -> None:
        """Remove the oldest profiles if there are too many, and close the database."""
        if self._learned:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute(schema.PRUNE_PROFILES)
        self._db.close()

    def all(self) -> Iterator[StoredProfile]:
        """Yield every profile; a profile that cannot be read is left out, so that it is learned again."""
        for key, what, device, updated, data in self._db.execute(schema.GET_PROFILES).fetchall():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                yield StoredProfile(key, what, device, updated, from_dict(json.loads(data), updated))

    def known(self) -> dict[str, Profile]:
        """Return every profile by its key."""
        return {kept.key: kept.profile for kept in self.all()}

    def learn(self, kind: TaskClass, device: str, evidence: Observation, now: float) -> None:
        """Add the observation of one attempt to the profile of its class; other runs may add to this profile at the
        same time.
        """
        self._learned = True
        try:
            self._db.execute(schema.BEGIN)
            found = self._db.execute(schema.GET_PROFILE, (kind.key,)).fetchone()
            profile = _readable(found[0]) if found else Profile()
            profile.learn(evidence)
            profile.family, profile.slots, profile.relations = kind.family, kind.slots, kind.relations
            self._db.execute(schema.PUT_PROFILE, (kind.key, kind.what, device, now, json.dumps(to_dict(profile))))
            self._db.execute(schema.COMMIT)
        except sqlite3.Error as exc:
            if self._db.in_transaction:
                self._db.execute(schema.ROLLBACK)
            self.trouble = f"a profile could not be kept in {self.path}: {exc}"

    def add(self, profiles: Iterable[StoredProfile]) -> int:
        """Add profiles of another machine, and return how many of them are new; profiles that are already stored stay
        unchanged. Raise StateError if they cannot be written.
        """
        self._learned = True
        rows = [(one.key, one.what, one.device, one.updated, json.dumps(to_dict(one.profile))) for one in profiles]
        try:
            self._db.execute(schema.BEGIN)
            added = self._db.executemany(schema.ADD_PROFILE, rows).rowcount
            self._db.execute(schema.COMMIT)
        except sqlite3.Error as exc:
            if self._db.in_transaction:
                self._db.execute(schema.ROLLBACK)
            raise StateError(f"the profiles {self.path} cannot be written: {exc}") from exc
        return max(0, added)

    def forget(self, keys: list[str]) -> int:
        """Remove profiles, and return how many were removed. Raise StateError if that fails."""
        try:
            return sum(self._db.execute(schema.DROP_PROFILE, (key,)).rowcount for key in keys)
        except sqlite3.Error as exc:
            raise StateError(f"the profiles {self.path} cannot be written: {exc}") from exc


def _is_temporary(exc: Exception) -> bool:
    """Tell whether the file itself may be intact although an error occurred: it is locked, may not be opened, or its
    disk is full or fails.
    """
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF in _TEMPORARY


def _readable(text: str) -> Profile:
    """Return a stored profile; an empty profile if it is damaged."""
    try:
        return from_dict(json.loads(text))
    except (ValueError, TypeError, KeyError):
        return Profile()
