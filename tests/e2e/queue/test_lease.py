"""Leases: devices held for a process that no shim started, by the command and in Python."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.faults import fault
from tests.support.killing import Home, Started, kill
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow


HOLDING = """\
import os, sys, time, scheduler
with scheduler.lease(memory="200MiB", host_memory="200MiB") as lease:
    held = bytearray(100 << 20)
    open("held", "w").write(str(lease.task_id))
    while not os.path.exists("go"):
        time.sleep(0.02)
"""
LARGE = "20000GiB"


def most_of_the_memory() -> str:
    """Return a size that fits once, and not twice."""
    with open("/proc/meminfo") as file:
        (available,) = [int(line.split()[1]) for line in file if line.startswith("MemAvailable")]
    return f"{available * 6 // 10 // 1024}MiB"


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    made.env.pop("CUDA_VISIBLE_DEVICES", None)
    yield made
    made.end()


def python(home: Home, text: str, **how: Any) -> Started:
    """Start a Python program that takes leases."""
    name = how.pop("name", "program.py")
    (home.root / name).write_text(text)
    ours, home.command = home.command, [sys.executable]
    try:
        return home.start(name, **how)
    finally:
        home.command = ours


def printed(home: Home, text: str, code: int = 0) -> list[str]:
    """Run a Python program that takes leases, and return the lines that it printed."""
    with python(home, text, stdout=-1, stderr=-1) as process:
        out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    return out.splitlines()


def tasks(home: Home) -> list[dict[str, Any]]:
    return home.tasks("queue")


def states(home: Home) -> list[str]:
    return [task["state"] for task in tasks(home)]


def held(home: Home) -> None:
    """Wait until the holding program has its lease."""
    wait_until(lambda: (home.root / "held").exists() and (home.root / "held").read_text(), 30)


def peak(home: Home) -> int:
    """Return the highest use of the first task so far."""
    return tasks(home)[0]["peak_bytes"] or 0


def leases(home: Home) -> list[str]:
    return [name for name in os.listdir(home.leases) if name[0].isdigit()]


class TestCommand:
    def test_a_command_gets_the_variables_of_a_task_and_its_exit_code_is_passed_on(self, home: Home) -> None:
        said = "echo $SCHEDULER_TASK_ID $SCHEDULER_MEMORY_BYTES $SCHEDULER_NAME; exit 7"
        done = home.call("lease", "--memory", "100MiB", "--", "sh", "-c", said, code=7)
        assert done.stdout == f"0 {100 << 20} lease of sh\n"
        (task,) = tasks(home)
        assert (task["state"], task["exit_code"], task["name"]) == ("failed", 7, "lease of sh")
        assert task["command"] == f"sh -c '{said}'"

    def test_the_memory_of_the_command_is_learned_and_known_the_next_time(self, home: Home) -> None:
        for _ in range(2):
            home.call(
                "lease", "--", sys.executable, "-c", "import time; x = bytearray(300 << 20); time.sleep(1)", code=0
            )
        first, second = tasks(home)
        assert first["source"] == "measured"
        assert 300 << 20 <= first["host_peak_bytes"] < 500 << 20
        assert second["source"] == "profile"
        assert 300 << 20 <= second["reserved_bytes"] < 1 << 30

    def test_json_says_what_was_granted(self, home: Home) -> None:
        done = home.call("lease", "--json", "--memory", "9MiB", "--", "true", code=0)
        assert json.loads(done.stderr.splitlines()[-1]) == {
            "format": 1, "run": 1, "queue": "queue", "tasks": [0], "gpus": [],
        }  # fmt: skip

    def test_a_command_that_a_signal_ends_has_the_exit_code_of_a_shell(self, home: Home) -> None:
        home.call("lease", "--memory", "9MiB", "--", "sh", "-c", "kill -KILL $$", code=137)

    def test_term_reaches_the_command(self, home: Home) -> None:
        script = "trap 'exit 5' TERM; touch held; while :; do sleep 0.1; done"
        with home.start("lease", "--memory", "9MiB", "--", "sh", "-c", script) as process:
            wait_until((home.root / "held").exists, 30)
            process.terminate()
            assert process.wait(20) == 5

    def test_a_command_that_does_not_exist_is_refused_before_anything_is_asked_for(self, home: Home) -> None:
        done = home.call("lease", "--", "no-such-program", code=2)
        assert done.stderr == "scheduler: 'no-such-program' is not a program: give a path, or a name that is on PATH\n"
        assert not home.state.exists()

    @pytest.mark.parametrize(
        ("flags", "says"),
        [
            (("--wait", "soon"), "--wait: "),
            (("--wait", "-5s"), "--wait"),
            (("--memory", "much"), "--memory"),
            (("--gpus", "3", "--wait", "no"), "GPUs"),
            (("--queue", "7"), "--queue 7"),
        ],
    )
    def test_bad_input_is_one_sentence_and_leaves_no_task(self, home: Home, flags: tuple[str, ...], says: str) -> None:
        done = home.call("lease", *flags, "--", "true", code=2)
        assert says in done.stderr
        assert done.stderr.count("\n") == 1

    def test_a_lease_that_must_not_wait_says_what_is_missing_and_exits_75(self, home: Home) -> None:
        large = most_of_the_memory()
        with python(home, HOLDING.replace("200MiB", large)) as process:
            held(home)
            done = home.call("lease", "--memory", large, "--wait", "no", "--", "true", code=75)
            assert "no lease now: task 1 waits: it needs " in done.stderr
            assert states(home)[1] == "cancelled"
            (home.root / "go").touch()
            assert process.wait(20) == 0

    def test_a_lease_that_does_not_come_in_time_is_withdrawn(self, home: Home) -> None:
        large = most_of_the_memory()
        with python(home, HOLDING.replace("200MiB", large)) as process:
            held(home)
            done = home.call("lease", "--memory", large, "--wait", "1s", "--", "true", code=75)
            assert "no lease within 1" in done.stderr
            assert states(home)[1] == "cancelled"
            (home.root / "go").touch()
            assert process.wait(20) == 0

    @fault(143)
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
    def test_a_lease_whose_process_ends_while_it_waits_is_cancelled(self, home: Home, number: int) -> None:
        large = most_of_the_memory()
        with python(home, HOLDING.replace("200MiB", large)) as process:
            held(home)
            with home.start("lease", "--memory", large, "--", "true") as waiting:
                wait_until(lambda: len(tasks(home)) == 2, 30)
                waiting.send_signal(number)
                assert waiting.wait(20) in (130, -signal.SIGKILL)
            wait_until(lambda: states(home)[1] == "cancelled", 10)
            (home.root / "go").touch()
            assert process.wait(20) == 0

    def test_the_command_has_the_terminal(self, home: Home) -> None:
        pid, fd = pty.fork()
        if pid == 0:
            os.chdir(home.root)
            script = "test -t 0 && test -t 1 && echo is-a-terminal; read line; echo got $line; exec sleep 60"
            os.execve(sys.executable, [*home.command, "lease", "--memory", "9MiB", "--", "sh", "-c", script], home.env)
        reads(fd, b"is-a-terminal")
        os.write(fd, b"words\n")
        reads(fd, b"got words")
        os.write(fd, b"\x03")  # Ctrl-C
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 130


def reads(fd: int, words: bytes) -> bytes:
    """Read from a terminal until these words stand there."""
    said, end = b"", time.monotonic() + 30
    while words not in said:
        assert time.monotonic() < end, said
        if select.select([fd], [], [], 0.1)[0]:
            said += os.read(fd, 4096)
    return said


class TestEnd:
    @fault(143)
    def test_a_killed_process_has_no_lease_any_more_and_its_peak_is_learned(self, home: Home) -> None:
        with python(home, HOLDING) as process:
            held(home)
            wait_until(lambda: peak(home) > 80 << 20, 20)
            process.kill()
            wait_until(lambda: not leases(home), 5, pause=0.01)
        (task,) = wait_until(lambda: [one for one in tasks(home) if one["state"] == "succeeded"], 10)
        assert task["name"] == "lease of program.py"
        assert task["peak_bytes"] > 80 << 20

    def test_cancel_stops_the_process_as_a_task(self, home: Home) -> None:
        with python(home, HOLDING) as process:
            held(home)
            home.call("cancel", "0", code=0)
            assert process.wait(20) == -signal.SIGTERM
        assert states(home) == ["cancelled"]

    def test_a_process_that_ignores_the_stop_signal_is_killed_at_the_end_of_the_grace(self, home: Home) -> None:
        text = "import signal\nsignal.signal(15, signal.SIG_IGN)\n" + HOLDING.replace(") as", ", grace='1s') as")
        with python(home, text) as process:
            held(home)
            home.call("cancel", "0", code=0)
            assert process.wait(20) == -signal.SIGKILL

    def test_a_time_limit_stops_the_process(self, home: Home) -> None:
        with python(home, HOLDING.replace(") as", ", timeout='1s') as")) as process:
            assert process.wait(30) == -signal.SIGTERM
        assert wait_until(lambda: states(home) == ["timeout"], 10)

    @fault(143)
    def test_a_command_whose_holder_is_killed_is_stopped(self, home: Home) -> None:
        with home.start("lease", "--memory", "9MiB", "--", "sh", "-c", "touch held; sleep 600") as process:
            wait_until((home.root / "held").exists, 30)
            (pid,) = [one for one in home.living() if b"lease_holder" in Path(f"/proc/{one}/cmdline").read_bytes()]
            kill(pid)
            assert process.wait(20) in (128 + signal.SIGTERM, 128 + signal.SIGHUP), "it gets both at once"
        assert wait_until(lambda: states(home) == ["failed"], 10), "it is not tried again"

    @fault(143)
    def test_a_lease_outlives_the_scheduler_of_the_queue(self, home: Home) -> None:
        with python(home, HOLDING) as process:
            held(home)
            kill(home.scheduler())
            assert len(leases(home)) == 1
            home.call("resume", "r1", "-d", code=0)
            assert states(home) == ["running"]
            (home.root / "go").touch()
            assert process.wait(20) == 0
        assert wait_until(lambda: states(home) == ["succeeded"], 10)


class TestPython:
    def test_the_variables_are_set_within_the_lease_and_restored_after_it(self, home: Home) -> None:
        lines = """
import os, scheduler
os.environ["MASTER_PORT"] = "1"
with scheduler.lease(memory="50MiB") as lease:
    print(lease.task_id, os.environ["SCHEDULER_TASK_ID"], os.environ["MASTER_PORT"] != "1", lease.gpus)
print("SCHEDULER_TASK_ID" in os.environ, os.environ["MASTER_PORT"])
"""
        assert printed(home, lines) == ["0 0 True []", "False 1"]

    def test_a_lease_within_a_lease_a_fork_a_thread_and_a_child_program_share_the_first(self, home: Home) -> None:
        lines = """
import os, subprocess, sys, threading, scheduler
def inner(where):
    with scheduler.lease() as lease:
        print(where, lease.task_id, flush=True)
with scheduler.lease(memory="50MiB"):
    inner("nested")
    thread = threading.Thread(target=inner, args=("thread",))
    thread.start(); thread.join()
    if os.fork() == 0:
        inner("fork")
        os._exit(0)
    os.wait()
    code = "import scheduler\\nwith scheduler.lease() as lease: print('program', lease.task_id)"
    subprocess.run([sys.executable, "-c", code], check=True)
    print(os.environ["SCHEDULER_TASK_ID"])
"""
        assert printed(home, lines) == ["nested 0", "thread 0", "fork 0", "program 0", "0"]
        assert states(home) == ["succeeded"]

    def test_a_lease_within_a_lease_cannot_ask_for_more(self, home: Home) -> None:
        lines = """
import scheduler
for fields in ({"memory": "60MiB"}, {"gpus": 1}, {"device": "0"}):
    with scheduler.lease(memory="50MiB"):
        try:
            scheduler.lease(**fields).acquire()
        except scheduler.NoLease as exc:
            print(exc)
"""
        already = "this process already holds 0 GPUs as task"
        assert printed(home, lines) == [
            f"{already} 0 with 50MiB each, and gets no more of it: ask for 60MiB in its first lease",
            f"{already} 1, and gets no more of them: ask for 1 in its first lease",
            f"{already} 2 (none), and cannot get GPU 0 as well",
        ]

    def test_a_process_that_outlived_its_task_gets_a_lease_of_its_own(self, home: Home) -> None:
        lines = """
import os, scheduler
with scheduler.lease(memory="50MiB"):
    kept = dict(os.environ)
while any(name[0].isdigit() for name in os.listdir(os.environ["SCHEDULER_LEASES"])):
    pass
os.environ.update(kept)
with scheduler.lease(memory="50MiB") as lease:
    print(lease.task_id)
"""
        assert printed(home, lines) == ["1"]

    def test_a_task_of_a_run_uses_its_own_devices_as_its_lease(self, home: Home) -> None:
        (home.root / "task.py").write_text(
            "import scheduler\nwith scheduler.lease(memory='1GiB') as lease:\n    print('task', lease.task_id)\n"
        )
        done = home.call("exec", "--memory", "50MiB", "--", sys.executable, "task.py", code=0)
        assert done.stdout == "task 0\n"
        assert len(tasks(home)) == 1

    def test_a_decorated_function_has_a_lease_for_each_call(self, home: Home) -> None:
        lines = """
import os, scheduler
@scheduler.lease(memory="50MiB", name="fit")
def fit(x):
    return x, os.environ["SCHEDULER_TASK_ID"]
print(fit(1), fit(2))
"""
        assert printed(home, lines) == ["(1, '0') (2, '1')"]
        assert [task["name"] for task in tasks(home)] == ["fit", "fit"]

    def test_an_exception_within_the_lease_makes_its_task_a_failed_one(self, home: Home) -> None:
        lines = "import scheduler\nwith scheduler.lease(memory='50MiB'):\n    raise ValueError('no such data')\n"
        printed(home, lines, code=1)
        (task,) = tasks(home)
        assert (task["state"], task["attempts"]) == ("failed", 1)
        assert "ValueError: no such data" in home.call("logs", "0").stdout

    def test_a_lease_without_room_raises_and_leaves_no_waiting_task(self, home: Home) -> None:
        lines = f"""
import scheduler
for fields in ({{"memory": "{LARGE}"}}, {{"memory": "50MiB", "wait": "soon"}}, {{"memory": "much"}}, {{"wait": -1}}):
    try:
        with scheduler.lease(**fields):
            print("never")
    except (scheduler.UsageError, scheduler.NoLease) as exc:
        print(type(exc).__name__, exc)
"""
        said = printed(home, lines)
        assert [line.partition(" ")[0] for line in said] == ["UsageError"] * 4
        assert "never" not in said

    def test_torch_that_has_initialised_cuda_is_named(self, home: Home) -> None:
        lines = """
import sys, types, scheduler
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_initialized=lambda: True)
try:
    scheduler.lease(memory="50MiB").acquire()
except scheduler.NoLease as exc:
    print(exc)
"""
        (said,) = printed(home, lines)
        assert said.startswith("torch has already initialised CUDA in this process")
        assert "restart the kernel" in said


def test_status_and_results_show_the_memory_of_the_guest(home: Home) -> None:
    with python(home, HOLDING) as process:
        held(home)

        def used() -> list[int]:
            (lease,) = json.loads(home.call("status", "--json").stdout)["leases"]
            assert lease["pid"] == process.pid
            return [lease["used"]["host"]] if lease["used"]["host"] > 100 << 20 else []

        assert wait_until(used, 20)[0] < 400 << 20
        wait_until(lambda: peak(home) > 80 << 20, 20)
        (home.root / "go").touch()
        assert process.wait(20) == 0


def test_a_program_that_never_waits_leaves_no_process(home: Home) -> None:
    with python(home, HOLDING) as process:
        held(home)
        (home.root / "go").touch()
        assert process.wait(20) == 0
    wait_until(lambda: not [one for one in home.living() if b"lease_holder" in cmdline(one)], 10)


def cmdline(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
