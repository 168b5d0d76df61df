"""Signals and terminals of a run: Ctrl-C, Ctrl-backslash, TERM, HUP, a reader that ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.killing import ROOT, Home, children, environment, is_alive, kill
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

UNTIL_GO = "sh -c 'touch here; until [ -e go ]; do sleep 0.01; done'"
TREE = "sh -c 'touch here; (setsid sleep 60 & sleep 60) & sleep 60'"
STUBBORN = "sh -c 'trap \"\" TERM INT HUP; touch here; while :; do sleep 0.1; done'"
STOPPED = ["interrupted", "waiting"]
PRESSES = """
import signal, threading
from scheduler.runtime.event_sources import SignalReader
interrupts = SignalReader()
def press():
    for _ in range(3):
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # returns once it was delivered
thread = threading.Thread(target=press)
thread.start()
thread.join()
print(*interrupts.collect())
interrupts.close()
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.set_wakeup_fd(-1))
"""
"""A program that gets three INTs before its main thread handles the first one."""
EARLY = """
import signal, sys
import gpu_batch_scheduler
class Presses:
    def find_spec(self, name, *_):
        if name == sys.argv[1]:
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Presses())
gpu_batch_scheduler.console()
"""
"""A program that gets INT while a module is loaded."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def running(home: Home, *commands: str, arguments: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """Start a run whose first task has made the file `here`; the others wait for it."""
    home.commands(*commands)
    scheduler = home.start("run", "jobs.csv", "-j", "1", *arguments)
    wait_until((home.root / "here").exists, 30)
    return scheduler


def interrupt(home: Home, scheduler: subprocess.Popen[str], *answers: str) -> None:
    """Send this many INTs, each after the answer to the one before."""
    for answer in answers:
        scheduler.send_signal(signal.SIGINT)
        wait_until(lambda answer=answer: answer in home.log(), 30)


def tasks_alive(home: Home) -> list[int]:
    """Return all living processes of tasks and shims."""
    return [pid for pid in home.living() if any(one.startswith(b"SCHEDULER_COOKIE=") for one in environment(pid))]


class TestInterrupt:
    @fault(15)
    def test_each_delivered_interrupt_counts_however_close_together(self) -> None:
        said = subprocess.run([sys.executable, "-c", PRESSES], cwd=ROOT, capture_output=True, text=True, check=True)
        assert said.stdout.splitlines() == ["drain stop kill", "True -1"]

    @pytest.mark.parametrize("module", ["scheduler", "scheduler.cli", "scheduler.cli.main"])
    def test_interrupt_before_everything_is_loaded_gives_no_traceback(self, module: str) -> None:
        said = subprocess.run([sys.executable, "-c", EARLY, module], cwd=ROOT, capture_output=True, check=False)
        assert (said.returncode, said.stdout, said.stderr) == (130, b"", b"")

    def test_one_interrupt_lets_running_tasks_end(self, home: Home) -> None:
        scheduler = running(home, UNTIL_GO, "true")
        interrupt(home, scheduler, "nothing more is started; 1 running")
        (home.root / "go").touch()
        assert scheduler.wait(30) == 130
        assert home.states() == ["succeeded", "waiting"]
        home.call("resume", code=0)
        assert home.states() == ["succeeded", "succeeded"]

    def test_two_interrupts_stop_the_whole_tree(self, home: Home) -> None:
        scheduler = running(home, TREE, "true")
        interrupt(home, scheduler, "nothing more is started", "stopping 1 running")
        assert scheduler.wait(30) == 130
        assert home.states() == STOPPED
        assert home.living() == []
        assert [*home.leases.iterdir()] == []

    def test_two_interrupts_stop_a_task_that_ignores_the_stop_signal(self, home: Home) -> None:
        scheduler = running(home, STUBBORN, "true", arguments=("--grace", "300ms"))
        interrupt(home, scheduler, "nothing more is started", "stopping 1 running")
        assert scheduler.wait(30) == 130
        assert home.states() == STOPPED
        assert home.living() == []

    def test_three_interrupts_kill_without_grace(self, home: Home) -> None:
        scheduler = running(home, STUBBORN, "true", arguments=("--grace", "1h"))
        interrupt(home, scheduler, "nothing more is started", "stopping 1 running", "killing 1 running")
        assert scheduler.wait(30) == 130
        assert home.states() == STOPPED

    def test_task_stopped_by_interrupts_starts_again_with_resume(self, home: Home) -> None:
        scheduler = running(home, UNTIL_GO, "true")
        interrupt(home, scheduler, "nothing more is started", "stopping 1 running")
        assert scheduler.wait(30) == 130
        (home.root / "go").touch()
        home.call("resume", code=0)
        assert [(task["state"], task["attempts"]) for task in home.tasks()] == [("succeeded", 2), ("succeeded", 1)]

    def test_burst_of_interrupts_while_tasks_end_loses_no_task(self, home: Home) -> None:
        """A request that arrives together with ends must not apply to ended tasks."""
        home.commands(*["sh -c 'touch here'"] * 200)
        with home.start("run", "jobs.csv", "--slots", "8") as scheduler:
            wait_until((home.root / "here").exists, 30)
            wait_until(lambda: " done " in home.log())
            for _ in range(2):
                scheduler.send_signal(signal.SIGINT)
        assert scheduler.returncode == 130
        home.call("resume", code=0)
        assert home.states() == ["succeeded"] * 200


class TestTerm:
    def test_term_is_like_two_interrupts(self, home: Home) -> None:
        scheduler = running(home, TREE, "true")
        scheduler.terminate()
        assert scheduler.wait(30) == 143
        assert home.states() == STOPPED
        assert home.living() == []

    def test_two_terms_kill_without_grace(self, home: Home) -> None:
        scheduler = running(home, STUBBORN, "true", arguments=("--grace", "1h"))
        scheduler.terminate()
        wait_until(lambda: "stopping 1 running" in home.log())
        scheduler.terminate()
        assert scheduler.wait(30) == 143
        assert home.states() == STOPPED

    def test_term_to_a_task_is_its_own_failure(self, home: Home) -> None:
        scheduler = running(home, "sh -c 'echo $$ >pid; touch here; sleep 60'", "true")
        kill(int((home.root / "pid").read_text()), signal.SIGTERM)
        assert scheduler.wait(30) == 1
        assert [(task["state"], task["exit_code"]) for task in home.tasks()] == [("failed", 143), ("succeeded", 0)]


class TestQuit:
    def test_quit_leaves_running_tasks_and_resume_adopts_them(self, home: Home) -> None:
        scheduler = running(home, "sh -c 'echo x >>here; until [ -e go ]; do sleep 0.01; done'", "true")
        scheduler.send_signal(signal.SIGQUIT)
        scheduler.wait(30)
        assert "the scheduler leaves: 1 running" in home.log()
        assert len(tasks_alive(home)) >= 1
        assert home.states() == ["running", "waiting"]
        with home.start("resume") as second:
            (home.root / "go").touch()
        assert second.returncode == 0
        assert (home.root / "here").read_text() == "x\n"
        assert [(task["state"], task["attempts"]) for task in home.tasks()] == [("succeeded", 1), ("succeeded", 1)]

    def test_quit_ends_all_helpers_but_the_server_of_living_shims(self, home: Home) -> None:
        scheduler = running(home, UNTIL_GO)
        server = children(scheduler.pid, "shim.py")
        helpers = set(children(scheduler.pid)) - set(server)
        scheduler.send_signal(signal.SIGQUIT)
        scheduler.wait(30)
        wait_until(lambda: not any(is_alive(pid) for pid in helpers))
        assert home.states() == ["running"]
        assert is_alive(server[0])
        (home.root / "go").touch()
        wait_until(lambda: not is_alive(server[0]))


class TestSecondScheduler:
    @fault(7)
    def test_second_scheduler_of_a_living_run_is_refused(self, home: Home) -> None:
        scheduler = running(home, UNTIL_GO)
        refused = home.call("resume", "r1", code=2)
        assert f"run 1 is alive (process {scheduler.pid})" in refused.stderr
        assert refused.stdout == ""
        (home.root / "go").touch()
        assert scheduler.wait(30) == 0

    @fault(7)
    def test_one_of_several_second_schedulers_wins(self, home: Home) -> None:
        scheduler = running(home, UNTIL_GO)
        scheduler.kill()
        scheduler.wait()
        rivals = [home.start("resume", "r1") for _ in range(4)]
        wait_until(lambda: sum(rival.poll() is not None for rival in rivals) == 3, 30)
        (home.root / "go").touch()
        assert sorted(rival.wait(30) for rival in rivals) == [0, 2, 2, 2]
        assert [(task["state"], task["attempts"]) for task in home.tasks()] == [("succeeded", 1)]

    @fault(8)
    def test_hanging_scheduler_keeps_its_run(self, home: Home) -> None:
        scheduler = running(home, UNTIL_GO)
        scheduler.send_signal(signal.SIGSTOP)
        home.call("resume", "r1", code=2)
        (home.root / "go").touch()
        scheduler.send_signal(signal.SIGCONT)
        assert scheduler.wait(30) == 0


class Terminal:
    """A pseudo-terminal in which a command runs."""

    def __init__(self, home: Home, *arguments: str) -> None:
        self._ours, theirs = os.openpty()
        os.set_blocking(self._ours, False)
        self.process = subprocess.Popen(
            [*home.command, *arguments],
            cwd=home.root,
            env=home.env,
            pass_fds=(theirs,),
            preexec_fn=lambda: os.login_tty(theirs),  # noqa: PLW1509 - a controlling terminal; there are no threads
        )
        os.close(theirs)
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def read(self) -> str:
        """Return everything that was shown so far."""
        with contextlib.suppress(OSError):
            self.text += os.read(self._ours, 1 << 16).decode()
        return self.text

    def close(self) -> None:
        """Close the window: the processes in it get HUP, and what they write there goes nowhere."""
        os.close(self._ours)

    def wait(self) -> int:
        """Show what comes until the command ends; return its exit code."""
        wait_until(lambda: (self.read(), self.process.poll() is not None)[1], 30)
        return int(self.process.returncode)


class TestTerminal:
    COUNTING = "sh -c 'trap \"echo INT >>got\" INT QUIT HUP TERM; touch here; until [ -e go ]; do sleep 0.01; done'"

    def shown(self, home: Home, *commands: str) -> Terminal:
        home.commands(*commands)
        terminal = Terminal(home, "run", "jobs.csv", "-j", "1")
        wait_until(lambda: terminal.read() and (home.root / "here").exists(), 30)
        return terminal

    @fault(15)
    def test_ctrl_c_drains_and_does_not_reach_the_tasks(self, home: Home) -> None:
        terminal = self.shown(home, self.COUNTING, "true")
        terminal.type("\x03")
        wait_until(lambda: "nothing more is started" in terminal.read(), 30)
        (home.root / "go").touch()
        assert terminal.wait() == 130
        assert home.states() == ["succeeded", "waiting"]
        assert not (home.root / "got").exists()

    def test_ctrl_backslash_leaves_and_does_not_reach_the_tasks(self, home: Home) -> None:
        terminal = self.shown(home, self.COUNTING, "true")
        terminal.type("\x1c")
        wait_until(lambda: "the scheduler leaves: 1 running" in terminal.read(), 30)
        terminal.wait()
        (home.root / "go").touch()
        home.call("resume", code=0)
        assert not (home.root / "got").exists()

    @fault(14)
    def test_closed_window_ends_only_the_view(self, home: Home) -> None:
        terminal = self.shown(home, self.COUNTING, "true", "false")
        terminal.close()
        (home.root / "go").touch()
        assert terminal.process.wait(30) == 1
        assert home.states() == ["succeeded", "succeeded", "failed"]
        assert "run 1: 3 tasks: 1 failed, 2 succeeded" in home.log()
        assert not (home.root / "got").exists()

    def test_hup_alone_changes_nothing(self, home: Home) -> None:
        scheduler = running(home, UNTIL_GO, "true")
        scheduler.send_signal(signal.SIGHUP)
        (home.root / "go").touch()
        assert scheduler.wait(30) == 0


class TestReader:
    @pytest.mark.parametrize("arguments", [(), ("--json",)])
    def test_end_of_the_reader_ends_the_view_and_not_the_run(self, home: Home, arguments: tuple[str, ...]) -> None:
        home.commands(UNTIL_GO, "true", "true")
        read, write = os.pipe()
        errors = (home.root / "errors").open("w")
        with home.start("run", "jobs.csv", *arguments, stdout=write, stderr=errors) as scheduler:
            os.close(write)
            wait_until((home.root / "here").exists, 30)
            os.close(read)
            (home.root / "go").touch()
        assert home.states() == ["succeeded"] * 3
        assert "run 1: 3 tasks: 3 succeeded" in home.log()
        assert scheduler.returncode == (1 if arguments else 0)
        assert "Traceback" not in (home.root / "errors").read_text()
        assert "Exception" not in (home.root / "errors").read_text()

    def test_end_of_the_reader_of_both_streams_does_not_end_the_run(self, home: Home) -> None:
        home.commands(UNTIL_GO, "true")
        read, write = os.pipe()
        with home.start("run", "jobs.csv", stdout=write, stderr=write) as scheduler:
            os.close(write)
            os.close(read)
            (home.root / "go").touch()
        assert scheduler.returncode == 0
        assert home.states() == ["succeeded"] * 2

    def test_reader_that_reads_nothing_does_not_block_the_run(self, home: Home) -> None:
        """A stopped pager must not keep tasks from starting."""
        home.commands(*["true"] * 80)
        read, write = os.pipe()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        with home.start("run", "jobs.csv", "--slots", "8", stdout=write) as scheduler:
            os.close(write)
            wait_until(lambda: home.log().count(" done ") == 80, 30)
            os.close(read)
        assert scheduler.returncode == 0

    @pytest.mark.parametrize("verb", ["list", "results", "status", "--help"])
    def test_end_of_the_reader_of_a_view_is_no_error(self, home: Home, verb: str) -> None:
        home.commands(*["true"] * 3)
        home.call("run", "jobs.csv", code=0)
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write) as closed:
            assert "Exception" not in home.call(verb, stdout=closed).stderr


@fault(16)
def test_run_goes_on_without_a_terminal_or_any_stream(home: Home) -> None:
    home.commands("true")
    closed = subprocess.Popen(
        ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *home.command, "run", "jobs.csv"], cwd=home.root, env=home.env
    )
    assert closed.wait(60) == 0
    assert home.states() == ["succeeded"]
