"""Two users on one machine: their schedulers are killed at random, and their reservations never exceed the budget.

Longer by hand: `TWO_USERS_SECONDS=60 ./scripts/test -s tests/e2e/sharing/test_two_users.py`
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import two_users
from tests.support.faults import fault
from tests.support.killing import Started
from tests.support.standin.box import HERE, NO_COMPILER
from tests.support.two_users import SYSTEM_PYTHON, USERS, Unreachable, User, become, judge, storm
from tests.support.waiting import wait_until

__all__ = ["SYSTEM_PYTHON", "USERS", "User", "become", "common", "reachable_python", "users"]

SECONDS = float(os.environ.get("TWO_USERS_SECONDS", "15"))

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")]


@pytest.fixture
def common() -> Iterator[Path]:
    """Return a directory that all users can reach, as they cannot reach pytest's own."""
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


@fault(37)
@pytest.mark.parametrize("shims", [0.0, 0.5])
def test_reservations_of_two_users_never_exceed_the_budget(users: list[User], shims: float) -> None:
    seed = random.SystemRandom().randrange(10**6)
    seconds = SECONDS if not shims else SECONDS / 2
    for user in users:
        user.prepare(int(9 * seconds), random.Random(seed + user.uid))
    came = storm(users, seed, seconds=seconds, shims=shims)
    line = came.line()
    print(line)
    assert (came.faults, came.stale) == ([], []), line
    assert came.codes == [0, 0] or came.shims, line
    for user in users:
        judge(user, line, once=not came.shims)
    assert [path.name for path in users[0].leases.iterdir()] == [], line
    assert came.kills >= seconds / 3, line
    assert came.both > 0, line


def reachable_python(common: Path) -> tuple[str, Path]:
    """Return an interpreter and the code where both users can read them; skip where they cannot."""
    try:
        return two_users.reachable_python(common)
    except Unreachable as exc:
        pytest.skip(str(exc))


class TestTurns:
    """The order of two waiting users: the one who holds least, then the one who came first."""

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
        """Start a task that runs until a file exists."""
        script = f"touch {notes}/has-{until}; until [ -e {notes}/{until} ]; do sleep 0.02; done"
        process = user.start("exec", *self.ROOM, "--memory", memory, "--", "sh", "-c", script)
        wait_until((notes / f"has-{until}").exists, 60.0)
        return process

    def join(self, user: User, notes: Path, number: int, word: str, memory: str = "900MiB") -> Started:
        """Start the next waiting task; it records when its turn has come, and runs until a file exists."""
        script = f"touch {notes}/ran-{word}; until [ -e {notes}/end-{word} ]; do sleep 0.02; done"
        process = user.start("exec", *self.ROOM, "--memory", memory, "--", "sh", "-c", script)
        wait_until(lambda: len([*user.leases.glob("ticket.*")]) == number, 60.0)
        return process

    def test_a_user_who_holds_nothing_comes_before_one_who_came_first(self, users: list[User], notes: Path) -> None:
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

    def test_among_two_users_who_hold_nothing_the_first_starts(self, users: list[User], notes: Path) -> None:
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


TRY = "import os, sys; os.close(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT))"


@fault(57)
@pytest.mark.skipif(shutil.which("cc") is None, reason=NO_COMPILER)
def test_two_users_go_on_where_the_kernel_protects_files_of_others(users: list[User], common: Path) -> None:
    library = common / "protected.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(HERE / "protected.c")], check=True)
    ann, ben = users
    for user in users:
        user.env["LD_PRELOAD"] = str(library)
        user.prepare(8, random.Random(user.uid))
    theirs = common / "leases" / f"{ann.uid}.planted"
    theirs.touch()
    os.chown(theirs, ann.uid, ann.uid)
    command = [*become(ben.uid), SYSTEM_PYTHON, "-c", TRY, str(theirs)]
    tried = subprocess.run(command, check=False, env=ben.env, capture_output=True, text=True)
    assert "PermissionError" in tried.stderr, "the stand-in protects nothing"
    both = [user.go() for user in users]
    codes = [process.wait(120) for process in both]
    assert (codes, "Permission denied" in ann.log() + ben.log()) == ([0, 0], False), ann.log()
