"""Real attempts for system tests: a driver for the local engine, and checks for processes that are left."""

from __future__ import annotations

import os
import select
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.events import Exited, Started
from scheduler.core.model import Purpose
from scheduler.core.ports import Launch
from scheduler.execution.engine import LocalEngine
from scheduler.execution.fork_server import ForkServer
from scheduler.runtime import shim
from tests.support import leftovers
from tests.support.chromium import Browser, browser
from tests.support.killing import parent_of, state_of
from tests.support.waiting import wait_until

SHIM = Path(shim.__file__)
PATIENCE = 5.0
"""Seconds in which what a test has left must be gone."""
LOOKS = 8
"""The number of looks at a process tree: a process that forks and ends at once may be missed by one look."""


class Driver:
    """A local engine, its events, and the commands it was given."""

    def __init__(self, root: Path, prefix: str, env: dict[str, str] | None = None, **settings: Any) -> None:
        self.root = root
        self.tasks = root / "tasks"
        self.prefix = prefix
        cgroups = settings.pop("cgroups", True)
        base = {"PATH": os.environ["PATH"]} if env is None else env
        server = ForkServer(SHIM, base, settings.pop("bounds", None), settings.pop("server_note", None))
        self.engine = LocalEngine(self.tasks, server, prefix, **settings)
        if not cgroups:
            self.engine.ungroup()
        self.events: list[Started | Exited] = []
        self._next = 0

    def launch(self, *argv: str, task: int = 0, **fields: Any) -> int:
        """Give an order and return its task's number; the attempt is 1 unless said otherwise."""
        self._next = task or self._next + 1
        order = {"attempt": 1, "purpose": Purpose.RUN, "directory": str(self.root), "env": {}, "grace": 5.0}
        self.engine.launch(Launch(task=self._next, argv=argv, **{**order, **fields}))
        return self._next

    def sh(self, script: str, **fields: Any) -> int:
        return self.launch("sh", "-c", script, **fields)

    def collect(self) -> list[Started | Exited]:
        """Wait for events for a short while, take them in, and return all so far."""
        select.select([self.engine], [], [], 0.1)
        self.events += self.engine.collect()
        return self.events

    def started(self, task: int, attempt: int = 1) -> Started:
        return self._told(Started, task, attempt, 10.0)

    def exited(self, task: int, attempt: int = 1, deadline: float = 10.0) -> Exited:
        return self._told(Exited, task, attempt, deadline)

    def _told(self, kind: type[Any], task: int, attempt: int, deadline: float) -> Any:
        def seen() -> list[Started | Exited]:
            events = (event for event in self.events if isinstance(event, kind))
            return [event for event in events if (event.task, event.attempt) == (task, attempt)]

        return wait_until(lambda: seen() or (self.collect() and seen()), deadline)[-1]

    def run(self, *argv: str, **fields: Any) -> Exited:
        return self.exited(self.launch(*argv, **fields), fields.get("attempt", 1))

    def run_sh(self, script: str, **fields: Any) -> Exited:
        return self.run("sh", "-c", script, **fields)

    def log(self, task: int = 0, attempt: int = 1) -> str:
        path = self.tasks / str(task or self._next) / f"{attempt}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait_for_line(self, line: str, task: int = 0) -> None:
        wait_until(lambda: line in self.log(task).splitlines())

    def shim_of(self, task: int) -> int:
        return next(pid for number, _, pid, _ in self.engine.living() if number == task)

    def server_of(self, task: int) -> int:
        return parent_of(self.shim_of(task))

    def end(self) -> None:
        """Kill all attempts that still run, so that none is left to the next test."""

        def over() -> bool:
            self.engine.collect()
            for task, attempt in list(self.engine._attempts):
                self.engine.stop(task, attempt, kill=True)
            return not self.engine._attempts

        wait_until(over)
        self.engine.close()


@pytest.fixture(scope="session")
def temporary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield the temporary folder of this worker's tests; its path is short, because sockets are made in it."""
    base = tmp_path_factory.getbasetemp()
    with tempfile.TemporaryDirectory(prefix="e2e.") as folder:
        os.chmod(folder, 0o1777)  # as /tmp: tests with several users share it
        yield Path(folder)
    wait_until(lambda: not list(leftovers.processes_in(base)), PATIENCE)


@pytest.fixture(autouse=True)
def nothing_left(temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fail if a test leaves a process, a control group, or a temporary folder behind."""
    monkeypatch.setenv("TMPDIR", str(temporary))
    known = set(os.listdir(temporary))
    yield
    found: list[str] = []

    def clean() -> bool:
        found[:] = leftovers.processes_in(tmp_path)
        found.extend(f"control group {group}" for group in leftovers.groups_of(tmp_path))
        found.extend(leftovers.entries_of(temporary, known))
        return not found

    with suppress(AssertionError):
        wait_until(clean, PATIENCE, 0.05)
    assert not found, "left behind: " + "; ".join(found)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Yield the one browser of all tests."""
    with browser() as made:
        yield made


@pytest.fixture
def drivers(tmp_path: Path) -> Iterator[Callable[..., Driver]]:
    """Yield a function that makes drivers over one run directory, as schedulers that follow each other."""
    made: list[Driver] = []
    prefix = uuid.uuid4().hex

    def make(**settings: Any) -> Driver:
        made.append(Driver(tmp_path, prefix, **settings))
        return made[-1]

    yield make
    for driver in made:
        driver.end()


@pytest.fixture
def driver(drivers: Callable[..., Driver]) -> Driver:
    made = drivers()
    made.engine.warm()
    return made


@pytest.fixture
def mark() -> Iterator[str]:
    """Return a word for command lines, by which `marked` finds processes; fail if any is left at the end."""
    word = f"mark-{uuid.uuid4().hex}"
    yield word
    wait_until(lambda: not any(marked(word) for _ in range(LOOKS)), 2.0)


def is_zombie(pid: int) -> bool:
    """Tell whether a process has ended and its exit code has not been read."""
    return state_of(pid) == "Z"


def marked(word: str) -> list[int]:
    """Return the living processes that have the word on their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if word.encode() in line and shim.start_time(int(entry.name)):
                found.append(int(entry.name))
    return found
