"""Attempts of another user to read, stop, change or imitate the processes of a run."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sharing.test_two_users import common  # noqa: F401 - the fixture
from tests.support.faults import fault
from tests.support.killing import command_line, environment, is_alive, kill
from tests.support.two_users import User, become, kill_a_shim, reachable_python
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")]

ALICE, BOB = 61_003, 61_004
PRY = """
import ctypes, os, resource, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *words):
    if libc.syscall(number, *(ctypes.c_long(word) if isinstance(word, int) else word for word in words)) < 0:
        raise OSError(ctypes.get_errno(), "")
def ptrace(pid):
    call(101, 0x4206, pid, 0, 0)
def vm_read(pid):
    kept = ctypes.create_string_buffer(16)
    here = (ctypes.c_void_p * 2)(ctypes.addressof(kept), 16)
    call(310, pid, here, 1, (ctypes.c_void_p * 2)(0x400000, 16), 1, 0)
attempts = {
    "kill": lambda pid: os.kill(pid, signal.SIGKILL),
    "stop": lambda pid: os.kill(pid, signal.SIGSTOP),
    "ask": lambda pid: os.kill(pid, signal.SIGUSR1),
    "trace": ptrace,
    "read memory": vm_read,
    "open memory": lambda pid: open(f"/proc/{pid}/mem", "rb"),
    "environment": lambda pid: open(f"/proc/{pid}/environ", "rb").read(1),
    "descriptors": lambda pid: os.listdir(f"/proc/{pid}/fd"),
    "directory": lambda pid: os.readlink(f"/proc/{pid}/cwd"),
    "take a descriptor": lambda pid: call(438, os.pidfd_open(pid), 1, 0),
    "limits": lambda pid: resource.prlimit(pid, resource.RLIMIT_NOFILE, (10, 10)),
    "cores": lambda pid: os.sched_setaffinity(pid, {0}),
    "share": lambda pid: os.setpriority(os.PRIO_PROCESS, pid, 19),
}
for pid in map(int, sys.argv[2:]):
    for what, attempt in attempts.items():
        try:
            attempt(pid)
            print(f"{what} {pid}")
        except (PermissionError, ProcessLookupError, FileNotFoundError):  # an idle shim ends after a second
            pass
for folder, _, names in os.walk(sys.argv[1]):
    for name in names:
        try:
            open(os.path.join(folder, name), "rb")
            print(f"read {name}")
        except PermissionError:
            pass
"""


@pytest.fixture
def alice(common: Path) -> Iterator[User]:  # noqa: F811 - the fixture
    python, code = reachable_python(common)
    leases = common / "leases"
    leases.mkdir()
    leases.chmod(0o1777)
    made = User(common / "alice", ALICE, python, code, leases)
    made.prepare(0, random.Random(1))
    waits = "sh -c 'echo $SCHEDULER_ATTEMPT >>told; until [ -e go ]; do sleep 0.02; done'"
    made.write("jobs.csv", "Command,Memory", [waits, "50MiB"])
    yield made
    made.end()


@fault(53)
def test_another_user_can_neither_read_nor_stop_nor_change_the_processes_of_a_run_nor_copy_its_marks(
    alice: User,
) -> None:
    """A process of another user with the cookie of a task is neither killed with it nor waited for."""
    told = alice.root / "told"
    attempts = lambda: told.read_text().split() if told.exists() else []  # noqa: E731
    with alice.start("run", "jobs.csv", "--devices", "host:1GiB", "--max-load", "1000") as scheduler:
        wait_until(lambda: attempts() == ["1"], 60)
        wait_until(lambda: any("sampler" in command_line(pid) for pid in alice.living()), 30)
        pids = alice.living()
        words = [alice.command[-3], "-c", PRY, str(alice.state), *map(str, pids)]
        done = subprocess.run([*become(BOB), *words], capture_output=True, text=True, check=False, cwd="/", env={})
        assert (done.stdout, done.stderr) == ("", "")
        (task,) = [
            pid for pid in pids if b"SCHEDULER_ATTEMPT=1" in environment(pid) and command_line(pid)[:5] == "sh -c"
        ]
        marks = dict(os.fsdecode(one).split("=", 1) for one in environment(task) if b"=" in one)
        marks.pop(alice.mark.partition("=")[0])
        with subprocess.Popen([*become(BOB), "sleep", "300"], cwd="/", env=marks) as bob:
            wait_until(lambda: "sleep 300" in command_line(bob.pid))
            wait_until(lambda: kill_a_shim(alice, random.Random(1)), 30)
            wait_until(lambda: attempts() == ["1", "2"], 30)
            assert is_alive(bob.pid)
            kill(bob.pid)
        (alice.root / "go").touch()
        assert scheduler.wait(60) == 0
