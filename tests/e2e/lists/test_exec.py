"""`scheduler exec`: one job, its output here, its exit code; in line with all jobs that wait on this machine."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gpu_home import PATIENCE, GpuHome
from tests.support.killing import Home, Started, children, is_alive, kill, state_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

SOON = 8.0
"""Seconds that a busy machine may take for what takes two seconds on an idle one."""
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    made.env["SCHEDULER_QUEUE_IDLE"] = "1h"
    yield made
    made.end()


@pytest.fixture
def one_gpu(tmp_path: Path) -> Iterator[GpuHome]:
    made = GpuHome(tmp_path, gpus=1)
    made.env["SCHEDULER_QUEUE_IDLE"] = "1h"
    yield made
    made.end()


def sh(script: str) -> tuple[str, ...]:
    return ("--", "sh", "-c", script)


def waiting(home: Home) -> int:
    """Return the number of wait tickets: one for each scheduler whose tasks wait."""
    return len([*home.leases.glob("ticket.*")])


def queued(home: Home) -> int:
    """Return the number of tasks that wait in the queue."""
    return home.states("queue").count("waiting")


class TestOneJob:
    def test_exec_passes_on_stdout_stderr_and_the_exit_code(self, home: Home) -> None:
        done = home.call("exec", *sh("echo out; echo err >&2; exit 7"), code=7)
        assert done.stdout == "out\n"
        assert done.stderr.splitlines()[0] == "err"

    def test_exec_with_devices_of_its_own_passes_on_its_output_and_exit_code(self, home: Home) -> None:
        done = home.call("exec", "--devices", "host", *sh("echo out; echo err >&2; exit 7"), code=7)
        assert (done.stdout, done.stderr.splitlines()[0]) == ("out\n", "err")
        assert not [*home.state.glob("queues/queue")]

    def test_exec_in_a_shell_with_chosen_gpus_is_a_run_of_its_own(self, home: Home) -> None:
        home.env["CUDA_VISIBLE_DEVICES"] = "0"
        home.call("exec", "--", "true", code=0)
        assert not [*home.state.glob("queues/queue")]

    def test_exec_keeps_the_order_of_lines_where_both_streams_are_one(self, home: Home) -> None:
        done = home.call("exec", *sh("for i in 1 2 3; do echo o$i; echo e$i >&2; done"), stderr=subprocess.STDOUT)
        assert done.stdout.split() == ["o1", "e1", "o2", "e2", "o3", "e3"]

    def test_exec_splits_a_quoted_string_without_a_shell(self, home: Home) -> None:
        assert home.call("exec", "echo 'a  b' '$HOME' '|' cat", code=0).stdout == "a  b $HOME | cat\n"

    def test_exec_passes_words_unchanged(self, home: Home) -> None:
        assert home.call("exec", "--", "printf", "<%s>", "a b", "", "'q'", code=0).stdout == "<a b><><'q'>"

    def test_exec_makes_a_run_with_a_log(self, home: Home) -> None:
        home.call("exec", "--name", "mine", *sh("echo hello; exit 3"), code=3)
        (task,) = home.tasks()
        assert (task["name"], task["state"], task["exit_code"]) == ("mine", "failed", 3)
        assert Path(task["log"]).read_text() == "hello\n"

    def test_exec_takes_the_fields_of_a_task_as_flags(self, home: Home) -> None:
        said = home.call("exec", "--env", "A=1 2", "--timeout", "300ms", *sh('echo "$A"; sleep 60'))
        assert said.stdout == "1 2\n"
        assert [task["state"] for task in home.tasks()] == ["timeout"]

    def test_exec_can_write_the_output_to_files(self, home: Home) -> None:
        (home.root / "o").write_text("old")
        done = home.call("exec", "--stdout", "o", "--stderr", "e", *sh("echo out; echo err >&2"), code=0)
        assert (done.stdout, (home.root / "o").read_text(), (home.root / "e").read_text()) == ("", "out\n", "err\n")

    def test_exec_names_an_output_file_that_cannot_be_written(self, home: Home) -> None:
        done = home.call("exec", "--stdout", "nowhere/o", "--", "true", code=126)
        assert "nowhere/o cannot take its output: No such file or directory" in done.stderr

    def test_exec_runs_a_python_script_of_the_directory_by_its_name(self, home: Home) -> None:
        (home.root / "train.py").write_text("import sys; print(sys.argv[1:])")
        assert home.call("exec", "train.py foo --bar 5", code=0).stdout == "['foo', '--bar', '5']\n"

    def test_exec_exits_with_the_code_of_a_signal(self, home: Home) -> None:
        home.call("exec", *sh("kill -KILL $$"), code=137)

    def test_exec_passes_large_output_whole(self, home: Home) -> None:
        done = home.call("exec", *sh("seq 1 200000"), code=0)
        assert done.stdout.splitlines()[-1] == "200000"
        assert done.stdout.count("\n") == 200000

    def test_exec_goes_on_after_its_reader_has_gone(self, home: Home) -> None:
        with home.start("exec", *sh("seq 1 100000; until [ -e go ]; do sleep 0.01; done; exit 4"), **PIPES) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == "1\n"
            process.stdout.close()
            wait_until((home.state / "runs/1/tasks/0/1.log").exists, PATIENCE)
            (home.root / "go").touch()
            told = process.stderr.read()
            assert process.wait(PATIENCE) == 4
        assert told.count("nothing reads the output any more") == 1

    def test_exec_detached_prints_the_id_and_goes_on(self, home: Home) -> None:
        done = home.call("exec", "-d", *sh("echo later; until [ -e go ]; do sleep 0.01; done"), code=0)
        assert done.stdout == "0\n"
        (home.root / "go").touch()
        wait_until(lambda: home.states() == ["succeeded"], PATIENCE, pause=0.05)

    def test_exec_detached_json_has_run_and_tasks(self, home: Home) -> None:
        told = json.loads(home.call("exec", "-d", "--json", "--", "true", code=0).stdout)
        assert (told["run"], told["tasks"]) == (1, [0])


class TestSignals:
    """Signals to an `exec` whose task runs in the queue."""

    STUBBORN = "trap 'echo told' TERM; touch began; while [ ! -e go ]; do sleep 0.05; done; exit 5"

    def begin(self, home: Home, script: str, *flags: str) -> Started:
        process = home.start("exec", *flags, *sh(script), **PIPES)
        wait_until((home.root / "began").exists, PATIENCE)
        return process

    def said(self, process: Started, words: str) -> None:
        """Wait until `exec` has said something."""
        assert process.stderr is not None
        line = process.stderr.readline()
        assert words in line

    def test_the_first_ctrl_c_lets_the_task_finish_and_passes_its_exit_code_on(self, home: Home) -> None:
        with self.begin(home, self.STUBBORN) as process:
            process.send_signal(signal.SIGINT)
            self.said(process, "task 0 runs to its end and is not tried again")
            (home.root / "go").touch()
            assert process.wait(PATIENCE) == 5
        assert home.states("queue") == ["failed"]

    def test_the_second_ctrl_c_stops_the_task_and_the_third_kills_it(self, home: Home) -> None:
        with self.begin(home, self.STUBBORN, "--grace", "1h") as process:
            process.send_signal(signal.SIGINT)
            self.said(process, "runs to its end")
            process.send_signal(signal.SIGINT)
            self.said(process, "stopping task 0: stop signal, grace, then KILL")
            assert process.stdout is not None
            assert process.stdout.readline() == "told\n"
            process.send_signal(signal.SIGINT)
            self.said(process, "killing task 0 now")
            assert process.wait(PATIENCE) == 130
        assert home.states("queue") == ["cancelled"]

    def test_the_second_ctrl_c_kills_a_stubborn_task_after_its_grace(self, home: Home) -> None:
        with self.begin(home, self.STUBBORN, "--grace", "300ms") as process:
            for _ in range(2):
                process.send_signal(signal.SIGINT)
                assert process.stderr is not None
                process.stderr.readline()
            assert process.wait(PATIENCE) == 130

    def test_a_task_that_fails_after_ctrl_c_is_not_tried_again(self, home: Home) -> None:
        with self.begin(home, self.STUBBORN, "--retries", "3") as process:
            process.send_signal(signal.SIGINT)
            self.said(process, "is not tried again")
            (home.root / "go").touch()
            assert process.wait(PATIENCE) == 5
        (task,) = home.tasks("queue")
        assert (task["state"], task["attempts"]) == ("failed", 1)

    def test_term_stops_the_task(self, home: Home) -> None:
        with self.begin(home, "touch began; sleep 600") as process:
            process.terminate()
            assert process.wait(PATIENCE) == 143
        assert home.states("queue") == ["cancelled"]

    def test_quit_leaves_the_task_in_the_queue(self, home: Home) -> None:
        with self.begin(home, self.STUBBORN) as process:
            process.send_signal(signal.SIGQUIT)
            assert process.wait(PATIENCE) == 131
        (home.root / "go").touch()
        wait_until(lambda: home.states("queue") == ["failed"], PATIENCE, pause=0.05)

    def test_a_closed_terminal_does_not_end_exec(self, home: Home) -> None:
        with self.begin(home, self.STUBBORN) as process:
            process.send_signal(signal.SIGHUP)
            (home.root / "go").touch()
            assert process.wait(PATIENCE) == 5

    def test_exec_starts_a_killed_scheduler_of_the_queue_again(self, home: Home) -> None:
        with (
            self.begin(home, self.STUBBORN) as process,
            home.start("exec", "--after", "0", *sh("echo no"), **PIPES) as child,
            home.start("exec", "--after", "ended:0", *sh("echo yes"), **PIPES) as other,
        ):
            wait_until(lambda: home.states("queue").count("blocked") == 2, PATIENCE)
            kill(home.scheduler())
            (home.root / "go").touch()
            assert [one.wait(PATIENCE) for one in (process, child, other)] == [5, 1, 0]
            assert other.stdout is not None
            assert other.stdout.read() == "yes\n"

    def test_a_stopped_queue_tells_the_waiting_exec_where_its_task_stays(self, home: Home) -> None:
        with (
            self.begin(home, self.STUBBORN) as process,
            home.start("exec", "--after", "0", *sh("true"), **PIPES) as one,
        ):
            wait_until(lambda: home.states("queue").count("blocked") == 1, PATIENCE)
            home.call("stop", "queue", code=0)
            (home.root / "go").touch()
            assert process.wait(PATIENCE) == 5
            assert one.wait(PATIENCE) == 1


class TestBadInput:
    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            ((), "no command was given: write it like"),
            (("--",), "no command was given: write it like"),
            (("true", "--", "true"), "stands before --"),
            (("echo 'a",), "no closing quotation"),
            (("--", "nothere"), "'nothere' is not a program on PATH"),
            (("--", "./nothere"), "does not exist"),
            (("--memory", "8", "--", "true"), "--memory: "),
            (("--devices", "7", "--", "true"), "--devices 7: "),
            (("--max-load", "2", "--device", "7", "--", "true"), "--device 7: there is no device '7' in this run"),
            (("--json", "--", "true"), "--json goes with -d"),
            (("--thread-percentage", "50", "--", "true"), "unrecognized arguments: --thread-percentage"),
        ],
    )
    def test_bad_input_of_exec_is_refused_in_one_sentence_and_starts_nothing(
        self, home: Home, words: tuple[str, ...], sentence: str
    ) -> None:
        done = home.call("exec", *words, code=2)
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
        assert not [*home.state.glob("runs/*")]

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("--device", "7"), "--device: there is no device '7' in this run; there is: host"),
            (("--gpus", "2"), "--gpus: needs 2 GPUs; this machine has none"),
            (("--memory", "900GiB"), "--memory: needs 900.0GiB; the largest device (host) has"),
            (("--after", "perp"), "--after: no task has the name 'perp'"),
        ],
    )
    def test_exec_refuses_what_the_queue_cannot_take_and_uses_no_id(
        self, home: Home, words: tuple[str, ...], sentence: str
    ) -> None:
        done = home.call("exec", *words, "--", "true", code=2)
        assert sentence in done.stderr
        assert done.stderr.count("\n") == 1
        assert home.call("exec", "-d", "--", "true", code=0).stdout == "0\n"

    def test_exec_refuses_an_argument_that_is_not_utf_8(self, home: Home) -> None:
        with home.start("exec", "--", "echo", os.fsdecode(b"\xff"), **PIPES) as process:
            _, said = process.communicate(timeout=60)
        assert process.returncode == 2
        assert "is not UTF-8" in said


OWN = ("--devices", "0,host")
"""A flag that makes `exec` a run of its own, with a scheduler of its own."""


def hold(home: GpuHome, *flags: str, until: str = "go") -> Started:
    """Start a job that has the GPU until a file exists."""
    process = home.start("exec", *flags, *sh(f"touch has-{until}; until [ -e {until} ]; do sleep 0.01; done"))
    wait_until((home.root / f"has-{until}").exists, PATIENCE)
    return process


def join_queue(home: GpuHome, number: int, *flags: str, stderr: int = subprocess.DEVNULL) -> Started:
    """Start the next job of the queue that waits for the GPU; it records when it has it."""
    process = home.start("exec", *flags, *sh(f"echo {number} >>order"), stderr=stderr)
    wait_until(lambda: queued(home) >= number, PATIENCE)
    return process


def wait_beside(home: GpuHome, number: int, *flags: str) -> Started:
    """Start the next job that waits for the GPU as a run of its own; it records when it has it."""
    process = home.start("exec", *OWN, *flags, *sh(f"echo {number} >>order"))
    wait_until(lambda: waiting(home) >= number, PATIENCE)
    return process


def stop_between_looks(home: GpuHome, process: Started) -> None:
    """Stop a scheduler while it does not hold the mutex; otherwise no other scheduler could decide."""
    directory = os.open(home.leases, os.O_RDONLY)
    try:

        def stopped() -> bool:
            process.send_signal(signal.SIGSTOP)
            wait_until(lambda: state_of(process.pid) == "T", PATIENCE)
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            process.send_signal(signal.SIGCONT)
            return False

        wait_until(stopped, PATIENCE)
    finally:
        os.close(directory)


class TestGpu:
    def test_exec_names_the_gpu_in_a_variable_beside_the_visible_devices(self, one_gpu: GpuHome) -> None:
        said = one_gpu.call("exec", *sh('echo "$GPU $CUDA_VISIBLE_DEVICES"; echo "$@"'), "x", "__num__", code=0)
        name, seen = said.stdout.splitlines()[0].split()
        assert (name, seen[:4], said.stdout.splitlines()[1]) == ("cuda0", "GPU-", "3600")


class TestQueue:
    def test_five_jobs_that_wait_for_a_gpu_start_in_their_order(self, one_gpu: GpuHome) -> None:
        with hold(one_gpu) as first:
            waiters = [join_queue(one_gpu, number, "--exclusive", "yes") for number in (1, 2, 3, 4, 5)]
            one_gpu.go()
            assert [process.wait(2 * PATIENCE) for process in (first, *waiters)] == [0] * 6
        assert (one_gpu.root / "order").read_text().split() == ["1", "2", "3", "4", "5"]
        wait_until(lambda: [*one_gpu.leases.iterdir()] == [], PATIENCE)

    def test_five_jobs_with_devices_of_their_own_start_in_their_order(self, one_gpu: GpuHome) -> None:
        with hold(one_gpu, *OWN) as first:
            waiters = [wait_beside(one_gpu, number, "--exclusive", "yes") for number in (1, 2, 3, 4, 5)]
            one_gpu.go()
            assert [process.wait(2 * PATIENCE) for process in (first, *waiters)] == [0] * 6
        assert (one_gpu.root / "order").read_text().split() == ["1", "2", "3", "4", "5"]
        assert [*one_gpu.leases.iterdir()] == []

    def test_waiting_jobs_have_no_scheduler_of_their_own(self, one_gpu: GpuHome) -> None:
        with hold(one_gpu) as first:
            waiters = [join_queue(one_gpu, number, "--exclusive", "yes") for number in (1, 2, 3)]
            assert [path.name for path in (one_gpu.state / "runs").iterdir()] == ["1"]
            assert [children(process.pid) for process in waiters] == [[], [], []]
            assert waiting(one_gpu) == 1
            one_gpu.go()
            assert [process.wait(2 * PATIENCE) for process in (first, *waiters)] == [0] * 4

    def test_a_list_waits_in_one_queue_with_jobs(self, one_gpu: GpuHome) -> None:
        (one_gpu.root / "jobs.csv").write_text("Command,Exclusive\nsh -c 'echo list >>order',yes\n")
        with hold(one_gpu, *OWN) as first:
            before = wait_beside(one_gpu, 1, "--exclusive", "yes")
            run = one_gpu.start("run", "jobs.csv")
            wait_until(lambda: waiting(one_gpu) == 2, PATIENCE)
            after = wait_beside(one_gpu, 3, "--exclusive", "yes")
            one_gpu.go()
            codes = [process.wait(2 * PATIENCE) for process in (first, before, run, after)]
        assert codes == [0, 0, 0, 0]
        assert (one_gpu.root / "order").read_text().split() == ["1", "list", "3"]

    def test_a_waiting_job_names_the_device_and_the_task_that_reserves_it(self, one_gpu: GpuHome) -> None:
        with hold(one_gpu) as first, join_queue(one_gpu, 1, stderr=subprocess.PIPE) as waiter:
            assert waiter.stderr is not None
            said = waiter.stderr.readline()
            one_gpu.go()
            assert (first.wait(PATIENCE), waiter.wait(PATIENCE)) == (0, 0)
        assert "task 1 waits: it" in said
        assert "GPU 0 is reserved by" in said
        assert "(run 1, task 0 since" in said

    def test_a_known_job_has_an_expected_end_in_status(self, one_gpu: GpuHome) -> None:
        script = "until [ -e go ]; do sleep 0.01; done; sleep 1.2"
        one_gpu.go()
        one_gpu.call("exec", *sh(script), code=0)
        (one_gpu.root / "go").unlink()
        with one_gpu.start("exec", "--exclusive", "yes", *sh(script)) as first:
            wait_until(lambda: [*one_gpu.leases.glob("[0-9]*")], PATIENCE)
            lease = json.loads(one_gpu.call("status", "--json", code=0).stdout)["leases"][0]
            one_gpu.go()
            assert first.wait(PATIENCE) == 0
        assert 1.0 < lease["ends"] - lease["since"] < 60.0

    def test_ctrl_c_cancels_a_waiting_job(self, one_gpu: GpuHome) -> None:
        with hold(one_gpu) as first, join_queue(one_gpu, 1) as waiter:
            waiter.send_signal(signal.SIGINT)
            assert waiter.wait(PATIENCE) == 130
            assert one_gpu.states("queue") == ["running", "cancelled"]
            wait_until(lambda: waiting(one_gpu) == 0, PATIENCE)
            one_gpu.go()
            assert first.wait(PATIENCE) == 0
        assert not (one_gpu.root / "order").exists()

    def test_ctrl_c_removes_a_waiting_job_with_devices_of_its_own(self, one_gpu: GpuHome) -> None:
        with hold(one_gpu, *OWN) as first, wait_beside(one_gpu, 1) as waiter:
            waiter.send_signal(signal.SIGINT)
            assert waiter.wait(PATIENCE) == 130
            assert [path.name for path in (one_gpu.state / "runs").iterdir()] == ["1"]
            assert waiting(one_gpu) == 0
            one_gpu.go()
            assert first.wait(PATIENCE) == 0
        assert not (one_gpu.root / "order").exists()

    def test_a_stopped_waiter_does_not_delay_the_next_one(self, one_gpu: GpuHome) -> None:
        with hold(one_gpu, *OWN) as first, wait_beside(one_gpu, 1, "--exclusive", "yes") as stopped:
            stop_between_looks(one_gpu, stopped)
            with wait_beside(one_gpu, 2, "--exclusive", "yes") as after:
                one_gpu.go()
                assert (first.wait(PATIENCE), after.wait(PATIENCE)) == (0, 0)
                stopped.send_signal(signal.SIGCONT)
                assert stopped.wait(PATIENCE) == 0
        assert (one_gpu.root / "order").read_text().split() == ["2", "1"]

    def test_the_second_ctrl_c_never_frees_a_gpu_that_is_still_in_use(self, one_gpu: GpuHome) -> None:
        stubborn = "trap '' TERM INT; touch has-go; until [ -e go ]; do sleep 0.01; done; echo 0 >>order"
        with one_gpu.start("exec", *OWN, "--grace", "1h", *sh(stubborn)) as first:
            wait_until((one_gpu.root / "has-go").exists, PATIENCE)
            with wait_beside(one_gpu, 1, "--exclusive", "yes") as waiter:
                for words in ("nothing more is started", "stopping 1 running"):
                    first.send_signal(signal.SIGINT)
                    wait_until(lambda words=words: words in one_gpu.log(), PATIENCE)
                looks = [path.name for path in one_gpu.leases.glob("[0-9]*")]
                assert len(looks) == 1, "what it holds is still reserved to it"
                assert not (one_gpu.root / "order").exists()
                one_gpu.go()
                assert waiter.wait(PATIENCE) == 0
            first.wait(PATIENCE)
        assert (one_gpu.root / "order").read_text().split() == ["0", "1"]

    def test_a_killed_holder_frees_its_gpu_when_its_task_ends_and_not_before(self, one_gpu: GpuHome) -> None:
        with hold(one_gpu, *OWN) as first, wait_beside(one_gpu, 1, "--exclusive", "yes") as waiter:
            kill(first.pid)
            first.wait(PATIENCE)
            assert [path.name for path in one_gpu.leases.glob("[0-9]*")] != []
            assert is_alive(waiter.pid)
            assert not (one_gpu.root / "order").exists()
            one_gpu.go()
            assert waiter.wait(PATIENCE) == 0
        assert (one_gpu.root / "order").read_text() == "1\n"
        free, taken = (os.stat(one_gpu.root / name).st_mtime for name in ("go", "order"))
        assert taken - free < SOON, "two seconds on a machine that has time"


class TestStatus:
    def test_status_shows_leases_and_waiting_jobs_without_their_names(self, one_gpu: GpuHome) -> None:
        with hold(one_gpu, "--name", "secret-name") as first, join_queue(one_gpu, 1) as waiter:
            facts = json.loads(one_gpu.call("status", "--json", code=0).stdout)
            said = one_gpu.call("status", code=0).stdout
            one_gpu.go()
            assert (first.wait(PATIENCE), waiter.wait(PATIENCE)) == (0, 0)
        (lease,) = facts["leases"]
        assert (lease["run"], lease["task"], [*lease["reserved"]]) == ("1", 0, ["GPU 0", "host"])
        assert lease["used"]["host"] > 0
        assert lease["since"] > 0
        assert [(one["run"], one["task"], one["devices"]) for one in facts["waiting"]] == [("1", 1, ["GPU 0"])]
        assert "user  run  task  device" in said
        assert "secret-name" not in said

    def test_status_shows_the_memory_a_lease_uses_on_its_gpu(self, one_gpu: GpuHome) -> None:
        with one_gpu.start("exec", "--", "python", "-S", "hold.py", "--take", "3GiB", "--until", "go") as first:
            one_gpu.wait_for_use(0, 3 << 30)
            wait_until(lambda: self._used(one_gpu) >= 3 << 30)
            one_gpu.go()
            assert first.wait(PATIENCE) == 0

    def _used(self, home: GpuHome) -> int:
        """Return what status says that the only lease uses on GPU 0; 0 if it was not measured yet."""
        (lease,) = json.loads(home.call("status", "--json", code=0).stdout)["leases"]
        return int(lease["used"].get("GPU 0", 0))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root disables devices for all users")
class TestDevices:
    def test_no_job_starts_on_a_device_that_root_disabled_until_it_is_enabled(self, one_gpu: GpuHome) -> None:
        one_gpu.call("devices", "disable", "0", "--all-users", "--why", "a fan is broken", code=0)
        assert (
            "GPU 0 is disabled for all users: it is disabled by root (a fan is broken)" in one_gpu.call("status").stdout
        )
        with one_gpu.start("exec", *sh("touch ran"), stderr=subprocess.PIPE) as job:
            assert job.stderr is not None
            assert "it may not start on GPU 0: it is disabled by root (a fan is broken)" in job.stderr.readline()
            assert not (one_gpu.root / "ran").exists()
            one_gpu.call("devices", "enable", "all", "--all-users", code=0)
            assert job.wait(PATIENCE) == 0

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("disable",), "name a device"),
            (("disable", "0"), "you have no unfinished run to change"),
            (("disable", "9", "--all-users"), "scheduler: there is no device '9' here"),
            (("disable", "0:4GiB", "--all-users"), "as a whole"),
            (("list", "0"), "such as scheduler devices disable 2"),
        ],
    )
    def test_bad_input_of_devices_is_refused(self, one_gpu: GpuHome, words: tuple[str, ...], sentence: str) -> None:
        assert sentence in one_gpu.call("devices", *words, code=2).stderr
