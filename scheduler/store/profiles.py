"""Profiles that are kept across runs, in one small database for each user and machine."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scheduler.core.model import HOST, EstimateSource
from scheduler.core.profiling.profile import Observation, Peaks, Profile, StoredProfile
from scheduler.core.profiling.task_class import TaskClass
from scheduler.errors import StateError
from scheduler.runtime.paths import owner_beside_root
from scheduler.store.run import schema

_TEMPORARY = frozenset({
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
})  # fmt: skip


class ProfileStore:
    """The profiles of one user; a failure never stops a run.

    What cannot be read or written is described in `trouble`, and learned again.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = ""
        """A sentence about a file that could not be used; empty if there is none."""
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
        """Use an empty database in memory; leave the file alone, since it may be intact."""
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
        """Close the database; remove the oldest profiles if there are too many."""
        if self._learned:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute(schema.PRUNE_PROFILES)
        self._db.close()

    def all(self) -> Iterator[StoredProfile]:
        """Yield every profile; leave out one that cannot be read, so that it is learned again."""
        for key, what, device, updated, data in self._db.execute(schema.GET_PROFILES).fetchall():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                yield StoredProfile(key, what, device, updated, _from_json(data, updated))

    def known(self) -> dict[str, Profile]:
        """Return every profile by its key."""
        return {kept.key: kept.profile for kept in self.all()}

    def learn(self, kind: TaskClass, device: str, evidence: Observation, now: float) -> None:
        """Add the observation of one attempt to its profile; other runs may add to it at the same time."""
        self._learned = True
        try:
            self._db.execute(schema.BEGIN)
            found = self._db.execute(schema.GET_PROFILE, (kind.key,)).fetchone()
            profile = _from_json_or_empty(found[0]) if found else Profile()
            profile.learn(evidence)
            profile.family, profile.slots, profile.relations = kind.family, kind.slots, kind.relations
            self._db.execute(schema.PUT_PROFILE, (kind.key, kind.what, device, now, _to_json(profile)))
            self._db.execute(schema.COMMIT)
        except sqlite3.Error as exc:
            if self._db.in_transaction:
                self._db.execute(schema.ROLLBACK)
            self.trouble = f"a profile could not be kept in {self.path}: {exc}"

    def forget(self, keys: list[str]) -> int:
        """Remove profiles and return how many there were. Raise StateError."""
        try:
            return sum(self._db.execute(schema.DROP_PROFILE, (key,)).rowcount for key in keys)
        except sqlite3.Error as exc:
            raise StateError(f"the profiles {self.path} cannot be written: {exc}") from exc


def _is_temporary(exc: Exception) -> bool:
    """Tell whether the file itself may be intact: it is locked, may not be opened, or its disk is full or fails."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF in _TEMPORARY


def _to_json(profile: Profile) -> str:
    return json.dumps(
        {
            "parts": {
                name: {"full": part.full, "lower": part.lower, "lower_by": part.lower_by, "above": part.above}
                for name, part in profile.parts.items()
            },
            "epoch_seconds": profile.epoch_seconds,
            "whole_seconds": profile.whole_seconds,
            "cores": profile.cores,
            "busy": profile.busy,
            "family": profile.family,
            "slots": profile.slots,
            "relations": profile.relations,
        }
    )


def _from_json(text: str, updated: float = 0.0) -> Profile:
    """Return a profile. Raise ValueError, TypeError or KeyError for a damaged one."""
    data = json.loads(text)
    return Profile(
        parts={name: _part(name, part) for name, part in data["parts"].items()},
        epoch_seconds=float(data["epoch_seconds"]),
        whole_seconds=float(data["whole_seconds"]),
        cores=float(data["cores"]),
        busy=float(data["busy"]),
        earlier=True,
        family=str(data["family"]),
        slots=tuple((str(name), str(value)) for name, value in data["slots"]),
        relations=tuple(map(str, data.get("relations", ()))),
        updated=updated,
    )


def _from_json_or_empty(text: str) -> Profile:
    try:
        return _from_json(text)
    except (ValueError, TypeError, KeyError):
        return Profile()


def _part(name: str, data: dict[str, Any]) -> Peaks:
    full = [int(peak) for peak in data["full"]]
    if any(peak < (name == HOST) for peak in full):  # a task may use none of a GPU, but always some RAM
        raise ValueError("a peak is too low")
    source = EstimateSource.PROBE if data["lower_by"] == EstimateSource.PROBE else EstimateSource.PROFILE
    return Peaks(full=full, lower=int(data["lower"]), lower_by=source, above=int(data["above"]))
