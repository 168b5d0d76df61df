"""Learned peaks, kept across runs: one small database for each user and machine."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Evidence, Peaks, Profile
from scheduler.core.model import HOST, KnownBy
from scheduler.errors import StateError
from scheduler.paths import owner_beside_root
from scheduler.store import schema
from scheduler.values import dataclass

_FOR_NOW = frozenset({
    sqlite3.SQLITE_PERM, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM, sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_NOLFS,
    sqlite3.SQLITE_AUTH,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kept:
    """One profile as it is kept."""

    key: str
    what: str
    device: str
    updated: float
    profile: Profile


class Profiles:
    """Reads all, writes one at a time; never in the way: what cannot be written is said once and learned again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.said = ""
        """What had to be done about a file that could not be used."""
        self._learned = False
        self._db = self._open()

    def _open(self) -> sqlite3.Connection:
        if owner_beside_root(self.path):  # a link there leads anywhere, and to read them may remove files
            return self._do_without(PermissionError("they are another user's"))
        try:
            return self._connect()
        except (sqlite3.DatabaseError, ValueError) as exc:
            return self._do_without(exc) if _is_for_now(exc) else self._set_aside(exc)

    def _do_without(self, exc: Exception) -> sqlite3.Connection:
        """Nothing is known and nothing kept: what is in the file may be as good as ever."""
        self.said = f"the profiles {self.path} cannot be used now ({exc}): nothing of them is known, and none is kept"
        connection = sqlite3.connect(":memory:", isolation_level=None)
        for statement in schema.CREATE_PROFILES:
            connection.execute(statement)
        return connection

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, timeout=5.0)
        try:
            os.chmod(self.path, 0o600)
            with contextlib.suppress(sqlite3.OperationalError):  # it stays as it is while somebody else looks at it
                connection.execute(schema.AHEAD)
            for statement in (schema.LATER, *schema.CREATE_PROFILES):
                connection.execute(statement)
            version = dict(connection.execute(schema.GET_META)).get("format")
            if version is None:
                connection.execute(schema.PUT_META, ("format", str(schema.PROFILES_VERSION)))
            elif int(version) > schema.PROFILES_VERSION:
                raise ValueError(f"it has format {version}, this version knows {schema.PROFILES_VERSION}")
            elif int(version) < schema.PROFILES_VERSION:  # every row says by itself how it is to be read
                connection.execute(schema.PUT_META, ("format", str(schema.PROFILES_VERSION)))
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
        self.said = f"the profiles {self.path} could not be used ({exc}): set aside as {aside.name}, learned again"
        return connection

    def close(self) -> None:
        """Let go of the file; what is too old goes with it."""
        if self._learned:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute(schema.PRUNE_PROFILES)
        self._db.close()

    def all(self) -> Iterator[Kept]:
        """Every profile; one that cannot be read is left out and so learned again."""
        for key, what, device, updated, data in self._db.execute(schema.GET_PROFILES).fetchall():
            with contextlib.suppress(ValueError, TypeError, KeyError):
                yield Kept(key, what, device, updated, _profile(data))

    def known(self) -> dict[str, Profile]:
        """Every profile by its key."""
        return {kept.key: kept.profile for kept in self.all()}

    def learn(self, kind: Kind, device: str, evidence: Evidence, now: float) -> None:
        """Add one attempt to what is kept, beside whatever other runs add at the same time."""
        self._learned = True
        try:
            self._db.execute(schema.BEGIN)
            found = self._db.execute(schema.GET_PROFILE, (kind.key,)).fetchone()
            profile = _readable(found[0]) if found else Profile()
            profile.learn(evidence)
            profile.family, profile.slots = kind.family, kind.slots
            self._db.execute(schema.PUT_PROFILE, (kind.key, kind.what, device, now, _text(profile)))
            self._db.execute(schema.COMMIT)
        except sqlite3.Error as exc:
            if self._db.in_transaction:
                self._db.execute(schema.ROLLBACK)
            self.said = f"a profile could not be kept in {self.path}: {exc}"

    def forget(self, keys: list[str]) -> int:
        """Remove profiles; how many there were. Raises StateError."""
        try:
            return sum(self._db.execute(schema.DROP_PROFILE, (key,)).rowcount for key in keys)
        except sqlite3.Error as exc:
            raise StateError(f"the profiles {self.path} cannot be written: {exc}") from exc


def _is_for_now(exc: Exception) -> bool:
    """Whether the file itself may be well: locked, not to be opened or written, or on a disk that fails or is full."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF in _FOR_NOW


def _text(profile: Profile) -> str:
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
        }
    )


def _readable(text: str) -> Profile:
    try:
        return _profile(text)
    except (ValueError, TypeError, KeyError):
        return Profile()


def _profile(text: str) -> Profile:
    data = json.loads(text)
    said = data["parts"] if "parts" in data else {HOST: {**data, "full": data["peaks"]}}  # format 1 knew the host only
    return Profile(
        parts={name: _part(part) for name, part in said.items()},
        epoch_seconds=float(data["epoch_seconds"]),
        whole_seconds=float(data.get("whole_seconds", 0.0)),
        cores=float(data["cores"]),
        busy=float(data.get("busy", 0.0)),
        earlier=True,
        family=str(data.get("family", "")),
        slots=tuple((str(name), str(value)) for name, value in data.get("slots", ())),
    )


def _part(data: dict[str, Any]) -> Peaks:
    full = [int(peak) for peak in data["full"]]
    if any(peak <= 0 for peak in full):
        raise ValueError("a peak of nothing")
    by = KnownBy.PROBE if data["lower_by"] == KnownBy.PROBE else KnownBy.PROFILE
    return Peaks(full=full, lower=int(data["lower"]), lower_by=by, above=int(data.get("above", 0)))
