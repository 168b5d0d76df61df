"""Two users on one machine: their schedulers are killed at random, and their promises never exceed the budget.

Longer by hand: `TWO_USERS_SECONDS=60 ./scripts/test -s tests/system/test_two_users.py`
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.shim import BLOCK, unpack_block
from scheduler.units import GIB
from tests.faults import fault
from tests.system.killing import ROOT, Home, Started
from tests.waiting import wait_until

USERS = (65534, 12345)
BUDGET = 2 * GIB
SECONDS = float(os.environ.get("TWO_USERS_SECONDS", "15"))
SYSTEM_PYTHON = "/usr/bin/python3"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")]


class User(Home):
    """What one user has; only the lease directory is everybody's."""

    def __init__(self, root: Path, uid: int, python: str, code: Path, leases: Path) -> None:
        super().__init__(root, (*become(uid), python, "-m", "scheduler"))
        self.leases = leases
        self.env |= {"SCHEDULER_LEASES": str(leases), "PYTHONPATH": str(code), "PATH": "/usr/bin:/bin"}
        self.uid = uid
        self.last: Started | None = None

    def prepare(self, tasks: int, dice: random.Random) -> None:
        """Tasks of which most say what they need, and that note every start."""
        self.root.mkdir()
        rows = []
        for _ in range(tasks):
            memory = dice.choice((*(f"{dice.randrange(100, 1200)}MiB" for _ in range(6)), ""))
            seconds = round(dice.uniform(0, 0.4), 2)
            script = f"echo $SCHEDULER_TASK_ID >>told; sleep {seconds}"
            rows.append([f"sh -c '{script}'", memory])
        self.write("jobs.csv", "Command,Memory", *rows)
        for path in (self.root, self.root / "jobs.csv"):
            os.chown(path, self.uid, self.uid)

    def accepted(self) -> str:
        """The run whose list was accepted; a scheduler that was killed before that has left none.

        One that was killed right after it has left a journal and no log yet: then the list is refused once more.
        """
        refused = self.last is not None and self.last.poll() == 2
        file = "journal.db" if refused else "run.log"
        return min((path.parent.name for path in self.state.glob(f"runs/[0-9]*/{file}")), key=int, default="")

    def go(self) -> Started:
        """The next scheduler."""
        accepted = self.accepted()
        arguments = ("--devices", "host:2GiB", "--buffer", "32MiB", "--max-load", "1000")
        said = (self.root / "said").open("a")
        try:
            asked = ("resume", accepted) if accepted else ("run", "jobs.csv", *arguments)
            self.last = self.start(*asked, stderr=said)
            return self.last
        finally:
            said.close()


class Observer(threading.Thread):
    """Looks at the leases every few milliseconds as any scheduler does: with the directory's mutex held."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self.most = self.looks = self.most_leases = 0
        self.both = 0
        """Looks at which both users had leases."""
        self.faults: list[str] = []
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._enough = threading.Event()

    def run(self) -> None:
        try:
            while not self._enough.wait(0.003):
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                try:
                    self.look()
                finally:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
        except Exception as exc:  # noqa: BLE001 - the test reads it; a thread has nobody else to tell
            self.faults.append(repr(exc))

    def look(self) -> None:
        living = {
            name: block
            for name in os.listdir(self._fd)
            if name[0].isdigit() and (block := self._living(name)) is not None
        }
        read = {name: unpack_block(block) for name, block in living.items()}
        self.faults += [f"{name} cannot be read" for name, lease in read.items() if lease is None]
        promised = sum(lease["bytes"]["host"] for lease in read.values() if lease)
        if promised > BUDGET:
            self.faults.append(f"{promised} promised by {read}")
        self.looks += 1
        self.most = max(self.most, promised)
        self.most_leases = max(self.most_leases, len(living))
        self.both += len({name.partition(".")[0] for name in living}) > 1

    def _living(self, name: str) -> bytes | None:
        """What a locked lease says."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=self._fd)
        except FileNotFoundError:
            return None  # a task that ends takes its lease away without asking
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return os.pread(fd, BLOCK, 0)
        finally:
            os.close(fd)

    def stop(self) -> None:
        self._enough.set()
        self.join()
        os.close(self._fd)


@pytest.fixture
def common() -> Iterator[Path]:
    """A directory that everybody can reach, which pytest's own is not."""
    with tempfile.TemporaryDirectory(prefix="two-users-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture
def users(common: Path) -> Iterator[list[User]]:
    leases = common / "leases"
    leases.mkdir()
    leases.chmod(0o1777)
    python, code = reachable_python(common)
    made = [User(common / str(uid), uid, python, code, leases) for uid in USERS]
    yield made
    for user in made:
        user.end()


def reachable_python(common: Path) -> tuple[str, Path]:
    """An interpreter and the code where the two users can read them: as they stand, or copied; else a skip."""
    if can(USERS[0], sys.executable, ROOT):
        return sys.executable, ROOT
    code = common / "code"
    shutil.copytree(ROOT / "scheduler", code / "scheduler", ignore=shutil.ignore_patterns("__pycache__"))
    import psutil

    shutil.copytree(Path(psutil.__file__).parent, code / "psutil")
    for uid in USERS:
        if not can(uid, SYSTEM_PYTHON, code):
            pytest.skip(f"user {uid} can run neither {sys.executable} nor {SYSTEM_PYTHON} with a copy of the code")
    return SYSTEM_PYTHON, code


def become(uid: int) -> tuple[str, ...]:
    """What to put before a command; setpriv itself still starts it with root's right to pass every directory."""
    return "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "sh", "-c", 'exec "$@"', "sh"


def can(uid: int, python: str, code: Path) -> bool:
    """Whether a user can run the code with an interpreter."""
    program = "import sys, psutil, scheduler.wiring; sys.exit(sys.version_info < (3, 11))"
    command = [*become(uid), python, "-c", program]
    try:
        tried = subprocess.run(command, check=False, cwd="/", env={"PYTHONPATH": str(code)}, capture_output=True)
        return tried.returncode == 0
    except OSError as exc:
        pytest.skip(f"setpriv cannot be run: {exc}")


@fault(37)
def test_two_users_never_promise_more_than_there_is(users: list[User]) -> None:
    seed = random.SystemRandom().randrange(10**6)
    dice = random.Random(seed)
    for user in users:
        user.prepare(int(9 * SECONDS), dice)
    observer = Observer(users[0].leases)
    observer.start()
    began, kills = time.monotonic(), 0
    schedulers = [user.go() for user in users]
    next_kill = [began + dice.uniform(0.2, 1.5) for _ in users]
    while time.monotonic() < began + SECONDS:
        turn = min(range(len(users)), key=next_kill.__getitem__)
        with contextlib.suppress(subprocess.TimeoutExpired):
            schedulers[turn].wait(max(0.0, next_kill[turn] - time.monotonic()))
        if schedulers[turn].poll() is None:
            schedulers[turn].kill()
            kills += schedulers[turn].wait() == -signal.SIGKILL
        next_kill[turn] = time.monotonic() + dice.choice((dice.uniform(0, 0.5), dice.uniform(0.2, 2)))
        schedulers[turn] = users[turn].go()
    codes = [finish(user, scheduler) for user, scheduler in zip(users, schedulers, strict=True)]
    observer.stop()
    took = time.monotonic() - began
    line = (
        f"seed {seed}: {kills} kills in {SECONDS:g}s, all done after {took:.0f}s; {observer.looks} looks, "
        f"{observer.both} at leases of both; at most {observer.most / GIB:.3f} of {BUDGET / GIB:g} GiB promised, "
        f"{observer.most_leases} leases at once"
    )
    print(line)
    assert observer.faults == [], line
    assert codes == [0, 0], line
    for user in users:
        judge(user, line)
    assert [path.name for path in users[0].leases.iterdir()] == [], line
    assert kills >= SECONDS / 3, line
    assert observer.both > 0, line


class TestTurns:
    """Who is next of two users who wait: who holds least, then who came first."""

    ROOM = ("--devices", "host:2GiB", "--buffer", "32MiB", "--max-load", "1000")

    @pytest.fixture
    def notes(self, common: Path, users: list[User]) -> Path:
        made = common / "notes"
        made.mkdir()
        made.chmod(0o1777)
        for user in users:
            user.prepare(0, random.Random(0))
        return made

    def hold(self, user: User, notes: Path, until: str, memory: str = "900MiB") -> Started:
        """A task that runs until a file is there."""
        script = f"touch {notes}/has-{until}; until [ -e {notes}/{until} ]; do sleep 0.02; done"
        process = user.start("exec", *self.ROOM, "--memory", memory, "--", "sh", "-c", script)
        wait_until((notes / f"has-{until}").exists, 60.0)
        return process

    def join(self, user: User, notes: Path, number: int, word: str, memory: str = "900MiB") -> Started:
        """The next who waits; it notes when its turn has come, and takes a while."""
        script = f"touch {notes}/ran-{word}; until [ -e {notes}/end-{word} ]; do sleep 0.02; done"
        process = user.start("exec", *self.ROOM, "--memory", memory, "--", "sh", "-c", script)
        wait_until(lambda: len([*user.leases.glob("ticket.*")]) == number, 60.0)
        return process

    def test_who_holds_nothing_comes_before_who_came_first(self, users: list[User], notes: Path) -> None:
        one, other = users
        with (
            self.hold(one, notes, "end-a") as a,
            self.hold(one, notes, "end-b") as b,
            self.join(one, notes, 1, "first") as first,
            self.join(other, notes, 2, "later") as later,
        ):
            (notes / "end-a").touch()
            wait_until((notes / "ran-later").exists, 60.0)
            assert not (notes / "ran-first").exists()
            (notes / "end-later").touch()
            wait_until((notes / "ran-first").exists, 60.0)
            for name in ("end-b", "end-first"):
                (notes / name).touch()
            assert [process.wait(60.0) for process in (a, b, first, later)] == [0] * 4

    def test_of_two_who_hold_nothing_who_came_first(self, users: list[User], notes: Path) -> None:
        one, other = users
        with (
            self.hold(one, notes, "end-a", "1500MiB") as a,
            self.join(one, notes, 1, "first", "1500MiB") as first,
            self.join(other, notes, 2, "later", "1500MiB") as later,
        ):
            (notes / "end-a").touch()
            wait_until((notes / "ran-first").exists, 60.0)
            assert not (notes / "ran-later").exists()
            for name in ("end-first", "end-later"):
                (notes / name).touch()
            assert [process.wait(60.0) for process in (a, first, later)] == [0] * 3


def finish(user: User, scheduler: Started) -> int:
    """The exit code of the last scheduler; a finished run may be resumed, which does nothing."""
    try:
        code = scheduler.wait(60 + 2 * SECONDS)
        return code if code != 2 else user.go().wait(60 + 2 * SECONDS)
    except subprocess.TimeoutExpired:
        scheduler.kill()
        return scheduler.wait()


def judge(user: User, line: str) -> None:
    """Every task ran once, succeeded, and left nobody."""
    tasks: list[dict[str, Any]] = user.tasks(user.accepted())
    assert {task["state"] for task in tasks} == {"succeeded"}, line
    started = Counter((user.root / "told").read_text().split())
    assert started == Counter(str(task["id"]) for task in tasks), line
    assert user.living() == [], line
    said = (user.root / "said").read_text().splitlines()
    expected = re.compile("hint:|.*, so nothing is started: ")
    assert [text for text in said if not expected.match(text)] == [], line
