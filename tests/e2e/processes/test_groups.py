"""Control groups of attempts: no process that is started in one escapes, whatever it does, and no group is left.

Where this user may make no groups there are none; the other ways to end trees are tested without them too.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.core.model import Outcome
from scheduler.runtime import shim
from tests.e2e.conftest import Driver, marked
from tests.e2e.sharing.test_two_users import USERS, User, common, users  # noqa: F401 - fixtures
from tests.support.faults import fault
from tests.support.killing import Home, kill
from tests.support.waiting import wait_until

OWN = Path(shim.own_group() or "/nonexistent")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not OWN.exists(), reason="this user may make no control groups where the tests run"),
]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")

BOMB = """
import os, resource, sys, time
os.setuid(int(sys.argv[2]))
resource.setrlimit(resource.RLIMIT_NPROC, (150, 150))
while True:
    try:
        if os.fork() == 0:
            os.setsid()
            print("ready", flush=True)
    except OSError:
        time.sleep(0.001)
"""
"""A program whose processes fork for as long as their user may have more."""
FROZEN = 13.0
"""Seconds of freezing, longer than the task's time limit."""
OTHER_UID = "61234"
DAEMON = "(env -i setsid sh -c 'sleep 600; : {}' </dev/null >/dev/null 2>&1 &); echo up; sleep 600; : {}"


def group_of(pid: int) -> Path:
    """Return the folder of the cgroup v2 of a process."""
    lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    path = next(line[3:] for line in lines if line.startswith("0::"))
    mounts = (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))
    return next(mount for mount in mounts if (mount / "cgroup.procs").exists()) / path.lstrip("/")


def test_attempt_has_a_group_of_its_own_that_is_removed_at_its_end(driver: Driver) -> None:
    first, second = driver.sh("sleep 600"), driver.sh("sleep 600")
    groups = [group_of(driver.started(task).pid) for task in (first, second)]
    assert groups == [OWN / f"{shim.GROUP}{driver.prefix}.{task}.1" for task in (first, second)]
    assert group_of(driver.shim_of(first)) == OWN
    driver.engine.stop(first, 1)
    driver.exited(first)
    wait_until(lambda: driver.collect() and [group.exists() for group in groups] == [False, True])


def test_attempt_has_no_group_where_groups_are_switched_off(drivers: Callable[..., Driver]) -> None:
    driver = drivers(cgroups=False)
    assert group_of(driver.started(driver.sh("sleep 600")).pid) == OWN


def test_groups_below_an_attempts_group_are_removed_with_it(driver: Driver) -> None:
    ended = driver.run_sh(f"mkdir -p {OWN}/$(sed -n 's/^0:://p' /proc/self/cgroup)/one/two")
    assert ended.outcome is Outcome.SUCCEEDED
    wait_until(lambda: driver.collect() and not (OWN / f"{shim.GROUP}{driver.prefix}.1.1").exists())


@fault(4, 10)
def test_process_without_any_mark_is_found_by_its_group_after_its_shim_was_killed(driver: Driver, mark: str) -> None:
    task = driver.sh(DAEMON.format(mark, mark))
    driver.wait_for_line("up")
    wait_until(lambda: len(marked(mark)) >= 2)
    os.kill(driver.started(task).shim, signal.SIGKILL)
    assert driver.exited(task).outcome is Outcome.LOST
    assert marked(mark) == []
    assert not (OWN / f"{shim.GROUP}{driver.prefix}.{task}.1").exists()


@fault(5, 10)
def test_process_without_any_mark_is_found_by_its_group_by_the_next_scheduler(
    drivers: Callable[..., Driver], mark: str
) -> None:
    first = drivers()
    task = first.sh(DAEMON.format(mark, mark))
    wait_until(lambda: len(marked(mark)) >= 2)
    killed = first.started(task).shim
    os.kill(killed, signal.SIGKILL)
    second = drivers()
    second.engine.adopt(task, 1)
    assert second.exited(task).outcome is Outcome.LOST
    assert marked(mark) == []


def test_empty_group_of_a_dead_shim_is_removed_by_the_next_server(drivers: Callable[..., Driver]) -> None:
    old = OWN / f"{shim.GROUP}{uuid.uuid4().hex}"
    (old / "below").mkdir(parents=True)
    drivers().run("true")
    wait_until(lambda: not old.exists())


@as_root
@fault(10, 12)
@pytest.mark.parametrize("kill", [False, True], ids=["cancel", "kill"])
def test_fork_bomb_is_killed(driver: Driver, mark: str, kill: bool) -> None:
    task = driver.launch(sys.executable, "-IS", "-c", BOMB, mark, OTHER_UID, grace=0.3)
    driver.started(task)
    wait_until(lambda: len(marked(mark)) >= 100, 60)
    driver.engine.stop(task, 1, kill=kill)
    assert driver.exited(task, deadline=60).outcome is Outcome.INTERRUPTED
    assert marked(mark) == []


@pytest.fixture
def folder() -> Iterator[Path]:
    """Make a group of the test's own."""
    made = OWN / f"test-{uuid.uuid4().hex}"
    made.mkdir()
    yield made
    shim.kill_group(str(made))
    wait_until(lambda: shim.is_empty_group(str(made)))
    shim.remove_group(str(made))


def enters(home: Home, folder: Path) -> None:
    """Have everything that the home starts from now on in that group."""
    home.command[:0] = ["sh", "-c", 'echo $$ >"$0" && exec "$@"', str(folder / "cgroup.procs")]


@pytest.fixture
def alice(users: list[User], folder: Path) -> Iterator[User]:  # noqa: F811 - the fixture
    """Return a user who has a delegated group, and starts everything in it."""
    user = users[0]
    for path in (folder, folder / "cgroup.procs"):
        os.chown(path, user.uid, user.uid)
    enters(user, folder)
    user.root.mkdir()
    os.chown(user.root, user.uid, user.uid)
    yield user
    user.end()


@as_root
@fault(10)
def test_process_that_became_root_is_killed_by_its_group(alice: User, mark: str) -> None:
    program = alice.root / "become-root"
    shutil.copy(str(shutil.which("setpriv")), program)
    program.chmod(0o4755)
    rooted = [str(program), "--reuid=0", "--regid=0", "--clear-groups", sys.executable, "-IS", "-c"]
    script = f"{shlex.join([*rooted, 'import time; time.sleep(600)', mark])} & exit 0"
    alice.write("jobs.csv", "Command", [shlex.join(["sh", "-c", script])])
    alice.call("run", "jobs.csv", "--devices", "host", "--plain", code=0)
    assert [task["state"] for task in alice.tasks("1")] == ["succeeded"]
    assert marked(mark) == []


@as_root
def test_groups_that_are_not_delegated_are_silently_not_used(
    users: list[User],  # noqa: F811 - the fixture
) -> None:
    bob = users[1]
    bob.root.mkdir()
    os.chown(bob.root, bob.uid, bob.uid)
    (bob.root / "where").write_text("cat /proc/self/cgroup >seen")
    bob.commands("sh where")
    said = bob.call("run", "jobs.csv", "--devices", "host", "--plain", code=0)
    assert "group" not in said.stdout + said.stderr
    assert (bob.root / "seen").read_text() == Path("/proc/self/cgroup").read_text()


def test_tasks_of_a_run_with_cgroup_never_stay_in_the_group_of_its_scheduler(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.commands("sh -c 'cat /proc/self/cgroup >seen'")
    groups = []
    for setting in ("never", "auto"):
        home.env["SCHEDULER_CGROUP"] = setting
        home.call("run", "jobs.csv", "--new", "--plain", code=0)
        groups.append((tmp_path / "seen").read_text())
    home.end()
    assert groups[0] == Path("/proc/self/cgroup").read_text() != groups[1]


def test_group_serves_all_attempts_of_a_shim_and_is_removed_with_it(driver: Driver) -> None:
    for _ in range(2):
        driver.run_sh("sed -n 's/^0:://p' /proc/self/cgroup")
    assert driver.log(1) == driver.log(2) != ""
    wait_until(lambda: driver.collect() and not (OWN / f"{shim.GROUP}{driver.prefix}.1.1").exists(), 30)


def test_attempt_after_a_killed_one_is_not_killed(driver: Driver) -> None:
    task = driver.sh("trap '' TERM; echo up; while :; do sleep 0.05; done", grace=0.1)
    driver.wait_for_line("up", task)
    driver.engine.stop(task, 1)
    assert driver.exited(task).signal == 9
    later = [driver.run_sh("sleep 0.1; exit 3") for _ in range(2)]
    assert [one.code for one in later] == [3, 3]
    assert {driver.started(one.task).shim for one in later} == {driver.started(task).shim}


def test_group_that_was_removed_is_made_again(driver: Driver) -> None:
    driver.run("true")
    (OWN / f"{shim.GROUP}{driver.prefix}.1.1").rmdir()
    task = driver.sh("sleep 600")
    assert group_of(driver.started(task).pid) == OWN / f"{shim.GROUP}{driver.prefix}.1.1"


@pytest.fixture
def home(tmp_path: Path, folder: Path) -> Iterator[Home]:
    """Return a home whose scheduler, server, shims and tasks are all in one group, as in a login session."""
    made = Home(tmp_path)
    enters(made, folder)
    yield made
    made.end()


@fault(21)
def test_tasks_ended_with_their_session_are_retried(home: Home, folder: Path) -> None:
    """The login manager sends TERM to every process of a session whose user has logged out."""
    home.commands("sh -c 'exit 3'", "sh -c 'echo two >>told; until [ -e go ]; do sleep 0.02; done'", "true")
    home.start("run", "jobs.csv", "--devices", "host", "--slots", "1", "--keep-going")
    wait_until(lambda: (home.root / "told").exists() and home.states("1") == ["failed", "running", "waiting"], 60)
    for procs in (folder / "cgroup.procs", *folder.glob("*/cgroup.procs")):
        for pid in procs.read_text().split():
            kill(int(pid), signal.SIGTERM)
    wait_until(lambda: home.living() == [], 60)
    (home.root / "go").touch()
    assert home.call("resume", "r1").returncode == 1
    assert [(task["state"], task["exit_code"], task["attempts"]) for task in home.tasks("1")] == [
        ("failed", 3, 1), ("succeeded", 0, 2), ("succeeded", 0, 1),
    ]  # fmt: skip
    assert (home.root / "told").read_text().split() == ["two", "two"]


@pytest.mark.long
@fault(44)
def test_attempts_frozen_for_longer_than_their_limit_are_not_timed_out(home: Home, folder: Path) -> None:
    """The kernel's freezer is what stops processes before a machine is suspended; here its clocks go on."""
    home.write("jobs.csv", "Command,Timeout", ["sh -c 'touch here; for i in $(seq 20); do sleep 0.1; done'", "10s"])
    with home.start("run", "jobs.csv", "--devices", "host") as scheduler:
        wait_until((home.root / "here").exists, 60)
        (folder / "cgroup.freeze").write_text("1")
        wait_until(lambda: "frozen 1" in (folder / "cgroup.events").read_text())
        until = time.monotonic() + FROZEN
        wait_until(lambda: time.monotonic() > until, 60, pause=0.2)
        (folder / "cgroup.freeze").write_text("0")
        code = scheduler.wait(60)
    (task,) = home.tasks("1")
    assert (code, task["state"], task["attempts"]) == (0, "succeeded", 1), home.log()
    assert task["ran_s"] > FROZEN


def test_tasks_live_below_a_group_that_was_killed_once(home: Home, folder: Path) -> None:
    (folder / "cgroup.kill").write_text("1")
    home.call("run", home.commands("true"), code=0)
