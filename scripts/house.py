"""The state of the house: size, layout, cycles, language. `python -m scripts.house` prints it, `--gate` checks it.

The gate is part of `./scripts/check`: it fails on retired words, on docstrings that begin like a riddle, on tests
without a subject in their name, on class names that stand in several modules, on folders that are too full, on modules
that are too long and on import cycles. The words and what replaces them stand in docs/glossary.md.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROSE = (
    "scheduler", "tests", "scripts", "docs", "dropins", "plugins", "gpu_batch_scheduler", "README.md",
    "CONTRIBUTING.md",
)  # fmt: skip
SUFFIXES = {".py", ".md", ".html", ".js", ".css", ".toml", ".txt", ".sh", ""}

MAX_MODULES = 14
MAX_LINES = 400
LONG_MODULES = {"scheduler/runtime/shim.py"}
"""Modules that may be longer than MAX_LINES: the shim is one file because it runs from a copy, alone."""

RETIRED = (
    r"promis(?:e|es|ed|ing)", r"foreign(?:er|ers)?", r"strangers?", r"ghosts?", r"overt(?:ake|aken|akes|aking|ook)",
    r"hearsay", r"yard", r"outlook", r"lookout", r"nobody", r"somebody", r"anybody", r"everybody", r"whoever",
    r"whosever", r"whom(?:ever)?", r"whomsoever", r"firstrows", r"houserules", r"house rules", r"rules of the house",
    r"machinefile", r"realworld", r"wiring", r"known_by", r"allowance", r"ledgers?", r"desks?", r"closures?",
    r"stakes?", r"richer", r"stor(?:y|ies)", r"telling", r"surroundings", r"oneself", r"holds? still",
    r"stands? behind", r"spoken",
)  # fmt: skip
"""Regular expressions of words that are not used any more, each for a whole word of prose or a part of a name."""
RIDDLES = ("The same", "Those", "Of ", "By ", "What ", "Whether ", "Who ")
"""Beginnings of docstrings that have no subject or no verb."""
VAGUE = re.compile(r"test_(?:(?:of|is|it|its|that|but|and|nor|who|whose|what|these|those|they)_|(?:[^_]+_?){1,2}$)")
"""Names of tests that don't name their subject, or have fewer than three words."""
ALLOWED = {
    "docs/glossary.md", "scripts/house.py", "tests/unit/test_house.py", "tests/data",
    "docs/performance.md",  # measured: it names functions as they were called then
    "tests/e2e/older_tools",  # what the four older tools print and read stays as it is
}  # fmt: skip
"""Beginnings of paths where retired words may stand, because they are explained, quoted or measured there."""


@dataclass
class Package:
    """The figures of one package."""

    modules: int = 0
    lines: int = 0
    functions: int = 0
    verbs: int = 0
    retired: int = 0
    classes: Counter[str] = field(default_factory=Counter)


def code_lines(text: str, nodes: Sequence[ast.AST]) -> int:
    """Count the lines that hold code: neither blank, nor a comment, nor part of a docstring."""
    docs: set[int] = set()
    for first, last, _ in attribute_docs(nodes):
        docs |= set(range(first, last + 1))
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


def docstrings(nodes: Iterable[ast.AST]) -> Iterator[tuple[ast.AST, str]]:
    """Yield every function, class and module with its docstring."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    for node in nodes:
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield node, text


def attribute_docs(nodes: Iterable[ast.AST]) -> Iterator[tuple[int, int, str]]:
    """Yield (first line, last line, text) of strings that are statements: docstrings and documented attributes."""
    for node in nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.end_lineno or node.lineno, node.value.value


@cache
def retired_pattern() -> re.Pattern[str]:
    """Build one pattern of all retired words: as words, and as parts of snake_case and CamelCase names."""
    return re.compile(rf"(?:(?<![A-Za-z])|(?<=[a-z])(?=[A-Z]))(?i:{'|'.join(RETIRED)})(?![a-z])")


@cache
def _stems() -> tuple[str, ...]:
    """Return the literal beginning of each retired word: a text without any of them is not searched."""
    return tuple({re.match(r"[a-z _]*(?!\?)", word).group() for word in RETIRED})  # type: ignore[union-attr]  # matches


def prose_files(root: Path) -> Iterator[Path]:
    """Yield every text file whose words users or developers read."""
    places = [root / place for place in PROSE]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("*")))]
    return (file for file in files if file.suffix in SUFFIXES and file.is_file() and not _is_allowed(file, root))


def _is_allowed(file: Path, root: Path) -> bool:
    """Tell whether retired words may stand in a file."""
    name = file.relative_to(root).as_posix()
    return "__pycache__" in file.parts or name.startswith(tuple(ALLOWED))


def find_retired(root: Path = ROOT) -> Iterator[tuple[str, int, str]]:
    """Yield (file, line number, word) for every retired word; JavaScript's Promise is not one."""
    for file in prose_files(root):
        text = file.read_text(encoding="utf-8", errors="replace")
        lowered = text.lower()
        for hit in retired_pattern().finditer(text) if any(stem in lowered for stem in _stems()) else ():
            if hit.group() != "Promise" or file.suffix != ".js":
                yield file.relative_to(root).as_posix(), text.count("\n", 0, hit.start()) + 1, hit.group()


def find_riddles(root: Path = ROOT) -> Iterator[tuple[str, int, str]]:
    """Yield (file, line number, beginning) for docstrings that begin with one of RIDDLES."""
    places = ("scheduler", "tests", "scripts", "gpu_batch_scheduler", "dropins", "plugins")
    quoted = tuple(f'"""{beginning}' for beginning in RIDDLES)
    for file in (file for place in places for file in sorted((root / place).rglob("*.py"))):
        text = file.read_text(encoding="utf-8")
        if not any(beginning in text for beginning in quoted):
            continue
        found = ((number, text.strip()) for number, _, text in attribute_docs(_nodes(file)))
        riddles = ((number, text) for number, text in found if text.startswith(RIDDLES))
        yield from ((file.relative_to(root).as_posix(), number, text.splitlines()[0][:60]) for number, text in riddles)


def find_vague_tests(root: Path = ROOT) -> Iterator[tuple[str, int, str]]:
    """Yield (file, line number, name) for tests whose names mean nothing alone in a log."""
    for file in sorted(path for place in ("tests", "plugins/tests") for path in (root / place).rglob("test_*.py")):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            name = re.match(r"\s*(?:async )?def (test_\w+)", line)
            if name and VAGUE.match(name[1]):
                yield file.relative_to(root).as_posix(), number, name[1]


@cache
def _nodes(file: Path) -> tuple[ast.AST, ...]:
    """Return all nodes of a module's syntax tree."""
    return tuple(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))


def import_graph(root: Path = ROOT) -> dict[str, set[str]]:
    """Return which module imports which, counting type-checking and function-local imports."""
    names = {_module_name(file, root): file for file in (root / "scheduler").rglob("*.py")}
    graph: dict[str, set[str]] = {}
    for name, file in names.items():
        found: set[str] = set()
        for node in _nodes(file):
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


def _module_name(file: Path, root: Path) -> str:
    return ".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


def folders(root: Path = ROOT) -> dict[str, int]:
    """Return how many modules each folder of the package holds, its `__init__` left out."""
    modules = (file for file in (root / "scheduler").rglob("*.py") if file.stem != "__init__")
    counted = Counter(file.parent.relative_to(root).as_posix() for file in modules)
    return {name: number for name, number in counted.items() if name != "scheduler/cli"}


def survey(root: Path = ROOT) -> tuple[dict[str, Package], dict[str, list[str]], dict[str, int]]:
    """Return the figures of each package, the class names that stand in several modules, and the modules' lengths."""
    packages: dict[str, Package] = defaultdict(Package)
    classes: dict[str, list[str]] = defaultdict(list)
    lengths = {}
    for file in sorted((root / "scheduler").rglob("*.py")):
        name = file.relative_to(root).as_posix()
        parts = file.relative_to(root / "scheduler").parts
        package = packages[parts[0] if len(parts) > 1 else "(root)"]
        nodes = _nodes(file)
        lengths[name] = code_lines(file.read_text(encoding="utf-8"), nodes)
        package.modules += 1
        package.lines += lengths[name]
        for node in nodes:
            if isinstance(node, ast.ClassDef):
                classes[node.name].append(name)
        for node, doc in docstrings(nodes):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_property(node):
                package.functions += 1
                package.verbs += begins_with_verb(doc)
    return dict(packages), {name: where for name, where in classes.items() if len(where) > 1}, lengths


def _is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Tell whether a function is read like an attribute, so that its docstring is a noun phrase."""
    names = {ast.unparse(one).split(".")[-1] for one in node.decorator_list}
    return bool(names & {"property", "cached_property"})


def report() -> str:
    """Return the figures as a table for people."""
    packages, doubled, lengths = survey()
    retired = list(find_retired())
    for name in (name for name, _, _ in retired if name.startswith("scheduler/")):
        parts = Path(name).parts
        packages[parts[1] if len(parts) > 2 else "(root)"].retired += 1
    rows = [f"{'package':<12}{'modules':>8}{'code lines':>12}{'verbs':>8}{'retired':>9}"]
    rows += [_row(name, one) for name, one in sorted(packages.items())]
    rows.append(_row("all", _sum(packages.values())))
    full = sorted(folders().items(), key=lambda pair: -pair[1])
    words = Counter(word.lower() for _, _, word in retired)
    rows += [
        "",
        f"largest folders: {', '.join(f'{name} {number}' for name, number in full[:3])} (at most {MAX_MODULES})",
        f"modules over {MAX_LINES} code lines: {_too_long(lengths) or 'none'}",
        f"import cycles: {len(cycles(import_graph()))}",
        f"class names in several modules: {len(doubled)} {sorted(doubled)}",
        f"retired words in code, tests and documents: {sum(words.values())} {dict(words.most_common(12))}",
        f"docstrings that begin like a riddle: {sum(1 for _ in find_riddles())}",
        f"names of tests without a subject: {sum(1 for _ in find_vague_tests())}",
    ]
    return "\n".join(rows)


def _row(name: str, one: Package) -> str:
    return f"{name:<12}{one.modules:>8}{one.lines:>12,}{_share(one):>8}{one.retired:>9}"


def _sum(packages: Iterable[Package]) -> Package:
    total = Package()
    for one in packages:
        total.modules += one.modules
        total.lines += one.lines
        total.functions += one.functions
        total.verbs += one.verbs
        total.retired += one.retired
    return total


def _too_long(lengths: Mapping[str, int]) -> dict[str, int]:
    """Return the modules with more than MAX_LINES code lines, and how many they have."""
    return {name: length for name, length in lengths.items() if length > MAX_LINES and name not in LONG_MODULES}


def _share(one: Package) -> str:
    return f"{100 * one.verbs / one.functions:.0f}%" if one.functions else "–"


def gate(root: Path = ROOT) -> list[str]:
    """Return a sentence for everything that the gate forbids; an empty list where all is well."""
    _, doubled, lengths = survey(root)
    full = {name: number for name, number in folders(root).items() if number > MAX_MODULES}
    return [
        *(f"{name}:{line}: retired word {word!r}, see docs/glossary.md" for name, line, word in find_retired(root)),
        *(f"{name}:{line}: a docstring begins like a riddle: {text!r}" for name, line, text in find_riddles(root)),
        *(f"{name}:{line}: {test} does not name its subject" for name, line, test in find_vague_tests(root)),
        *(f"import cycle: {' -> '.join(one)}" for one in cycles(import_graph(root))),
        *(f"the class name {name} stands in {' and '.join(where)}" for name, where in doubled.items()),
        *(f"{name} holds {number} modules, more than {MAX_MODULES}" for name, number in full.items()),
        *(f"{name} has {length} code lines, more than {MAX_LINES}" for name, length in _too_long(lengths).items()),
    ]


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
