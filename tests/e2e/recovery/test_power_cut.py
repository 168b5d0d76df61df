"""A power cut: only what had reached the disk is left, nothing runs any more, and the machine boots anew.

The disk is a file with an ext4 on it. A copy of that file is what a power cut leaves: what the kernel had not written
yet is not in it, and its journal is replayed when it is mounted. Another boot id is laid over the kernel's.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import fault
from tests.support.mounts import can_mount, folders, run_apart

MACHINE = """
import json, subprocess, sys, uuid
from pathlib import Path
from tests.support.killing import Home
from tests.support.waiting import wait_until

root, outside, when = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
told, go, disk, left = (outside / name for name in ("told", "go", "disk", "left"))

def call(*words):
    subprocess.run([str(word) for word in words], check=True)

def begun():
    return told.read_text().split() if told.exists() else []

def cut_the_power():
    home.end()
    call("cp", "--sparse=always", disk, left)
    call("umount", "--lazy", root)
    call("mount", "-o", "loop", left, root)
    (outside / "boot").write_text(f"{uuid.uuid4()}\\n")
    call("mount", "--bind", outside / "boot", "/proc/sys/kernel/random/boot_id")

with open(disk, "wb") as file:
    file.truncate(96 << 20)
call("mkfs.ext4", "-q", "-F", disk)
call("mount", "-o", "loop", disk, root)
home = Home(root)
home.env["SCHEDULER_DISK_MIN"] = "off"
until = f"until [ -e {go} ]; do sleep 0.02; done"
then = {"one": "exit 3", "two": until, "three": ":"}
home.commands(*(f"sh -c 'echo {name} >>{told}; {then[name]}'" for name in then))
call("sync")
run = ["jobs.csv", "--devices", "host", "--slots", "1", "--keep-going", "--plain"]
if when == "accepted":
    with home.start("run", *run, stdout=subprocess.PIPE) as scheduler:
        scheduler.stdout.readline()
        scheduler.kill()
else:
    scheduler = home.start("run", *run)
    wait_until(lambda: len(begun()) == 2 and home.states("1") == ["failed", "running", "waiting"], 60)
cut_the_power()
before = begun()
go.touch()
code = home.call("resume", "r1").returncode
tasks = [(task["state"], task["exit_code"]) for task in home.tasks("1")]
print(json.dumps([code, tasks, before, begun()]))
home.end()
call("umount", "--lazy", root)
"""


def can_be_cut() -> bool:
    """Tell whether files can be mounted here as disks."""
    if not can_mount() or not shutil.which("mkfs.ext4") or not shutil.which("losetup"):
        return False
    return subprocess.run(["losetup", "--find"], check=False, capture_output=True).returncode == 0


pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not can_be_cut(), reason="needs root, mount namespaces, loop devices and mkfs.ext4"),
]


def after_a_cut(tmp_path: Path, when: str) -> list[Any]:
    """Return the exit code of `resume`, states and codes of the tasks, and which had begun before it and at the end."""
    found: list[Any] = json.loads(run_apart(MACHINE, *folders(tmp_path, "root", "outside"), when))
    return found


ENDS = [["failed", 3], ["succeeded", 0], ["succeeded", 0]]


@fault(6)
def test_ended_tasks_keep_their_exit_codes_and_running_ones_are_retried_after_a_power_cut(tmp_path: Path) -> None:
    code, tasks, before, begun = after_a_cut(tmp_path, "in mid-run")
    assert (code, tasks) == (1, ENDS)
    assert before == ["one", "two"]
    assert begun == ["one", "two", "two", "three"]


@fault(6)
def test_every_task_of_a_list_that_was_just_accepted_survives_a_power_cut(tmp_path: Path) -> None:
    code, tasks, _, begun = after_a_cut(tmp_path, "accepted")
    assert (code, tasks) == (1, ENDS)
    assert begun[-3:] == ["one", "two", "three"]
