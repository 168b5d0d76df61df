"""What every book promises: the journal of a real run and the one in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.command import key
from scheduler.core.events import Event, Exited, Submitted
from scheduler.core.fields import Form
from scheduler.core.model import Outcome, Spec
from scheduler.core.ports import Book, Happening
from scheduler.errors import StateError
from scheduler.paths import Places
from scheduler.store import rundir
from scheduler.store.counter import Counter
from scheduler.store.memory import MemoryBook
from tests.builders import asked, placed, run, terms

COLUMNS = ("Directory", "Filename", "Epochs", "Priority", "Memory", "lr")
ROWS = [
    ("work", "train.py --lr 0.1", "5", "2", "1GiB", "0.1"),
    ("work", "train.py --lr 0.2", "5", "1", "", "0.2"),
    ("work", "train.py --lr 0.1", "5", "2", "1GiB", "0.1"),
]
MORE = [("work", "more.py", "1", "3", "", ""), ("work", "more.py", "1", "0", "", "")]
FORM = Form(COLUMNS)
FULL = 2
"""Of SQLite: each transaction waits for the disk."""


def cells(rows: Sequence[Sequence[str]], first: int = 2) -> list[rundir.Cells]:
    """Rows as a door gives them, equal ones counted."""
    return [
        (number, list(row), FORM.terms(row), sum(other == row for other in rows[: number - first]))
        for number, row in enumerate(rows, first)
    ]


def specs(rows: Sequence[Sequence[str]], first: int = 2) -> list[Spec]:
    return [FORM.spec(row, number) for number, row in enumerate(rows, first)]


class Appended:
    """A source to which rows are appended."""

    form = FORM
    more = False

    def __init__(self) -> None:
        self.rows: list[rundir.Cells] = []

    def appended(self, *, last: bool) -> tuple[Sequence[rundir.Cells], str, str]:
        rows, self.rows = self.rows, []
        return rows, "a mark" if rows else "", ""

    def accepted(self) -> None:
        """They were."""

    def untaken(self) -> tuple[Sequence[rundir.Cells], str]:
        return (), ""

    def fileno(self) -> int:
        return -1

    def collect(self) -> Sequence[Happening]:
        return ()


class RealShelf:
    """A run on disk."""

    def __init__(self, root: Path) -> None:
        places = Places(root)
        root.mkdir(exist_ok=True)
        self.book = rundir.Book.create(places, Counter(places.counter, 1), ())
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
    """A run that is nowhere."""

    def __init__(self) -> None:
        self.book = MemoryBook()

    def accept(self, rows: Sequence[Sequence[str]]) -> list[Submitted]:
        return self.book.accept(specs(rows))

    def append(self, rows: Sequence[Sequence[str]]) -> None:
        self.book.append(specs(rows, 90))

    def leave(self, task: int, attempt: int, result: Mapping[str, Any]) -> None:
        self.book.results[task, attempt] = result

    def recorded(self) -> list[tuple[Event, float]]:
        return self.book.recorded

    def close(self) -> None:
        """Nothing is open."""


Shelf = RealShelf | MemoryShelf


@pytest.fixture(params=["directory", "memory"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shelf]:
    """A book with three tasks in it, and the means to put more there."""
    made: Shelf = RealShelf(tmp_path / "state") if request.param == "directory" else MemoryShelf()
    made.accept(ROWS)
    yield made
    made.close()


@pytest.fixture
def book(shelf: Shelf) -> Book:
    return shelf.book


class TestAccepting:
    def test_one_batch_by_priority(self, tmp_path: Path) -> None:
        for made in (RealShelf(tmp_path / "another"), MemoryShelf()):
            (batch,) = made.accept(ROWS)
            assert (batch.batch, batch.first, list(batch.terms)) == (1, 1, [0, 1, 1])
            assert made.book.terms == [terms(epochs=5, priority=1), terms("1GiB", epochs=5, priority=2)]
            made.close()


class TestJobs:
    def test_the_text_of_a_task(self, book: Book) -> None:
        job = book.job(1)
        assert job.spec == FORM.spec(ROWS[1], 3)
        assert (job.name, job.key, job.append) == ("train --lr 0.2", key(job.spec, 0), "both")

    def test_equal_rows_have_keys_of_their_own(self, book: Book) -> None:
        assert [book.job(task).key for task in (2, 3)] == [key(FORM.spec(ROWS[0], 2), nth) for nth in (0, 1)]

    def test_asked_twice_it_is_the_same(self, book: Book) -> None:
        assert book.job(2) == book.job(2)

    @pytest.mark.parametrize("task", [0, 4, 999])
    def test_there_is_no_such_task(self, book: Book, task: int) -> None:
        with pytest.raises(StateError, match=f"no task {task}"):
            book.job(task)


class TestRecording:
    def test_events_are_kept_in_order_with_their_time(self, shelf: Shelf) -> None:
        first, second = run(1, peak="1GiB"), [placed(2), asked("drain")]
        shelf.book.record(first, 10.0)
        shelf.book.record(second, 11.5)
        assert shelf.recorded() == [*((event, 10.0) for event in first), *((event, 11.5) for event in second)]

    def test_what_can_be_written_later_comes_before_the_next_ones(self, shelf: Shelf) -> None:
        first, second = run(1, peak="1GiB"), [placed(2)]
        shelf.book.record(first, 10.0, later=True)
        shelf.book.record(second, 11.5)
        assert shelf.recorded() == [*((event, 10.0) for event in first), *((event, 11.5) for event in second)]

    def test_what_could_not_be_written_is_written_with_the_next_ones(self, tmp_path: Path) -> None:
        shelf = RealShelf(tmp_path / "state")
        shelf.book.record([placed(1)], 1.0, later=True)
        shelf.book.journal._db.execute("PRAGMA query_only = 1")
        with pytest.raises(StateError, match="cannot be used"):
            shelf.book.record([placed(2)], 2.0)
        shelf.book.journal._db.execute("PRAGMA query_only = 0")
        shelf.book.record([placed(2)], 3.0)
        assert shelf.recorded() == [(placed(1), 1.0), (placed(2), 3.0)]
        shelf.close()

    def test_rows_wait_for_the_disk_though_what_came_before_did_not(self, tmp_path: Path) -> None:
        """They are acknowledged: a power cut must not take them."""
        shelf = RealShelf(tmp_path / "state")
        journal = shelf.book.journal
        shelf.book.record([placed(1)], 1.0, later=True)
        shelf.book.record((), 2.0, later=True)
        with journal.transaction():
            assert journal._db.execute("PRAGMA synchronous").fetchone() == (FULL,)
        shelf.close()

    def test_nothing_is_nothing(self, shelf: Shelf) -> None:
        shelf.book.record([], 10.0)
        assert shelf.recorded() == []


class TestResults:
    RESULT: Mapping[str, Any] = {"loss": 0.25, "epochs": 3, "best": True, "note": "é", "none": None}

    def test_what_an_attempt_left(self, shelf: Shelf) -> None:
        shelf.leave(2, 1, self.RESULT)
        assert shelf.book.result(2, 1) == self.RESULT

    def test_it_is_there_until_its_end_is_on_the_disk(self, tmp_path: Path) -> None:
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

    def test_it_stays_for_whoever_could_not_record_the_end(self, shelf: Shelf) -> None:
        shelf.leave(2, 1, self.RESULT)
        shelf.book.result(2, 1)
        assert shelf.book.result(2, 1) == self.RESULT

    def test_it_is_that_attempts_alone(self, shelf: Shelf) -> None:
        shelf.leave(2, 1, self.RESULT)
        assert shelf.book.result(2, 2) == {}

    def test_most_leave_nothing(self, book: Book) -> None:
        assert book.result(1, 1) == {}


class TestArrivals:
    def test_none(self, book: Book) -> None:
        assert [*book.arrivals(last=False).batches, *book.arrivals(last=True).batches] == []

    def test_rows_that_were_appended_are_a_batch_of_their_own(self, shelf: Shelf) -> None:
        shelf.append(MORE)
        (batch,) = shelf.book.arrivals(last=False).batches
        assert (batch.batch, batch.first, len(batch.terms)) == (2, 4, 2)
        assert [shelf.book.job(task).spec.terms.priority for task in (4, 5)] == [0, 3]

    def test_their_terms_are_known_before_they_are_told(self, shelf: Shelf) -> None:
        shelf.append(MORE)
        (batch,) = shelf.book.arrivals(last=False).batches
        assert [shelf.book.terms[number].priority for number in batch.terms] == [0, 3]

    def test_they_are_told_once(self, shelf: Shelf) -> None:
        shelf.append(MORE)
        shelf.book.arrivals(last=False)
        assert list(shelf.book.arrivals(last=True).batches) == []


class TestProbes:
    def test_a_probe_goes_by_an_id_that_no_task_has(self, shelf: Shelf) -> None:
        told = [shelf.book.probe_id(1), shelf.book.probe_id(2)]
        shelf.append(MORE)
        (batch,) = shelf.book.arrivals(last=False).batches
        ids = {1, 2, 3, batch.first, batch.first + 1, *told}
        assert len(ids) == 7

    def test_what_it_left_can_go(self, book: Book) -> None:
        book.end_probe(1, book.probe_id(1))
        book.end_probe(1, 1)
        assert book.job(1).spec.row == 3
