"""The tests of executors that belong to Python itself, run against `scheduler.Executor` where they are installed.

They are the `test.test_concurrent_futures` of this interpreter, of Debian's package libpython3.X-testsuite, or of the
folder SCHEDULER_STANDARD_TESTS, in which its `test_concurrent_futures.py` lies.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
import sys
import unittest
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import cloudpickle
import pytest

import scheduler

NAME = "test.test_concurrent_futures"
DEBIAN = Path(os.environ.get("SCHEDULER_STANDARD_TESTS", f"/usr/lib/python3.{sys.version_info.minor}/test"))
SUITE = ("ExecutorShutdownTest", "WaitTests", "AsCompletedTests", "ExecutorTest", "ProcessPoolExecutorTest",
         "ExecutorDeadlockTest")  # fmt: skip
"""The classes that hold for any executor, or for any executor with processes."""
LEFT_OUT = {
    "test_interpreter_shutdown": "reads the output of a call from the caller's own, and it goes to the task's log",
    "test_hang_gh83386": "reads the output of a call from the caller's own, and it goes to the task's log",
    "test_submit_after_interpreter_shutdown": "imports the executor by its name from concurrent.futures",
    "test_cancel_futures": "expects that a call begins while fifty are submitted: here a scheduler starts first",
    "test_killed_child": "kills one of the pool's own worker processes: a call has its own",
    "test_saturation": "counts the pool's own worker processes, and shares a semaphore that processes inherit",
    "test_idle_process_reuse_one": "counts the pool's own worker processes: a call has its own",
    "test_idle_process_reuse_multiple": "counts the pool's own worker processes: a call has its own",
    "test_max_tasks_per_child": "counts the pool's own worker processes: a call has its own",
    "test_max_tasks_per_child_defaults_to_spawn_context": "start methods: a call has a process of its own",
    "test_max_tasks_early_shutdown": "counts the pool's own worker processes: a call has its own",
    "test_max_workers_too_large": "a limit of Windows",
    "test_ressources_gced_in_workers": "needs a manager of multiprocessing, which workers inherit",
    "test_shutdown_deadlock_pickle": "joins the pool's own thread by its private name",
}


def modules() -> list[ModuleType]:
    """Return the modules of the tests; skip where they are not installed."""
    package = pytest.importorskip("test")
    if DEBIAN.is_dir():
        package.__path__.append(str(DEBIAN))
    pytest.importorskip("test.support")
    first = pytest.importorskip(NAME)
    names = [name for _, name, _ in pkgutil.iter_modules(getattr(first, "__path__", ()))]
    found = [first, *(importlib.import_module(f"{NAME}.{name}") for name in names)]
    for module in found:
        cloudpickle.register_pickle_by_value(module)  # a task may not find the package that was added here
    return found


MODULES = modules()


def taken(name: str) -> Any:
    """Return a class of the tests."""
    return next(getattr(module, name) for module in MODULES if hasattr(module, name))


class Pool(scheduler.Executor):
    """The executor as the tests create it."""

    def __init__(self, max_workers: int | None = None, **_: Any) -> None:
        super().__init__(max_workers, devices="host")


class OurMixin:
    """The executor for the tests, and what a broken pool is here: one call fails, the others go on."""

    worker_count = 5
    executor_type = Pool
    executor_kwargs: ClassVar[dict[str, Any]] = {}

    def get_context(self) -> None:
        """Return nothing: there is no start method to choose."""

    def assertRaises(self, error: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N802
        """Expect the more general error in place of that of the pool of Python."""
        if error is futures.process.BrokenProcessPool:
            error = futures.BrokenExecutor
        return super().assertRaises(error, *args, **kwargs)  # type: ignore[misc]  # noqa: PT027  # it is their own


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    root = tmp_path_factory.mktemp("suite")
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setenv("SCHEDULER_LEASES", str(root / "leases"))
        patch.setenv("SCHEDULER_STATE", str(root / "state"))
        yield


def made(name: str) -> type[unittest.TestCase]:
    """Return the tests of a class, for our executor."""
    bases = (OurMixin, taken("ExecutorMixin"), taken(name), taken("BaseTestCase"))
    tests: Any = type(f"Our{name}", bases, {})
    for test, why in LEFT_OUT.items():
        if hasattr(tests, test):
            setattr(tests, test, unittest.skip(why)(getattr(tests, test)))
    marked: type[unittest.TestCase] = pytest.mark.long(tests)
    return marked


ShutdownTests, WaitingTests, CompletedTests, ExecutorTests, ProcessTests, DeadlockTests = map(made, SUITE)
