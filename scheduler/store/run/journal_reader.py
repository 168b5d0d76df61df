"""The reader of a journal: the facts about a run, its accepted rows, and its events in order.

SQLite only notices damage of its own structures. It does not notice changed rows, and it treats a truncated log as an
older state. So each row has a checksum, the numbers of events have no gaps, and `journal_reach` shows how far the
journal was durable.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from scheduler.core import events as ev
from scheduler.errors import StateError
from scheduler.runtime.paths import owner_beside_root
from scheduler.store.run import schema
from scheduler.store.run.journal_database import (
    DATABASE_ERRORS,
    Owner,
    acting_as,
    checksum,
    connect_reader,
    damaged,
    newer,
    run_number,
    translated,
)
from scheduler.store.run.journal_reach import Reach, read_reach
from scheduler.values import dataclass

STATUS = "status"
"""The name of the fact with the run's last status."""
FACT_COUNT = "facts"
"""The name of the fact with the number of the other facts."""


@dataclass(frozen=True, slots=True)
class Row:
    """One accepted row; its text is only read from the journal when its task is placed."""

    row: int
    """The number of the row in its list."""
    nth: int
    """The number of earlier rows of the list with an equal command."""
    terms: int
    form: int
    text: str


_DECODE = json.JSONDecoder().raw_decode
"""A function that reads the JSON value at the beginning of a string, in half the time of `json.loads`."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event with its number in the journal and the time at which it was recorded."""

    seq: int
    at: float
    event: ev.Event


class JournalReader:
    """The journal of a run, opened for reading while its only writer may continue.

    Every method raises StateError if rows cannot be read, or if their content is not the content that was written.
    """

    def __init__(
        self, path: Path, connection: sqlite3.Connection, owner: Owner = None, reached: Reach | None = None
    ) -> None:
        self.path = path
        self.lost = ""
        """A sentence about how much of the journal's end was lost; empty if nothing was lost."""
        self._reached = reached or Reach()
        """The position up to which the journal was certainly durable when it was opened."""
        self._db = connection
        self._owner = owner
        """The user under whose identity the journal is read; None: this process's own user."""

    @classmethod
    def read(cls, path: Path) -> Self:
        """Open an existing journal for reading; on a full disk, open a copy of it."""
        owner = owner_beside_root(path)
        reached = read_reach(path)  # before the journal, so that a writer is never ahead of it
        with acting_as(owner):
            return cls(path, connect_reader(path), owner, reached)._checked()

    def _checked(self) -> Self:
        """Check the format and the end of the journal; if its end was lost, describe the loss in `lost`."""
        with self._translated():
            found = self._db.execute(schema.GET_FORMAT).fetchone()
        version = found[0] if found is not None else None
        if not (isinstance(version, str) and version.isascii() and version.isdigit()):
            raise damaged(self.path, f"its format is {version!r}")
        self._check_format(int(version))
        last, newest = self.reach()
        if last < self._reached.last or newest < self._reached.newest:
            self.lost = (
                f"the journal of run {run_number(self.path)} lost its end ({self.path}): {self._reached.newest} events "
                f"of {self._reached.rows} tasks were on the disk, {newest} events up to task {last} are left, so the "
                "later states of its tasks are unknown"
            )
        return self

    def _check_format(self, version: int) -> None:
        if version > schema.VERSION:
            raise newer(self.path, f"format {version}; this one reads {schema.VERSION}")
        if version < schema.VERSION:
            raise StateError(
                f"run {run_number(self.path)} was written by an older version (format {version}; this one reads "
                f"{schema.VERSION}): use that version, or move {self.path.parent} away"
            )

    def close(self) -> None:
        """Close the database."""
        self._db.close()

    def contradiction(self, what: object) -> StateError:
        """Return the error for rows that can be read but contradict each other."""
        return damaged(self.path, f"it contradicts itself: {what}")

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """Make all reads of the block see the state at its first statement, whatever the writer adds meanwhile."""
        with self._translated():
            self._db.execute(schema.BEGIN_TO_READ)
        try:
            yield
        finally:
            with self._translated():
                self._roll_back()

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute(schema.ROLLBACK)

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            with acting_as(self._owner):
                yield
        except DATABASE_ERRORS as exc:
            raise translated(self.path, exc) from exc

    # ---- facts, terms and rows ----

    def reach(self) -> list[int]:
        """Return the highest task (-1: none) and the number of events."""
        with self._translated():
            newest = self._db.execute(schema.GET_NEWEST).fetchone()[0]
        last = self.last()
        return [-1 if last is None else last, newest or 0]

    def meta(self) -> dict[str, str]:
        """Return all facts about the run by name."""
        facts: dict[str, str] = dict(self._select(schema.GET_META))
        if facts.pop(FACT_COUNT, "") != str(len(facts)):
            raise damaged(self.path, "facts about the run are missing")
        return facts

    def forms(self) -> list[str]:
        """Return the forms of the rows' cells; the index of a form is its number."""
        return self._numbered(schema.GET_FORMS)

    def terms(self) -> list[str]:
        """Return the terms of the rows; the index of terms is their number."""
        return self._numbered(schema.GET_TERMS)

    def _numbered(self, statement: str) -> list[str]:
        texts: list[str] = []
        for number, text in self._select(statement):
            if number != len(texts):
                raise damaged(self.path, "terms or forms of rows are missing")
            texts.append(text)
        return texts

    def row(self, task: int) -> Row:
        """Return one accepted row."""
        for _, _, *values in self._select(schema.GET_ROW, (task,)):
            return Row(*values)
        raise StateError(f"the journal {self.path} has no task {task}")

    def rows(self) -> Iterator[tuple[int, int, Row]]:
        """Yield all accepted rows as (task, batch, row), sorted by task."""
        for task, batch, *values in self._all_rows():
            yield task, batch, Row(*values)

    def rows_from(self, first: int, end: int) -> Iterator[tuple[int, Row]]:
        """Yield the accepted rows with ids from `first` up to, but not including, `end`, as (task, row)."""
        for task, _, *values in self._select(schema.GET_ROWS_FROM, (first, end)):
            yield task, Row(*values)

    def _all_rows(self, after: int = 0) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of the batches after the batch `after`; raise StateError if some rows are missing."""
        number, terms, form = 0, -1, -1
        for row in self._select(schema.GET_ROWS, (after,)):
            number, terms, form = number + 1, max(terms, row[4]), max(form, row[5])
            yield row
        with self._translated():
            most = self._db.execute(schema.GET_MOST).fetchone()
        if any(known is None or known < used for known, used in zip(most, (terms, form), strict=True) if used >= 0):
            raise damaged(self.path, "the terms of some rows are missing")
        if not after and number < self._reached.rows and not self.lost:
            raise damaged(self.path, f"{self._reached.rows} rows were accepted, {number} can be found")

    def count(self) -> tuple[int, int]:
        """Return the number of tasks and the number of batches."""
        with self._translated():
            tasks, batches = self._db.execute(schema.COUNT_ROWS).fetchone()
        return tasks, batches or 0

    def within(self, first: int, last: int) -> list[int]:
        """Return the accepted tasks with ids from `first` to `last`."""
        with self._translated():
            return [task for (task,) in self._db.execute(schema.GET_WITHIN, (first, last))]

    def last(self) -> int | None:
        """Return the highest task id; None if no row was accepted."""
        with self._translated():
            found: int | None = self._db.execute(schema.GET_LAST).fetchone()[0]
        return found

    # ---- events ----

    def submissions(self, after: int = 0) -> Iterator[ev.Submitted]:
        """Yield the Submitted events of the batches after the batch `after`, one event for each range of consecutive
        ids.
        """
        batch, first = 0, 0
        terms: list[int] = []
        for task, next_batch, _, _, number, *_ in self._all_rows(after):
            if terms and (next_batch != batch or task != first + len(terms)):
                yield ev.Submitted(batch, first, terms)
                terms = []
            if not terms:
                batch, first = next_batch, task
            terms.append(number)
        if terms:
            yield ev.Submitted(batch, first, terms)

    def events(self, after: int = 0) -> Iterator[Recorded]:
        """Yield the events after the event number `after`, in order."""
        return self._in_order(schema.GET_EVENTS, (after,), after)

    def state_events(self) -> Iterator[Recorded]:
        """Yield the events that change states of tasks, in order; most other events are about memory."""
        return self._in_order(schema.GET_STATE_EVENTS)

    def changed_terms(self) -> Iterator[ev.Changed]:
        """Yield the events that changed the terms of tasks."""
        for row in self._select(schema.GET_CHANGES, unsummed=1):
            event = self._recorded(row).event
            if isinstance(event, ev.Changed):
                yield event

    def task_events(self, task: int) -> list[Recorded]:
        """Return the events of one task, in order."""
        return [self._recorded(row) for row in self._select(schema.GET_TASK_EVENTS, (task,), unsummed=1)]

    def _in_order(self, statement: str, parameters: tuple[int, ...] = (), after: int = 0) -> Iterator[Recorded]:
        """Yield the selected events that come with their data; raise StateError if an event is missing."""
        for row in self._select(statement, parameters, unsummed=1):
            if row[0] != after + 1:
                raise damaged(self.path, f"event {after + 1} is missing")
            after += 1
            if row[-1] is not None:
                yield self._recorded(row)
        if after < self._reached.newest and not self.lost:
            raise damaged(self.path, f"event {after + 1} is missing")

    def _recorded(self, row: tuple[Any, ...]) -> Recorded:
        seq, at, name, data = row[0], row[1], row[2], row[-1]
        try:
            values, end = _DECODE(data or "")
            if end != len(data):
                raise ValueError("there is more than one value")
            return Recorded(seq, at, ev.decode(name, values))
        except (ValueError, KeyError, TypeError) as exc:  # its checksum is right, so it is as it was written
            raise newer(self.path, f"its event {seq}, {name}, is unknown here") from exc

    # ---- rows of any table ----

    def _select(self, statement: str, parameters: tuple[int, ...] = (), unsummed: int = 0) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a statement after a check of their checksums, which are left out and do not cover the first
        `unsummed` columns.

        Rows of another user's journal are read all at once, because no other code may run under that user's identity.
        """
        table = statement.partition(" FROM ")[2].split(maxsplit=1)[0]
        with self._translated():
            found = self._db.execute(statement, parameters)
            if self._owner is None:
                yield from self._verified(table, found, unsummed)
                return
            rows = found.fetchall()
        yield from self._verified(table, rows, unsummed)

    def _verified(self, table: str, rows: Iterable[tuple[Any, ...]], unsummed: int) -> Iterator[tuple[Any, ...]]:
        for row in rows:
            has_data = not unsummed or row[-2] is not None
            if has_data and row[-1] != checksum(table, row[unsummed:-1]):
                raise damaged(self.path, f"the row {str(row[:-1])[:60]!r} is not what was written")
            yield row[:-1]


def last_status(meta: Mapping[str, str]) -> dict[str, Any]:
    """Return the last status that the run's scheduler wrote; empty if there is none, or if it is damaged."""
    try:
        status: dict[str, Any] = json.loads(meta.get(STATUS, "{}"))
    except ValueError:
        return {}
    return status
