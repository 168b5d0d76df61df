"""The local engine with dying servers, shims and schedulers, and with the schedulers that follow them."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scheduler.core.events import Exited, Started
from scheduler.core.model import Outcome
from scheduler.errors import StateError
from scheduler.runtime import processes, shim
from scheduler.runtime.shim import Claim, Record
from tests.e2e.conftest import Driver, is_zombie, marked
from tests.support.faults import fault
from tests.support.waiting import wait_until

Drivers = Callable[..., Driver]

SCHEDULER = """
import sys, time
from pathlib import Path
from tests.e2e.conftest import Driver
root, prefix, script, tasks = sys.argv[1:]
driver = Driver(Path(root), prefix, server_note=Path(root) / "server")
driver.engine.warm()
print("warm", flush=True)
for _ in range(int(tasks)):
    driver.sh(script)
while True:
    driver.collect()
    print(len(driver.events), flush=True)
    time.sleep(0.001)
"""


def scheduler(driver: Driver, script: str, tasks: int = 1) -> subprocess.Popen[str]:
    """Start a scheduler in a process of its own, which runs a shell script as tasks 1, 2, …"""
    argv = [sys.executable, "-c", SCHEDULER, str(driver.root), driver.prefix, script, str(tasks)]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def claim(driver: Driver, **fields: object) -> str:
    """Make the free claim of task 1's first attempt, as a dead shim leaves it; return its folder."""
    folder = driver.tasks / "1"
    folder.mkdir(parents=True)
    here = {"boot_id": shim.boot_id(), "machine_id": shim.machine_id(), "hostname": shim.hostname()}
    made = Claim(1, 1, f"{driver.prefix}.1.1", **{**here, **fields})  # type: ignore[arg-type]
    os.close(shim.take_claim(shim.claim_path(str(folder), 1), made))
    return str(folder)


def put_record(folder: str, block: bytes) -> None:
    """Write a block where the exit record of a task's first attempt belongs."""
    with open(shim.claim_path(folder, 1), "r+b") as file:
        file.seek(shim.BLOCK)
        file.write(block)


class TestReports:
    def test_attempt_reports_started_then_exited(self, driver: Driver) -> None:
        driver.run("true")
        started, exited = driver.events
        assert isinstance(started, Started)
        assert isinstance(exited, Exited)
        assert (started.task, started.attempt) == (exited.task, exited.attempt) == (1, 1)

    def test_engine_descriptor_is_readable_when_there_is_news(self, driver: Driver) -> None:
        assert not select.select([driver.engine], [], [], 0)[0]
        driver.launch("true")
        told: list[Started | Exited] = []
        while len(told) < 2:
            assert select.select([driver.engine], [], [], 30)[0]
            told += driver.engine.collect()

    def test_engine_descriptor_is_quiet_once_everything_is_collected(self, driver: Driver) -> None:
        driver.run("true")
        assert not select.select([driver.engine], [], [], 0.05)[0]

    def test_living_lists_running_attempts(self, driver: Driver) -> None:
        task = driver.launch("sleep", "60")
        assert driver.engine.living() == []
        started = driver.started(task)
        assert driver.engine.living() == [(task, 1, started.shim, started.pid)]
        driver.engine.stop(task, 1)
        driver.exited(task)
        assert driver.engine.living() == []

    def test_stop_before_the_start_ends_the_attempt(self, driver: Driver) -> None:
        task = driver.launch("sleep", "60")
        driver.engine.stop(task, 1)
        assert driver.exited(task).outcome is Outcome.INTERRUPTED

    def test_stop_of_an_ended_attempt_is_no_error(self, driver: Driver) -> None:
        driver.run("true")
        driver.engine.stop(1, 1)
        driver.engine.stop(99, 1)

    def test_burst_of_orders_runs_completely(self, driver: Driver) -> None:
        tasks = [driver.sh("exit $((SCHEDULER_N % 7))", env={"SCHEDULER_N": str(n)}) for n in range(80)]
        codes = [driver.exited(task, deadline=30).code for task in tasks]
        assert codes == [n % 7 for n in range(80)]

    def test_attempts_of_one_task_share_a_folder(self, driver: Driver) -> None:
        driver.run_sh("echo one", task=5)
        driver.run_sh("echo two", task=5, attempt=2)
        assert (driver.log(5, 1), driver.log(5, 2)) == ("one\n", "two\n")

    def test_engine_works_on_a_kernel_without_pidfds(
        self, driver: Driver, monkeypatch: pytest.MonkeyPatch, mark: str
    ) -> None:
        """Before Linux 5.3: the claims are looked at now and then, and pids are signalled."""

        def none_here(pid: int) -> int:
            raise OSError(errno.ENOSYS, "Function not implemented")

        monkeypatch.setattr(os, "pidfd_open", none_here)
        assert driver.run_sh("exit 3").code == 3
        task = driver.sh(f"sleep 600; : {mark}")
        driver.started(task)
        driver.engine.stop(task, 1)
        assert driver.exited(task).outcome is Outcome.INTERRUPTED
        task = driver.sh(f"(setsid sh -c 'sleep 600; : {mark}' &); echo up; sleep 600; : {mark}")
        driver.wait_for_line("up", task)
        os.kill(driver.started(task).shim, signal.SIGKILL)
        assert driver.exited(task).outcome is Outcome.LOST
        assert marked(mark) == []


class TestForgetting:
    def test_attempt_without_output_leaves_no_file(self, driver: Driver) -> None:
        driver.run("true")
        driver.engine.forget(1, 1)
        wait_until(lambda: list(driver.tasks.iterdir()) == [])

    def test_log_with_output_stays(self, driver: Driver) -> None:
        driver.run("echo", "hello")
        driver.engine.forget(1, 1)
        wait_until(lambda: os.listdir(driver.tasks / "1") == ["1.log"])

    def test_folder_stays_while_another_attempt_runs_in_it(self, driver: Driver) -> None:
        driver.run("true", task=1)
        driver.launch("sleep", "60", task=1, attempt=2)
        driver.engine.forget(1, 1)
        driver.engine.stop(1, 2)
        wait_until(lambda: [e for e in driver.collect() if isinstance(e, Exited) and e.attempt == 2])
        assert driver.events[-1].outcome is Outcome.INTERRUPTED  # type: ignore[union-attr]

    def test_files_are_removed_once_the_engine_is_closed(self, drivers: Drivers) -> None:
        driver = drivers()
        tasks = [driver.sh("exit 0") for _ in range(150)]
        for task in tasks:
            driver.exited(task, deadline=60)
            driver.engine.forget(task, 1)
        driver.engine.close()
        assert list(driver.tasks.iterdir()) == []
        driver.engine = Driver(driver.root, driver.prefix).engine

    def test_next_attempt_starts_while_the_folder_is_being_removed(self, driver: Driver) -> None:
        for attempt in range(1, 100):
            assert driver.run("true", task=1, attempt=attempt).outcome is Outcome.SUCCEEDED
            driver.engine.forget(1, attempt)

    def test_forgetting_twice_is_no_error(self, driver: Driver) -> None:
        driver.run("true")
        driver.engine.forget(1, 1)
        driver.engine.forget(1, 1)

    def test_fence_stays_so_that_no_late_order_runs(self, driver: Driver) -> None:
        driver.engine.adopt(1, 1)
        assert driver.exited(1).outcome is Outcome.LOST
        driver.engine.forget(1, 1)
        late = driver.run_sh("touch ran", task=1)
        assert late.outcome is Outcome.LOST
        assert not (driver.root / "ran").exists()


class TestServer:
    def test_killed_server_is_started_again(self, driver: Driver) -> None:
        task = driver.sh("echo up; sleep 0.3; exit 4")
        driver.wait_for_line("up")
        driver.started(task)
        server = driver.server_of(task)
        os.kill(server, signal.SIGKILL)
        wait_until(lambda: is_zombie(server))
        assert driver.run("true").outcome is Outcome.SUCCEEDED
        assert driver.exited(task).code == 4

    def test_orders_without_an_answer_of_a_killed_server_never_run(self, driver: Driver) -> None:
        server = _stopped_server(driver)
        tasks = [driver.sh("touch ran") for _ in range(3)]
        os.kill(server, signal.SIGKILL)
        for task in tasks:
            ended = driver.exited(task)
            assert (ended.outcome, ended.reason) == (
                Outcome.UNSTARTED,
                "the server that starts tasks died before it answered",
            )
        assert driver.run("true").outcome is Outcome.SUCCEEDED
        assert not (driver.root / "ran").exists()

    def test_server_that_does_not_answer_is_given_up(self, drivers: Drivers) -> None:
        driver = drivers()
        _stopped_server(driver)
        usual, driver.engine._patience = driver.engine._patience, 0.3  # a busy machine starts no server in 0.3 s
        ended = driver.run_sh("touch ran")
        driver.engine._patience = usual
        assert ended.outcome is Outcome.UNSTARTED
        assert "did not answer in 0.3 s" in ended.reason
        assert driver.run("true").outcome is Outcome.SUCCEEDED
        assert not (driver.root / "ran").exists()

    @fault(91)
    def test_attempt_is_unstarted_where_the_server_cannot_be_started(self, drivers: Drivers) -> None:
        driver = drivers()
        driver.engine._server._shim_path = Path("/nowhere/shim.py")
        assert driver.run("true").outcome is Outcome.UNSTARTED

    @fault(90)
    def test_attempt_is_unstarted_without_free_descriptors(self, driver: Driver) -> None:
        """A launch must not raise even then."""
        with _descriptors_used_up():
            task = driver.launch("true")
        ended = driver.exited(task)
        assert (ended.outcome, ended.reason) == (Outcome.UNSTARTED, "it could not be started: Too many open files")

    @pytest.mark.parametrize("spare", range(10))
    def test_task_gets_its_whole_environment_or_is_unstarted_with_few_descriptors(
        self, drivers: Drivers, spare: int
    ) -> None:
        """The server starts with everything that its tasks need, or not at all."""
        driver = drivers(env={"PATH": os.environ["PATH"], "SCHEDULER_TEST": "set"})
        with _descriptors_used_up(but=spare):
            task = driver.sh('test "$SCHEDULER_TEST" = set')
        assert driver.exited(task).outcome in (Outcome.UNSTARTED, Outcome.SUCCEEDED)
        assert driver.run_sh('test "$SCHEDULER_TEST" = set').outcome is Outcome.SUCCEEDED

    @fault(90)
    def test_shim_that_cannot_be_forked_is_reported_with_the_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_fork() -> int:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

        monkeypatch.setattr(os, "fork", no_fork)
        server, _ = socket.socketpair()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        home = shim.ServerContext(lambda what, value: 0, lambda *said: 0, "", "", "", {})
        with server, _, ours, theirs:
            shim._fork_shim(home, theirs.fileno(), server)
            failed = json.loads(ours.recv(1000))["failed"]
        assert (failed["error"], failed["short"]) == ("[Errno 11] Resource temporarily unavailable", True)


BUSY = """
import os, time
print("ready", flush=True)
while True:
    if os.fork() == 0:
        time.sleep(0.01); os._exit(0)
    while os.waitpid(-1, os.WNOHANG)[0]:
        pass
    time.sleep(0.0005)
"""
MANY_FILES = """
import os, resource, time
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
files = [os.dup(1) for _ in range(min(most, 20_000) - 20)]
print("ready", flush=True)
time.sleep(600)
"""
"""A program with so many open files that a look at all of them takes a while."""


@contextlib.contextmanager
def _descriptors_used_up(but: int = 0) -> Iterator[None]:
    taken: list[int] = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.dup(0))
    for _ in range(but):
        os.close(taken.pop())
    try:
        yield
    finally:
        for fd in taken:
            os.close(fd)


def _stopped_server(driver: Driver) -> int:
    task = driver.launch("sleep", "0.05", once=True)
    driver.started(task)
    server = driver.server_of(task)
    driver.exited(task)
    os.kill(server, signal.SIGSTOP)
    return server


class TestAdoption:
    def test_living_attempt_is_adopted(self, driver: Driver) -> None:
        dead = scheduler(driver, "echo up; sleep 0.4; exit 6")
        driver.wait_for_line("up", 1)
        kill(dead)
        driver.engine.adopt(1, 1)
        started, ended = driver.started(1), driver.exited(1)
        assert ended.code == 6
        assert started.pid > 0
        assert driver.engine.living() == []

    def test_adopted_attempt_can_be_stopped(self, driver: Driver) -> None:
        dead = scheduler(driver, "echo up; sleep 600")
        driver.wait_for_line("up", 1)
        kill(dead)
        driver.engine.adopt(1, 1)
        driver.engine.stop(1, 1)
        assert driver.exited(1).outcome is Outcome.INTERRUPTED

    def test_attempt_that_ended_without_a_scheduler_is_reported(self, driver: Driver) -> None:
        dead = scheduler(driver, "echo up; sleep 0.2; exit 6")
        driver.wait_for_line("up", 1)
        kill(dead)
        wait_until(lambda: shim.claim_state(f"{driver.tasks}/1/.claim.1") == "free")
        driver.engine.adopt(1, 1)
        assert driver.exited(1).code == 6
        assert [type(event) for event in driver.events] == [Started, Exited]

    @fault(2)
    def test_attempt_that_never_started_is_fenced_and_lost(self, driver: Driver) -> None:
        driver.engine.adopt(7, 2)
        ended = driver.exited(7, 2)
        assert (ended.outcome, ended.reason) == (Outcome.LOST, "it had not started when its scheduler ended")
        assert [type(event) for event in driver.events] == [Exited]
        with pytest.raises(FileExistsError):  # as a late order finds it
            shim.take_claim(shim.claim_path(str(driver.tasks / "7"), 2), shim.Claim(7, 2))

    @fault(5)
    def test_attempt_is_lost_when_scheduler_and_shim_are_killed(self, driver: Driver, mark: str) -> None:
        """No process may be left when the attempt is reported as lost, because its task then runs again."""
        dead = scheduler(driver, f"(setsid sh -c 'sleep 600; : {mark}' &); echo up; sleep 600; : {mark}")
        driver.wait_for_line("up", 1)
        kill(dead)
        made = shim.read_claim(f"{driver.tasks}/1/.claim.1")
        assert made is not None
        os.kill(made.shim, signal.SIGKILL)
        driver.engine.adopt(1, 1)
        ended = driver.exited(1)
        assert (ended.outcome, ended.reason) == (Outcome.LOST, "its shim was killed")
        assert marked(mark) == []

    def test_lost_claim_file_never_runs_an_attempt_twice(self, driver: Driver, mark: str) -> None:
        dead = scheduler(driver, f"echo up; sleep 600; : {mark}")
        driver.wait_for_line("up", 1)
        kill(dead)
        shutil.rmtree(driver.tasks)
        driver.engine.adopt(1, 1)
        assert driver.exited(1).outcome is Outcome.LOST
        assert marked(mark) == []

    @fault(6)
    def test_attempt_is_lost_after_a_reboot(self, driver: Driver) -> None:
        claim(driver, boot_id="another")
        driver.engine.adopt(1, 1)
        ended = driver.exited(1)
        assert (ended.outcome, ended.reason) == (Outcome.LOST, "the machine was restarted while the attempt ran")

    @fault(6)
    def test_record_counts_after_a_reboot(self, driver: Driver) -> None:
        folder = claim(driver, boot_id="another", pid=3, start=4, shim=2)
        put_record(folder, shim.pack_block(Record("exited", 3)._asdict()))
        driver.engine.adopt(1, 1)
        assert driver.exited(1).code == 3
        assert driver.started(1) == Started(1, 1, 3, 4, 2)

    def test_attempt_of_another_machine_is_refused(self, driver: Driver) -> None:
        claim(driver, boot_id="another", machine_id="another", hostname="elsewhere")
        with pytest.raises(StateError, match="attempt 1 of task 1 was started on elsewhere"):
            driver.engine.adopt(1, 1)

    def test_unfinished_record_does_not_count(self, driver: Driver) -> None:
        folder = claim(driver)
        put_record(folder, bytes(shim.BLOCK))
        driver.engine.adopt(1, 1)
        assert driver.exited(1).outcome is Outcome.LOST

    def test_record_is_not_read_while_the_claim_is_locked(self, driver: Driver) -> None:
        task = driver.launch("sleep", "60")
        driver.started(task)
        put_record(f"{driver.tasks}/1", shim.pack_block(Record("exited", 9)._asdict()))
        driver.engine.stop(task, 1)
        assert driver.exited(task).outcome is Outcome.INTERRUPTED

    @pytest.mark.parametrize("go", range(8))
    def test_scheduler_killed_at_any_moment_runs_no_attempt_twice(self, driver: Driver, go: int) -> None:
        """Every task ran once and reports its code, or never ran and is lost."""
        seed = random.SystemRandom().randrange(1 << 30)
        print(f"go {go}, seed {seed}")
        dead = scheduler(driver, "echo ran; sleep 0.05; exit 3", 8)
        assert dead.stdout is not None
        dead.stdout.readline()
        end = time.monotonic() + random.Random(seed).uniform(0, 0.05)
        wait_until(lambda: time.monotonic() >= end, pause=0.0005)
        kill(dead)
        for task in range(1, 9):
            driver.engine.adopt(task, 1)
        for task in range(1, 9):
            ended = driver.exited(task)
            how = (ended.outcome, ended.code, driver.log(task))
            assert how in [(Outcome.FAILED, 3, "ran\n"), (Outcome.LOST, None, "")]


class TestLosses:
    @pytest.fixture
    def driver(self, drivers: Callable[..., Driver]) -> Driver:
        """Return a driver without control groups: the tests are about machines where they cannot be made."""
        return drivers(cgroups=False)

    @fault(4)
    def test_attempt_is_lost_when_its_shim_is_killed(self, driver: Driver, mark: str) -> None:
        task = driver.sh(f"sh -c 'sleep 600; : {mark}' & (setsid sh -c 'sleep 600; : {mark}' &); wait")
        shim_pid = driver.started(task).shim
        wait_until(lambda: len(marked(mark)) >= 3)
        os.kill(shim_pid, signal.SIGKILL)
        ended = driver.exited(task)
        assert (ended.outcome, ended.reason) == (Outcome.LOST, "its shim was killed")
        assert marked(mark) == []

    def test_process_without_its_cookie_is_found_by_the_session(self, driver: Driver, mark: str) -> None:
        task = driver.sh(f"env -i sh -c 'sleep 600; : {mark}' & wait; : {mark}")
        shim_pid = driver.started(task).shim
        wait_until(lambda: len(marked(mark)) >= 2)
        os.kill(shim_pid, signal.SIGKILL)
        assert driver.exited(task).outcome is Outcome.LOST
        assert marked(mark) == []

    @fault(4, 10)
    def test_process_without_cookie_and_session_is_found_by_the_log(self, driver: Driver, mark: str) -> None:
        task = driver.sh(f"(env -i setsid sh -c 'sleep 600; : {mark}' &); sleep 600; : {mark}")
        shim_pid = driver.started(task).shim
        wait_until(lambda: len(marked(mark)) >= 2)
        with open(driver.tasks / f"{task}/1.log") as read, subprocess.Popen(["sleep", "600"], stdin=read) as reader:
            os.kill(shim_pid, signal.SIGKILL)
            assert driver.exited(task).outcome is Outcome.LOST
            assert marked(mark) == []
            assert reader.poll() is None
            reader.kill()

    @fault(28)
    def test_task_whose_files_were_deleted_is_never_a_success(self, driver: Driver) -> None:
        task = driver.sh("echo up; sleep 0.3")
        driver.wait_for_line("up")
        driver.started(task)
        shutil.rmtree(driver.tasks)
        assert driver.exited(task).outcome is Outcome.LOST

    def test_attempt_whose_folder_cannot_be_made_is_unstarted(self, driver: Driver) -> None:
        driver.tasks.write_text("not a directory")
        ended = driver.run("true")
        assert ended.outcome is Outcome.LOST
        assert "Not a directory" in ended.reason


class TestProcesses:
    @fault(10)
    def test_tree_lists_all_descendants(self, driver: Driver) -> None:
        task = driver.sh("sleep 60 & sh -c 'sleep 60; :' & wait")
        pid = driver.started(task).pid
        assert wait_until(lambda: len(processes.tree(pid)) == 3)
        assert processes.tree(1 << 22) == []

    def test_sweep_for_an_unknown_cookie_finds_nothing(self) -> None:
        assert processes.sweep("no-cookie", 10) == []

    def test_sweep_spares_other_processes(self) -> None:
        with subprocess.Popen(["sleep", "60"], env={shim.COOKIE: "x.1.10"}) as other:
            assert processes.sweep("x.1.1", 10, session=1 << 22, start=5) == []
            assert other.poll() is None
            other.kill()

    @fault(12)
    def test_sweep_ends_a_chain_of_forks(self, mark: str) -> None:
        chain = "import os, time\nwhile True:\n time.sleep(.003)\n if os.fork(): os._exit(0)"
        argv = [sys.executable, "-IS", "-c", chain, mark]
        with subprocess.Popen(argv, env={shim.COOKIE: mark}, start_new_session=True) as first:
            first.wait()
            assert processes.sweep(mark, 20) == []

    @fault(4)
    def test_sweep_ends_while_other_processes_come_and_go(self, tmp_path: Path) -> None:
        """In a long list of processes one has always ended before its turn."""
        (tmp_path / "log").touch()
        command = [sys.executable, "-IS", "-c"]
        with contextlib.ExitStack() as those:
            for program in (BUSY, BUSY, MANY_FILES):
                process = those.enter_context(subprocess.Popen([*command, program], stdout=subprocess.PIPE))
                those.callback(process.kill)
                assert process.stdout is not None
                process.stdout.readline()
            sweeps = (processes.sweep("no-cookie", 0.05, log=str(tmp_path / "log")) for _ in range(40))
            assert any(not left for left in sweeps)

    def test_child_is_started_with_unbuffered_pipes(self) -> None:
        child = processes.start_child(["sh", "-c", "read line; echo got $line; ps -o sid= $$"])
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"it\n")
        assert child.stdout.read().split() == [b"got", b"it", str(child.pid).encode()]
        child.stdin.close()
        child.stdout.close()
        assert child.wait() == 0

    def test_machine_has_a_boot_id_and_a_host_name(self) -> None:
        assert shim.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert shim.hostname() == os.uname().nodename
        assert shim.start_time(os.getpid()) > 0
        assert shim.start_time(1 << 22) == 0
