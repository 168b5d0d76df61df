"""The page of faults is what the tests say, and no fault is left without a test or a reason."""

from __future__ import annotations

from tests.faults import PAGE, page, rows
from tests.marks import shown


def test_every_fault_has_a_test_or_a_reason() -> None:
    assert [row.number for row in rows() if row.number not in shown("fault") and not row.why_not] == []


def test_every_fault_of_one_machine_is_listed_once() -> None:
    assert [row.number for row in rows()] == list(range(1, 70))


def test_every_fault_that_a_test_names_is_listed() -> None:
    assert sorted(shown("fault").keys() - {row.number for row in rows()}) == []


def test_the_page_is_what_the_tests_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.faults"
