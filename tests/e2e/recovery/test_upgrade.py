"""A run goes on with the code it started with, whatever happens to the installation."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import scheduler
from scheduler.app.run.run_loop import NOT_IN_A_RUN
from tests.support.faults import fault
from tests.support.killing import Home, children, kill
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PACKAGE = Path(scheduler.__file__).parent
NEVER_IN_A_RUN = {"cloudpickle", "pandas", "pynvml"}  # cloudpickle: in a program and in the tasks of its calls
BEFORE_THE_FIRST_LAUNCH = {
    "scheduler.ui.terminal.live_view", "scheduler.ui.terminal.screen", "scheduler.ui.terminal.top",
    "scheduler.ui.live.run_screen", "scheduler.app.live.tasks", "http.client", "urllib.error", "urllib.request",
    "scheduler.app.cluster.nodes", "scheduler.app.cluster.content", "scheduler.cluster.devices",
    "scheduler.cluster.link", "scheduler.app.cluster.node_requests",
}  # fmt: skip
"""Modules that only a run on a terminal, on several nodes, or one that calls a web hook, loads while it begins."""
UNTIL_GO = "sh -c 'echo x >>ran; touch here; until [ -e go ]; do sleep 0.01; done'"


class Installation:
    """A copy of the package with what it needs."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def install(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(PACKAGE, self.root / "scheduler", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("psutil", "pynvml"):
            spec = find_spec(name)
            assert spec is not None
            assert spec.origin is not None
            source = Path(spec.origin)
            if source.name == "__init__.py":
                shutil.copytree(source.parent, self.root / name)
            else:
                shutil.copy(source, self.root / source.name)

    def spoil(self) -> None:
        """Replace every file of the installation by one that ends the process that loads it."""
        for path in [path for path in self.root.rglob("*") if path.is_file()]:
            path.unlink()  # what is loaded into memory must not change under those that run
            if path.suffix == ".py":
                path.write_text("raise SystemExit(9)\n")


@pytest.fixture
def installed(tmp_path: Path) -> Iterator[tuple[Home, Installation]]:
    home, place = Home(tmp_path), Installation(tmp_path / "lib")
    place.install()
    home.env["PYTHONPATH"] = str(place.root)
    yield home, place
    home.end()


@fault(9)
def test_a_run_ends_well_after_every_installed_file_was_overwritten(installed: tuple[Home, Installation]) -> None:
    home, place = installed
    home.commands(UNTIL_GO, "true", "sh -c 'echo said; exit 0'")
    with (home.root / "seen").open("w") as seen, (home.root / "errors").open("w") as errors:
        run = home.start("run", "jobs.csv", "-j", "1", "--json", stdout=seen, stderr=errors)
    wait_until((home.root / "here").exists, 30)
    place.spoil()
    assert home.call("list").returncode == 9
    for helper in children(run.pid):
        kill(helper)  # they are started again, from the run's copies
    with (home.root / "jobs.csv").open("a") as file:
        file.write('"sh -c \'echo ""a b"" >>ran\'"\n')
    (home.root / "go").touch()
    assert run.wait(60) == 0
    assert (home.root / "ran").read_text() == "x\na b\n"
    assert "run 1: 4 tasks: 4 succeeded" in home.log()
    assert "memory estimates" in home.log()
    assert [task["state"] for task in json.loads((home.root / "seen").read_text())["tasks"]] == ["succeeded"] * 4
    place.install()
    assert "all 4 tasks have ended: nothing to do" in home.call("resume", code=0).stdout
    assert (home.root / "ran").read_text() == "x\na b\n"


def test_a_detached_run_ends_well_after_every_installed_file_was_overwritten(
    installed: tuple[Home, Installation],
) -> None:
    home, place = installed
    home.commands(UNTIL_GO, "sh -c 'echo wrong; exit 3'")
    home.call("run", "-d", "jobs.csv", "-j", "1", code=0)
    wait_until((home.root / "here").exists, 30)
    place.spoil()
    (home.root / "go").touch()
    wait_until(lambda: "run 1: 2 tasks: 1 failed, 1 succeeded" in home.log(), 30)
    assert "    | wrong" in home.log()
    assert "Traceback" not in home.log()


def lazily_imported() -> set[str]:
    """Return the modules that our modules import inside of functions."""
    names = set()
    for path in PACKAGE.rglob("*.py"):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        if "cli" in path.parts or path.name == "api.py" or name.startswith(NOT_IN_A_RUN):
            continue
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                names |= set(_imports(function))
    return names - NEVER_IN_A_RUN - BEFORE_THE_FIRST_LAUNCH


def _imports(function: ast.FunctionDef) -> Iterator[str]:
    for node in ast.walk(function):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_modules_imported_in_functions_are_loaded_before_the_first_launch() -> None:
    program = "import sys; from scheduler.app.run import run_loop; run_loop.load_modules(); print(*sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(PACKAGE.parent)}
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert lazily_imported() - loaded == set()
    assert loaded.isdisjoint(NEVER_IN_A_RUN)
    packages = {name for name in loaded if (PACKAGE.parent / name.replace(".", "/")).is_dir()}
    assert {name for name in loaded - packages if name.startswith(NOT_IN_A_RUN)} == set()
