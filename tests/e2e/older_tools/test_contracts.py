"""Every line of what the older tools reservation has a test that names it, and the table of them is true."""

from __future__ import annotations

import pytest

from tests.e2e.older_tools import contracts
from tests.support.marks import shown


@pytest.mark.parametrize("line", contracts.reserved())
def test_every_line_is_shown_by_a_test(line: str) -> None:
    assert shown("contract").get(line), f"no test has @contract({line!r})"


def test_every_line_that_a_test_names_is_reserved() -> None:
    assert shown("contract").keys() <= contracts.reserved().keys()


def test_the_table_is_what_the_tests_say() -> None:
    assert contracts.TABLE.read_text() == contracts.page(), "run python -m tests.e2e.older_tools.contracts"
