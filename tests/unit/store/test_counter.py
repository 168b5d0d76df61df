"""The counter of task ids and run numbers: its lock, and how long other schedulers wait for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pytest

from scheduler.core.model import Terms
from scheduler.core.tasks.fields import RowForm
from scheduler.core.tasks.row_source import InputRow
from scheduler.errors import StateError
from scheduler.runtime.paths import StatePaths
from scheduler.store.run import counter as run_counter
from scheduler.store.run.counter import Counter, why_locked
from scheduler.store.run.run_store import SqliteRunStore
from tests.support.faults import fault

FORM = RowForm(("Command",))


def cells(*commands: str) -> list[InputRow]:
    return [(row, [command], FORM.terms([command]), 0) for row, command in enumerate(commands, 2)]


def accept(book: SqliteRunStore, batches: Iterable[Sequence[InputRow]]) -> list[int]:
    """Have a book take these rows; return the first id of each batch."""
    return [batch.first for batch in book.accept(FORM, batches, _serve_all, lambda tasks: {"accepted": "1"})]


def _serve_all(terms: Terms, row: int) -> None:
    """Refuse nothing."""


@pytest.fixture
def counter(tmp_path: Path) -> Counter:
    return Counter(tmp_path / "counter")


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Callable[[], SqliteRunStore]]:
    """Yield a function that makes run stores of one user."""
    places, made = StatePaths(tmp_path), list[SqliteRunStore]()

    def make() -> SqliteRunStore:
        made.append(SqliteRunStore.create(places, Counter(places.counter), ()))
        return made[-1]

    yield make
    for book in made:
        book.close()


def test_a_counter_that_is_locked_for_long_names_the_process_and_its_command(counter: Counter, tmp_path: Path) -> None:
    with counter.held():
        said = rf"has been locked for 0\.01s by process {os.getpid()} of user {os.getuid()} \(.+\), no run starts"
        with pytest.raises(StateError, match=said), counter.held(patience=0.01):
            pass
        assert f"is locked by process {os.getpid()}" in why_locked(tmp_path / "counter")
    assert why_locked(tmp_path / "counter") == ""


@fault(111)
def test_a_start_waits_on_while_other_starts_take_numbers(
    counter: Counter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of fifty starts at once were refused on a busy machine, though the lock went from one to the next."""
    waits = list[float]()

    def taken_by_others(fd: int, patience: float) -> None:
        waits.append(patience)
        if len(waits) < 4:
            (tmp_path / "counter").write_text(f"{len(waits)} 1")
            raise BlockingIOError

    monkeypatch.setattr(run_counter, "take_lock", taken_by_others)
    with counter.held() as held:
        assert held.task == 3


def test_a_missing_counter_is_not_locked_and_not_made(tmp_path: Path) -> None:
    assert why_locked(tmp_path / "counter") == ""
    assert Counter(tmp_path / "counter", 41).next_task() == 41
    assert not (tmp_path / "counter").exists()


@fault(110)
def test_the_counter_is_free_while_a_list_is_read(stores: Callable[[], SqliteRunStore], tmp_path: Path) -> None:
    counter, locked = Counter(StatePaths(tmp_path).counter), []

    def rows() -> Iterator[Sequence[InputRow]]:
        with counter.held(patience=0) as held:
            locked.append(held)
        yield cells("true")

    assert accept(stores(), rows()) == [0]
    assert locked


def test_rows_get_ids_after_the_ids_that_others_took_while_they_were_read(stores: Callable[[], SqliteRunStore]) -> None:
    one, other = stores(), stores()

    def rows() -> Iterator[Sequence[InputRow]]:
        yield cells("a", "b")
        assert accept(other, [cells("c", "d", "e")]) == [0]
        yield cells("f")

    assert accept(one, rows()) == [3, 5]
    assert [row[0] for row in one.journal.rows()] == [3, 4, 5]
    assert accept(other, [cells("g")]) == [6]
    assert [row[0] for row in other.journal.rows()] == [0, 1, 2, 6]


def test_a_list_that_is_refused_takes_no_ids(stores: Callable[[], SqliteRunStore]) -> None:
    book = stores()
    with pytest.raises(ZeroDivisionError):
        accept(book, (cells("true") for _ in [1 / 0]))
    assert accept(book, [cells("true")]) == [0]
