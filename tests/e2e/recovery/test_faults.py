"""Faults of the machine below a run: its disks, clocks, processes and ports."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.core.model import EstimateSource, Outcome, Placement, Purpose
from scheduler.runtime import paths, shim
from scheduler.runtime.shim import Claim
from scheduler.store.machine.lease_records import living
from scheduler.store.machine.leases import FileLeaseRegistry
from tests.e2e.conftest import Driver
from tests.support.faults import fault
from tests.support.killing import Home, is_alive
from tests.support.mounts import folders, needs_mounts, run_apart
from tests.support.waiting import wait_until

UNTIL_GO = "sh -c 'touch here; until [ -e go ]; do sleep 0.01; done; exit 3'"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def placement(task: int) -> Placement:
    return Placement(task, 1, Purpose.RUN, {"host": 1 << 30}, 1.0, EstimateSource.DECLARED)


# Processes


@fault(6)
@pytest.mark.slow
def test_a_whole_list_is_on_the_disk_when_it_is_accepted(home: Home, tmp_path: Path) -> None:
    """A copy of the files stands for a power cut."""
    home.commands(*["true"] * 50)
    home.call("run", "-d", "jobs.csv", "-j", "1", "--devices", "host", code=0)
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in sorted((home.state / "runs/1").glob("journal.db*")):
        if not path.name.endswith("-shm"):
            shutil.copy(path, copy)
    with sqlite3.connect(copy / "journal.db") as journal:
        assert journal.execute("pragma integrity_check").fetchone() == ("ok",)
        (tasks,) = journal.execute("select count(*) from submitted").fetchone()
    assert tasks == 50


@fault(18)
def test_a_process_that_has_the_number_of_a_shim_is_not_signalled(driver: Driver) -> None:
    """The claim is locked, but not by the process that it names."""
    with subprocess.Popen(["sleep", "600"]) as unmanaged_process:
        folder = driver.tasks / "1"
        folder.mkdir(parents=True)
        who = {"boot_id": shim.boot_id(), "machine_id": shim.machine_id(), "hostname": shim.hostname()}
        start = shim.start_time(unmanaged_process.pid) - 1
        claim = Claim(1, 1, shim=unmanaged_process.pid, shim_start=start, pid=unmanaged_process.pid, start=start, **who)
        fd = shim.take_claim(shim.claim_path(str(folder), 1), claim)
        driver.engine.adopt(1, 1)
        driver.engine.stop(1, 1, kill=True)
        driver.collect()
        driver.collect()
        assert unmanaged_process.poll() is None
        os.close(fd)
        assert driver.exited(1).outcome is Outcome.LOST
        assert unmanaged_process.poll() is None
        unmanaged_process.kill()


@fault(20)
def test_a_task_that_stops_itself_ends_with_its_time_limit(driver: Driver) -> None:
    ended = driver.run_sh("kill -STOP $$", timeout=0.3, grace=0.2)
    assert ended.outcome is Outcome.TIMEOUT


@fault(69)
@pytest.mark.slow
def test_modules_in_the_tasks_directory_do_not_replace_those_of_the_scheduler(home: Home) -> None:
    for name in ("json", "signal", "struct", "psutil", "selectors"):
        taken = f"open({str(home.root / 'taken')!r}, 'a').write(__name__)\nraise SystemExit(9)\n"
        (home.root / f"{name}.py").write_text(taken)
    home.commands("sh -c 'sleep 1; exit 4'")  # the sampler of its memory begins meanwhile
    command = [sys.executable, "-P", "-m", "scheduler", "run", "jobs.csv", "--devices", "host"]
    subprocess.run(command, cwd=home.root, env=home.env, check=False, capture_output=True)
    for path in home.root.glob("*.py"):
        path.unlink()  # Python puts the directory before its own modules for the verb that reads the results
    assert [task["exit_code"] for task in home.tasks()] == [4]
    assert not (home.root / "taken").exists()


# Disks


NO_INODES = """
import json, subprocess, sys
from pathlib import Path
from tests.e2e.conftest import Driver
root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=24", "tmpfs", root], check=True)
driver = Driver(root, "inodes")
filler = driver.run_sh("i=0; while touch $i 2>/dev/null; do i=$((i+1)); done; exit 3")
late = driver.run("true", directory="/")
driver.end()
print(json.dumps([filler.outcome, filler.code, late.outcome, late.reason]))
"""


@fault(24)
@needs_mounts
def test_no_exit_code_is_lost_without_free_inodes(tmp_path: Path) -> None:
    filler, code, late, reason = json.loads(run_apart(NO_INODES, tmp_path))
    assert (filler, code, late) == ("failed", 3, "unstarted")
    assert "No space left on device" in reason


@fault(24)
def test_the_exit_code_is_kept_under_a_limit_on_the_size_of_files(driver: Driver) -> None:
    ended = driver.run_sh("ulimit -f 16; exec head -c 100000 /dev/zero")
    assert (ended.outcome, ended.signal) == (Outcome.FAILED, signal.SIGXFSZ)
    assert (driver.tasks / "1/1.log").stat().st_size <= 16 * 1024


READ_ONLY = """
import subprocess, sys
from pathlib import Path
from tests.support.killing import Home
from tests.support.waiting import wait_until
root, outside = Path(sys.argv[1]), Path(sys.argv[2])
go, there, said, image = (outside / name for name in ("go", "there", "said", "image"))

def call(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

def start():
    home = Home(root)
    home.env["SCHEDULER_DISK_MIN"] = "off"
    task = f"sh -c 'touch {there}; until [ -e {go} ]; do sleep 0.01; done; echo on >>{there}; exit 3'"
    name = home.commands(task, "sh -c 'exit 4'")
    with said.open("w") as file:
        scheduler = home.start("run", name, "-j", "1", "--devices", "host", stdout=file, stderr=file)
    wait_until(lambda: there.exists() and home.tasks()[0]["started"], 60)
    return home, scheduler

def check_that_nothing_can_be_written():
    try:
        (root / "new").touch()
    except OSError as error:
        assert error.strerror == "Read-only file system", error
    else:
        sys.exit("the file system can still be written")

def finish_the_task():
    go.touch()
    wait_until(lambda: there.read_text() == "on\\n", 60)
"""

FAILED_DISK = (
    READ_ONLY
    + """
call("truncate", "-s", "64m", image)
call("mkfs.ext4", "-q", "-F", image)
mount = ["mount", "-o", "loop,errors=remount-ro", image, root]
call(*mount)
home, scheduler = start()
call("sync", "-f", root)
device = Path(call("findmnt", "-no", "SOURCE", root)).name
Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")
check_that_nothing_can_be_written()
finish_the_task()
wait_until(lambda: "nothing starts until that ends; running tasks continue" in said.read_text(), 60)
assert scheduler.poll() is None and "exit 4" not in said.read_text(), said.read_text()
home.end()
scheduler.wait()
call("umount", root)
subprocess.run(["e2fsck", "-fy", image], check=False, capture_output=True)
call(*mount)
home.call("resume", code=1)
print([(task["exit_code"], task["attempts"]) for task in home.tasks()])
home.end()
"""
)

READ_ONLY_PATHS = (
    READ_ONLY
    + """
call("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", root)
home, scheduler = start()
call("mount", "--bind", root, root)
call("mount", "-o", "remount,bind,ro", root)
check_that_nothing_can_be_written()
finish_the_task()
wait_until(lambda: "Read-only file system" in said.read_text() and "nothing starts for now" in said.read_text(), 60)
call("umount", root)
assert scheduler.wait(60) == 1, said.read_text()
failing, late = home.tasks()
print(failing["exit_code"], failing["attempts"], late["exit_code"])
home.end()
"""
)


def has_failing_disks() -> bool:
    """Tell whether an ext4 file system in a file can be mounted here, and made to fail."""
    tools = "mkfs.ext4", "e2fsck", "findmnt"
    return Path("/dev/loop0").exists() and Path("/sys/fs/ext4").exists() and all(map(shutil.which, tools))


@fault(30)
@pytest.mark.slow
@needs_mounts
@pytest.mark.skipif(not has_failing_disks(), reason="needs loop devices, ext4 and its tools")
def test_a_task_goes_on_and_nothing_starts_on_a_disk_that_has_failed(tmp_path: Path) -> None:
    """The kernel makes ext4 read-only at an error, under all that is open, until it is repaired and mounted again. No
    exit code can be recorded there, so that the task runs again.
    """
    assert run_apart(FAILED_DISK, *folders(tmp_path, "root", "outside")) == "[(3, 2), (4, 1)]\n"


@fault(30)
@pytest.mark.slow
@needs_mounts
def test_the_exit_code_is_kept_where_only_what_is_open_can_be_written(tmp_path: Path) -> None:
    assert run_apart(READ_ONLY_PATHS, *folders(tmp_path, "root", "outside")) == "3 1 4\n"


@fault(26)
def test_the_state_of_a_home_on_a_network_file_system_is_kept_elsewhere_with_a_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", "/home/me/.local/state")
    monkeypatch.setattr(paths, "_mounts", lambda: [("/", "ext4"), ("/home", "nfs4")])
    monkeypatch.setattr(os.path, "realpath", str)
    monkeypatch.setattr(paths, "nearest", lambda path: path)
    found = paths.find_places(None)
    assert str(found.root).startswith(f"/var/tmp/gpu-batch-scheduler-{os.getuid()}/")
    assert "because /home/me/.local/state/gpu-batch-scheduler" in found.why
    assert "network file system (nfs4)" in found.why


@fault(27)
@pytest.mark.slow
@pytest.mark.parametrize("harm", ["cut", "zeros"])
def test_a_damaged_journal_is_named_and_nothing_of_it_starts_again(home: Home, harm: str) -> None:
    home.commands(*["sh -c 'echo x >>told'"] * 3)
    home.call("run", "jobs.csv", "--devices", "host", code=0)
    journal = home.state / "runs/1/journal.db"
    whole = journal.read_bytes()
    middle = len(whole) // 2
    journal.write_bytes(whole[:-1] if harm == "cut" else whole[:middle] + bytes(4096) + whole[middle + 4096 :])
    said = home.call("resume", "r1", code=1).stderr
    assert "is damaged" in said
    assert (home.root / "told").read_text() == "x\n" * 3


@fault(29)
@pytest.mark.skipif(not shutil.which("systemd-tmpfiles"), reason="there is no systemd-tmpfiles")
def test_the_cleaner_of_tmp_removes_no_lease_of_a_living_task(tmp_path: Path) -> None:
    leases = tmp_path / "leases"
    registry = FileLeaseRegistry(leases, "1-aa", "boot")
    with registry.deciding() as transaction:
        living_one, dead_one = transaction.take(placement(1)), transaction.take(placement(2))
    os.close(dead_one.fd)
    for taken in (living_one, dead_one):
        os.utime(taken.path, (0, 0))
    assert [lease.task for lease in living(leases)] == [1]  # a look counts as a use
    rules = tmp_path / "rules.conf"
    rules.write_text(f"e {leases} - - - am:10d\n")
    subprocess.run(["systemd-tmpfiles", "--clean", str(rules)], check=True)
    assert [path.name for path in leases.iterdir()] == [Path(living_one.path).name]
    assert [lease.task for lease in living(leases)] == [1]
    os.close(living_one.fd)
    registry.close()


@fault(29)
def test_a_task_keeps_its_lease_young_while_no_scheduler_looks_at_it(tmp_path: Path) -> None:
    script = """if True:
        import os, signal, sys, time
        from scheduler.runtime import shim
        shim.TOUCH = 0.05
        signal.pthread_sigmask(signal.SIG_BLOCK, shim._BLOCKED)
        pid = os.fork()
        if pid == 0:
            time.sleep(0.5); os._exit(0)
        order = shim.AttemptOrder(1, 1, [], "", {}, "", "", lease=sys.argv[1])
        shim.Watch(pid, order, shim.LogKeeper(os.devnull, 1 << 30, None)).run()
    """
    lease = tmp_path / "lease"
    lease.touch()
    os.utime(lease, (0, 0))
    subprocess.run([sys.executable, "-c", script, str(lease)], check=True)
    assert lease.stat().st_mtime > 0


@fault(29)
def test_a_scheduler_whose_lease_directory_was_removed_uses_the_new_one(tmp_path: Path) -> None:
    leases = tmp_path / "leases"
    first = FileLeaseRegistry(leases, "1-aa", "boot")
    leases.rmdir()
    other = FileLeaseRegistry(leases, "2-bb", "boot")
    with first.deciding() as transaction:
        taken = transaction.take(placement(1))
    with other.deciding() as transaction:
        assert [lease.task for lease in transaction.others()] == [1]
    os.close(taken.fd)
    first.close()
    other.close()


# Ports


@fault(62, 63, 64)
@pytest.mark.slow
def test_a_run_listens_on_no_port(home: Home) -> None:
    home.commands(UNTIL_GO)
    with home.start("run", "jobs.csv", "--devices", "host") as scheduler:
        wait_until((home.root / "here").exists, 30)
        ours = {link for pid in home.living() for link in sockets(pid)}
        assert scheduler.pid in home.living()
        assert ours & listening() == set()
        (home.root / "go").touch()
        assert scheduler.wait(30) == 1


def sockets(pid: int) -> set[str]:
    """Return the inodes of a process's sockets."""
    found = set()
    if is_alive(pid):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            try:
                found.add(os.readlink(path).removeprefix("socket:[").removesuffix("]"))
            except OSError:
                continue
    return found


def listening() -> set[str]:
    """Return the inodes of all TCP sockets that listen."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()]
    return {words[9] for words in lines if words[3] == "0A"}
