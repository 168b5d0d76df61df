"""A lease of one user beside the run of another one, on one stand-in GPU."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.units import GIB
from tests.e2e.sharing.test_two_users import common, reachable_python
from tests.support.standin import box
from tests.support.two_users import USERS, User
from tests.support.waiting import wait_until

__all__ = ["common"]  # a fixture

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
    leases = common / "leases"
    leases.mkdir()
    leases.chmod(0o1777)
    python, code = reachable_python(common)
    made = []
    for uid in USERS:
        user = User(common / str(uid), uid, python, code, leases)
        user.env |= gpu.env
        user.root.mkdir()
        train = f"{python} -S -E {common}/standin/train.py"
        user.write("jobs.csv", "Command,Memory", [f"{train} --peak 1GiB --seconds 1", "5GiB"])
        for path in (user.root, user.root / "jobs.csv"):
            os.chown(path, uid, uid)
        made.append(user)
    yield made
    for user in made:
        user.end()


def test_the_memory_of_another_users_lease_is_counted_once(gpu: box.Box, users: list[User], common: Path) -> None:
    """The GPU has 12 GiB, 5 reserved and 4 of these in use: counted twice, 5 GiB more would not fit."""
    ben, eva = users
    train = [ben.command[-3], "-S", "-E", f"{common}/standin/train.py", "--peak", "4GiB", "--seconds", "60"]
    with ben.start("lease", "--memory", "5GiB", "--", *train) as lease:
        wait_until(lambda: gpu.used(0) >= 4 * GIB, 30)
        assert eva.call("run", "jobs.csv").returncode == 0
        (seen,) = json.loads(eva.call("status", "--json").stdout)["leases"]
        assert 4 * GIB in seen["used"].values()
        assert lease.poll() is None
        lease.kill()
        lease.wait()
    wait_until(lambda: not [name for name in os.listdir(common / "leases") if name.startswith(f"{ben.uid}.")], 10)
