"""Which test shows which line of what the older tools reservation, and the table that says so.

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
    """Names the lines of the contract that a test (a function or a class) shows."""

    def named(test: T) -> T:
        test.contract = lines  # type: ignore[attr-defined]  # functions and classes take attributes
        return test

    return named


def reserved() -> dict[str, tuple[str, str]]:
    """Every line by its number: keep (K), better (F) or decided (D), and what it says."""
    found = {}
    for text in LINES.read_text(encoding="utf-8").splitlines():
        if text.strip() and not text.startswith("#"):
            number, verdict, said = text.split(None, 2)
            found[number] = (verdict, said)
    return found


def page() -> str:
    """The whole table."""
    by_line = shown("contract")
    rows = [
        f"| {number} | {verdict} | {said} | {'<br>'.join(by_line.get(number, ['none']))} |"
        for number, (verdict, said) in reserved().items()
    ]
    head = [
        "# What the older tools reservation, and the test that shows it",
        "",
        "Made from the tests. K: kept as it was.",
    ]
    head += ["F: the same input, something better. D: decided otherwise.", "", "| line | | what | test |"]
    return "\n".join([*head, "| --- | --- | --- | --- |", *rows, ""])


if __name__ == "__main__":
    TABLE.write_text(page(), encoding="utf-8")
