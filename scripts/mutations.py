"""The mutations of tests/mutations: small changes that break the product, each with the tests that have to notice it.

A file there is a theme, a table in it is a row of that theme (a line of the contract, a fault, a setting, …):

    [[S3-25]]
    breaks = "a task is not told which GPUs are its own"
    file = "scheduler/devices/task_env.py"
    old = '''a text that stands exactly once in the file'''
    new = '''what it is replaced by'''
    tests = ["e2e/cli/test_cli.py::TestTaskEnvironment::test_a_task_gets_the_documented_variables"]

Texts, not line numbers: a mutation goes along when code moves within its file, and a test names those that no longer
apply. `./scripts/mutate` applies them.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = Path("tests/mutations")
FIELDS = {"breaks", "file", "old", "new", "tests"}


class Unusable(Exception):
    """A mutation that cannot be read or applied; the message names it and says why."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """One change of the product, what it breaks, and the tests of which one has to fail.

    Tests are named by their path below tests/, as in the tables of the contract and of the faults.
    """

    name: str
    breaks: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def row(self) -> str:
        """The row that it belongs to, `theme/row`: its name without the number of a second mutation."""
        return self.name.partition("#")[0]

    def applied(self, text: str) -> str:
        """Return a file's text with the change; raise Unusable if the old text isn't there exactly once."""
        found = text.count(self.old)
        if found != 1:
            raise Unusable(
                f"{self.name}: its old text stands {found} times in {self.file}, and has to stand there once"
            )
        return text.replace(self.old, self.new)

    def line(self, text: str) -> int:
        """Return the number of the line at which the old text begins."""
        return text[: text.index(self.old)].count("\n") + 1


def read(root: Path = ROOT) -> list[Mutation]:
    """Return all mutations, in the order of the files; raise Unusable for a table that isn't one."""
    found = []
    for path in sorted((root / FOLDER).glob("*.toml")):
        try:
            tables = tomllib.loads(path.read_text(encoding="utf-8"))
        except tomllib.TOMLDecodeError as exc:
            raise Unusable(f"{FOLDER / path.name}: {exc}") from exc
        for row, said in _rows(tables, path.stem):
            found += [_mutation(row if not n else f"{row}#{n + 1}", table) for n, table in enumerate(said)]
    return found


def _rows(tables: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    for key, value in tables.items():
        if isinstance(value, dict):
            yield from _rows(value, f"{prefix}/{key}")
        elif isinstance(value, list):
            yield f"{prefix}/{key}", value
        else:
            raise Unusable(f"{prefix}: {key!r} stands outside of a [[row]]")


def _mutation(name: str, table: dict[str, Any]) -> Mutation:
    if table.keys() != FIELDS:
        raise Unusable(f"{name}: has {', '.join(sorted(table))}, and has to have {', '.join(sorted(FIELDS))}")
    return Mutation(name, **{**table, "tests": tuple(table["tests"])})


def problems(mutation: Mutation, root: Path = ROOT) -> list[str]:
    """Return why a mutation says nothing: what it changes or the tests that it names aren't there."""
    found = [f"{mutation.name}: there is no test {name}" for name in mutation.tests if not has_test(root, name)]
    if not mutation.tests:
        found.append(f"{mutation.name}: names no test")
    try:
        text = (root / mutation.file).read_text(encoding="utf-8")
        if (changed := mutation.applied(text)) == text:
            found.append(f"{mutation.name}: changes nothing")
        elif mutation.file.endswith(".py"):
            compile(changed, mutation.file, "exec")
    except (OSError, Unusable) as exc:
        found.append(f"{exc}{_hint(mutation, root)}")
    except SyntaxError as exc:
        found.append(f"{mutation.name}: line {exc.lineno} of {mutation.file} is no Python once it is applied")
    return found


def _hint(mutation: Mutation, root: Path) -> str:
    """Return where the old text stands now, if code was moved as it is."""
    texts = {path: path.read_text(encoding="utf-8") for path in (root / "scheduler").rglob("*.py")}
    now = [path for path, text in texts.items() if text.count(mutation.old) == 1]
    return f"; it stands once in {now[0].relative_to(root)} now" if len(now) == 1 else ""


def has_test(root: Path, name: str) -> bool:
    """Tell whether a test function, or a class of tests, of that name is there."""
    path, _, inside = name.partition("::")
    return inside.partition("[")[0] in _tests(root / "tests" / path)


@cache
def _tests(path: Path) -> frozenset[str]:
    if not path.is_file():
        return frozenset()
    return frozenset(_names(ast.parse(path.read_text(encoding="utf-8"))))


def _names(node: ast.AST, inside: str = "") -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef | ast.FunctionDef) and child.name.startswith(("test", "Test")):
            yield f"{inside}{child.name}"
            yield from _names(child, f"{inside}{child.name}::")
