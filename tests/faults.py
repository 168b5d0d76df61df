"""Which test injects which fault, and the page for users that says what happens then.

`python -m tests.faults` writes docs/reliability.md; a test compares, and fails where one has neither test nor reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from tests.marks import shown

TESTS = Path(__file__).parent
ROWS = TESTS / "faults.txt"
PAGE = TESTS.parent / "docs" / "reliability.md"

T = TypeVar("T")


def fault(*numbers: int) -> Callable[[T], T]:
    """Names the faults that a test injects."""

    def named(test: T) -> T:
        test.faults = numbers  # type: ignore[attr-defined]  # functions and classes take attributes
        return test

    return named


@dataclass(frozen=True, slots=True)
class Row:
    """One fault: what happens to the user, how it is injected, and why it is not if it cannot be."""

    number: int
    group: str
    fault: str
    happens: str
    injected: str
    why_not: str = ""


@cache
def rows() -> tuple[Row, ...]:
    """Every fault that there is on one machine."""
    found, group = [], ""
    for line in ROWS.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            group = line.removeprefix("## ")
        elif line and not line.startswith("#"):
            number, *said = (part.strip() for part in line.split("|"))
            found.append(Row(int(number), group, *said))
    return tuple(found)


HEAD = """\
# What happens when something goes wrong

Made from the tests by `python -m tests.faults`: each fault, what happens to your tasks, and how that was tested.

Three words are meant exactly. A task is *lost* if it was accepted and never comes to an end that is recorded, or if its
exit code is not known although it ended by itself. It is *run twice* if two attempts of it live at the same moment, or
if it is started again after it succeeded. Memory is *overcommitted* if the promises of all living tasks, and what
strangers use, add up to more than a device has.

What is promised here is kept among schedulers of this kind, of one user or of several. A process that was started by
hand asks nobody: it is shown as foreign, with its user, and is only worked around."""


def page() -> str:
    """The whole page."""
    by_number, parts, group = shown("fault"), [HEAD], ""
    for row in rows():
        if row.group != group:
            group = row.group
            parts += [
                "",
                f"## {group}",
                "",
                "| | fault | what happens | how it was tested |",
                "| --- | --- | --- | --- |",
            ]
        tests = "<br>".join(f"`{name}`" for name in by_number.get(row.number, []))
        how = "<br>".join(part for part in (row.injected, row.why_not and f"*{row.why_not}*", tests) if part)
        parts.append(f"| {row.number} | {row.fault} | {row.happens} | {how} |")
    return "\n".join([*parts, ""])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
