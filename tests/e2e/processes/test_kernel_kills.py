"""Kills by the kernel for memory, in a real memory cgroup: of a task, and of its workers below a launcher or a pool."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.core.model import Outcome
from tests.e2e.conftest import Driver
from tests.support.waiting import wait_until

LIMIT = 96 << 20

WORKER = """
import os, sys, time
open(os.path.join(sys.argv[1], "cgroup.procs"), "w").write(str(os.getpid()))
held = []
while True:
    held.append(b"\\1" * (8 << 20))
"""
"""A program that joins the cgroup and takes memory until the kernel kills it."""

LAUNCHER = """
import subprocess, sys
worker = subprocess.Popen([sys.executable, "worker.py", *sys.argv[1:]])
code = worker.wait()
print(f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\\nworker.py FAILED\\n  exitcode  : {code} "
      f"(pid: {worker.pid})\\n  traceback : Signal 9 (SIGKILL) received by PID {worker.pid}", file=sys.stderr)
sys.exit(1)
"""
"""A parent that waits for its worker and reports its end, as torchrun and accelerate do."""

SPAWN = """
import multiprocessing, runpy, sys

def work(group):
    sys.argv[1:] = [group]
    runpy.run_path("worker.py")

class ProcessExitedException(Exception):
    pass

if __name__ == "__main__":
    worker = multiprocessing.get_context("spawn").Process(target=work, args=sys.argv[1:])
    worker.start()
    worker.join()
    raise ProcessExitedException(f"process 0 terminated with signal {'SIGKILL' if worker.exitcode == -9 else 'none'}")
"""
"""A parent that raises for its worker's end, as torch.multiprocessing.spawn does."""

POOL = """
import concurrent.futures, runpy, sys

def work(group):
    sys.argv[1:] = [group]
    runpy.run_path("worker.py")

if __name__ == "__main__":
    with concurrent.futures.ProcessPoolExecutor(1) as pool:
        pool.submit(work, sys.argv[1]).result()
"""
PARENTS = {"launcher": LAUNCHER, "spawn": SPAWN, "pool": POOL}


@pytest.fixture
def group() -> Iterator[Path]:
    """Yield a memory cgroup with a limit; skip where this user cannot make one."""
    folder = limited_group()
    yield folder
    wait_until(lambda: not (folder / "cgroup.procs").read_text().split(), 10)
    folder.rmdir()


def limited_group() -> Path:
    """Make a memory cgroup of either version."""
    root = Path("/sys/fs/cgroup")
    version_1 = root / "memory"
    folder = (version_1 if version_1.is_dir() else root) / f"scheduler-test-{uuid.uuid4().hex}"
    limit = folder / ("memory.limit_in_bytes" if version_1.is_dir() else "memory.max")
    try:
        folder.mkdir()
        limit.write_text(str(LIMIT))
    except OSError as exc:
        if folder.is_dir():
            folder.rmdir()
        pytest.skip(f"no memory cgroup can be made here: {exc}")
    return folder


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    for name, text in {**PARENTS, "worker": WORKER}.items():
        (tmp_path / f"{name}.py").write_text(text)
    return tmp_path


def test_a_task_that_the_kernel_kills_for_memory_is_oom(driver: Driver, scripts: Path, group: Path) -> None:
    exited = driver.exited(driver.launch(sys.executable, "worker.py", str(group)), deadline=60)
    assert (exited.outcome, exited.part, exited.signal) == (Outcome.OOM, "host", 9)


@pytest.mark.parametrize("parent", PARENTS)
def test_a_worker_that_the_kernel_kills_for_memory_makes_its_task_oom(
    driver: Driver, scripts: Path, group: Path, parent: str
) -> None:
    exited = driver.exited(driver.launch(sys.executable, f"{parent}.py", str(group)), deadline=60)
    assert (exited.outcome, exited.part, exited.code) == (Outcome.OOM, "host", 1), driver.log()


@pytest.mark.parametrize("parent", PARENTS)
def test_a_worker_that_another_process_kills_makes_its_task_fail(driver: Driver, scripts: Path, parent: str) -> None:
    (scripts / "worker.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    exited = driver.exited(driver.launch(sys.executable, f"{parent}.py", os.devnull), deadline=60)
    assert (exited.outcome, exited.code) == (Outcome.FAILED, 1), driver.log()
