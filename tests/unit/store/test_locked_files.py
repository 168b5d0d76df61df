"""The locks that the kernel lists, by file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.mounts import folders, needs_mounts, run_apart

SAME_NUMBER = """
import fcntl, json, os, signal, subprocess, sys
from scheduler.store.machine.locked_files import LockHolders
files = [f"{folder}/locked" for folder in sys.argv[1:]]
pids = []
for file in files:
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", os.path.dirname(file)], check=True)
    taken = os.open(file, os.O_CREAT | os.O_RDWR)
    pids.append(os.fork())
    if not pids[-1]:
        fcntl.flock(os.open(file, os.O_RDWR), fcntl.LOCK_EX)
        os.write(taken, b"locked")
        signal.pause()
    while not os.fstat(taken).st_size:
        pass
lockers = LockHolders()
seen = [lockers.of(os.stat(file)) == [pid] for file, pid in zip(files, pids)]
for pid in pids:
    os.kill(pid, 9)
print(json.dumps([len({os.stat(file).st_ino for file in files}), seen]))
"""


@needs_mounts
def test_a_file_of_the_same_number_on_another_disk_is_another_file(tmp_path: Path) -> None:
    numbers, seen = json.loads(run_apart(SAME_NUMBER, *folders(tmp_path, "one", "two")))
    if numbers != 1:
        pytest.skip("each file of this kernel's tmpfs has a number of its own")
    assert seen == [True, True]
