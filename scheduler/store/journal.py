"""One run's journal: rows accepted, events in order; appended in transactions that are durable when they return."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from scheduler.core import events as ev
from scheduler.errors import StateError
from scheduler.paths import owner_beside_root
from scheduler.store import schema
from scheduler.values import dataclass

_NO_ROOM = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY})
_STANDS = "stands"
_LEAST = 64 * 1024
"""Bytes without which nothing of a journal can be written."""


Owner = tuple[int, int] | None
"""A user and a group."""
EventRow = tuple[float, str, int | None, int | None, str]
_encoded = json.JSONEncoder(check_circular=False).encode


@dataclass(frozen=True, slots=True)
class Row:
    """One accepted row, as text: what it says stays here until the task is placed."""

    row: int
    nth: int
    terms: int
    form: int
    text: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with its place in the journal and its wall-clock time."""

    seq: int
    at: float
    event: ev.Event


class Journal:
    """Append-only; one writer, any number of readers."""

    def __init__(self, path: Path, connection: sqlite3.Connection, owner: Owner = None) -> None:
        self.path = path
        self._db = connection
        self._owner = owner
        """As whom it is read, where that is not who we are."""
        self._lax = self._unsynced = False
        self._kept: list[EventRow] = []
        """Events that are written with the next ones."""

    @classmethod
    def create(cls, path: Path) -> Journal:
        """A new journal, its owner's only; nothing of it is visible before the first transaction ends."""
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        journal = cls(path, _connect(path, "rwc"))
        with journal.transaction():
            for statement in schema.CREATE:
                journal._db.execute(statement)
            journal.put_meta({"format": str(schema.VERSION)})
        return journal

    @classmethod
    def open(cls, path: Path) -> Journal:
        """An existing journal, for its one writer."""
        return cls(path, _connect(path, "rw"))._checked()

    @classmethod
    def read(cls, path: Path) -> Journal:
        """An existing journal, to look at while its writer goes on; a copy, where its disk has no room to look."""
        owner = owner_beside_root(path)
        with _as(owner):
            return cls(path, _to_look(path), owner)._checked()

    def _checked(self) -> Journal:
        version = self.meta().get("format", "0")
        if not version.isdigit() or int(version) > schema.VERSION:
            raise StateError(
                f"{self.path} has format {version}, this version reads up to {schema.VERSION}: use a newer scheduler"
            )
        return self

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def transaction(self, *, lax: bool = False) -> Iterator[None]:
        """All of it or nothing; durable when the block is left, unless it is lax."""
        try:
            with self._translated():
                self._wait_for_disk(lax=lax)
                self._db.execute(schema.BEGIN)
                yield
                self._db.execute(schema.COMMIT)
        except BaseException:
            self._roll_back()
            raise

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute(schema.ROLLBACK)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with _as(self._owner):
                yield
        except sqlite3.Error as exc:
            raise self._trouble(exc) from exc

    def _trouble(self, exc: sqlite3.Error) -> StateError:
        if isinstance(exc, sqlite3.OperationalError):
            return StateError(f"the journal {self.path} cannot be used: {_why(self.path, exc)}")
        return StateError(
            f"the journal {self.path} is damaged ({exc}): move {self.path.parent} away, its tasks' logs lie there"
        )

    # ---- writing ----

    def put_meta(self, values: dict[str, str]) -> None:
        """Facts about the run by name; inside a transaction."""
        self._db.executemany(schema.PUT_META, values.items())

    def put_form(self, number: int, text: str) -> None:
        """How the cells of a source are read; inside a transaction."""
        self._db.execute(schema.PUT_FORM, (number, text))

    def put_terms(self, number: int, text: str) -> None:
        """Terms that rows point at; inside a transaction."""
        self._db.execute(schema.PUT_TERMS, (number, text))

    def put_rows(self, rows: Iterable[tuple[int, int, int, int, int, int, str]]) -> None:
        """Accepted rows (task, batch, row, nth, terms, form, text); inside a transaction."""
        self._db.executemany(schema.PUT_ROW, rows)

    def record(self, events: Sequence[ev.Event], at: float, *, later: bool = False) -> None:
        """Append events in one transaction, with all that were kept before; `later`: they are kept for the next call.

        Without events what is kept is written: with `later` a power failure may take that before the next call.
        """
        if later and events:
            self._kept += [_event_row(event, at) for event in events]
        elif events or self._kept:
            self._write([*self._kept, *(_event_row(event, at) for event in events)], lax=later)
            self._kept.clear()
            self._unsynced = later
        elif self._unsynced and not later:
            self._sync()
            self._unsynced = False

    def _write(self, rows: Sequence[EventRow], *, lax: bool) -> None:
        """One transaction; unless it is lax its end waits for the disk, for what lax ones wrote before, too."""
        try:
            self._wait_for_disk(lax=lax)
            self._db.execute(schema.BEGIN)
            self._db.executemany(schema.PUT_EVENT, rows)
            self._db.execute(schema.COMMIT)
        except sqlite3.Error as exc:
            self._roll_back()
            raise self._trouble(exc) from exc

    def _wait_for_disk(self, *, lax: bool) -> None:
        """Whether the end of the next transaction waits for the disk."""
        if lax != self._lax:
            self._db.execute(schema.LATER if lax else schema.NOW)
            self._lax = lax

    def _sync(self) -> None:
        try:
            log = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(log)
            finally:
                os.close(log)
        except OSError as exc:
            raise StateError(f"the journal {self.path} cannot be written: {exc.strerror}") from exc

    def put_events(self, events: Sequence[ev.Event], at: float) -> None:
        """Events that come together with something else; inside a transaction."""
        self._db.executemany(schema.PUT_EVENT, [_event_row(event, at) for event in events])

    def stand(self, said: dict[str, Any], *, lax: bool = False) -> bool:
        """Write down how the run stands now, and up to which row and event; not while any are kept for later."""
        if self._kept:
            return False
        with self.transaction(lax=lax):
            self.put_meta({_STANDS: _encoded({**said, "up_to": self.reach()})})
        return True

    # ---- reading ----

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """What is read in the block is as it was at its first look, whatever the writer adds meanwhile."""
        with self._translated():
            self._db.execute(schema.BEGIN_TO_READ)
        try:
            yield
        finally:
            with self._translated():
                self._roll_back()

    def _each(self, statement: str, parameters: tuple[int, ...] = ()) -> Iterator[tuple[Any, ...]]:
        """What a statement finds; of another's journal all at once, so that nobody else's code runs as them."""
        with self._translated():
            found = self._db.execute(statement, parameters)
            if self._owner is None:
                for row in found:  # noqa: UP028 - `yield from` closes the cursor of who stops early, after the database
                    yield row
                return
            rows = found.fetchall()
        yield from rows

    def reach(self) -> list[int]:
        """How far rows and events go."""
        with self._translated():
            newest = self._db.execute(schema.GET_NEWEST).fetchone()[0]
        last = self.last()
        return [-1 if last is None else last, newest or 0]

    def meta(self) -> dict[str, str]:
        """All facts about the run."""
        with self._translated():
            return dict(self._db.execute(schema.GET_META))

    def forms(self) -> list[str]:
        """The forms by number."""
        with self._translated():
            return [text for _, text in self._db.execute(schema.GET_FORMS)]

    def terms(self) -> list[str]:
        """The terms by number."""
        with self._translated():
            return [text for (text,) in self._db.execute(schema.GET_TERMS)]

    def row(self, task: int) -> Row:
        """One accepted row."""
        try:
            with _as(self._owner):
                found = self._db.execute(schema.GET_ROW, (task,)).fetchone()
        except sqlite3.Error as exc:
            raise self._trouble(exc) from exc
        if found is None:
            raise StateError(f"the journal {self.path} has no task {task}")
        return Row(*found)

    def rows(self) -> Iterator[tuple[int, int, Row]]:
        """All accepted rows as (task, batch, row), by task."""
        for task, batch, *rest in self._each(schema.GET_ROWS):
            yield task, batch, Row(*rest)

    def count(self) -> tuple[int, int]:
        """How many tasks and how many batches."""
        with self._translated():
            tasks, batches = self._db.execute(schema.COUNT_ROWS).fetchone()
        return tasks, batches or 0

    def within(self, first: int, last: int) -> list[int]:
        """The accepted tasks with ids from `first` to `last`."""
        with self._translated():
            return [task for (task,) in self._db.execute(schema.GET_WITHIN, (first, last))]

    def last(self) -> int | None:
        """The highest id."""
        with self._translated():
            found: int | None = self._db.execute(schema.GET_LAST).fetchone()[0]
        return found

    def submissions(self, after: int = 0) -> Iterator[ev.Submitted]:
        """The Submitted events behind the given batch, one for each stretch of following ids in a batch."""
        batch, first = 0, 0
        terms: list[int] = []
        for next_batch, task, number in self._each(schema.GET_BATCHES, (after,)):
            if terms and (next_batch != batch or task != first + len(terms)):
                yield ev.Submitted(batch, first, terms)
                terms = []
            if not terms:
                batch, first = next_batch, task
            terms.append(number)
        if terms:
            yield ev.Submitted(batch, first, terms)

    def events(self, after: int = 0) -> Iterator[Recorded]:
        """Events behind the given place, in order."""
        for row in self._each(schema.GET_EVENTS, (after,)):
            yield self._recorded(*row)

    def moves(self) -> Iterator[Recorded]:
        """The events that tell where tasks stand; most are about memory, and are left out."""
        for row in self._each(schema.GET_MOVES):
            yield self._recorded(*row)

    def changes(self) -> Iterator[ev.Changed]:
        """The events by which tasks were given other terms than their rows say."""
        for row in self._each(schema.GET_CHANGES):
            event = self._recorded(*row).event
            if isinstance(event, ev.Changed):
                yield event

    def story(self, task: int) -> list[Recorded]:
        """One task's events in order."""
        with self._translated():
            rows = self._db.execute(schema.GET_STORY, (task,)).fetchall()
        return [self._recorded(*row) for row in rows]

    def _recorded(self, seq: int, at: float, kind: str, data: str) -> Recorded:
        try:
            return Recorded(seq, at, ev.decode(kind, json.loads(data)))
        except (ValueError, KeyError, TypeError) as exc:
            raise StateError(f"the journal {self.path} is damaged, its event {seq} cannot be read: {exc}") from exc

    def checkpoint(self) -> None:
        """Fold the write-ahead log into the journal, as a run ends."""
        with self._translated():
            self._db.execute(schema.CHECKPOINT)


@contextmanager
def _as(owner: Owner) -> Iterator[None]:
    """Be that user for as long as the block runs: what lies beside a database has SQLite remove any file it names."""
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


def _connect(path: Path, mode: str, writer: bool = True) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode={mode}", uri=True, isolation_level=None)
        connection.execute(schema.BUSY)
        for statement in schema.OPEN if writer else ():
            connection.execute(statement)
    except sqlite3.Error as exc:
        raise StateError(f"the journal {path} cannot be opened: {_why(path, exc)}") from exc
    return connection


def _to_look(path: Path) -> sqlite3.Connection:
    connection = _connect(path, "rw", writer=False)
    try:
        connection.execute(schema.LOOK)
    except sqlite3.Error as exc:
        if _primary(exc) in _NO_ROOM:
            connection.close()
            return _copied(path)
    return connection  # one that is damaged, too: whoever reads on is told


def _copied(path: Path) -> sqlite3.Connection:
    """All of it as it is now, in memory: to look at a journal SQLite makes a file beside it, on a full disk it cannot.

    Where a write-ahead log is left that is done without that file by who has the journal for himself: so not for long.
    A living writer has made the file, and a journal that is read like that never gets here.
    """
    log = Path(f"{path}-wal")
    behind = log.exists() and log.stat().st_size > 0
    copy = sqlite3.connect(":memory:", isolation_level=None)
    try:
        with closing(_connect(path, "rw" if behind else "ro&immutable=1", writer=False)) as source:
            if behind:
                source.execute(schema.ALONE)
            source.backup(copy)
    except sqlite3.Error as exc:
        raise StateError(f"the journal {path} cannot be read: {_why(path, exc)}") from exc
    return copy


def _why(path: Path, exc: sqlite3.Error) -> str:
    """What SQLite says of it, or what that comes from and what to do."""
    if _primary(exc) in _NO_ROOM:
        with suppress(OSError):
            disk = os.statvfs(path.parent)
            if disk.f_bavail * disk.f_frsize < _LEAST or (disk.f_files and not disk.f_favail):
                return f"the disk is full, free some room for {path.parent} and try again"
    return str(exc)


def _primary(exc: sqlite3.Error) -> int:
    """The kind of error; the rest of its code says where in SQLite it was."""
    return getattr(exc, "sqlite_errorcode", 0) & 0xFF


def stood(meta: Mapping[str, str]) -> dict[str, Any]:
    """What was said last, in `meta`, of how the run stood then."""
    try:
        said: dict[str, Any] = json.loads(meta.get(_STANDS, "{}"))
    except ValueError:
        return {}
    return said


def _event_row(event: ev.Event, at: float) -> EventRow:
    said = ev.encode(event)
    return (at, event.kind, said.get("task"), said.get("attempt"), _encoded(said))
