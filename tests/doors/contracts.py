"""Which test shows which line of what the older tools promise, and the table that says so.

`python -m tests.doors.contracts` writes CONTRACT.md; a test compares, and fails where a line has no test.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

HERE = Path(__file__).parent
TESTS = HERE.parent
LINES = HERE / "contract_lines.txt"
TABLE = HERE / "CONTRACT.md"

T = TypeVar("T")


def contract(*lines: str) -> Callable[[T], T]:
    """Names the lines of the contract that a test (a function or a class) shows."""

    def named(test: T) -> T:
        test.contract = lines  # type: ignore[attr-defined]  # functions and classes take attributes
        return test

    return named


def promised() -> dict[str, tuple[str, str]]:
    """Every line by its number: keep (K), better (F) or decided (D), and what it says."""
    found = {}
    for text in LINES.read_text(encoding="utf-8").splitlines():
        if text.strip() and not text.startswith("#"):
            number, verdict, said = text.split(None, 2)
            found[number] = (verdict, said)
    return found


def shown() -> dict[str, list[str]]:
    """The tests by line, as their sources say; nothing is imported for it."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, line in _marks(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(line, []).append(f"{path.relative_to(TESTS)}::{name}")
    return found


def _marks(node: ast.AST, inside: str = "") -> Iterator[tuple[str, str]]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef):
            continue
        name = f"{inside}{child.name}"
        for mark in child.decorator_list:
            if isinstance(mark, ast.Call) and isinstance(mark.func, ast.Name) and mark.func.id == "contract":
                yield from ((name, ast.literal_eval(said)) for said in mark.args)
        yield from _marks(child, f"{name}::")


def page() -> str:
    """The whole table."""
    by_line = shown()
    rows = [
        f"| {number} | {verdict} | {said} | {'<br>'.join(by_line.get(number, ['none']))} |"
        for number, (verdict, said) in promised().items()
    ]
    head = ["# What the older tools promise, and the test that shows it", "", "Made from the tests. K: kept as it was."]
    head += ["F: the same input, something better. D: decided otherwise.", "", "| line | | what | test |"]
    return "\n".join([*head, "| --- | --- | --- | --- |", *rows, ""])


if __name__ == "__main__":
    TABLE.write_text(page(), encoding="utf-8")
