"""What another user of the machine may try, and what comes of it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scheduler.core.model import HOST
from scheduler.errors import LeaseError
from scheduler.store import leases
from scheduler.store.leases import Ledger, living
from tests.faults import fault
from tests.system.test_two_users import SYSTEM_PYTHON, become, common, reachable_python  # noqa: F401 - fixtures

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")

ALICE, BOB = 61_001, 61_002
"""Nobody else: the shims of a user keep alive what its dead schedulers promised."""
TAKE = """
import sys
from pathlib import Path
from scheduler.core.model import KnownBy, Placement, Purpose
from scheduler.store.leases import Ledger
ledger = Ledger(Path(sys.argv[1]), "1-aa", "boot")
with ledger.deciding() as desk:
    desk.take(Placement(1, 1, Purpose.RUN, {"host": 1 << 30}, 1.0, KnownBy.DECLARED))
print("taken", flush=True)
sys.stdin.read()
"""
LOCK = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""
TAMPER = """
import os, sys
path, pid = sys.argv[1], int(sys.argv[2])
for attempt in (
    lambda: os.unlink(path),
    lambda: os.rename(path, path + ".away"),
    lambda: os.truncate(path, 0),
    lambda: open(path, "r+"),
    lambda: os.kill(pid, 9),
):
    try:
        attempt()
        print("done")
    except PermissionError:
        print("refused")
"""
PLANT = """
import os, sys
folder, uid, target = sys.argv[1:]
name = lambda number: f"{folder}/{uid}.9-f.{number}.1"
os.mkfifo(name(1))
os.mkdir(name(2))
with open(name(3), "w") as file:
    file.truncate(1 << 30)
with open(name(4), "w") as file:
    file.write("no record \\x1b]52;c;AAAA\\x07")
os.symlink(target, name(5))
os.symlink(target, f"{folder}/ticket.{uid}.9-f")
"""


class Town:
    """A lease directory, and users who do something there."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.leases = root / "leases"
        self.leases.mkdir()
        self.leases.chmod(0o1777)
        self.python, self.code = reachable_python(root)
        self._stack = stack

    def command(self, uid: int, script: str, *arguments: object) -> list[str]:
        return [*become(uid), self.python, "-c", script, *map(str, arguments)]

    def does(self, uid: int, script: str, *arguments: object) -> list[str]:
        """The lines that a user's script prints."""
        command, env = self.command(uid, script, *arguments), {"PYTHONPATH": str(self.code)}
        return subprocess.run(command, env=env, cwd="/", check=True, capture_output=True, text=True).stdout.split()

    def stays(self, uid: int, script: str, *arguments: object) -> subprocess.Popen[str]:
        """A user's script that has done what it is for, and waits to be killed."""
        process = subprocess.Popen(
            self.command(uid, script, *arguments), env={"PYTHONPATH": str(self.code)}, cwd="/", text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        )  # fmt: skip
        self._stack.enter_context(process)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline()
        return process

    @property
    def lease(self) -> Path:
        return self.leases / f"{ALICE}.1-aa.1.1"

    def promised(self) -> list[tuple[int, int]]:
        """(user, bytes) of what counts."""
        return [(lease.uid, lease.promised[HOST]) for lease in living(self.leases)]


@pytest.fixture
def town(common: Path) -> Iterator[Town]:  # noqa: F811 - the fixture
    with ExitStack() as stack:
        yield Town(common, stack)


@fault(53)
def test_somebody_elses_promise_cannot_be_touched(town: Town) -> None:
    alice = town.stays(ALICE, TAKE, town.leases)
    assert town.does(BOB, TAMPER, town.lease, alice.pid) == ["refused"] * 5
    assert town.promised() == [(ALICE, 1 << 30)]
    assert alice.poll() is None


@fault(54)
def test_a_promise_that_is_over_is_not_kept_alive_by_a_strangers_lock(town: Town) -> None:
    alice = town.stays(ALICE, TAKE, town.leases)
    alice.kill()
    alice.wait()
    bob = town.stays(BOB, LOCK, town.lease)
    assert town.promised() == []
    assert town.lease.exists()
    town.does(ALICE, TAKE.replace("sys.stdin.read()", "list(desk.others())").replace('"1-aa"', '"2-bb"'), town.leases)
    assert bob.poll() is None
    bob.kill()


@fault(54)
def test_a_promise_whose_scheduler_has_gone_counts_while_its_task_has_it(town: Town) -> None:
    """The kernel lists the lock under the process that took it, which is no more."""
    fork = TAKE.replace("sys.stdin.read()", "os.fork() and os._exit(0); sys.stdin.read()")
    alice = town.stays(ALICE, "import os\n" + fork, town.leases)
    alice.wait()
    assert town.promised() == [(ALICE, 1 << 30)]
    assert alice.stdin is not None
    alice.stdin.close()


@fault(55)
def test_who_keeps_everybody_waiting_is_named(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PATIENCE", 0.05)
    bob = town.stays(BOB, LOCK, town.leases)
    ledger = Ledger(town.leases, "1-aa", "boot")
    with pytest.raises(LeaseError, match=f"locked for 0.05s by process {bob.pid} of user {BOB}: nothing is started"):
        ledger._lock()
    ledger.close()


STOLEN = """
import os, sys
from scheduler.shim import pack_block
from scheduler.store.locks import make_locked
folder, uid, pid = sys.argv[1:]
said = {"version": 1, "shim": int(pid), "boot": "", "bytes": {"host": 0}, "load": {}}
lock = make_locked(os.open(folder, os.O_RDONLY), f"{uid}.9-f.1.1", pack_block(said))
print("promised", flush=True)
sys.stdin.read()
"""


@fault(53)
def test_a_lease_that_names_a_task_of_mine_as_its_shim_is_not_believed(town: Town) -> None:
    """What my task held of a GPU was counted as another's, and its script was remembered as one that needs none."""
    alice = town.stays(ALICE, TAKE, town.leases)
    town.stays(BOB, STOLEN, town.leases, BOB, alice.pid)
    assert sorted((lease.uid, lease.shim) for lease in living(town.leases)) == [(ALICE, 0), (BOB, 0)]


TRAP = """
import os, sys
folder, uid, target = sys.argv[1:]
os.mkdir(f"{folder}/mps.{uid}.trap")
os.chmod(f"{folder}/mps.{uid}.trap", 0o777)
os.symlink(target, f"{folder}/mps.{uid}.trap/users")
"""
CLEAN = """
import os, sys
from pathlib import Path
from scheduler.devices.mps_home import homes_left
for home in homes_left(Path(sys.argv[1]), "/nowhere", os.environ):
    print(home.clean())
"""


SWAPPED = """
import os, sys
from pathlib import Path
from scheduler.devices.mps_home import Home
print(Home(Path(sys.argv[1]), "trap", "/nowhere", os.environ).in_use())
"""


@fault(51)
@pytest.mark.parametrize(("script", "said"), [(CLEAN, []), (SWAPPED, ["False"])], ids=["at once", "since it was found"])
def test_a_directory_with_the_name_of_my_mps_daemon_leads_to_no_file_of_mine(
    town: Town, script: str, said: list[str]
) -> None:
    """Whoever began a run removed all files in the directory of his own that the link in it named.

    Who made the lease directory can put it there at any moment, in the place of a real one.
    """
    precious = town.leases.parent / "precious"
    precious.mkdir()
    (precious / "thesis").touch()
    for path in (precious, precious / "thesis"):
        os.chown(path, ALICE, ALICE)
    town.does(BOB, TRAP, town.leases, ALICE, precious)
    assert town.does(ALICE, script, town.leases) == said
    assert [path.name for path in precious.iterdir()] == ["thesis"]


@fault(51, 52)
def test_what_is_planted_among_promises_is_passed_by(town: Town, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    town.does(BOB, PLANT, town.leases, ALICE, mine)
    town.does(BOB, PLANT.replace("9-f", "8-f"), town.leases, BOB, mine)
    alice = town.stays(ALICE, TAKE, town.leases)
    assert town.promised() == [(ALICE, 1 << 30)]
    assert alice.poll() is None
    assert mine.read_text() == "precious"


@fault(51)
def test_a_name_that_was_squatted_is_refused_and_its_link_not_followed(town: Town, tmp_path: Path) -> None:
    """Alice can neither remove Bob's link in a sticky directory nor write through it."""
    mine = tmp_path / "mine"
    mine.write_text("precious")
    town.does(BOB, "import os, sys; os.symlink(*sys.argv[1:])", mine, town.lease)
    indented = TAKE.replace("\n", "\n    ")
    script = f"try:{indented}\nexcept Exception as exc: print(type(exc).__name__, exc)"
    name, *words = town.does(ALICE, script, town.leases)
    assert (name, " ".join(words).endswith(f"(user {BOB} has put {town.lease.name} there)")) == ("LeaseError", True)
    assert mine.read_text() == "precious"


@fault(56)
@pytest.mark.parametrize(
    ("uid", "mode", "said"), [(0, 0o777, "is not sticky"), (BOB, 0o775, "is not sticky"), (BOB, 0o755, "belongs to")]
)
def test_a_directory_that_a_stranger_could_change_is_refused(town: Town, uid: int, mode: int, said: str) -> None:
    os.chown(town.leases, uid, uid)
    town.leases.chmod(mode)
    script = "import sys\nfrom pathlib import Path\nfrom scheduler.store.leases import distrust\n"
    words = " ".join(town.does(ALICE, script + "print(distrust(Path(sys.argv[1])))", town.leases))
    assert said in words
    assert f"sudo chmod 1777 {town.leases}" in words


@fault(57)
def test_nothing_of_others_is_ever_opened_to_be_made(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fs.protected_regular` forbids O_CREAT on a file that is there; the switch itself is the whole machine's."""
    opened, real = [], os.open

    def watched(path: str, flags: int, *rest: int, **how: int) -> int:
        opened.append((path, flags))
        return real(path, flags, *rest, **how)

    town.stays(ALICE, TAKE, town.leases)
    monkeypatch.setattr(os, "open", watched)
    ledger = Ledger(town.leases, "3-cc", "boot")
    with ledger.deciding() as desk:
        assert [lease.uid for lease in desk.others()] == [ALICE]
        desk.waiters()
    ledger.close()
    assert [path for path, flags in opened if flags & os.O_CREAT and not flags & os.O_EXCL] == []
    assert town.lease.name in dict(opened)
