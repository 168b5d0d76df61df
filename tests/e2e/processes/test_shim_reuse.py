"""A shim that takes one attempt after another: nothing of one may reach the next, and no attempt is mistaken for
another."""

from __future__ import annotations

import fcntl
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.core.events import Exited
from scheduler.core.model import HOST, Outcome
from scheduler.execution import fork_server
from scheduler.execution.engine import LocalEngine
from scheduler.execution.fork_server import ForkServer
from scheduler.runtime import shim
from tests.e2e.conftest import SHIM, Driver, marked
from tests.support.faults import fault
from tests.support.killing import children, is_alive, kill, parent_of
from tests.support.waiting import wait_until

Drivers = Callable[..., Driver]
Patch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep idle shims, however slow the machine is."""
    monkeypatch.setattr(fork_server, "REST", 600.0)


def shims(driver: Driver, *scripts: str, **fields: object) -> list[int]:
    """Return the shims that ran these scripts, one after the other."""
    found = []
    for script in scripts:
        task = driver.sh(script, **fields)
        driver.exited(task)
        found.append(driver.started(task).shim)
    return found


def test_shim_takes_one_attempt_after_another(driver: Driver) -> None:
    assert len(set(shims(driver, "true", "exit 3", "kill -9 $$"))) == 1


def test_number_of_shims_is_the_number_of_attempts_at_once(driver: Driver) -> None:
    first = [driver.sh("exit 0") for _ in range(3)]
    for task in first:
        driver.exited(task)
    again = [driver.sh("exit 0") for _ in range(2)]
    for task in again:
        driver.exited(task)
    assert {driver.started(task).shim for task in again} <= {driver.started(task).shim for task in first}


def test_each_attempt_has_its_own_end(driver: Driver) -> None:
    tasks = [driver.sh(f"echo {code}; exit {code}") for code in (3, 0, 7, 1)]
    assert [driver.exited(task).code for task in tasks] == [3, 0, 7, 1]
    assert [driver.log(task) for task in tasks] == ["3\n", "0\n", "7\n", "1\n"]


def test_shim_for_one_attempt_ends_with_it(driver: Driver) -> None:
    first, second = shims(driver, "true", "true", once=True)
    assert first != second
    wait_until(lambda: not is_alive(first) and not is_alive(second))


def test_idle_shim_ends_after_a_while(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    (first,) = shims(driver, "true")
    assert is_alive(first)
    monkeypatch.setattr(fork_server, "REST", 0.0)
    wait_until(lambda: not driver.engine.collect() and not is_alive(first), 30)


def test_idle_shim_ends_with_its_scheduler(drivers: Drivers) -> None:
    driver = drivers()
    (first,) = shims(driver, "true")
    driver.engine.close()
    wait_until(lambda: not is_alive(first), 30)
    driver.engine = Driver(driver.root, driver.prefix).engine


def test_killed_idle_shim_costs_no_task(driver: Driver) -> None:
    (first,) = shims(driver, "true")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_alive(first))
    assert driver.run_sh("exit 5").code == 5


def test_death_of_the_server_costs_no_task(driver: Driver) -> None:
    (first,) = shims(driver, "true")
    os.kill(parent_of(first), signal.SIGKILL)
    assert [driver.run_sh(f"exit {code}").code for code in (4, 6)] == [4, 6]


def test_late_stop_does_not_reach_the_next_attempt(driver: Driver) -> None:
    (first,) = shims(driver, "true")
    os.kill(first, signal.SIGTERM)
    os.kill(first, signal.SIGUSR1)
    task = driver.sh("sleep 0.2; exit 4")
    ended = driver.exited(task)
    assert (driver.started(task).shim, ended.outcome, ended.code) == (first, Outcome.FAILED, 4)


def test_second_attempt_of_a_shim_can_be_stopped(driver: Driver) -> None:
    (first,) = shims(driver, "true")
    task = driver.sh("sleep 600")
    assert driver.started(task).shim == first
    driver.engine.stop(task, 1)
    assert driver.exited(task).outcome is Outcome.INTERRUPTED
    assert shims(driver, "true") == [first]


def test_time_limit_counts_from_each_start(driver: Driver) -> None:
    shims(driver, "sleep 0.3")
    assert driver.run("sleep", "600", timeout=0.3).outcome is Outcome.TIMEOUT
    assert driver.run("sleep", "0.3", timeout=600.0).outcome is Outcome.SUCCEEDED


def test_use_is_that_of_the_attempt_alone(driver: Driver) -> None:
    burn = "import time; b = bytearray(80 << 20); t = time.process_time()\nwhile time.process_time() < t + .2: pass"
    big = driver.run(sys.executable, "-IS", "-c", burn)
    small = driver.run("true")
    assert driver.started(1).shim == driver.started(2).shim
    assert big.peak[HOST] > 80 << 20 > small.peak[HOST]
    assert big.cpu_seconds >= 0.2 > small.cpu_seconds


def test_attempt_leaves_nothing_to_the_next(driver: Driver, tmp_path: Path) -> None:
    lease = os.open(tmp_path / "lease", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    inside = driver.root / "inside"
    inside.mkdir()
    first = driver.sh("umask 077; ulimit -n 50; cd /", env={"SECRET": "word"}, lease_fd=lease, directory=str(inside))
    driver.exited(first)
    task = driver.sh("echo ${SECRET-none}; pwd; ls /proc/self/fd; echo up; sleep 600")
    driver.wait_for_line("up", task)
    watching = driver.started(task).shim
    assert watching == driver.started(first).shim
    assert driver.log(task) == f"none\n{driver.root}\n0\n1\n2\n3\nup\n"
    held = [os.readlink(link) for link in Path(f"/proc/{watching}/fd").iterdir()]
    assert not [path for path in held if path.endswith(("/lease", "/1/1.log", "/1/.claim.1"))]


def test_lease_and_claim_are_free_while_the_shim_goes_on(driver: Driver, tmp_path: Path) -> None:
    lease = os.open(tmp_path / "lease", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(lease, fcntl.LOCK_EX)
    (first,) = shims(driver, "true", lease=str(tmp_path / "lease"), lease_fd=lease)
    assert is_alive(first)
    assert not (tmp_path / "lease").exists()
    assert shim.claim_state(f"{driver.tasks}/1/.claim.1") is shim.ClaimState.FREE


def test_long_order_follows_a_short_one(driver: Driver) -> None:
    assert driver.run_sh("exit 3").code == 3
    assert driver.run_sh('test "${#BIG}" = 120000', env={"BIG": "x" * 120_000}).code == 0
    assert driver.run_sh("exit 4").code == 4


@fault(4)
def test_shim_killed_in_its_second_attempt_loses_only_that_one(driver: Driver, mark: str) -> None:
    (first,) = shims(driver, "true")
    task = driver.sh(f"(setsid sh -c 'sleep 600; : {mark}' &); echo up; sleep 600; : {mark}")
    driver.wait_for_line("up", task)
    os.kill(first, signal.SIGKILL)
    ended = driver.exited(task)
    assert (ended.outcome, ended.reason) == (Outcome.LOST, "its shim was killed")
    assert marked(mark) == []
    assert driver.exited(1).outcome is Outcome.SUCCEEDED


def test_shim_that_hangs_is_given_up(drivers: Drivers, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = drivers()
    (first,) = shims(driver, "true")
    os.kill(first, signal.SIGSTOP)
    monkeypatch.setattr(driver.engine, "_patience", 0.3)
    ended = driver.run_sh("touch ran")
    assert (ended.outcome, ended.reason) == (Outcome.UNSTARTED, "its shim did not answer in 0.3 s")
    monkeypatch.setattr(driver.engine, "_patience", 60.0)
    os.kill(first, signal.SIGCONT)
    wait_until(lambda: not is_alive(first), 30)
    assert not (driver.root / "ran").exists()
    assert driver.run("true").outcome is Outcome.SUCCEEDED


@fault(19)
@pytest.mark.parametrize("once", [False, True])
def test_shim_that_cannot_begin_costs_only_its_attempt(driver: Driver, *, once: bool) -> None:
    shims(driver, "true")
    (driver.tasks / "2" / "1.log").mkdir(parents=True)
    ended = driver.run("true", task=2, once=once)
    assert (ended.outcome, "Is a directory" in ended.reason) == (Outcome.LOST, True)
    assert driver.run_sh("exit 3", task=3, once=once).code == 3


def test_server_that_hangs_is_given_up_while_its_shims_still_answer(drivers: Drivers, monkeypatch: Patch) -> None:
    driver = drivers()
    (first,) = shims(driver, "true")
    os.kill(parent_of(first), signal.SIGSTOP)
    monkeypatch.setattr(driver.engine, "_patience", 0.3)
    late = driver.launch("touch", "ran", once=True)
    wait_until(lambda: shims(driver, "sleep 0.1") and [one for one in driver.events if one.task == late], 30)
    assert driver.exited(late).outcome is Outcome.UNSTARTED
    assert not (driver.root / "ran").exists()


def altered(tmp_path: Path, code: str) -> Driver:
    """Return a driver whose shims have altered code, as on a disk that fails."""
    said = SHIM.read_text().replace('if __name__ == "__main__":', f'{code}\n\nif __name__ == "__main__":')
    (tmp_path / "shim.py").write_text(said)
    driver = Driver(tmp_path, "run")
    driver.engine = LocalEngine(driver.tasks, ForkServer(tmp_path / "shim.py", {"PATH": os.environ["PATH"]}), "run")
    return driver


DISK_ERROR = "def {0}(*_): raise OSError(errno.EIO, 'Input/output error')"


@pytest.mark.parametrize(
    "code",
    [
        """
def close(fd, was=os.close):
    is_log = os.readlink(f"/proc/self/fd/{fd}").endswith(".log")
    was(fd)
    if is_log: raise OSError(errno.EDQUOT, "Disk quota exceeded")
os.close = close
""",
        "def _finished(order, begun, was=_finished): was(order, begun); raise OSError",
        "def _tell(sock, said, was=_tell): return 'ended' not in said and was(sock, said)",
    ],
    ids=["a close that fails", "a failure after its end", "an end without a receiver"],
)
def test_end_is_known_whatever_fails_after_the_record(tmp_path: Path, code: str) -> None:
    driver = altered(tmp_path, code)
    assert driver.run_sh("exit 3").code == 3
    assert driver.run_sh("exit 4").code == 4
    driver.end()


MORE = """
def _tell(sock, said, was=_tell):
    return was(sock, {word: {**told, "more": 1} if isinstance(told, dict) else told for word, told in said.items()})
"""


def test_unknown_fields_of_an_answer_are_ignored(tmp_path: Path) -> None:
    driver = altered(tmp_path, MORE)
    assert [driver.run_sh("exit 3").code, driver.run("/nowhere", once=True).code] == [3, 127]
    driver.end()


def test_shim_that_fails_in_an_attempt_loses_it(tmp_path: Path) -> None:
    driver = altered(tmp_path, DISK_ERROR.format("_finished"))
    ended = driver.run("true")
    assert (ended.outcome, ended.reason) == (Outcome.LOST, "its shim was killed")
    driver.end()


SCHEDULER = """
import sys, time
from pathlib import Path
from tests.e2e.conftest import Driver
driver = Driver(Path(sys.argv[1]), sys.argv[2])
driver.run("true")
print(driver.sh("echo up; until [ -e go ]; do sleep 0.01; done; exit 6"), flush=True)
while True:
    driver.collect()
"""


@fault(1)
def test_next_scheduler_distinguishes_attempts_of_one_shim(driver: Driver) -> None:
    argv = [sys.executable, "-c", SCHEDULER, str(driver.root), driver.prefix]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as dead:
        driver.wait_for_line("up", 2)
        dead.kill()
    driver.engine.adopt(1, 1)
    driver.engine.adopt(2, 1)
    assert driver.exited(1).code == 0
    watching = driver.started(2).shim
    assert driver.started(1).shim == watching
    (driver.root / "go").touch()
    assert driver.exited(2, deadline=30).code == 6
    wait_until(lambda: not is_alive(watching), 30)


def harm(driver: Driver, rng: random.Random) -> None:
    """Kill the server or one of its shims, whatever they are at, or have the server hang."""
    server = driver.engine._server._process
    if server is not None and server.poll() is None:
        pids = [server.pid, *children(server.pid)]
        kill(rng.choice(pids), rng.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
        if rng.random() < 0.2:
            kill(server.pid, signal.SIGSTOP)


@fault(4)
@pytest.mark.slow
def test_no_attempt_runs_twice_and_each_end_is_reported_once_when_servers_and_shims_die_or_hang(
    drivers: Drivers,
) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    rng, tasks = random.Random(seed), range(1, 121)
    driver = drivers(patience=0.5)
    for task in tasks:
        if rng.random() < 0.05:
            (driver.tasks / f"{task}/1.log").mkdir(parents=True)  # it cannot begin
        script = f"echo ran >>ran.{task}; sleep {rng.choice([0, 0, 0.1])}; exit {task % 4}"
        driver.sh(script, task=task, once=rng.random() < 0.3)
        if rng.random() < 0.3:
            harm(driver, rng)
        driver.collect()
    for task in tasks:
        ended, ran = driver.exited(task, deadline=60), driver.root / f"ran.{task}"
        times = ran.read_text().count("ran") if ran.exists() else 0
        if ended.outcome in (Outcome.SUCCEEDED, Outcome.FAILED):
            assert (ended.code, times) == (task % 4, 1)
        assert times <= 1
    assert Counter(event.task for event in driver.events if isinstance(event, Exited)) == Counter(tasks)
    if driver.engine._server._process is not None:
        kill(driver.engine._server._process.pid, signal.SIGCONT)  # it may hang where it was not needed any more
