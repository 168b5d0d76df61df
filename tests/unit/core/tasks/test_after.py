"""The field After: names and numbers of parents, and lists whose rows wait for one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model import NO_TASK
from scheduler.core.tasks.after import (
    AfterRow,
    BadAfter,
    Dependency,
    Earlier,
    parent_name,
    parsed,
    resolved,
    run_of,
    whole_run,
)
from scheduler.values import dataclass


def rows(*said: str) -> list[AfterRow]:
    """Make rows from `name: parents`, numbered from 2 as in a file with a header."""
    parts = [text.partition(":") for text in said]
    return [AfterRow(number, name, after.strip()) for number, (name, _, after) in enumerate(parts, 2)]


nothing = Earlier()


@dataclass(frozen=True, slots=True)
class Known:
    """Earlier tasks by the words that name them, and those that ended badly."""

    tasks: Mapping[str, Sequence[int]]
    failed: frozenset[int] = frozenset()

    def find(self, word: str) -> Sequence[int]:
        return self.tasks.get(word, ())

    def spoilt(self, parent: int) -> str:
        return f"task {parent} ended without success (failed): scheduler retry {parent} first" * (parent in self.failed)


class TestNames:
    def test_parents_are_separated_by_commas(self) -> None:
        assert list(parsed("prep, 17,ended: clean")) == [("prep", False), ("17", False), ("clean", True)]

    def test_an_empty_place_is_refused(self) -> None:
        with pytest.raises(ValueError, match="has an empty place"):
            list(parsed("prep,,17"))

    def test_rows_with_equal_texts_share_one_dependency(self) -> None:
        assert resolved(rows("prep", "a: prep", "b: prep"), nothing) == [Dependency((1, 2), (0,))]

    def test_a_name_that_several_rows_have_stands_for_all_of_them(self) -> None:
        assert resolved(rows("train", "train", "evaluate: train"), nothing) == [Dependency((2,), (0, 1))]

    def test_a_parent_that_must_only_end_is_kept_apart(self) -> None:
        assert resolved(rows("a", "b: ended:a"), nothing) == [Dependency((1,), ended=(0,))]

    def test_a_number_is_always_an_earlier_task(self) -> None:
        assert resolved(rows("17", "b: 17"), Known({"17": (17,)})) == [Dependency((1,), after_known=(17,))]

    def test_a_name_of_the_list_comes_before_an_earlier_task_of_that_name(self) -> None:
        assert resolved(rows("prep", "b: prep"), Known({"prep": (17,)})) == [Dependency((1,), (0,))]

    def test_a_parent_that_failed_and_is_not_retried_is_refused_with_both_cures(self) -> None:
        with pytest.raises(
            BadAfter, match="retry 17 first, or write ended:prep to wait for its end with or without success"
        ) as refused:
            resolved(rows("a", "b: prep"), Known({"prep": (17,)}, frozenset({17})))
        assert refused.value.row == 3

    def test_a_failed_parent_that_must_only_end_is_no_obstacle(self) -> None:
        known = Known({"prep": (17,)}, frozenset({17}))
        assert resolved(rows("b: ended:prep"), known) == [Dependency((0,), ended_known=(17,))]

    def test_an_unknown_name_is_refused_with_its_row(self) -> None:
        with pytest.raises(BadAfter, match="no task has the name 'perp'") as refused:
            resolved(rows("prep", "a: perp"), nothing)
        assert refused.value.row == 3


class TestWholeRuns:
    @given(st.integers(0, 10**9))
    def test_the_number_of_a_run_as_a_parent_is_no_task_and_leads_back_to_the_run(self, run: int) -> None:
        assert whole_run(run) < NO_TASK
        assert run_of(whole_run(run)) == run
        assert parent_name(whole_run(run)) == f"run r{run}"

    def test_a_task_is_no_run(self) -> None:
        assert run_of(17) is None
        assert parent_name(17) == "task 17"


class TestCycles:
    def test_a_cycle_is_refused_and_its_rows_are_named(self) -> None:
        with pytest.raises(BadAfter, match="row 2 after row 4 after row 3 after row 2"):
            resolved(rows("a: c", "b: a", "c: b", "d: a"), nothing)

    def test_a_row_that_waits_for_itself_is_refused(self) -> None:
        with pytest.raises(BadAfter, match="row 2 after row 2"):
            resolved(rows("a: a"), nothing)

    @given(st.lists(st.lists(st.integers(0, 8), max_size=3), min_size=1, max_size=9))
    def test_a_list_is_refused_exactly_if_some_of_its_rows_can_never_start(self, parents: list[list[int]]) -> None:
        number = len(parents)
        chosen = [sorted({parent % number for parent in some}) for some in parents]
        given_ = [AfterRow(n, f"t{n}", ",".join(f"t{p}" for p in chosen[n])) for n in range(number)]
        started = set[int]()
        while more := {n for n in range(number) if n not in started and started.issuperset(chosen[n])}:
            started |= more
        if len(started) == number:
            found = {place: d.after for d in resolved(given_, nothing) for place in d.places}
            assert found == {n: tuple(chosen[n]) for n in range(number) if chosen[n]}
        else:
            with pytest.raises(BadAfter):
                resolved(given_, nothing)
