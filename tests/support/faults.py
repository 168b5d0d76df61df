"""The faults that tests inject, and the pages that describe what happens then.

`python -m tests.support.faults` writes docs/reliability.md and docs/internals/fault-tests.md; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from tests.support.marks import shown

TESTS = Path(__file__).parents[1]
ROWS = TESTS / "support" / "faults.txt"
DOCS = TESTS.parent / "docs"

T = TypeVar("T")


def fault(*numbers: int) -> Callable[[T], T]:
    """Mark a test with the faults that it injects."""

    def named(test: T) -> T:
        test.faults = numbers  # type: ignore[attr-defined]  # functions and classes take attributes
        return test

    return named


@dataclass(frozen=True, slots=True)
class Row:
    """One fault: its effect for the user, how it is injected, or why it cannot be."""

    number: int
    group: str
    fault: str
    happens: str
    injected: str
    why_not: str = ""


@cache
def rows() -> tuple[Row, ...]:
    """Return every fault of the table."""
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

Each table names faults and what happens to your tasks. Every fault is injected by tests, which the page
[Faults and their tests](internals/fault-tests.md) names.

Three words have an exact meaning. A task is *lost* if it was accepted and its end is never recorded, or if its exit
code is unknown although it ended by itself. It is *run twice* if two attempts of it live at the same moment, or if it
starts again after it succeeded. Memory is *overcommitted* if the reservations of all living tasks, and what unmanaged
processes use, add up to more than a device has.

All of this holds among schedulers of this kind, of one user or of several. A process that was started without a
scheduler is shown as unmanaged, with its user; room is kept for it, but nothing limits it."""
HEAD_OF_TESTS = """\
# Faults and their tests

How each fault of [What happens when something goes wrong](../reliability.md) is injected, and the tests that do it."""


def page() -> str:
    """Return the page for users: faults, and what happens then."""
    return _tables(HEAD, ("fault", "what happens"), lambda row: (row.fault, row.happens))


def tests_page() -> str:
    """Return the page for developers: how faults are injected, and by which tests."""
    by_number = shown("fault")

    def cells(row: Row) -> tuple[str, ...]:
        named = "<br>".join(f"`{name}`" for name in by_number.get(row.number, []))
        how = "<br>".join(part for part in (row.injected, row.why_not and f"*{row.why_not}*") if part)
        return row.fault, how, named

    return _tables(HEAD_OF_TESTS, ("fault", "how it is injected", "tests"), cells)


def _tables(head: str, header: tuple[str, ...], cells: Callable[[Row], tuple[str, ...]]) -> str:
    """Return a page with one table for each group of faults."""
    parts, group = [head], ""
    for row in rows():
        if row.group != group:
            group = row.group
            parts += ["", f"## {group}", "", f"| | {' | '.join(header)} |", "| --- |" + " --- |" * len(header)]
        parts.append(f"| {row.number} | {' | '.join(cells(row))} |")
    return "\n".join([*parts, ""])


PAGES = {"reliability.md": page, "internals/fault-tests.md": tests_page}
"""The generated pages, below docs/."""


if __name__ == "__main__":
    for name, made in PAGES.items():
        (DOCS / name).write_text(made(), encoding="utf-8")
