"""Two users of one GPU, where each sees only their own processes in /proc (hidepid)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.units import GIB
from tests.e2e.sharing.test_two_users import common, reachable_python
from tests.support.standin import box
from tests.support.two_users import USERS, User

__all__ = ["common"]

HIDES = ("unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh")
"""The words before a command that hide the processes of other users from it, and only from it."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users"),
    pytest.mark.skipif(box.build() is None, reason=box.NO_COMPILER),
]


@pytest.fixture
def gpu(common: Path) -> Iterator[box.Box]:
    shutil.copytree(box.HERE, common / "standin", ignore=shutil.ignore_patterns(".built", "__pycache__"))
    with box.Box(common / "gpus", gpus=1, total="12GiB", cache=common / "built") as gpu:
        for path in (common / "gpus", common / "built"):
            path.chmod(0o755)
        yield gpu


@pytest.fixture
def users(common: Path, gpu: box.Box) -> Iterator[list[User]]:
    if subprocess.run([*HIDES, "true"], check=False, capture_output=True).returncode:
        pytest.skip("/proc cannot be mounted here")
    leases = common / "leases"
    leases.mkdir()
    leases.chmod(0o1777)
    python, code = reachable_python(common)
    made = []
    for uid in USERS:
        user = User(common / str(uid), uid, python, code, leases)
        user.command, user.env = [*HIDES, *user.command], user.env | gpu.env
        user.root.mkdir()
        train = f"{python} -S -E {common}/standin/train.py --peak 2GiB --seconds 3"
        user.write("jobs.csv", "Command", *([f"{train} --row {row}"] for row in range(4)))
        for path in (user.root, user.root / "jobs.csv"):
            os.chown(path, uid, uid)
        made.append(user)
    yield made
    for user in made:
        user.end()


def test_each_measures_its_own_tasks_and_nothing_is_overcommitted(gpu: box.Box, users: list[User]) -> None:
    started = [user.start("run", "jobs.csv", "--max-load", "1000") for user in users]
    assert [one.wait(120) for one in started] == [0, 0]
    assert gpu.ooms(0) == 0
    assert gpu.peak_used(0) >= 4 * GIB, "at least two at once"
    for user in users:
        tasks = json.loads(user.call("results", "r1", "--json").stdout)["tasks"]
        assert [(task["state"], task["peak_bytes"]) for task in tasks] == [("succeeded", 2 * GIB)] * 4
