"""Short answers for agents: pages with a cursor, rows without empty cells, cut texts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.app.agents import short_answers as short
from scheduler.errors import UsageError

IDS = st.lists(st.integers(0, 10**6), unique=True, max_size=200)


@given(IDS, st.integers(1, 50), st.booleans())
def test_pages_show_every_id_once_in_order(ids: list[int], most: int, down: bool) -> None:
    wanted = sorted(ids, reverse=down)
    found: list[int] = []
    cursor: str | None = None
    while True:
        shown, cursor = short.page(wanted, cursor, most)
        assert len(shown) <= most
        found += shown
        if cursor is None:
            break
    assert found == wanted


def test_a_cursor_goes_on_after_its_id_though_tasks_were_added_and_removed() -> None:
    _, cursor = short.page([1, 2, 3, 4], None, 2)
    assert short.page([1, 3, 4, 9], cursor, 2) == ([3, 4], "4")


@pytest.mark.parametrize("cursor", ["", "-1", "x", "1.5", "\u0664", "9" * 20])
def test_a_cursor_that_no_answer_gave_is_refused(cursor: str) -> None:
    with pytest.raises(UsageError, match="give next_cursor"):
        short.page([1, 2], cursor, 1)


def test_a_row_has_no_empty_cells_and_keeps_a_metric_that_is_zero() -> None:
    task = {"id": 0, "name": "a\x1b[31m", "ooms": 0, "reason": None, "result.loss": 0.0, "result.acc": 1 / 3}
    assert short.row(task, ["result.loss", "result.acc"]) == {
        "id": 0,
        "name": short.cut("a\x1b[31m", 99),
        "result.loss": 0.0,
        "result.acc": 0.333333,
    }
    assert "\x1b" not in short.row(task)["name"]


def test_long_texts_are_cut() -> None:
    assert len(short.cell("x" * 5000)) == short.LONGEST_CELL
    assert short.sentences(["a"] * 7, 5) == [*["a"] * 5, "and 2 more"]
    assert short.log_text(b"x" * 20_000) == ("x" * short.MOST_BYTES, True)
