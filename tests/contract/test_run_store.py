"""The contract of every RunStore, for the journal of a real run and the one in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.events import Event, Exited, Submitted
from scheduler.core.model import Outcome, Spec
from scheduler.core.ports import RunStore
from scheduler.core.tasks.command import key
from scheduler.core.tasks.fields import RowForm
from scheduler.core.tasks.row_source import InputRow, RowSource
from scheduler.errors import StateError
from scheduler.runtime.paths import StatePaths
from scheduler.simulation.memory_store import MemoryRunStore
from scheduler.store.run import run_store
from scheduler.store.run.counter import Counter
from tests.support.builders import asked, placed, run, terms

COLUMNS = ("Directory", "Filename", "Epochs", "Priority", "Memory", "lr")
ROWS = [
    ("work", "train.py --lr 0.1", "5", "2", "1GiB", "0.1"),
    ("work", "train.py --lr 0.2", "5", "1", "", "0.2"),
    ("work", "train.py --lr 0.1", "5", "2", "1GiB", "0.1"),
]
MORE = [("work", "more.py", "1", "3", "", ""), ("work", "more.py", "1", "0", "", "")]
FORM = RowForm(COLUMNS)
FULL = 2
"""SQLite's level at which each transaction waits for the disk."""


def cells(rows: Sequence[Sequence[str]], first: int = 2) -> list[InputRow]:
    """Return rows as an input gives them, equal ones counted."""
    return [
        (number, list(row), FORM.terms(row), sum(other == row for other in rows[: number - first]))
        for number, row in enumerate(rows, first)
    ]


def specs(rows: Sequence[Sequence[str]], first: int = 2) -> list[Spec]:
    return [FORM.spec(row, number) for number, row in enumerate(rows, first)]


class Appended(RowSource):
    """A source to which rows are appended."""

    form = FORM

    def __init__(self) -> None:
        self.rows: list[InputRow] = []

    def appended(self, *, last: bool) -> tuple[Sequence[InputRow], str, str]:
        rows, self.rows = self.rows, []
        return rows, "a mark" if rows else "", ""


class RealShelf:
    """A run on disk."""

    def __init__(self, root: Path) -> None:
        places = StatePaths(root)
        root.mkdir(exist_ok=True)
        self.book = run_store.SqliteRunStore.create(places, Counter(places.counter, 1), ())
        self.source = self.book.source = Appended()

    def accept(self, rows: Sequence[Sequence[str]]) -> list[Submitted]:
        said = sorted(cells(rows), key=lambda row: row[2].priority)
        return self.book.accept(FORM, [said], lambda terms, row: None, lambda tasks: {})

    def append(self, rows: Sequence[Sequence[str]]) -> None:
        self.source.rows += cells(rows, 90)

    def leave(self, task: int, attempt: int, result: Mapping[str, Any]) -> None:
        path = Path(self.book.places.result(task, attempt))
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(result))

    def recorded(self) -> list[tuple[Event, float]]:
        return [(recorded.event, recorded.at) for recorded in self.book.journal.events()]

    def close(self) -> None:
        self.book.close()


class MemoryShelf:
    """A run in memory."""

    def __init__(self) -> None:
        self.book = MemoryRunStore()

    def accept(self, rows: Sequence[Sequence[str]]) -> list[Submitted]:
        return self.book.accept(specs(rows))

    def append(self, rows: Sequence[Sequence[str]]) -> None:
        self.book.append(specs(rows, 90))

    def leave(self, task: int, attempt: int, result: Mapping[str, Any]) -> None:
        self.book.results[task, attempt] = result

    def recorded(self) -> list[tuple[Event, float]]:
        return self.book.recorded

    def close(self) -> None:
        """Do nothing: nothing is open."""


Shelf = RealShelf | MemoryShelf


@pytest.fixture(params=["directory", "memory"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelf]:
    """Return a store with three tasks in it, and the means to append more."""
    made: Shelf = RealShelf(tmp_path / "state") if request.param == "directory" else MemoryShelf()
    made.accept(ROWS)
    yield made
    made.close()


@pytest.fixture
def book(shelf: Shelf) -> RunStore:
    return shelf.book


class TestAccepting:
    def test_one_batch_is_accepted_in_order_of_priority(self, tmp_path: Path) -> None:
        for made in (RealShelf(tmp_path / "another"), MemoryShelf()):
            (batch,) = made.accept(ROWS)
            assert (batch.batch, batch.first, list(batch.terms)) == (1, 1, [0, 1, 1])
            assert made.book.terms == [terms(epochs=5, priority=1), terms("1GiB", epochs=5, priority=2)]
            made.close()


class TestJobs:
    def test_job_returns_the_text_of_a_task(self, book: RunStore) -> None:
        job = book.job(1)
        assert job.spec == FORM.spec(ROWS[1], 3)
        assert (job.name, job.key, job.append) == ("train --lr 0.2", key(job.spec, 0), "both")

    def test_equal_rows_have_distinct_keys(self, book: RunStore) -> None:
        assert [book.job(task).key for task in (2, 3)] == [key(FORM.spec(ROWS[0], 2), nth) for nth in (0, 1)]

    def test_job_asked_twice_is_equal(self, book: RunStore) -> None:
        assert book.job(2) == book.job(2)

    @pytest.mark.parametrize("task", [0, 4, 999])
    def test_job_of_an_unknown_task_raises(self, book: RunStore, task: int) -> None:
        with pytest.raises(StateError, match=f"no task {task}"):
            book.job(task)


class TestRecording:
    def test_events_are_kept_in_order_with_their_time(self, shelf: Shelf) -> None:
        first, second = run(1, peak="1GiB"), [placed(2), asked("drain")]
        shelf.book.record(first, 10.0)
        shelf.book.record(second, 11.5)
        assert shelf.recorded() == [*((event, 10.0) for event in first), *((event, 11.5) for event in second)]

    def test_events_recorded_for_later_precede_the_next_ones(self, shelf: Shelf) -> None:
        first, second = run(1, peak="1GiB"), [placed(2)]
        shelf.book.record(first, 10.0, later=True)
        shelf.book.record(second, 11.5)
        assert shelf.recorded() == [*((event, 10.0) for event in first), *((event, 11.5) for event in second)]

    def test_events_that_could_not_be_written_are_written_with_the_next_ones(self, tmp_path: Path) -> None:
        shelf = RealShelf(tmp_path / "state")
        shelf.book.record([placed(1)], 1.0, later=True)
        shelf.book.journal._db.execute("PRAGMA query_only = 1")
        with pytest.raises(StateError, match="cannot be used"):
            shelf.book.record([placed(2)], 2.0)
        shelf.book.journal._db.execute("PRAGMA query_only = 0")
        shelf.book.record([placed(2)], 3.0)
        assert shelf.recorded() == [(placed(1), 1.0), (placed(2), 3.0)]
        shelf.close()

    def test_rows_wait_for_the_disk_although_earlier_events_did_not(self, tmp_path: Path) -> None:
        """Rows are acknowledged to the user: a power cut must not lose them."""
        shelf = RealShelf(tmp_path / "state")
        journal = shelf.book.journal
        shelf.book.record([placed(1)], 1.0, later=True)
        shelf.book.record((), 2.0, later=True)
        with journal.transaction():
            assert journal._db.execute("PRAGMA synchronous").fetchone() == (FULL,)
        shelf.close()

    def test_recording_nothing_keeps_nothing(self, shelf: Shelf) -> None:
        shelf.book.record([], 10.0)
        assert shelf.recorded() == []


class TestResults:
    RESULT: Mapping[str, Any] = {"loss": 0.25, "epochs": 3, "best": True, "note": "é", "none": None}

    def test_result_returns_what_an_attempt_left(self, shelf: Shelf) -> None:
        shelf.leave(2, 1, self.RESULT)
        assert shelf.book.result(2, 1) == self.RESULT

    def test_result_is_there_until_the_end_is_on_the_disk(self, tmp_path: Path) -> None:
        shelf = RealShelf(tmp_path / "state")
        (batch,) = shelf.accept(ROWS[:1])
        shelf.leave(batch.first, 1, {"loss": 0.5})
        shelf.book.record([Exited(batch.first, 1, Outcome.SUCCEEDED)], 1.0, later=True)
        shelf.book.record((), 1.0, later=True)
        assert len(shelf.recorded()) == 1
        assert shelf.book.result(batch.first, 1) == {"loss": 0.5}
        shelf.book.record((), 2.0)
        assert shelf.book.result(batch.first, 1) == {}
        assert len(shelf.recorded()) == 1
        shelf.close()

    def test_result_stays_if_the_end_could_not_be_recorded(self, shelf: Shelf) -> None:
        shelf.leave(2, 1, self.RESULT)
        shelf.book.result(2, 1)
        assert shelf.book.result(2, 1) == self.RESULT

    def test_result_belongs_to_one_attempt_only(self, shelf: Shelf) -> None:
        shelf.leave(2, 1, self.RESULT)
        assert shelf.book.result(2, 2) == {}

    def test_most_attempts_leave_no_result(self, book: RunStore) -> None:
        assert book.result(1, 1) == {}


class TestArrivals:
    def test_no_arrivals_without_appended_rows(self, book: RunStore) -> None:
        assert [*book.arrivals(last=False).batches, *book.arrivals(last=True).batches] == []

    def test_appended_rows_are_a_batch_of_their_own(self, shelf: Shelf) -> None:
        shelf.append(MORE)
        (batch,) = shelf.book.arrivals(last=False).batches
        assert (batch.batch, batch.first, len(batch.terms)) == (2, 4, 2)
        assert [shelf.book.job(task).spec.terms.priority for task in (4, 5)] == [0, 3]

    def test_terms_of_arrivals_are_known_before_the_arrivals_are_returned(self, shelf: Shelf) -> None:
        shelf.append(MORE)
        (batch,) = shelf.book.arrivals(last=False).batches
        assert [shelf.book.terms[number].priority for number in batch.terms] == [0, 3]

    def test_arrivals_are_returned_once(self, shelf: Shelf) -> None:
        shelf.append(MORE)
        shelf.book.arrivals(last=False)
        assert list(shelf.book.arrivals(last=True).batches) == []


class TestProbes:
    def test_a_probe_gets_an_id_that_no_task_has(self, shelf: Shelf) -> None:
        told = [shelf.book.probe_id(1), shelf.book.probe_id(2)]
        shelf.append(MORE)
        (batch,) = shelf.book.arrivals(last=False).batches
        ids = {1, 2, 3, batch.first, batch.first + 1, *told}
        assert len(ids) == 7

    def test_end_probe_removes_what_a_probe_left(self, book: RunStore) -> None:
        book.end_probe(1, book.probe_id(1))
        book.end_probe(1, 1)
        assert book.job(1).spec.row == 3
