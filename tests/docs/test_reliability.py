"""The pages of faults are generated from the tests, and every fault has a test or a reason."""

from __future__ import annotations

from tests.support.faults import DOCS, PAGES, rows
from tests.support.marks import shown


def test_every_fault_has_a_test_or_a_reason() -> None:
    assert [row.number for row in rows() if row.number not in shown("fault") and not row.why_not] == []


def test_no_fault_has_the_number_of_another() -> None:
    numbers = [row.number for row in rows()]
    assert len(numbers) == len(set(numbers))
    assert set(range(1, 70)) <= set(numbers)


def test_every_fault_that_a_test_names_is_listed() -> None:
    assert sorted(shown("fault").keys() - {row.number for row in rows()}) == []


def test_the_pages_of_faults_are_generated_from_the_tests() -> None:
    for name, made in PAGES.items():
        assert (DOCS / name).read_text(encoding="utf-8") == made(), "run python -m tests.support.faults"
