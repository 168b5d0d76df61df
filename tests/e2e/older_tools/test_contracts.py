"""Every line of the older tools' contract has a test that names it, and their table is up to date."""

from __future__ import annotations

import pytest

from tests.e2e.older_tools import contracts
from tests.support.marks import shown


@pytest.mark.parametrize("line", contracts.contract_lines())
def test_every_line_of_the_contract_has_a_test(line: str) -> None:
    assert shown("contract").get(line), f"no test has @contract({line!r})"


def test_every_line_that_a_test_names_is_in_the_contract() -> None:
    assert shown("contract").keys() <= contracts.contract_lines().keys()


def test_the_table_is_generated_from_the_tests() -> None:
    assert contracts.TABLE.read_text() == contracts.page(), "run python -m tests.e2e.older_tools.contracts"
