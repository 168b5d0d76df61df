"""The mutants of `./scripts/mutate --core N`: small changes of scheduler/core that are made, not written.

Each changes one expression or statement of a function: an operator, a constant, a branch, an argument, an assignment.
Docstrings, also those of attributes, are no code and stay. The tests of a mutant are those that enter its function.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CORE = Path("scheduler/core")
AREAS = ("placement", "placement/policies", "profiling", "profiling/family", "attempts", "queue", ".")
ONLY = {".": ("lifecycle.py",)}
"""The modules of an area, where not all of them count."""
_COMPARES: Mapping[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_COMPUTES: Mapping[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div, ast.Mod: ast.Div,
    ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Pow: ast.Mult, ast.LShift: ast.RShift, ast.RShift: ast.LShift,
}  # fmt: skip
_UNTOUCHED = ("annotation", "returns", "decorator_list", "type_comment", "format_spec")


@dataclass(frozen=True, slots=True)
class Mutant:
    """A change of a function, as the bytes that it replaces in a file."""

    file: str
    function: int
    """The line at which the definition of its function begins."""
    start: int
    end: int
    old: str
    new: str
    at: int
    tests: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return the place and the change, as a report names it."""
        old, new = (" ".join(text.split())[:60] for text in (self.old, self.new))
        return f"{self.file}:{self.at} {old} -> {new}"

    def applied(self, text: str) -> str:
        """Return the file's text with the change."""
        data = text.encode()
        return (data[: self.start] + self.new.encode() + data[self.end :]).decode()


def every(root: Path) -> list[Mutant]:
    """Return all mutants of the core, in the order of the files."""
    found = []
    for area in AREAS:
        for path in sorted((root / CORE / area).glob("*.py")):
            if path.name in ONLY.get(area, (path.name,)):
                found += list(_of_file(path, str(path.relative_to(root))))
    return found


def _of_file(path: Path, name: str) -> Iterator[Mutant]:
    text = path.read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line.encode()))
    for function in _functions(ast.parse(text)):
        first = min([function.lineno, *(one.lineno for one in function.decorator_list)])
        for old, new in _changes(function):
            start = starts[old.lineno - 1] + old.col_offset
            end = starts[(old.end_lineno or 0) - 1] + (old.end_col_offset or 0)
            plain = isinstance(new, ast.Constant | ast.Call | ast.stmt)
            said = ast.unparse(ast.fix_missing_locations(new))
            was = text.encode()[start:end].decode()
            made = Mutant(name, first, start, end, was, said if plain else f"({said})", old.lineno)
            if _is_python(made.applied(text)):
                yield made


def _is_python(text: str) -> bool:
    try:
        compile(text, "mutant", "exec")
    except SyntaxError:
        return False
    return True


def _functions(tree: ast.AST) -> Iterator[ast.FunctionDef]:
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef):
            yield child
        elif isinstance(child, ast.ClassDef | ast.If):
            yield from _functions(child)


def _changes(function: ast.FunctionDef) -> Iterator[tuple[Any, ast.AST]]:
    for node in _inside(function):
        for new in _variants(node):
            if isinstance(node, ast.If | ast.While):
                yield node.test, new
            elif hasattr(node, "lineno"):
                yield node, new


def _inside(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes below a node that may be changed."""
    for name, value in ast.iter_fields(node):
        if name in _UNTOUCHED:
            continue
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or _is_text(node, child):
                continue
            yield child
            yield from _inside(child)


def _is_text(node: ast.AST, child: ast.AST) -> bool:
    """Tell whether a node is a docstring, or the plain part of an f-string."""
    docstring = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
    return docstring or (isinstance(node, ast.JoinedStr) and isinstance(child, ast.Constant))


def _variants(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Compare():
            for place, operator in enumerate(node.ops):
                yield _with(node, ops=[*node.ops[:place], _COMPARES[type(operator)](), *node.ops[place + 1 :]])
        case ast.BoolOp():
            yield _with(node, op=ast.And() if isinstance(node.op, ast.Or) else ast.Or())
        case ast.BinOp() if type(node.op) in _COMPUTES:
            yield _with(node, op=_COMPUTES[type(node.op)]())
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield copy.deepcopy(node.operand)
        case ast.IfExp():
            yield _with(node, test=_opposite(node.test))
        case ast.If() | ast.While():
            yield _opposite(node.test)
        case ast.Constant():
            yield from _constants(node.value)
        case ast.Call():
            yield from _calls(node)
        case _:
            yield from _statements(node)


def _with(node: Any, **fields: Any) -> Any:
    made = copy.deepcopy(node)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def _opposite(test: ast.expr) -> ast.expr:
    return ast.UnaryOp(ast.Not(), copy.deepcopy(test))


def _constants(value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1)
    elif isinstance(value, str):
        yield ast.Constant(f"XX{value}XX")


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    for place, argument in enumerate(node.args):
        if not isinstance(argument, ast.Starred) and not _is_none(argument):
            yield _with(node, args=[*node.args[:place], ast.Constant(None), *node.args[place + 1 :]])
    for place, keyword in enumerate(node.keywords):
        if keyword.arg:
            yield _with(node, keywords=[*node.keywords[:place], *node.keywords[place + 1 :]])


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    match node:
        case ast.Assign() | ast.AnnAssign() if node.value is not None and not _is_none(node.value):
            yield _with(node, value=ast.Constant(None))
        case ast.AugAssign():
            if type(node.op) in _COMPUTES:
                yield _with(node, op=_COMPUTES[type(node.op)]())
            yield ast.Assign([copy.deepcopy(node.target)], copy.deepcopy(node.value), lineno=1)
        case ast.Continue():
            yield ast.Break()
        case ast.Break():
            yield ast.Return(None)


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def tests_of(mutant: Mutant, entered: Mapping[tuple[str, int], Sequence[tuple[float, str]]], most: float) -> list[str]:
    """Return the tests that enter a mutant's function, the fastest first, of `most` seconds in all but at least one."""
    chosen, seconds = list[str](), 0.0
    key = (str(Path(mutant.file).relative_to(CORE)), mutant.function)
    for took, name in sorted(entered.get(key, ())):
        if chosen and seconds + took > most:
            break
        chosen.append(name)
        seconds += took
    return chosen
