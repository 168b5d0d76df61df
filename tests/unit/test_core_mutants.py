"""Mutants of the core: what is changed, what is left as it is, and by which tests a mutant is judged."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from scripts import core_mutants
from scripts.core_mutants import CORE, Mutant

SOURCE = '''"""A module."""
LIMIT = 3


class Box:
    """A box."""

    def __init__(self) -> None:
        self.full = False
        """Whether it is full."""

    def fits(self, size: int) -> bool:
        """Tell whether something fits."""
        return size < LIMIT and not self.full
'''


@pytest.fixture
def mutants(tmp_path: Path) -> list[Mutant]:
    folder = tmp_path / CORE / "queue"
    folder.mkdir(parents=True)
    (folder / "box.py").write_text(SOURCE)
    return core_mutants.every(tmp_path)


def test_operators_constants_and_assignments_of_functions_are_changed_one_by_one(mutants: list[Mutant]) -> None:
    assert [(one.old, one.new) for one in mutants] == [
        ("self.full = False", "self.full = None"),
        ("False", "True"),
        ("size < LIMIT and not self.full", "(size < LIMIT or not self.full)"),
        ("size < LIMIT", "(size <= LIMIT)"),
        ("not self.full", "(self.full)"),
    ]


def test_a_mutant_changes_its_place_alone_and_is_python(mutants: list[Mutant]) -> None:
    for one in mutants:
        text = one.applied(SOURCE)
        ast.parse(text)
        changed = [new for old, new in zip(SOURCE.splitlines(), text.splitlines(), strict=True) if old != new]
        assert len(changed) == 1


def test_a_mutant_is_judged_by_the_fastest_tests_that_enter_its_function(mutants: list[Mutant]) -> None:
    fits = mutants[-1]
    entered = {
        ("queue/box.py", fits.function): [(9.0, "slow"), (1.0, "b"), (0.5, "a")],
        ("queue/box.py", 1): [(0.1, "x")],
    }
    assert core_mutants.tests_of(fits, entered, 5.0) == ["a", "b"]
    assert core_mutants.tests_of(fits, entered, 0.1) == ["a"]
    assert core_mutants.tests_of(mutants[0], entered, 5.0) == []
