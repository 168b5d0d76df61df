"""A shim and the one command that it runs, with real processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.core.model import Outcome
from scheduler.runtime import shim
from scheduler.runtime.clock import since_boot
from scheduler.runtime.shim import Claim, ClaimState, Record
from tests.e2e.conftest import Driver, is_zombie, marked
from tests.support.faults import fault
from tests.support.mounts import needs_mounts, run_apart
from tests.support.waiting import wait_until


def locks(path: Path) -> bool:
    """Tell whether the lock of a file is held."""
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def descriptors(pid: int | str) -> list[Path]:
    """Return the files that a process has open."""
    found = []
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            found.append(link.readlink())
    return found


class TestFence:
    def test_a_task_that_may_live_no_longer_is_stopped_and_one_that_may_is_not(
        self, driver: Driver, tmp_path: Path
    ) -> None:
        until = tmp_path / "until"
        until.write_text(f"{since_boot() + 600:.3f}".ljust(32))
        assert driver.run("sleep", "1", until=str(until)).outcome is Outcome.SUCCEEDED
        until.write_text(f"{since_boot() + 0.5:.3f}".ljust(32))
        task = driver.sh("trap 'echo asked; exit 0' TERM; while :; do sleep 0.05; done", until=str(until))
        ended = driver.exited(task)
        assert (ended.outcome, ended.node_lost) == (Outcome.LOST, True)
        assert "--node-fence" in ended.reason
        assert driver.log() == "asked\n"

    def test_a_task_whose_fence_cannot_be_read_does_not_live_on(self, driver: Driver, tmp_path: Path) -> None:
        assert driver.run("sleep", "60", until=str(tmp_path / "nothing")).outcome is Outcome.LOST


class TestEnds:
    def test_exit_code_0_is_success(self, driver: Driver) -> None:
        ended = driver.run("true")
        assert (ended.outcome, ended.code, ended.signal, ended.reason) == (Outcome.SUCCEEDED, 0, None, "")

    def test_exit_code_3_is_failure(self, driver: Driver) -> None:
        ended = driver.run_sh("exit 3")
        assert (ended.outcome, ended.code, ended.signal) == (Outcome.FAILED, 3, None)

    def test_death_by_a_signal_is_reported_with_its_number(self, driver: Driver) -> None:
        ended = driver.run_sh("kill -SEGV $$")
        assert (ended.outcome, ended.code, ended.signal) == (Outcome.FAILED, None, signal.SIGSEGV)

    def test_a_trap_that_kills_its_own_group_leaves_the_shim_alone(self, driver: Driver) -> None:
        ended = driver.run("bash", "-c", "trap 'kill 0' EXIT; exit 3")
        assert (ended.outcome, ended.code, ended.signal) == (Outcome.FAILED, None, signal.SIGTERM)
        ended = driver.run("bash", "-c", "trap 'trap - TERM; kill 0; wait' TERM EXIT; exit 3")
        assert ended.outcome is Outcome.FAILED

    def test_kill_of_the_own_process_group_is_reported_as_sigkill(self, driver: Driver) -> None:
        ended = driver.run_sh("kill -9 0")
        assert (ended.outcome, ended.signal) == (Outcome.FAILED, signal.SIGKILL)

    def test_a_broken_pipe_makes_no_noise(self, driver: Driver) -> None:
        assert driver.run_sh("yes | head -1").outcome is Outcome.SUCCEEDED
        assert driver.log() == "y\n"

    def test_use_is_measured_over_the_whole_tree(self, driver: Driver) -> None:
        burn = "import time; b = bytearray(80 << 20); t = time.process_time()\nwhile time.process_time() < t + .1: pass"
        ended = driver.run_sh(f"{sys.executable} -IS -c '{burn}'; true")
        assert 80 << 20 < ended.peak["host"] < 120 << 20
        assert 0.1 < ended.cpu_seconds < 2
        assert ended.seconds >= 0.1

    def test_record_has_begin_and_end(self, driver: Driver) -> None:
        before = time.time()
        driver.run("sleep", "0.05")
        record = shim.read_record(shim.claim_path(f"{driver.tasks}/1", 1))
        assert record is not None
        assert before <= record.began < record.ended <= time.time()
        assert record.boot_id == shim.boot_id()


class TestEnvironment:
    def test_output_stays_in_order(self, driver: Driver) -> None:
        driver.run_sh("for i in 1 2 3; do echo out $i; echo err $i >&2; done")
        assert driver.log() == "".join(f"out {i}\nerr {i}\n" for i in (1, 2, 3))

    @fault(17)
    def test_long_output_without_a_newline_is_complete(self, driver: Driver) -> None:
        assert driver.run_sh("head -c 3000000 /dev/zero").outcome is Outcome.SUCCEEDED
        assert (driver.tasks / "1/1.log").stat().st_size == 3_000_000

    @fault(59)
    def test_files_of_an_attempt_are_private(self, driver: Driver) -> None:
        driver.run("true")
        folder = driver.tasks / "1"
        assert folder.stat().st_mode & 0o777 == 0o700
        assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o600}

    @fault(16)
    def test_stdin_of_a_task_is_empty(self, driver: Driver) -> None:
        driver.run_sh("cat; readlink /proc/self/fd/0")
        assert driver.log() == "/dev/null\n"

    def test_only_standard_descriptors_are_open(self, driver: Driver) -> None:
        driver.run_sh("ls /proc/self/fd")
        assert driver.log() == "0\n1\n2\n3\n"  # 3 is the directory that ls reads

    def test_no_signal_is_ignored_or_blocked(self, drivers: Callable[..., Driver]) -> None:
        old = signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            driver = drivers()
            driver.run_sh("grep -E 'Sig(Blk|Ign)' /proc/self/status")
        finally:
            signal.signal(signal.SIGHUP, old)
        assert {line.split()[1] for line in driver.log().splitlines()} == {"0" * 16}

    def test_task_leads_a_session_without_its_shim(self, driver: Driver) -> None:
        started = driver.started(driver.launch("sleep", "60"))
        wait_until(lambda: os.getsid(started.pid) == started.pid)
        assert os.getsid(started.shim) == started.shim
        assert started.start == shim.start_time(started.pid)

    @fault(39)
    def test_task_has_a_higher_oom_score_than_its_shim(self, driver: Driver) -> None:
        started = driver.started(driver.launch("sleep", "60"))

        def score(pid: int | str) -> int:
            return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

        wait_until(lambda: score(started.pid) == max(500, score("self")))
        assert score(started.shim) == score("self")

    def test_task_gets_the_merged_environment(self, drivers: Callable[..., Driver]) -> None:
        driver = drivers(env={"PATH": os.environ["PATH"], "KEPT": "1", "GONE": "1", "CHANGED": "1"})
        driver.run("env", env={"GONE": None, "CHANGED": "2", "NEW": "3"})
        said = dict(line.split("=", 1) for line in driver.log().splitlines())
        assert (said["KEPT"], said["CHANGED"], said["NEW"]) == ("1", "2", "3")
        assert "GONE" not in said
        assert said[shim.COOKIE] == f"{driver.prefix}.1.1"

    def test_task_gets_the_umask_and_limits_of_another_shell(self, drivers: Callable[..., Driver]) -> None:
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        driver = drivers(bounds={"umask": 0o027, "limits": {"RLIMIT_NOFILE": [100, 200]}})
        ended = driver.run_sh("umask; ulimit -S -n; ulimit -H -n")
        assert (driver.log(), ended.outcome) == ("0027\n100\n200\n", Outcome.SUCCEEDED)
        task = driver.sh("sleep 60")
        started = driver.started(task)
        assert resource.prlimit(started.shim, resource.RLIMIT_NOFILE) == before
        driver.engine.stop(task, 1, kill=True)

    def test_arguments_that_are_no_text_arrive_unchanged(self, driver: Driver) -> None:
        odd = os.fsdecode(b"\xff\n ")
        driver.run("sh", "-c", 'printf %s "$1$ODD"', "sh", odd, env={"ODD": odd})
        assert (driver.tasks / "1/1.log").read_bytes() == b"\xff\n " * 2

    def test_large_environment_arrives_complete(self, drivers: Callable[..., Driver]) -> None:
        driver = drivers(env={"PATH": os.environ["PATH"], **{f"BIG{i}": "x" * 100_000 for i in range(3)}})
        driver.run_sh("echo ${#BIG0} ${#BIG2} ${#MORE}", env={"MORE": "y" * 120_000})
        assert driver.log() == "100000 100000 120000\n"

    def test_command_is_looked_up_on_the_tasks_path(self, driver: Driver) -> None:
        tool = driver.root / "tool"
        tool.write_text("#!/bin/sh\necho mine\n")
        tool.chmod(0o755)
        driver.run("tool", env={"PATH": str(driver.root)})
        assert driver.log() == "mine\n"

    def test_task_inherits_limits_and_umask_of_the_scheduler(self, drivers: Callable[..., Driver]) -> None:
        old = os.umask(0o027)
        try:
            driver = drivers()
            driver.run_sh("umask")
        finally:
            os.umask(old)
        assert driver.log() == "0027\n"


class TestSpawnFailures:
    @fault(19)
    @pytest.mark.parametrize(
        ("argv", "fields", "code", "reason"),
        [
            (("/nowhere/tool",), {}, 127, "/nowhere/tool: No such file or directory"),
            (("no-such-tool",), {}, 127, "no-such-tool: No such file or directory"),
            (("true",), {"directory": "/etc/passwd"}, 126, "/etc/passwd: Not a directory"),
            (("/etc/passwd",), {}, 126, "/etc/passwd: Permission denied"),
            (("/",), {}, 126, "/: Permission denied"),
            (("true", "x" * (3 << 20)), {}, 126, "true: Argument list too long"),
            (("true", "a\0b"), {}, 126, "embedded null byte"),
            (("true",), {"env": {"A=B": "1"}}, 126, "illegal environment variable name"),
        ],
    )
    def test_spawn_failure_names_code_and_reason(
        self, driver: Driver, argv: tuple[str, ...], fields: dict[str, object], code: int, reason: str
    ) -> None:
        ended = driver.run(*argv, **fields)
        assert (ended.outcome, ended.code, ended.reason) == (Outcome.FAILED, code, reason)
        assert driver.run("true").outcome is Outcome.SUCCEEDED

    @fault(93)
    def test_attempt_whose_directory_cannot_be_entered_is_unstarted(self, driver: Driver) -> None:
        ended = driver.run("true", directory="/nowhere")
        assert (ended.outcome, ended.away) == (Outcome.UNSTARTED, "/nowhere")
        assert ended.reason == "/nowhere: No such file or directory"

    @pytest.mark.parametrize(
        ("number", "where", "hindrance"),
        [
            (errno.EAGAIN, "true", "machine"),
            (errno.ENOMEM, "true", "machine"),
            (errno.ENFILE, "/work", "machine"),
            (errno.ESTALE, "/work", "directory"),
            (errno.EACCES, "/work", "directory"),
            (errno.ENOTCONN, "/work", "directory"),
            (errno.ESTALE, "true", "directory"),
            (errno.ENOSPC, "out.txt", "directory"),
            (errno.ENOENT, "true", ""),
            (errno.EACCES, "true", ""),
            (errno.E2BIG, "true", ""),
            (errno.ENOTDIR, "/work", ""),
        ],
    )
    def test_hindrance_is_judged_by_error_and_path(self, number: int, where: str, hindrance: str) -> None:
        order = shim.AttemptOrder(1, 1, ["true"], "/work", {}, "/nowhere", "")
        assert shim._hindrance(OSError(number, os.strerror(number), where), order) == hindrance


class TestStopping:
    def test_stop_signal_ends_a_task_that_obeys_it(self, driver: Driver) -> None:
        task = driver.sh("trap 'echo bye; exit 0' INT; echo up; while :; do sleep 0.01; done", stop_signal=2)
        driver.wait_for_line("up")
        driver.engine.stop(task, 1)
        ended = driver.exited(task)
        assert (ended.outcome, ended.code) == (Outcome.INTERRUPTED, 0)
        assert driver.log() == "up\nbye\n"

    @fault(20)
    def test_stop_wakes_a_stopped_process(self, driver: Driver) -> None:
        task = driver.sh("trap 'exit 7' TERM; echo up; kill -STOP $$; sleep 60 & wait")
        driver.wait_for_line("up")
        driver.engine.stop(task, 1)
        assert driver.exited(task).code == 7

    @fault(11)
    def test_task_that_ignores_the_stop_signal_is_killed_after_its_grace(self, driver: Driver) -> None:
        task = driver.sh("trap '' TERM; echo up; while :; do sleep 60; done", grace=0.2)
        driver.wait_for_line("up")
        driver.engine.stop(task, 1)
        asked = time.monotonic()
        ended = driver.exited(task)
        assert (ended.outcome, ended.signal) == (Outcome.INTERRUPTED, signal.SIGKILL)
        assert 0.15 < time.monotonic() - asked < 2

    def test_kill_skips_the_grace(self, driver: Driver) -> None:
        task = driver.sh("trap '' TERM; echo up; while :; do sleep 60; done", grace=600.0)
        driver.wait_for_line("up")
        driver.engine.stop(task, 1)
        driver.engine.stop(task, 1, kill=True)
        ended = driver.exited(task, deadline=2)
        assert (ended.outcome, ended.signal) == (Outcome.INTERRUPTED, signal.SIGKILL)

    def test_task_that_ended_just_before_the_stop_was_not_stopped(self, driver: Driver) -> None:
        task = driver.sh("sleep 0.1; exit 0")
        started = driver.started(task)
        os.kill(started.shim, signal.SIGSTOP)
        wait_until(lambda: is_zombie(started.pid))
        driver.engine.stop(task, 1)
        os.kill(started.shim, signal.SIGCONT)
        assert driver.exited(task).outcome is Outcome.SUCCEEDED

    @fault(21)
    def test_task_that_gets_term_together_with_its_shim_was_stopped(self, driver: Driver) -> None:
        """Every process gets TERM when a session or the machine is ended, in any order."""
        task = driver.sh("sleep 600")
        started = driver.started(task)
        os.kill(started.shim, signal.SIGSTOP)
        os.kill(started.pid, signal.SIGTERM)
        wait_until(lambda: is_zombie(started.pid))
        os.kill(started.shim, signal.SIGTERM)
        os.kill(started.shim, signal.SIGCONT)
        assert driver.exited(task).outcome is Outcome.INTERRUPTED

    def test_time_limit_ends_the_task(self, driver: Driver) -> None:
        ended = driver.run("sleep", "60", timeout=0.2)
        assert (ended.outcome, ended.signal) == (Outcome.TIMEOUT, signal.SIGTERM)
        assert 0.2 <= ended.seconds < 2

    def test_task_that_exits_with_0_after_its_time_limit_timed_out(self, driver: Driver) -> None:
        ended = driver.run_sh("trap 'exit 0' TERM; sleep 60 & wait", timeout=0.2)
        assert (ended.outcome, ended.code) == (Outcome.TIMEOUT, 0)

    def test_time_limit_holds_without_a_scheduler(self, driver: Driver) -> None:
        task = driver.launch("sleep", "60", timeout=0.3)
        driver.started(task)
        driver.engine.close()
        record = wait_until(lambda: shim.read_record(shim.claim_path(f"{driver.tasks}/1", 1)))
        assert record.outcome == "timeout"
        driver.engine = type(driver)(driver.root, driver.prefix).engine

    @fault(44)
    def test_suspended_time_does_not_count_against_a_time_limit(self) -> None:
        script = """if True:
            import os, signal, time
            from scheduler.runtime import shim
            signal.pthread_sigmask(signal.SIG_BLOCK, shim._BLOCKED)
            pid = os.fork()
            if pid == 0:
                time.sleep(0.2); os._exit(5)
            real, jump = shim._boot_seconds, iter([0, 86400])
            shim._boot_seconds = lambda: real() + next(jump, 86400)
            order = shim.AttemptOrder(1, 1, [], "", {}, "", "", timeout=60.0)
            log = shim.LogKeeper(os.devnull, 1 << 30, None)
            watch = shim.Watch(pid, order, log)
            watch.run()
            print(repr(watch.why), os.waitstatus_to_exitcode(watch.status), watch.seconds() > 86400)
        """
        said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        assert said.stdout == "'' 5 True\n"


class TestTrees:
    @fault(13)
    def test_leftovers_end_with_the_task(self, driver: Driver, mark: str) -> None:
        ended = driver.run_sh(f"sh -c 'sleep 600; : {mark}' & (setsid sh -c 'sleep 600; : {mark}' &); exit 4")
        assert (ended.outcome, ended.code) == (Outcome.FAILED, 4)
        assert ended.leftovers == 4
        assert marked(mark) == []

    def test_leftovers_that_end_at_once_are_not_signalled(self, driver: Driver) -> None:
        ended = driver.run_sh("(sleep 0.03; echo last words) & exit 0")
        assert ended.leftovers == 0
        assert driver.log() == "last words\n"

    def test_leftovers_that_ignore_term_get_two_seconds(self, driver: Driver, mark: str) -> None:
        started = time.monotonic()
        ended = driver.run_sh(f"sh -c 'trap \"\" TERM; while :; do sleep 60; done; : {mark}' & sleep 0.1; exit 0")
        assert ended.outcome is Outcome.SUCCEEDED
        assert 2 <= time.monotonic() - started < 5

    def test_leftovers_of_a_stopped_task_get_the_rest_of_its_grace(self, driver: Driver, mark: str) -> None:
        task = driver.sh(f"sh -c 'trap \"\" TERM; echo up; while :; do sleep 60; done; : {mark}' & wait", grace=0.3)
        driver.wait_for_line("up")
        driver.engine.stop(task, 1)
        asked = time.monotonic()
        assert driver.exited(task).outcome is Outcome.INTERRUPTED
        assert 0.25 < time.monotonic() - asked < 4

    def test_killed_shim_takes_its_task_with_it(self, driver: Driver, mark: str) -> None:
        task = driver.launch(sys.executable, "-IS", "-c", "import time; time.sleep(600)", mark)
        os.kill(driver.started(task).shim, signal.SIGKILL)
        wait_until(lambda: not marked(mark), 2)
        assert driver.exited(task).outcome is Outcome.LOST


class TestLease:
    @pytest.fixture
    def lease(self, tmp_path: Path) -> tuple[Path, int]:
        path = tmp_path / "lease"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return path, fd

    def test_lease_is_held_by_shim_and_task_and_removed_when_the_tree_is_empty(
        self, driver: Driver, lease: tuple[Path, int]
    ) -> None:
        path, fd = lease
        task = driver.launch("sleep", "60", lease=str(path), lease_fd=fd)
        started = driver.started(task)
        assert path not in descriptors("self")
        for pid in (started.shim, started.pid):
            wait_until(lambda pid=pid: path in descriptors(pid))
        assert locks(path)
        driver.engine.stop(task, 1)
        driver.exited(task)
        assert not path.exists()

    @fault(13)
    def test_lease_is_kept_while_leftovers_live(self, driver: Driver, lease: tuple[Path, int], mark: str) -> None:
        path, fd = lease
        stubborn = f'trap "" TERM; echo up; while :; do sleep 60; done; : {mark}'
        task = driver.sh(f"sh -c '{stubborn}' & sleep 0.05; exit 0", lease=str(path), lease_fd=fd)
        started = driver.started(task)
        wait_until(lambda: not shim.start_time(started.pid))
        assert locks(path)
        driver.exited(task)
        assert not path.exists()

    def test_lease_is_removed_when_the_command_cannot_be_run(self, driver: Driver, lease: tuple[Path, int]) -> None:
        path, fd = lease
        driver.run("/nowhere", lease=str(path), lease_fd=fd)
        assert not path.exists()


class TestFormats:
    def test_record_is_read_as_it_was_written(self, tmp_path: Path) -> None:
        record = Record("exited", 3, pid=5, began=1.5)
        (tmp_path / "r").write_bytes(bytes(shim.BLOCK) + shim.pack_block(record._asdict()))
        assert shim.read_record(str(tmp_path / "r")) == record

    @fault(27)
    @pytest.mark.parametrize(
        "damage", [lambda b: b[:40], lambda b: b"", lambda b: bytes(4096), lambda b: b.replace(b"exited", b"exitec")]
    )
    def test_damaged_record_is_none(self, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
        (tmp_path / "r").write_bytes(bytes(shim.BLOCK) + damage(shim.pack_block(Record("exited", 3)._asdict())))
        assert shim.read_record(str(tmp_path / "r")) is None

    @fault(9)
    def test_fields_of_a_newer_version_are_left_out(self, tmp_path: Path) -> None:
        more = {"outcome": "exited", "code": 0, "colour": "red"}
        (tmp_path / "r").write_bytes(bytes(shim.BLOCK) + shim.pack_block(more))
        assert shim.read_record(str(tmp_path / "r")) == Record("exited", 0)

    @fault(52)
    def test_path_that_is_no_file_is_no_record(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo")
        (tmp_path / "link").symlink_to(tmp_path / "fifo")
        assert [shim.read_record(str(tmp_path / name)) for name in ("none", "link", "fifo")] == [None] * 3

    def test_claim_state_shows_absent_locked_and_free(self, tmp_path: Path) -> None:
        path = str(tmp_path / ".claim.1")
        assert shim.claim_state(path) is ClaimState.ABSENT
        lock = shim.take_claim(path, Claim(1, 1, "cookie", shim=7))
        assert shim.claim_state(path) is ClaimState.LOCKED
        assert not shim.fence(path, 1, 1)
        os.close(lock)
        assert shim.claim_state(path) is ClaimState.FREE
        assert shim.read_claim(path) == Claim(1, 1, "cookie", shim=7)
        assert os.listdir(tmp_path) == [".claim.1"]

    def test_claim_can_be_made_once(self, tmp_path: Path) -> None:
        path = str(tmp_path / "tasks/5/.claim.1")
        assert shim.fence(path, 5, 1)
        assert not shim.fence(path, 5, 1)
        with pytest.raises(FileExistsError):
            shim.take_claim(path, Claim(5, 1))
        assert shim.claim_state(path) is ClaimState.FREE

    def test_claim_is_taken_by_one_of_many_processes(self, tmp_path: Path) -> None:
        names, racers = 150, 6
        readers = [_race(tmp_path, names, fences=bool(i % 2)) for i in range(racers)]
        wins = [int(word) for reader in readers for word in _drain(reader).split()]
        assert sorted(wins) == list(range(names))

    def test_children_are_found_by_the_kernels_lists(self, tmp_path: Path) -> None:
        lists = {"self/task": (os.getpid(), ""), "1/task": (1, "2 3"), "2/task": (2, ""), "3/task": (9, "4")}
        for folder, (thread, children) in lists.items():
            (tmp_path / folder / str(thread)).mkdir(parents=True)
            (tmp_path / folder / str(thread) / "children").write_text(children)
        assert shim.descendants(1, shim.children_finder(str(tmp_path))) == [2, 3, 4]

    def test_children_are_found_by_a_scan(self, tmp_path: Path) -> None:
        for pid, parent in ((1, 0), (2, 1), (3, 1), (4, 3), (5, 9)):
            (tmp_path / str(pid)).mkdir()
            (tmp_path / str(pid) / "stat").write_text(f"{pid} (a ) b) S {parent} 0 0")
        assert sorted(shim.descendants(1, shim.children_finder(str(tmp_path)))) == [2, 3, 4]

    def test_import_of_the_shim_is_light_and_does_nothing(self) -> None:
        script = "import sys; sys.path.insert(0, '.'); import scheduler.runtime.shim; print('ctypes' in sys.modules)"
        said = subprocess.run([sys.executable, "-I", "-S", "-c", script], capture_output=True, text=True, check=True)
        assert (said.stdout, said.stderr) == ("False\n", "")

    def test_shim_needs_only_the_standard_library(self, tmp_path: Path) -> None:
        """The run's copy must start on a machine without the package."""
        copy = tmp_path / "shim.py"
        copy.write_bytes(Path(shim.__file__).read_bytes())
        ended = Driver(tmp_path, "copy")
        ended.engine._server._shim_path = copy
        assert ended.run("true").outcome is Outcome.SUCCEEDED
        ended.end()


def _race(folder: Path, names: int, *, fences: bool) -> int:
    """Fork a process that tries to get every claim and never sees a taken one free; return which ones it got."""
    reader, writer = os.pipe()
    if os.fork():
        os.close(writer)
        return reader
    try:
        for number in range(names):
            path = str(folder / f".claim.{number}")
            if shim.claim_state(path) is ClaimState.FREE and not shim.read_claim(path).fence:  # type: ignore[union-attr]
                os.write(writer, b"-1 ")
            with contextlib.suppress(FileExistsError):
                if not fences:
                    shim.take_claim(path, Claim(number, 1))
                    os.write(writer, b"%d " % number)
                elif shim.fence(path, number, 1):
                    os.write(writer, b"%d " % number)
        os.close(writer)
        time.sleep(1)  # a claim is held for as long as its holder lives
    finally:
        os._exit(0)


def _drain(reader: int) -> str:
    with open(reader) as file:
        return file.read()


FULL_DISK = """
import json, os, subprocess, sys
from pathlib import Path
from tests.e2e.conftest import Driver
root = Path(sys.argv[1])
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", root], check=True)
driver = Driver(root, "full")
filler = driver.run_sh("head -c 10000000 /dev/zero; exit 3", directory="/")
late = driver.run("true", directory="/")
driver.end()
print(json.dumps([filler.outcome, filler.code, late.outcome, late.reason]))
"""


@fault(22)
@needs_mounts
def test_full_disk_loses_no_exit_code_and_fails_no_other_task(tmp_path: Path) -> None:
    filler, code, late, reason = json.loads(run_apart(FULL_DISK, tmp_path))
    assert (filler, code, late) == ("failed", 3, "unstarted")
    assert "No space left on device" in reason
