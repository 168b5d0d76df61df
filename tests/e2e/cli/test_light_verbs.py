"""Light verbs load no heavy modules; `scripts/bench/light.py` measures how long they take."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.killing import Home

HEAVY = (
    "pandas", "numpy", "psutil", "pynvml", "rich", "asyncio", "subprocess", "multiprocessing", "secrets", "inspect",
    "dataclasses",
)  # fmt: skip
CHANGING = [
    "cancel 0",
    "retry 0",
    "set 0 --priority 1",
    "wait 0",
    "logs 0",
    "why",
    "why 0",
    "completion words -- cancel",
]
"""Verbs that change tasks; some exit with 1 here, since the run is over."""
CORE = ("scheduler.core.brain", "scheduler.core.run_state", "scheduler.core.placement.fit")
"""Modules of the core's state and decisions, which only a verb that reads a run's events may need."""
MOST_MODULES = {"--help": 75, "runs": 165, "status": 185, "list": 220, "results": 220, "logs 0": 230}
"""The largest number of modules, of all packages, that a verb may load where the run's scheduler recorded a status."""
LOADED = "import sys; sys.argv[0] = 'scheduler'; from scheduler.cli.main import main; code = main(sys.argv[1:]); "
LOADED += "print(*sorted(sys.modules), file=sys.stderr); sys.exit(code)"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(Path(tmp_path_factory.mktemp("light")))
    made.commands("true", "sh -c 'exit 3'")
    made.call("run", "jobs.csv", code=1)
    yield made
    made.end()


def modules_of(home: Home, verb: str) -> set[str]:
    """Return the modules that a verb loads."""
    command = [sys.executable, "-c", LOADED, *verb.split()]
    done = subprocess.run(command, cwd=home.root, env=home.env, capture_output=True, text=True, check=False)
    assert done.returncode in ((0, 1) if verb in CHANGING or verb in MOST_MODULES else (0,)), done.stderr
    return set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "verb",
    ["--help", "--version", "", "status", "runs", "results", "list", "results --json", "profiles", *CHANGING],
)
def test_a_light_verb_loads_nothing_heavy(home: Home, verb: str) -> None:
    loaded = modules_of(home, verb)
    assert "scheduler.cli.main" in loaded
    assert loaded.isdisjoint(HEAVY)


@pytest.mark.parametrize("verb", ["--help", "status", "runs", "profiles"])
def test_a_verb_that_needs_only_recorded_statuses_loads_no_state_of_the_core(home: Home, verb: str) -> None:
    assert modules_of(home, verb).isdisjoint(CORE)


@pytest.mark.parametrize(("verb", "most"), MOST_MODULES.items(), ids=str)
def test_a_light_verb_loads_few_modules(home: Home, verb: str, most: int) -> None:
    loaded = modules_of(home, verb)
    assert len(loaded) <= most, sorted(loaded)
