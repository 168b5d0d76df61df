"""The contract of the older tools, line by line, with the tests that show each line.

`python -m tests.e2e.older_tools.contracts` writes CONTRACT.md; a test compares, and fails where a line has no test.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from tests.support.marks import shown

HERE = Path(__file__).parent
LINES = HERE / "contract_lines.txt"
TABLE = HERE / "CONTRACT.md"

T = TypeVar("T")


def contract(*lines: str) -> Callable[[T], T]:
    """Name the lines of the contract that a test (a function or a class) shows."""

    def named(test: T) -> T:
        test.contract = lines  # type: ignore[attr-defined]  # functions and classes take attributes
        return test

    return named


def contract_lines() -> dict[str, tuple[str, str]]:
    """Return every line by its number: keep (K), better (F) or decided (D), and its text."""
    found = {}
    for text in LINES.read_text(encoding="utf-8").splitlines():
        if text.strip() and not text.startswith("#"):
            number, verdict, said = text.split(None, 2)
            found[number] = (verdict, said)
    return found


def page() -> str:
    """Return the table of all lines."""
    by_line = shown("contract")
    rows = [
        f"| {number} | {verdict} | {said} | {'<br>'.join(by_line.get(number, ['none']))} |"
        for number, (verdict, said) in contract_lines().items()
    ]
    head = [
        "# The contract of the older tools, and the tests that show it",
        "",
        "Generated from the tests. K: kept as it was.",
    ]
    head += ["F: the same input, something better. D: decided otherwise.", "", "| line | | what | test |"]
    return "\n".join([*head, "| --- | --- | --- | --- |", *rows, ""])


if __name__ == "__main__":
    TABLE.write_text(page(), encoding="utf-8")
