"""Decorators that name what a test shows, read from the sources: nothing is imported for it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]


@cache
def shown(mark: str) -> dict[Any, list[str]]:
    """Return the tests by the arguments of the decorator of that name."""
    found: dict[Any, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        for name, said in _marks(ast.parse(path.read_text(encoding="utf-8")), mark):
            found.setdefault(said, []).append(f"{path.relative_to(TESTS)}::{name}")
    return found


def _marks(node: ast.AST, mark: str, inside: str = "") -> Iterator[tuple[str, Any]]:
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.ClassDef | ast.FunctionDef):
            continue
        name = f"{inside}{child.name}"
        for found in child.decorator_list:
            if isinstance(found, ast.Call) and isinstance(found.func, ast.Name) and found.func.id == mark:
                yield from ((name, ast.literal_eval(said)) for said in found.args)
        yield from _marks(child, mark, f"{name}::")
