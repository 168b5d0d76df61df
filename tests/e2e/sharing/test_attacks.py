"""Attacks by another user of the machine, and their effects."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from scheduler.core.model import HOST
from scheduler.errors import LeaseError
from scheduler.store.machine import leases, records
from scheduler.store.machine.lease_records import FIRST_NAMESPACE, LeaseKind, living
from scheduler.store.machine.leases import FileLeaseRegistry
from scheduler.store.machine.locked_files import is_free
from scheduler.store.machine.wait_tickets import TicketKind, waiters
from tests.e2e.sharing.test_two_users import SYSTEM_PYTHON, become, common, reachable_python  # noqa: F401 - fixtures
from tests.support.builders import brain, host, machine, tasks
from tests.support.faults import fault

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")

ALICE, BOB = 61_001, 61_002
"""Users of this test alone: the shims of a user keep leases of its dead schedulers alive."""
TAKE = """
import sys
from pathlib import Path
from scheduler.core.model import EstimateSource, Placement, Purpose
from scheduler.store.machine.leases import FileLeaseRegistry
registry = FileLeaseRegistry(Path(sys.argv[1]), "1-aa", "boot")
with registry.deciding() as transaction:
    transaction.take(Placement(1, 1, Purpose.RUN, {"host": 1 << 30}, 1.0, EstimateSource.DECLARED))
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
ORPHAN = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, fcntl.LOCK_EX)
parent = os.getpid()
if os.fork():
    os._exit(0)
while os.getppid() == parent:
    time.sleep(0.01)
print("locked", os.getpid(), flush=True)
sys.stdin.read()
"""
"""A program that leaves a lock of an ended process, which the kernel lists under an unused pid."""
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
name = lambda number: f"{folder}/{uid}.9-f.{number}.1.0123456789abcdef"
os.mkfifo(name(1))
os.mkdir(name(2))
with open(name(3), "w") as file:
    file.truncate(1 << 30)
with open(name(4), "w") as file:
    file.write("no record \\x1b]52;c;AAAA\\x07")
os.symlink(target, name(5))
os.symlink(target, f"{folder}/ticket.{uid}.9-f.0123456789abcdef")
"""


class Town:
    """A lease directory, and users who act in it."""

    def __init__(self, root: Path, stack: ExitStack) -> None:
        self.leases = root / "leases"
        self.leases.mkdir()
        self.leases.chmod(0o1777)
        self.python, self.code = reachable_python(root)
        self._stack = stack

    def command(self, uid: int, script: str, *arguments: object) -> list[str]:
        return [*become(uid), self.python, "-c", script, *map(str, arguments)]

    def does(self, uid: int, script: str, *arguments: object) -> list[str]:
        """Run a user's script, and return the words that it prints."""
        command, env = self.command(uid, script, *arguments), {"PYTHONPATH": str(self.code)}
        return subprocess.run(command, env=env, cwd="/", check=True, capture_output=True, text=True).stdout.split()

    def stays(self, uid: int, script: str, *arguments: object) -> subprocess.Popen[str]:
        """Start a user's script, and return its process once it has printed a line; it then waits to be killed."""
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
        """Return the path of Alice's lease."""
        (path,) = self.leases.glob(f"{ALICE}.1-aa.1.1.*")
        return path

    def reserved(self) -> list[tuple[int, int]]:
        """Return (user, bytes) of each lease that counts."""
        return [(lease.uid, lease.reserved[HOST]) for lease in living(self.leases)]


@pytest.fixture
def town(common: Path) -> Iterator[Town]:  # noqa: F811 - the fixture
    with ExitStack() as stack:
        yield Town(common, stack)


@fault(53)
def test_a_lease_of_another_user_cannot_be_changed_or_removed(town: Town) -> None:
    alice = town.stays(ALICE, TAKE, town.leases)
    assert town.does(BOB, TAMPER, town.lease, alice.pid) == ["refused"] * 5
    assert town.reserved() == [(ALICE, 1 << 30)]
    assert alice.poll() is None


@fault(54)
def test_a_dead_lease_is_not_kept_alive_by_another_users_lock(town: Town) -> None:
    alice = town.stays(ALICE, TAKE, town.leases)
    alice.kill()
    alice.wait()
    bob = town.stays(BOB, LOCK, town.lease)
    assert town.reserved() == []
    assert town.lease.exists()
    town.does(
        ALICE, TAKE.replace("sys.stdin.read()", "list(transaction.others())").replace('"1-aa"', '"2-bb"'), town.leases
    )
    assert bob.poll() is None
    bob.kill()


@pytest.mark.skipif(
    Path("/proc/self/ns/pid").stat().st_ino != FIRST_NAMESPACE, reason="in a container the kernel does not tell"
)
@fault(54, 103)
def test_a_dead_lease_is_not_kept_alive_by_a_lock_whose_process_has_ended(town: Town) -> None:
    alice = town.stays(ALICE, TAKE, town.leases)
    alice.kill()
    alice.wait()
    bob = town.stays(BOB, ORPHAN, town.lease)
    bob.wait()
    with open(town.lease, "rb") as file:
        assert not is_free(file.fileno())
    assert town.reserved() == []


@fault(54)
def test_a_lease_whose_scheduler_has_ended_counts_while_its_task_holds_it(town: Town) -> None:
    """The kernel lists the lock under the process that took it, which has ended."""
    fork = TAKE.replace("sys.stdin.read()", "os.fork() and os._exit(0); sys.stdin.read()")
    alice = town.stays(ALICE, "import os\n" + fork, town.leases)
    alice.wait()
    assert town.reserved() == [(ALICE, 1 << 30)]
    assert alice.stdin is not None
    alice.stdin.close()


@fault(55)
def test_a_process_that_keeps_the_directory_locked_is_named(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases, "PATIENCE", 0.05)
    bob = town.stays(BOB, LOCK, town.leases)
    registry = FileLeaseRegistry(town.leases, "1-aa", "boot")
    with pytest.raises(LeaseError, match=f"locked for 0.05s by process {bob.pid} of user {BOB}: nothing is started"):
        registry._lock()
    registry.close()


@fault(55, 103)
def test_a_child_that_keeps_the_directory_locked_for_its_ended_parent_is_named(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "PATIENCE", 0.05)
    bob = town.stays(BOB, ORPHAN, town.leases)
    bob.wait()
    registry = FileLeaseRegistry(town.leases, "1-aa", "boot")
    left = f"locked for 0.05s by process {bob.pid}, which has ended and left its lock to process [0-9]+ of user {BOB}:"
    with pytest.raises(LeaseError, match=left):
        registry._lock()
    registry.close()


STOLEN = """
import os, sys
from scheduler.runtime.shim import pack_block
from scheduler.store.machine.locked_files import make_locked
folder, uid, pid = sys.argv[1:]
said = {"version": 1, "shim": int(pid), "boot": "", "bytes": {"host": 0}, "load": {}}
lock = make_locked(os.open(folder, os.O_RDONLY), f"{uid}.9-f.1.1.0123456789abcdef", pack_block(said))
print("reserved", flush=True)
sys.stdin.read()
"""


@fault(53)
def test_a_lease_that_names_a_task_of_mine_as_its_shim_is_not_believed(town: Town) -> None:
    """The GPU memory of the task counted as the other user's, so its script was learned as one without GPU memory."""
    alice = town.stays(ALICE, TAKE, town.leases)
    town.stays(BOB, STOLEN, town.leases, BOB, alice.pid)
    assert sorted((lease.uid, lease.shim) for lease in living(town.leases)) == [(ALICE, 0), (BOB, 0)]


FORGED = """
import sys
from dataclasses import replace
from pathlib import Path
from scheduler.core.model import WaitTicket
from scheduler.store.machine.leases import FileLeaseRegistry
registry = FileLeaseRegistry(Path(sys.argv[1]), "9-f", "boot")
with registry.deciding() as transaction:
    transaction.wait(WaitTicket(1, ("host",), (), 1 << 59, waited=1e9, closed=True))
print("waits", flush=True)
sys.stdin.read()
"""


@fault(96)
def test_a_forged_ticket_above_the_machines_capacity_delays_no_task_and_names_its_process(town: Town) -> None:
    """Such a ticket kept all other users from starting tasks for as long as it was renewed."""
    bob = town.stays(BOB, FORGED, town.leases)
    (waiter,) = waiters(town.leases)
    assert (waiter.uid, waiter.ticket.closed, waiter.who) == (BOB, True, f"{BOB} (process {bob.pid})")
    seen = replace(machine(host()), uid=ALICE, waiters=(waiter,))
    assert [one.task for one in brain(tasks(2, "1GiB")).decide(seen).placements] == [1, 2]


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
from scheduler.devices.mps.daemon import homes_left
for home in homes_left(Path(sys.argv[1]), "/nowhere", os.environ):
    print(home.clean())
"""


SWAPPED = """
import os, sys
from pathlib import Path
from scheduler.devices.mps.daemon import MpsHome
print(MpsHome(Path(sys.argv[1]), "", "/nowhere", os.environ, f"mps.{os.getuid()}.trap").in_use())
"""


@fault(51)
@pytest.mark.parametrize(("script", "said"), [(CLEAN, []), (SWAPPED, ["False"])], ids=["at once", "since it was found"])
def test_a_directory_with_the_name_of_my_mps_daemon_leads_to_no_file_of_mine(
    town: Town, script: str, said: list[str]
) -> None:
    """The start of a run removed all files in the user's own directory that the link in it named.

    The owner of the lease directory can put the link there at any moment, in the place of a real directory.
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
def test_planted_files_with_lease_names_are_ignored(town: Town, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    town.does(BOB, PLANT, town.leases, ALICE, mine)
    town.does(BOB, PLANT.replace("9-f", "8-f"), town.leases, BOB, mine)
    alice = town.stays(ALICE, TAKE, town.leases)
    assert town.reserved() == [(ALICE, 1 << 30)]
    assert alice.poll() is None
    assert mine.read_text() == "precious"


SQUAT = """
import os, sys
folder, uid, target = sys.argv[1:]
for task in range(1, 10):
    for attempt in range(1, 5):
        os.symlink(target, f"{folder}/{uid}.1-aa.{task}.{attempt}")
os.symlink(target, f"{folder}/ticket.{uid}.1-aa")
"""


@fault(51, 101)
def test_a_run_whose_lease_names_were_guessed_takes_its_leases_and_follows_no_link(town: Town, tmp_path: Path) -> None:
    """Lease names could be predicted: with a link under each, the run started nothing more."""
    mine = tmp_path / "mine"
    mine.write_text("precious")
    town.does(BOB, SQUAT, town.leases, ALICE, mine)
    town.stays(ALICE, TAKE, town.leases)
    assert town.reserved() == [(ALICE, 1 << 30)]
    assert mine.read_text() == "precious"


@fault(56)
@pytest.mark.parametrize(
    ("uid", "mode", "said"), [(0, 0o777, "is not sticky"), (BOB, 0o775, "is not sticky"), (BOB, 0o755, "belongs to")]
)
def test_a_directory_that_another_user_could_change_is_refused(town: Town, uid: int, mode: int, said: str) -> None:
    os.chown(town.leases, uid, uid)
    town.leases.chmod(mode)
    script = "import sys\nfrom pathlib import Path\nfrom scheduler.store.machine.lease_directory import distrust\n"
    words = " ".join(town.does(ALICE, script + "print(distrust(Path(sys.argv[1])))", town.leases))
    assert said in words
    cure = f"sudo chmod 1777 {town.leases}" if uid == 0 else "sudo scheduler devices init makes one of root's"
    assert cure in words
    assert (f"chmod 1777 {town.leases}" in words) == (uid == 0)


FLOOD = """
import fcntl, os, sys
from scheduler.runtime.shim import pack_block
folder, uid, claimed, number, kind = sys.argv[1:]
os.chdir(folder)
said = pack_block({"version": 1, "shim": 0, "boot": "", "bytes": {"host": 1}, "load": {}})
held = []
for i in range(int(number)):
    name = {"lease": f"{claimed}.9-f.{i}.1.{i:016x}", "ticket": f"ticket.{claimed}.9-f.{i:016x}",
            "device_reservation": f"closed.{claimed}.{i:08x}", "nothing": f"file{i}"}[kind.removeprefix("living ")]
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, said)
    if kind.startswith("living"):
        fcntl.flock(fd, fcntl.LOCK_EX)
        held.append(fd)
    else:
        os.close(fd)
print("flooded", flush=True)
sys.stdin.read()
"""


@fault(102)
@pytest.mark.parametrize("claimed", [BOB, ALICE, 0])
@pytest.mark.parametrize("kind", ["lease", "ticket", "device_reservation", "nothing"])
def test_invalid_files_are_not_opened_while_the_mutex_is_held(
    town: Town, monkeypatch: pytest.MonkeyPatch, kind: str, claimed: int
) -> None:
    """With 100,000 of them each decision took a second, and all other schedulers waited for it."""
    town.stays(BOB, FLOOD, town.leases, BOB, claimed, 500, kind)
    alice = town.stays(ALICE, TAKE, town.leases)
    opened, real = [], os.open

    def counted(path: str, flags: int, *rest: int, **how: int) -> int:
        opened.append(path)
        return real(path, flags, *rest, **how)

    registry = FileLeaseRegistry(town.leases, "3-cc", "boot")
    with registry.deciding() as transaction:
        monkeypatch.setattr(os, "open", counted)
        assert [lease.uid for lease in transaction.others()] == [ALICE]
        assert transaction.waiters() == []
        assert dict(transaction.house().closed) == {}
    monkeypatch.undo()
    registry.close()
    assert [path for path in opened if path != town.lease.name] == []
    assert alice.poll() is None


@fault(102)
def test_living_leases_of_one_user_beyond_the_bound_do_not_count_and_the_user_is_named(
    town: Town, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LeaseKind, "most", 5)
    town.stays(BOB, FLOOD, town.leases, BOB, BOB, 8, "living lease")
    town.stays(ALICE, TAKE, town.leases)
    registry = FileLeaseRegistry(town.leases, "3-cc", "boot")
    with registry.deciding() as transaction:
        found = sorted(lease.uid for lease in transaction.others())
    assert found == [ALICE] + 5 * [BOB]
    (said,) = registry.troubles()
    assert said.endswith(f"(user {BOB}) has more than 5 leases in {town.leases}: the others do not count")
    registry.close()


@fault(102)
def test_a_user_whose_files_slow_decisions_down_is_named(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "MANY", 100)
    town.stays(BOB, FLOOD, town.leases, BOB, BOB, 200, "nothing")
    registry = FileLeaseRegistry(town.leases, "3-cc", "boot")
    with registry.deciding() as transaction:
        transaction.others()
    (said,) = registry.troubles()
    assert f"files, most of {BOB} (user {BOB}), which delays each start" in said
    registry.close()


BARRED = """
import fcntl, os, signal, sys
from scheduler.runtime.shim import pack_block
folder, uid, kind = sys.argv[1:]
os.chdir(folder)
lying = {"version": 1, "shim": 0, "boot": "", "bytes": {"host": 1}, "load": {}, "locker": 1,
         "namespace": os.stat("/proc/self/ns/pid").st_ino}
held = []
for i in range(8):
    name = f"ticket.{uid}.9-f.{i:016x}" if kind == "ticket" else f"{uid}.9-f.{i}.1.{i:016x}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT, 0o644)
    os.write(fd, pack_block({"version": 999} if kind == "ticket" else lying))
    if kind == "barred":  # who opens it is told to come again, and its holder gets this signal
        signal.signal(signal.SIGIO, signal.SIG_IGN)
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    else:
        fcntl.flock(fd, fcntl.LOCK_EX)
    held.append(fd)
print("planted", flush=True)
sys.stdin.read()
"""
"""A program that keeps files that count for nothing and that no look can find dead."""


@fault(102)
@pytest.mark.parametrize("kind", ["feigned", "ticket", "barred"])
def test_locked_files_that_count_for_nothing_are_opened_up_to_the_bound_of_their_user(
    town: Town, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Locked and invalid files were opened in each decision, however many there were."""
    if kind == "feigned" and Path("/proc/self/ns/pid").stat().st_ino != FIRST_NAMESPACE:
        pytest.skip("in a container such leases count")
    monkeypatch.setattr(TicketKind if kind == "ticket" else LeaseKind, "most", 5)
    town.stays(BOB, BARRED, town.leases, BOB, kind)
    town.stays(ALICE, TAKE, town.leases)
    opened, real = [], os.open

    def counted(path: str, flags: int, *rest: int, **how: int) -> int:
        opened.append(path)
        return real(path, flags, *rest, **how)

    registry = FileLeaseRegistry(town.leases, "3-cc", "boot")
    with registry.deciding() as transaction:
        monkeypatch.setattr(os, "open", counted)
        assert [lease.uid for lease in transaction.others()] == [ALICE]
        assert transaction.waiters() == []
    monkeypatch.undo()
    registry.close()
    assert len([path for path in opened if "9-f" in path]) == 5


FLAP = """
import fcntl, os, sys, time
for _ in range(3):
    os.fork()
fd = os.open(sys.argv[1], os.O_RDONLY)
print("flaps", flush=True)
end = time.monotonic() + 30
while time.monotonic() < end:
    fcntl.flock(fd, fcntl.LOCK_EX)
    time.sleep(0.03)
    fcntl.flock(fd, fcntl.LOCK_UN)
    time.sleep(0.002)
"""


@pytest.mark.slow
@fault(102)
def test_a_scheduler_gets_the_mutex_while_eight_processes_pass_it_among_themselves(town: Town) -> None:
    """It tried at intervals while the others waited in the kernel's queue, and found the mutex locked for 40 s."""
    town.stays(BOB, "import os; os.setsid()" + FLAP, town.leases)
    registry = FileLeaseRegistry(town.leases, "3-cc", "boot")
    for _ in range(3):
        with registry.deciding() as transaction:
            assert transaction.others() == []
    registry.close()


@fault(57)
def test_no_file_of_another_user_is_opened_with_o_creat(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """`fs.protected_regular` forbids O_CREAT on an existing file; the switch itself applies to the whole machine."""
    opened, real = [], os.open

    def watched(path: str, flags: int, *rest: int, **how: int) -> int:
        opened.append((path, flags))
        return real(path, flags, *rest, **how)

    town.stays(ALICE, TAKE, town.leases)
    monkeypatch.setattr(os, "open", watched)
    registry = FileLeaseRegistry(town.leases, "3-cc", "boot")
    with registry.deciding() as transaction:
        assert [lease.uid for lease in transaction.others()] == [ALICE]
        transaction.waiters()
    registry.close()
    assert [path for path, flags in opened if flags & os.O_CREAT and not flags & os.O_EXCL] == []
    assert town.lease.name in dict(opened)
