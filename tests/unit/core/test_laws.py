"""The laws that can be read off the source: who may import what, who may start what, how modules look."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import scheduler

PACKAGE = Path(scheduler.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
NAMES = [str(path.relative_to(PACKAGE)) for path in MODULES]
CORE = [name for name in NAMES if name.startswith("core/")]

PURE = {
    "__future__", "abc", "array", "bisect", "collections", "collections.abc", "contextlib", "dataclasses", "datetime",
    "enum", "functools", "hashlib", "heapq", "importlib", "itertools", "json", "math", "operator", "pathlib", "pkgutil",
    "re", "shlex", "signal", "types", "typing",
}  # fmt: skip
"""Modules that the core may import besides itself and the modules at the top of the package."""
ONLY = {
    "datetime": {  # no clock is read: a time is always an argument
        "combine",
        "date",
        "datetime",
        "fromisoformat",
        "fromtimestamp",
        "time",
        "timedelta",
        "tzinfo",
    },
    "importlib": {"import_module"},  # of the package's own modules
    "pathlib": {"PurePath", "PurePosixPath"},
    "pkgutil": {"iter_modules"},
    "signal": {"Signals"},
}
"""Modules of which no more than this may be touched there."""
STARTERS = {
    "subprocess": {"Popen", "run", "call", "check_call", "check_output", "getoutput", "getstatusoutput"},
    "os": {"fork", "forkpty", "posix_spawn", "posix_spawnp", "system", "popen"},
    "pty": {"fork", "spawn"},
}
SQL = re.compile(
    r"\b(SELECT\b.*\bFROM|INSERT (OR \w+ )?INTO|UPDATE \w+ SET|DELETE FROM|(CREATE|DROP|ALTER) (TABLE|INDEX)"
    r"|PRAGMA|BEGIN IMMEDIATE)\b",
    re.DOTALL,
)
WAIVER = re.compile(r"#\s*(noqa\b|type:\s*ignore|pragma:)[^#]*?(?P<reason>(#| - ).+)?$")
LONGEST = 60


@cache
def tree(name: str) -> ast.Module:
    """Return a module's syntax tree."""
    return ast.parse((PACKAGE / name).read_text(encoding="utf-8"))


def imports(name: str) -> Iterator[tuple[str, str]]:
    """Yield (module, name) of every import, wherever it stands; no name for a whole module."""
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: imports are absolute"
            yield from ((node.module or "", alias.name) for alias in node.names)


def touched(name: str) -> Iterator[tuple[str, str]]:
    """Yield (module, attribute) of everything that is used from a module."""
    yield from imports(name)
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.value.id, node.attr


def attributes(name: str) -> set[str]:
    """Return every name behind a dot."""
    return {node.attr for node in ast.walk(tree(name)) if isinstance(node, ast.Attribute)}


def calls(name: str) -> set[str]:
    """Return plain names that are called."""
    return {
        node.func.id for node in ast.walk(tree(name)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }


def strings(name: str) -> Iterator[str]:
    """Yield every string in the code that is no docstring."""
    docs = {id(node.value) for node in ast.walk(tree(name)) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree(name)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def functions(name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return every function and method."""
    return (node for node in ast.walk(tree(name)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


class TestCore:
    @pytest.mark.parametrize("name", CORE)
    def test_core_imports_nothing_that_reads_writes_waits_or_draws_random_numbers(self, name: str) -> None:
        own = ("scheduler.core", "scheduler.errors", "scheduler.patterns", "scheduler.units", "scheduler.values")
        others = {module for module, _ in imports(name) if not module.startswith(own)} - PURE
        from_above = {what for module, what in imports(name) if module == "scheduler"}
        assert others <= {"scheduler"}
        assert from_above <= {"units", "errors"}

    @pytest.mark.parametrize("name", CORE)
    def test_core_calls_nothing_that_reads_writes_or_executes(self, name: str) -> None:
        assert not calls(name) & {"open", "print", "input", "exec", "eval", "__import__"}
        beyond = {what for module, what in touched(name) if what not in {"", *ONLY.get(module, {what})}}
        assert beyond == set()


class TestOneModuleEach:
    def test_only_the_schema_contains_sql(self) -> None:
        assert {name for name in NAMES if any(SQL.search(text) for text in strings(name))} == {"store/run/schema.py"}

    def test_only_the_store_opens_databases(self) -> None:
        opening = {name for name in NAMES if any(module == "sqlite3" for module, _ in imports(name))}
        assert all(name.startswith("store/") for name in opening)

    def test_only_processes_starts_processes_and_only_the_shim_forks(self) -> None:
        started = {
            (name, f"{module}.{what}")
            for name in NAMES
            for module, what in touched(name)
            if what in STARTERS.get(module, ()) or module == "multiprocessing"
        }
        sent = {"cluster/ray_bridge.py"}  # its class Carrier runs on nodes, where there may be no package to import
        assert {name for name, _ in started} == {"runtime/processes.py", "runtime/shim.py"} | sent
        assert {call for name, call in started if name == "runtime/shim.py"} == {"os.fork"}

    def test_only_the_sampler_child_loads_nvml(self) -> None:
        loads = {name for name in NAMES if any(module == "pynvml" for module, _ in imports(name))}
        by_path = {name for name in NAMES if "spec_from_file_location" in attributes(name)}
        of_the_user = {"runtime/task_launcher.py"}  # it loads the file that a Python task is written in
        assert loads | by_path == {"devices/gpu/nvml_library.py"} | of_the_user

    def test_print_is_used_in_the_views_only(self) -> None:
        assert all(
            name.startswith(("ui/", "compat/schedule_messages", "compat/gpu_task_log"))
            for name in NAMES
            if "print" in calls(name)
        )


class TestModules:
    @pytest.mark.parametrize("name", NAMES)
    def test_the_first_line_of_a_module_is_one_sentence(self, name: str) -> None:
        doc = ast.get_docstring(tree(name), clean=False) or ""
        first = doc.split("\n")[0]
        assert re.fullmatch(r"[A-Z`].*\.", first), f"{name}: {first!r}"

    def test_no_module_has_the_name_of_a_standard_module(self) -> None:
        stems = {Path(name).stem for name in NAMES} - {"__init__", "__main__"}
        assert stems & set(sys.stdlib_module_names) == set()

    @pytest.mark.parametrize("name", NAMES)
    def test_no_function_is_longer_than_sixty_lines(self, name: str) -> None:
        lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions(name)}
        assert {name: length for name, length in lengths.items() if length > LONGEST} == {}

    @pytest.mark.parametrize("name", NAMES)
    def test_every_waiver_has_its_reason_on_the_same_line(self, name: str) -> None:
        lines = (PACKAGE / name).read_text(encoding="utf-8").splitlines()
        waived = [line.strip() for line in lines if (match := WAIVER.search(line)) and not match["reason"]]
        assert waived == []


class TestPublicNames:
    NAMES = (
        "CallFailed", "CallFuture", "ConfigError", "ConfigManager", "Executor", "Failure", "Finished", "GPUTask",
        "GPUTaskScheduler", "InputError", "LeaseTimeout", "NoLease", "NotPassed", "ProcessLease", "RemoteError",
        "SchedulerError", "StateError", "SubmittedTasks", "Task", "UsageError", "lease", "run", "runs", "submit",
    )  # fmt: skip

    def test_the_public_names_are_these(self) -> None:
        assert tuple(scheduler.__all__) == self.NAMES

    @pytest.mark.parametrize("name", NAMES)
    def test_each_public_name_exists(self, name: str) -> None:
        assert getattr(scheduler, name).__name__ == name

    def test_no_other_name_is_public(self) -> None:
        with pytest.raises(AttributeError, match="module 'scheduler' has no attribute 'Brain'"):
            _ = scheduler.Brain

    def test_no_public_name_costs_anything_before_it_is_used(self) -> None:
        at_once = {node.module for node in tree("__init__.py").body if isinstance(node, ast.ImportFrom)}
        assert at_once == {"__future__", "typing"}
        assert not any(isinstance(node, ast.Import) for node in tree("__init__.py").body)
