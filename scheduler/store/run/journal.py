"""The writer of a journal: rows and events are appended in transactions that are durable when they return."""

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
from scheduler.store.run import schema
from scheduler.store.run.journal_database import DATABASE_ERRORS, Owner, checksum, connect, translated
from scheduler.store.run.journal_reach import Reach, ReachFile, read_reach
from scheduler.store.run.journal_reader import FACT_COUNT, STATUS, JournalReader
from scheduler.values import replace

EventRow = tuple[float, str, int | None, int | None, str, int]
_to_json = json.JSONEncoder(check_circular=False).encode


class Journal(JournalReader):
    """The journal of a run, opened by its only writer; rows and events are only appended."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, owner: Owner = None, reached: Reach | None = None
    ) -> None:
        super().__init__(path, connection, owner, reached)
        self._reach_file: ReachFile | None = None
        self._current = self._pending = Reach()
        """The present end of the journal, and the end that it will have after the open transaction."""
        self._is_lax = self._is_unsynced = False
        self._deferred: list[EventRow] = []
        """Events that will be written together with the next ones."""
        self.lasting = True
        """True if each written transaction must survive a power failure; it survives the death of this process in any
        case.
        """

    @classmethod
    def create(cls, path: Path) -> Journal:
        """Create a journal that only its owner can read; it stays empty until the first transaction ends."""
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        journal = cls(path, connect(path, "rwc"))
        with journal.transaction():
            for statement in schema.CREATE:
                journal._db.execute(statement)
            journal.put_meta({"format": str(schema.VERSION)})
        journal._reach_file = ReachFile(path)
        return journal

    @classmethod
    def open(cls, path: Path) -> Journal:
        """Open an existing journal as its only writer."""
        reached = read_reach(path)
        journal = cls(path, connect(path, "rw"), reached=reached)._checked()
        last, newest = journal.reach()
        journal._current = Reach(newest, last, journal.count()[0])
        journal._reach_file = ReachFile(path)
        return journal

    def close(self) -> None:
        """Close the database and the file next to it. Close that file only once, because its descriptor may later
        belong to another file.
        """
        if self._reach_file is not None:
            self._reach_file.close()
            self._reach_file = None
        super().close()

    @contextmanager
    def transaction(self, *, lax: bool = False) -> Iterator[None]:
        """Write all changes of the block or none; they are durable at the end of the block, unless the transaction is
        lax.
        """
        try:
            with self._translated():
                self._set_durability(lax=lax)
                self._db.execute(schema.BEGIN)
                self._pending = self._current
                yield
                self._db.execute(schema.COMMIT)
                self._current = self._pending
                if not lax:
                    self._write_reach()
        except BaseException:
            self._roll_back()
            raise

    def _set_durability(self, *, lax: bool) -> None:
        """Set whether the end of the next transaction waits for the disk."""
        lax = lax or not self.lasting
        if lax != self._is_lax:
            self._db.execute(schema.LATER if lax else schema.NOW)
            self._is_lax = lax

    def _write_reach(self) -> None:
        """Write how far the journal is durable. Do nothing if the journal has lost its end and this loss is not
        accepted yet.
        """
        if self._reach_file is not None and not self.lost and self.lasting:
            self._reach_file.write(self._current)

    # ---- facts, terms and rows: inside a transaction ----

    def put_meta(self, facts: dict[str, str]) -> None:
        """Store facts about the run by name."""
        self._put_meta(facts)
        number = self._db.execute(schema.COUNT_META).fetchone()[0]
        self._put_meta({FACT_COUNT: str(number)})

    def _put_meta(self, facts: Mapping[str, str]) -> None:
        self._db.executemany(
            schema.PUT_META, [(name, text, checksum("meta", (name, text))) for name, text in facts.items()]
        )

    def put_form(self, number: int, text: str) -> None:
        """Store the form of the cells of a list's rows under its number."""
        self._db.execute(schema.PUT_FORM, (number, text, checksum("forms", (number, text))))

    def put_terms(self, number: int, text: str) -> None:
        """Store terms under the number by which rows refer to them."""
        self._db.execute(schema.PUT_TERMS, (number, text, checksum("terms", (number, text))))

    def put_rows(self, rows: Iterable[tuple[int, int, int, int, int, int, str]]) -> None:
        """Store accepted rows (task, batch, row, nth, terms, form, text)."""
        self._db.executemany(schema.PUT_ROW, self._with_checksums(rows))

    def _with_checksums(
        self, rows: Iterable[tuple[int, int, int, int, int, int, str]]
    ) -> Iterator[tuple[int | str, ...]]:
        number, last = 0, self._pending.last
        for row in rows:
            number, last = number + 1, max(last, row[0])
            yield (*row, checksum("submitted", row))
        self._pending = replace(self._pending, last=last, rows=self._pending.rows + number)

    def move_rows(self, first: int, by: int) -> None:
        """Raise the ids of all rows from the id `first` on by `by`, in the transaction that stored the rows."""
        there, back = schema.MOVE_ROWS
        self._db.create_function("row_sum", 7, lambda *row: checksum("submitted", row), deterministic=True)
        self._db.execute(there, {"by": by, "first": first})
        self._db.execute(back)
        self._pending = replace(self._pending, last=self._pending.last + by)

    def put_events(self, events: Sequence[ev.Event], at: float) -> None:
        """Store events in the transaction that stores other rows."""
        self._db.executemany(schema.PUT_EVENT, [_event_row(event, at) for event in events])
        self._pending = replace(self._pending, newest=self._pending.newest + len(events))

    def flush(self) -> None:
        """Sync the rows that were stored so far, so that the end of a long transaction takes little time."""
        if os.path.exists(f"{self.path}-wal"):
            self._sync()

    # ---- events ----

    def record(self, events: Sequence[ev.Event], at: float, *, later: bool = False) -> None:
        """Append events in one transaction, together with all deferred events; with `later`, defer the new events to
        the next call instead.

        Without events, write the deferred ones; if `later` is given, a power failure before the next call may lose
        them.
        """
        if later and events:
            self._deferred += [_event_row(event, at) for event in events]
        elif events or self._deferred:
            self._write([*self._deferred, *(_event_row(event, at) for event in events)], lax=later)
            self._deferred.clear()
            self._is_unsynced = later
        elif self._is_unsynced and not later and self.lasting:
            self._sync()
            self._is_unsynced = False
            self._write_reach()

    def _write(self, rows: Sequence[EventRow], *, lax: bool) -> None:
        """Write the rows of events in one transaction. Unless the transaction is lax, its commit waits until it and all
        earlier lax transactions are durable.
        """
        try:
            self._set_durability(lax=lax)
            self._db.execute(schema.BEGIN)
            self._db.executemany(schema.PUT_EVENT, rows)
            self._db.execute(schema.COMMIT)
        except DATABASE_ERRORS as exc:
            self._roll_back()
            raise translated(self.path, exc) from exc
        self._current = replace(self._current, newest=self._current.newest + len(rows))
        if not lax:
            self._write_reach()

    def _sync(self) -> None:
        try:
            log = os.open(f"{self.path}-wal", os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fdatasync(log)
            finally:
                os.close(log)
        except OSError as exc:
            raise StateError(f"the journal {self.path} cannot be written: {exc.strerror}") from exc

    # ---- the whole journal ----

    def put_status(self, status: dict[str, Any], *, lax: bool = False) -> bool:
        """Write the run's status with the numbers of the last row and event that it includes; return False, and write
        nothing, while events are deferred.
        """
        if self._deferred:
            return False
        with self.transaction(lax=lax):
            self.put_meta({STATUS: _to_json({**status, "up_to": self.reach()})})
        return True

    def accept_loss(self) -> None:
        """Accept the journal as complete in its present state, although its end was lost."""
        self.lost, self._reached = "", Reach()

    def write_again(self) -> Path:
        """Write the whole journal to a new file at its path, or next to that path if another file is there.

        This is for a journal that was removed: the open file can still be read, but cannot be linked to a path again.
        Return the path of the new file; raise StateError or OSError if it cannot be written.
        """
        self.record([], 0.0)  # the deferred events too
        saved = self.path.with_name("journal.saved")
        with suppress(FileNotFoundError):
            saved.unlink()
        with self._translated(), closing(connect(saved, "rwc", writer=False)) as copy:
            self._db.backup(copy)
        with open(saved, "rb") as file:
            os.fsync(file.fileno())
        try:
            os.link(saved, self.path)
        except FileExistsError:
            return saved
        for end in ("-wal", "-shm"):  # they belong to the file that was removed
            with suppress(FileNotFoundError):
                os.unlink(f"{self.path}{end}")
        saved.unlink()
        return self.path

    def checkpoint(self) -> None:
        """Move the changes of the write-ahead log into the journal; called when a run ends."""
        with self._translated():
            self._db.execute(schema.CHECKPOINT)
        self._write_reach()


def _event_row(event: ev.Event, at: float) -> EventRow:
    data = ev.encode(event)
    row = (float(at), event.kind, data.get("task"), data.get("attempt"), _to_json(data))
    return (*row, checksum("events", row))
