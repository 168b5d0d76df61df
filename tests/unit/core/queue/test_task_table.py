"""The task table: the properties of every task id, in a few bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model import State
from scheduler.core.queue.task_table import TaskTable


def table(*batches: tuple[int, int]) -> TaskTable:
    """Return a table of batches given as (first id, number of ids), each with terms of its own."""
    made = TaskTable()
    for number, (first, many) in enumerate(batches, 1):
        made.add(number, first, [number] * many)
    return made


def test_ids_have_the_properties_of_their_batch() -> None:
    r = table((5, 3), (8, 2))
    assert list(r) == [5, 6, 7, 8, 9]
    assert [r.batch(task) for task in r] == [1, 1, 1, 2, 2]
    assert [r.terms(task) for task in r] == [1, 1, 1, 2, 2]
    assert {r.state(task) for task in r} == {State.WAITING}


def test_batches_may_leave_gaps_between_ids() -> None:
    r = table((5, 3), (100, 2))
    assert list(r) == [5, 6, 7, 100, 101]
    assert [r.batch(task) for task in r] == [1, 1, 1, 2, 2]
    assert (len(r), r.batches) == (5, 2)


@pytest.mark.parametrize("unmanaged_process", [0, 4, 8, 99, 102, -1])
def test_unknown_ids_are_not_in_the_table(unmanaged_process: int) -> None:
    r = table((5, 3), (100, 2))
    assert unmanaged_process not in r
    with pytest.raises(KeyError):
        r.state(unmanaged_process)


def test_a_new_state_changes_the_counts() -> None:
    r = table((1, 4))
    r.mark(2, State.RUNNING)
    r.mark(3, State.RUNNING)
    r.mark(2, State.SUCCEEDED)
    assert +r.counts == {State.WAITING: 2, State.RUNNING: 1, State.SUCCEEDED: 1}
    assert list(r.in_state(State.WAITING, State.SUCCEEDED)) == [1, 2, 4]


def test_an_empty_batch_has_a_number() -> None:
    r = table((1, 2), (3, 0), (3, 1))
    assert [r.batch(task) for task in r] == [1, 1, 3]


def test_task_classes_are_assigned_one_by_one() -> None:
    r = table((1, 2), (9, 1))
    r.assign(9, 4)
    assert [r.kind(task) for task in r] == [0, 0, 4]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), max_size=6), st.data())
def test_counts_equal_the_states_counted(shape: list[tuple[int, int]], data: st.DataObject) -> None:
    r, first = TaskTable(), 1
    for number, (gap, many) in enumerate(shape, 1):
        r.add(number, first + gap, [0] * many)
        first += gap + many
    ids = list(r)
    for task in data.draw(st.lists(st.sampled_from(ids), max_size=10)) if ids else []:
        r.mark(task, data.draw(st.sampled_from(list(State))))
    assert len(r) == len(ids) == sum(r.counts.values())
    assert all(len(list(r.in_state(state))) == r.counts[state] for state in State)
