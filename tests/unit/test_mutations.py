"""Every mutation of tests/mutations can be applied, and every line of the contract has one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

import pytest

from scheduler.cli.main import VERBS
from scheduler.core.events import Event
from scheduler.core.tasks.fields import FIELDS
from scheduler.ui.export import prometheus
from scripts import mutations
from tests.docs import reference
from tests.e2e.older_tools.contracts import contract_lines
from tests.support.marks import shown

FOUND = mutations.read()


def rows(theme: str) -> dict[str, list[mutations.Mutation]]:
    """Return the mutations of a theme by their row, without the theme's name."""
    found: dict[str, list[mutations.Mutation]] = {}
    for mutation in FOUND:
        name, _, row = mutation.row.partition("/")
        if name == theme:
            found.setdefault(row, []).append(mutation)
    return found


def without_a_listed_test(theme: str, listed: dict[str, list[str]]) -> Iterable[str]:
    """Yield the mutations of a theme that name none of the tests that are listed for their row."""
    for row, mine in rows(theme).items():
        for mutation in mine:
            if not set(mutation.tests) & set(listed.get(row, [])):
                yield mutation.name


@pytest.mark.parametrize("mutation", FOUND, ids=lambda mutation: mutation.name)
def test_a_mutation_changes_code_that_is_there_and_names_tests_that_are_there(mutation: mutations.Mutation) -> None:
    assert mutations.problems(mutation) == []


def known_of_the_reference() -> set[str]:
    """Return all that the pages of the reference list, as the rows of its mutations are called."""
    known = {f"{page}/{verb}" for page in ("cli", "json") for verb in VERBS}
    known |= {f"settings/{name}" for name in reference.SETTINGS} | {f"states/{name}" for name in reference.STATES}
    known |= {f"results/{name}" for name in reference.RESULTS} | {f"task-fields/{field.column}" for field in FIELDS}
    known |= {f"environment/{name}" for name, _ in reference.TASKS_ARE_TOLD}
    known |= {f"metrics/{family.name}" for family in prometheus.FAMILIES}
    return known | {f"events/{event.kind}" for event in get_args(Event)}


def test_every_line_of_the_contract_has_a_mutation_that_a_test_of_the_line_notices() -> None:
    assert sorted(rows("contract").keys() ^ contract_lines().keys()) == []
    assert list(without_a_listed_test("contract", shown("contract"))) == []


def test_every_fault_has_a_mutation_that_a_test_of_the_fault_notices() -> None:
    listed = {str(number): tests for number, tests in shown("fault").items()}
    assert sorted(rows("reliability").keys() ^ listed.keys()) == []
    assert list(without_a_listed_test("reliability", listed)) == []


def test_everything_that_the_reference_lists_has_a_mutation() -> None:
    assert sorted(rows("reference").keys() ^ known_of_the_reference()) == []
