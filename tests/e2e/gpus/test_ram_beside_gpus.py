"""RAM of tasks on GPUs that declare none: its reservation and its use, seen from outside a run."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.runtime.shim import BLOCK, unpack_block
from scheduler.store.machine.locked_files import is_free
from tests.support.faults import fault
from tests.support.gpu_home import GpuHome, training
from tests.support.standin.box import NO_COMPILER

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)]

MIB, GIB = 1 << 20, 1 << 30
BUDGET = 2 * GIB
TAKES = 600 * MIB
LOOKS_A_SECOND = 20
LOADING = f"""\
import os, time
time.sleep(1.0)
data = bytearray({TAKES})
for page in range(0, len(data), 4096):
    data[page] = 1
time.sleep(1.5)
"""
"""A script that takes RAM a second after its start, as if it imported its libraries before it read its data."""


class Onlooker(threading.Thread):
    """A thread that looks at a machine's leases and at what its tasks use, under the mutex, 20 times a second."""

    def __init__(self, home: GpuHome) -> None:
        super().__init__(daemon=True)
        self._home, self._over, self._script = home, threading.Event(), str(home.root / "load.py").encode()
        self.reserved: list[int] = []
        """The RAM that living leases came to, at each look."""
        self.used: list[int] = []
        """The RAM that tasks really used, at each look."""

    def run(self) -> None:
        """Look until the block is over."""
        while not self._over.wait(1 / LOOKS_A_SECOND):
            if self._home.leases.is_dir():
                self.reserved.append(self._reserved())
                self.used.append(self._resident())

    def __enter__(self) -> Onlooker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(10.0)

    def _resident(self) -> int:
        """Return what the tasks use of RAM."""
        return sum(_rss_of(pid) for pid in os.listdir("/proc") if pid.isdigit() and _is_task(pid, self._script))

    def _reserved(self) -> int:
        mutex = os.open(self._home.leases, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(mutex, fcntl.LOCK_EX)
            return sum(_ram_of(mutex, name) for name in os.listdir(mutex) if name[0].isdigit())
        finally:
            os.close(mutex)


def _is_task(pid: str, script: bytes) -> bool:
    """Return whether a process is the script itself, and not its shim or scheduler."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0-E\0" + script + b"\0")
    except OSError:
        return False


def _rss_of(pid: str) -> int:
    """Return what a process uses of RAM; 0 for one that has ended."""
    try:
        found = re.search(r"VmRSS:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


def _ram_of(directory: int, name: str) -> int:
    """Return the RAM that a lease reserves; 0 where it is over."""
    try:
        fd = os.open(name, os.O_RDONLY, dir_fd=directory)
    except FileNotFoundError:
        return 0
    try:
        said = None if is_free(fd) else unpack_block(os.pread(fd, BLOCK, 0))
    finally:
        os.close(fd)
    return int(said["bytes"].get("host", 0)) if said else 0


@pytest.fixture
def home(tmp_path: Path) -> Iterator[GpuHome]:
    """Make a machine with two GPUs, and a script that takes RAM."""
    made = GpuHome(tmp_path, gpus=2)
    (tmp_path / "load.py").write_text(LOADING)
    yield made
    made.end()


@pytest.mark.long
@fault(80)
def test_twelve_tasks_whose_ram_is_unknown_stay_within_the_budget(home: GpuHome) -> None:
    row = {"Command": f"{sys.executable} -S -E {home.root}/load.py", "GPUs": 1, "Memory": "1500MiB"}
    home.jobs(*[row] * 12)
    with Onlooker(home) as seen:
        tries = home.run("--devices", f"0,1,host:{BUDGET // MIB}MiB")
    makespan = max(one.ended for one in tries) - min(one.placed for one in tries)
    print(
        f"at most {max(seen.reserved) // MIB} of {BUDGET // MIB} MiB reserved, {max(seen.used) // MIB} MiB used, "
        f"{len(seen.reserved) / makespan:.0f} looks a second, makespan {makespan:.1f} s"
    )
    assert [one.outcome for one in tries] == ["succeeded"] * 12
    assert max(seen.reserved) <= BUDGET
    assert max(seen.used) <= BUDGET + TAKES
    assert max(seen.used) >= 2 * TAKES, "they ran one at a time"


def test_tasks_whose_ram_is_unknown_start_at_once_where_it_is_plentiful(home: GpuHome) -> None:
    home.jobs(*[training("hold.py", take="1GiB", until="go", Memory="2GiB")] * 4)
    began = time.monotonic()
    with home.going("--devices", "0,1,host:16GiB"):
        home.wait_for(4)
        took = time.monotonic() - began
        home.go()
    assert took < 10.0
