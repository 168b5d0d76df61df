"""Two users' schedulers on one lease directory, killed and resumed at random: never more promised than the budget.

By hand for longer: `TWO_USERS_SECONDS=60 ./scripts/test tests/system/test_two_users.py`
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

import scheduler
from scheduler.shim import BLOCK, unpack_block
from scheduler.units import GIB, MIB

pytestmark = pytest.mark.slow

USERS = (65534, 12345)
PYTHON = "/usr/bin/python3"
SECONDS = float(os.environ.get("TWO_USERS_SECONDS", "12"))
BUDGET = 2 * GIB


class User:
    """One user with a list of 3,000 short tasks and a scheduler that is killed again and again."""

    def __init__(self, uid: int, ground: Path, dice: random.Random) -> None:
        self.uid = uid
        self.home = ground / f"home{uid}"
        self.home.mkdir()
        rows = [f"sleep {dice.uniform(0.05, 0.4):.2f},{dice.choice([100, 200, 400, 700])}MiB,0.05" for _ in range(3000)]
        (self.home / "jobs.csv").write_text("\n".join(["Command,Memory,CPUs", *rows]) + "\n")
        os.chown(self.home, uid, uid)
        self.env = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ground / "code"),
            "HOME": str(self.home),
            "SCHEDULER_STATE": str(self.home / "state"),
            "SCHEDULER_LEASES": str(ground / "leases"),
        }
        self.kills = 0
        self.process = self.start("run", "jobs.csv", "--devices", "host:2GiB")
        self._next = time.monotonic() + 1.0
        self._dice = dice

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.home / "out", "ab") as out:
            return subprocess.Popen(self.command(*arguments), cwd=self.home, env=self.env, stdout=out, stderr=out)

    def command(self, *arguments: str) -> list[str]:
        drop = ["--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]
        return ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", *drop, PYTHON, "-m", "scheduler", *arguments]

    def maybe_kill(self) -> None:
        if time.monotonic() < self._next:
            return
        self.process.kill()
        self.process.wait()
        self.kills += 1
        self.process = self.start("resume")
        self._next = time.monotonic() + self._dice.uniform(0.3, 2)

    def tasks(self) -> list[dict[str, object]]:
        done = subprocess.run(
            self.command("results", "--json"), cwd=self.home, env=self.env, capture_output=True, check=True
        )
        found: list[dict[str, object]] = json.loads(done.stdout)["tasks"]
        return found

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)


@pytest.fixture
def ground() -> Iterator[Path]:
    """A place that everybody can reach, with a copy of the code."""
    if os.getuid() != 0 or shutil.which("setpriv") is None or not os.access(PYTHON, os.X_OK):
        pytest.skip("needs root, setpriv, and a Python that other users can run")
    with tempfile.TemporaryDirectory(prefix="two-users-", dir="/tmp") as name:
        made = Path(name)
        made.chmod(0o755)
        for package in (scheduler, psutil):
            source = Path(str(package.__file__)).parent
            shutil.copytree(source, made / "code" / source.name)
        able = subprocess.run([PYTHON, "-c", "import psutil, sys; sys.exit(sys.version_info < (3, 11))"],
                              env={"PYTHONPATH": str(made / "code")}, check=False)  # fmt: skip
        if able.returncode != 0:
            pytest.skip(f"{PYTHON} is older than 3.11, or cannot load this psutil")
        (made / "leases").mkdir()
        (made / "leases").chmod(0o1777)
        yield made


def test_the_live_leases_never_pass_the_budget(ground: Path) -> None:
    seed = random.SystemRandom().randrange(10**6)
    users = [User(uid, ground, random.Random(seed + uid)) for uid in USERS]
    most, together = 0, 0
    end = time.monotonic() + SECONDS
    try:
        while time.monotonic() < end:
            promised = promised_by_user(ground / "leases")
            most = max(most, sum(promised.values()))
            together += len(promised) == 2
            assert most <= BUDGET, f"seed {seed}: {promised}"
            for user in users:
                user.maybe_kill()
            time.sleep(0.003)
    finally:
        for user in users:
            user.end()
    print(f"seed {seed}: {most / MIB:.0f} MiB at most, {sum(u.kills for u in users)} kills, {together} looks at both")
    assert most > 0.5 * BUDGET
    assert together > 0
    for user in users:
        tasks = user.tasks()
        states = Counter(str(task["state"]) for task in tasks)
        assert states.keys() <= {"succeeded", "interrupted", "waiting"}, f"seed {seed}"
        assert states["succeeded"] > 5


def promised_by_user(leases: Path) -> Counter[str]:
    """What living leases promise, summed while nobody may decide."""
    promised: Counter[str] = Counter()
    mutex = os.open(leases, os.O_RDONLY)
    try:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        for name in os.listdir(leases):
            block = block_of_living(leases / name)
            if block:
                data = unpack_block(block)
                assert data is not None, f"{name} is torn"
                promised[name.split(".")[0]] += data["bytes"]["host"]
    finally:
        os.close(mutex)
    return promised


def block_of_living(path: Path) -> bytes:
    """The lease's block, if somebody holds its lock."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, BLOCK, 0)
    finally:
        os.close(fd)
    return b""
