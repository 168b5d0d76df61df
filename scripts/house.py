"""The state of the house: size, layout, cycles, language. `python -m scripts.house` prints it, `--gate` checks it.

The gate is part of `./scripts/check`: it fails on retired words, on docstrings that begin like a riddle, on folders
that are too full and on import cycles. The words and what replaces them stand in docs/glossary.md.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "scheduler"
PROSE = ("scheduler", "tests", "scripts", "docs", "dropins", "gpu_batch_scheduler", "README.md", "CONTRIBUTING.md")
SUFFIXES = {".py", ".md", ".html", ".js", ".css", ".toml", ".txt", ".sh", ""}

MAX_MODULES = 14
MAX_LINES = 400
MAX_COMPLEXITY = 15
LONG_MODULES = {"scheduler/runtime/shim.py"}
"""Modules that may be longer than MAX_LINES: the shim is one file because it runs from a copy, alone."""

RETIRED = (
    r"promis(?:e|es|ed|ing)", r"foreign(?:er|ers)?", r"strangers?", r"ghosts?", r"overt(?:ake|aken|akes|aking|ook)",
    r"hearsay", r"yard", r"outlook", r"lookout", r"nobody", r"somebody", r"anybody", r"everybody", r"whoever",
    r"whosever", r"whom(?:ever)?", r"whomsoever", r"firstrows", r"houserules", r"house rules", r"rules of the house",
    r"machinefile", r"realworld", r"wiring", r"known_by", r"allowance",
)  # fmt: skip
"""Regular expressions of words that are not used any more, each for a whole word of prose or a part of a name."""
RIDDLES = ("The same", "Those", "Of ", "By ", "What ", "Whether ", "Who ")
"""Beginnings of docstrings that have no subject or no verb."""
ALLOWED = {
    "docs/glossary.md", "scripts/house.py", "tests/data",
    "tests/e2e/older_tools",  # what the four older tools print and read stays as it is
}  # fmt: skip
"""Where retired words may stand: where they are explained, and where older tools are quoted."""


@dataclass
class Package:
    """The figures of one package."""

    modules: int = 0
    lines: int = 0
    functions: int = 0
    verbs: int = 0
    retired: int = 0
    classes: Counter[str] = field(default_factory=Counter)


def code_lines(text: str, tree: ast.Module) -> int:
    """Count the lines that hold code: neither blank, nor a comment, nor part of a docstring."""
    docs: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            docs |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(1 for number, line in lines if line.strip()[:1] not in ("", "#") and number not in docs)


def begins_with_verb(docstring: str) -> bool:
    """Tell whether a docstring begins with an imperative: a capitalised base form, not a noun, article or pronoun."""
    word = re.match(r"[A-Za-z]+", docstring.strip())
    if not word:
        return False
    first = word.group().lower()
    return first in _verbs()


@cache
def _verbs() -> frozenset[str]:
    """Return the imperatives that docstrings may begin with, read from scripts/verbs.txt."""
    return frozenset(Path(__file__).with_name("verbs.txt").read_text(encoding="utf-8").split())


def docstrings(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield every function, class and module with its docstring."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield node, text


def attribute_docs(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the strings that stand as statements of their own: the documentation of attributes, and docstrings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value


def retired_pattern() -> re.Pattern[str]:
    """Build one pattern of all retired words: as words, and as parts of snake_case and CamelCase names."""
    return re.compile(rf"(?<![A-Za-z])(?:{'|'.join(RETIRED)})(?![a-z])", re.IGNORECASE)


def prose_files() -> Iterator[Path]:
    """Yield every text file whose words users or developers read."""
    places = [ROOT / place for place in PROSE]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*")))]
    return (file for file in files if file.suffix in SUFFIXES and file.is_file() and not _is_allowed(file))


def _is_allowed(file: Path) -> bool:
    """Tell whether retired words may stand in a file."""
    name = file.relative_to(ROOT).as_posix()
    return "__pycache__" in file.parts or any(name.startswith(one) for one in ALLOWED)


def find_retired() -> Iterator[tuple[str, int, str]]:
    """Yield (file, line number, word) for every retired word; JavaScript's Promise is not one."""
    pattern = retired_pattern()
    for file in prose_files():
        name = file.relative_to(ROOT).as_posix()
        text = file.read_text(encoding="utf-8", errors="replace")
        hits = (
            (number, hit.group()) for number, line in enumerate(text.splitlines(), 1) for hit in pattern.finditer(line)
        )
        yield from ((name, number, word) for number, word in hits if word != "Promise" or file.suffix != ".js")


def find_riddles() -> Iterator[tuple[str, int, str]]:
    """Yield (file, line number, beginning) for docstrings that begin with one of RIDDLES."""
    places = ("scheduler", "tests", "scripts", "gpu_batch_scheduler", "dropins")
    for file in (file for place in places for file in sorted((ROOT / place).rglob("*.py"))):
        documented = attribute_docs(ast.parse(file.read_text(encoding="utf-8")))
        found = ((number, text.strip()) for number, text in documented if text.lstrip().startswith(RIDDLES))
        yield from ((file.relative_to(ROOT).as_posix(), number, text.splitlines()[0][:60]) for number, text in found)


def import_graph() -> dict[str, set[str]]:
    """Return which module imports which, counting type-checking and function-local imports."""
    names = {_module_name(file): file for file in PACKAGE.rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, file in names.items():
        found: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and not node.level and node.module:
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {one if one in names else node.module for one in full}
            elif isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
        graph[name] = (found & names.keys()) - {name}
    return graph


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return the groups of modules that import each other in a circle, each sorted by name."""
    reach = {name: _reachable(graph, name) for name in graph}
    groups = {frozenset({name} | {other for other in reach[name] if name in reach[other]}) for name in graph}
    return sorted(sorted(group) for group in groups if len(group) > 1)


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        for name in graph.get(todo.pop(), ()):
            if name not in found:
                found.add(name)
                todo.append(name)
    return found


def _module_name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def folders() -> dict[str, int]:
    """Return how many modules each folder of the package holds, its `__init__` left out."""
    modules = (file for file in PACKAGE.rglob("*.py") if file.stem != "__init__")
    counted = Counter(file.parent.relative_to(ROOT).as_posix() for file in modules)
    return {name: number for name, number in counted.items() if name != "scheduler/cli"}


def survey() -> tuple[dict[str, Package], dict[str, list[str]], dict[str, int]]:
    """Return the figures of each package, the class names that stand in several modules, and the modules' lengths."""
    packages: dict[str, Package] = defaultdict(Package)
    classes: dict[str, list[str]] = defaultdict(list)
    lengths = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        name = file.relative_to(ROOT).as_posix()
        parts = file.relative_to(PACKAGE).parts
        package = packages[parts[0] if len(parts) > 1 else "(root)"]
        text = file.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lengths[name] = code_lines(text, tree)
        package.modules += 1
        package.lines += lengths[name]
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name)
        for node, doc in docstrings(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node):
                package.functions += 1
                package.verbs += begins_with_verb(doc)
    for name, _, _ in find_retired():
        parts = Path(name).parts
        if parts[0] == "scheduler":
            packages[parts[1] if len(parts) > 2 else "(root)"].retired += 1
    return dict(packages), {name: where for name, where in classes.items() if len(where) > 1}, lengths


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function is read like an attribute, so that its docstring is a noun phrase."""
    names = {ast.unparse(one).split(".")[-1] for one in node.decorator_list}
    return bool(names & {"property", "cached_property"})


def report() -> str:
    """Return the figures as a table for people."""
    packages, doubled, lengths = survey()
    rows = [f"{'package':<12}{'modules':>8}{'code lines':>12}{'verbs':>8}{'retired':>9}"]
    for name, one in sorted(packages.items()):
        rows.append(f"{name:<12}{one.modules:>8}{one.lines:>12,}{_share(one):>8}{one.retired:>9}")
    total = Package(
        sum(one.modules for one in packages.values()), sum(one.lines for one in packages.values()),
        sum(one.functions for one in packages.values()), sum(one.verbs for one in packages.values()),
        sum(one.retired for one in packages.values()),
    )  # fmt: skip
    rows.append(f"{'all':<12}{total.modules:>8}{total.lines:>12,}{_share(total):>8}{total.retired:>9}")
    full = sorted(folders().items(), key=lambda pair: -pair[1])
    long = {name: length for name, length in lengths.items() if length > MAX_LINES and name not in LONG_MODULES}
    everywhere = Counter(word.lower() for _, _, word in find_retired())
    rows += [
        "",
        f"largest folders: {', '.join(f'{name} {number}' for name, number in full[:3])} (at most {MAX_MODULES})",
        f"modules over {MAX_LINES} code lines: {long or 'none'}",
        f"import cycles: {len(cycles(import_graph()))}",
        f"class names in several modules: {len(doubled)} {sorted(doubled)}",
        f"retired words in code, tests and documents: {sum(everywhere.values())} {dict(everywhere.most_common(12))}",
        f"docstrings that begin like a riddle: {sum(1 for _ in find_riddles())}",
    ]
    return "\n".join(rows)


def _share(one: Package) -> str:
    return f"{100 * one.verbs / one.functions:.0f}%" if one.functions else "–"


def gate() -> list[str]:
    """Return a sentence for everything that the gate forbids; an empty list where all is well."""
    found = [f"{name}:{number}: retired word {word!r}, see docs/glossary.md" for name, number, word in find_retired()]
    found += [f"{name}:{number}: a docstring begins like a riddle: {text!r}" for name, number, text in find_riddles()]
    found += [f"import cycle: {' -> '.join(one)}" for one in cycles(import_graph())]
    full = {name: number for name, number in folders().items() if number > MAX_MODULES}
    found += [f"{name} holds {number} modules, more than {MAX_MODULES}" for name, number in full.items()]
    _, _, lengths = survey()
    found += [
        f"{name} has {length} code lines, more than {MAX_LINES}"
        for name, length in lengths.items()
        if length > MAX_LINES and name not in LONG_MODULES
    ]
    return found


def main(argv: Sequence[str]) -> int:
    """Print the figures, or with --gate what is forbidden; return 1 where the gate found something."""
    parser = argparse.ArgumentParser(prog="python -m scripts.house", description=__doc__)
    parser.add_argument("--gate", action="store_true", help="print what ./scripts/check does not accept, and fail")
    args = parser.parse_args(argv)
    if not args.gate:
        print(report())
        return 0
    found = gate()
    print("\n".join(found[:60] + ([f"… and {len(found) - 60} more"] if len(found) > 60 else [])))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
