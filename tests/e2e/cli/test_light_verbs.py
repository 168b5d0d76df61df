"""Light verbs load no heavy modules; `scripts/bench/light.py` measures how long they take."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.killing import Home

HEAVY = ("pandas", "numpy", "psutil", "pynvml", "rich", "asyncio", "subprocess", "multiprocessing", "secrets")
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
LOADED = "import sys; sys.argv[0] = 'scheduler'; from scheduler.cli.main import main; code = main(sys.argv[1:]); "
LOADED += "print(*sorted(sys.modules), file=sys.stderr); sys.exit(code)"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    made = Home(Path(tmp_path_factory.mktemp("light")))
    made.commands("true", "sh -c 'exit 3'")
    made.call("run", "jobs.csv", code=1)
    yield made
    made.end()


@pytest.mark.parametrize(
    "verb",
    ["--help", "--version", "", "status", "results", "list", "results --json", "profiles", *CHANGING],
)
def test_a_light_verb_loads_nothing_heavy(home: Home, verb: str) -> None:
    command = [sys.executable, "-c", LOADED, *verb.split()]
    done = subprocess.run(command, cwd=home.root, env=home.env, capture_output=True, text=True, check=False)
    assert done.returncode in ((0, 1) if verb in CHANGING else (0,)), done.stderr
    loaded = set(done.stderr.split())
    assert "scheduler.cli.main" in loaded
    assert loaded.isdisjoint(HEAVY)
