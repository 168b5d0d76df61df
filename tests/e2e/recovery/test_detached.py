"""Runs without a terminal: start, takeover and stop from another terminal, and the loss of a terminal."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes.test_signals import STOPPED, UNTIL_GO, Terminal, running
from tests.support.faults import fault
from tests.support.killing import Home, children, is_alive
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

NOTE = "sh -c 'echo x >>ran; touch here; until [ -e go ]; do sleep 0.01; done'"
TWENTY_ONE = [NOTE] * 21


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def detached(home: Home, *commands: str, arguments: tuple[str, ...] = ()) -> int:
    """Start a run without a terminal whose first task has made the file `here`; return its scheduler's pid."""
    home.commands(*commands)
    pid: int = json.loads(home.call("run", "jobs.csv", "-d", "--json", *arguments, code=0).stdout)["pid"]
    wait_until((home.root / "here").exists, 30)
    return pid


def ended(pid: int) -> bool:
    return not is_alive(pid)


class TestRunDetached:
    def test_run_detach_prints_number_watch_and_stop_after_a_durable_commit(self, home: Home) -> None:
        home.commands(UNTIL_GO)
        said = home.call("run", "jobs.csv", "--detach", code=0).stdout.splitlines()
        assert said[0].startswith("run 1  jobs.csv: 1 task, started in the background (process ")
        assert said[1].startswith("watch   scheduler top r1 ")
        assert said[2].startswith("stop    scheduler stop r1: ")
        assert len(home.tasks()) == 1

    def test_a_detached_scheduler_has_its_own_session_and_its_streams_on_files(self, home: Home) -> None:
        pid = detached(home, UNTIL_GO)
        assert os.getsid(pid) == pid
        streams = [os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)]
        log = str(home.state / "runs/1/run.log")
        assert streams == ["/dev/null", log, log]

    @fault(14)
    def test_a_detached_run_goes_on_after_its_terminal_is_closed(self, home: Home) -> None:
        home.commands(NOTE, "true")
        terminal = Terminal(home, "run", "-d", "jobs.csv", "-j", "1")
        terminal.wait()
        terminal.close()
        (home.root / "go").touch()
        wait_until(lambda: "run 1: 2 tasks: 2 succeeded" in home.log(), 30)
        assert "watch   scheduler top r1     stop   scheduler stop r1" in home.log()

    @fault(14)
    def test_run_whose_starter_was_killed_before_the_list_was_accepted_goes_on_to_its_end(self, home: Home) -> None:
        starter = home.start("run", "-d", "-", stdin=subprocess.PIPE)
        assert starter.stdin is not None
        wait_until(lambda: children(starter.pid), 30)
        starter.kill()
        starter.wait()
        starter.stdin.write("touch ran\n")
        starter.stdin.close()
        wait_until(lambda: "run 1: 1 task: 1 succeeded" in home.log(), 30)
        assert (home.root / "ran").exists()

    def test_run_detach_refuses_a_bad_list_itself(self, home: Home) -> None:
        home.write("jobs.csv", "Command", "no-such-program")
        refused = home.call("run", "-d", "jobs.csv", code=2)
        assert refused.stderr.startswith("scheduler: jobs.csv, row 2, column Command: ")
        assert refused.stdout == ""
        assert home.living() == []

    def test_run_detach_of_a_list_without_rows_starts_nothing(self, home: Home) -> None:
        assert "nothing to run" in home.call("run", "-d", home.commands(), code=0).stdout

    def test_run_detach_prints_hints_itself(self, home: Home) -> None:
        assert "hint:   jobs.csv: 1 row runs the same" in home.call("run", "-d", home.commands("true", "true")).stderr

    def test_run_detach_refuses_a_dry_run(self, home: Home) -> None:
        assert "--dry-run starts nothing" in home.call("run", "-d", "--dry-run", home.commands("true"), code=2).stderr

    def test_a_detached_run_goes_on_without_a_reader_of_its_first_lines(self, home: Home) -> None:
        """A starter whose output is a pipe without a reader loses its words, not the run."""
        home.commands("true")
        read, write = os.pipe()
        os.close(read)
        with home.start("run", "-d", "jobs.csv", stdout=write, stderr=write):
            os.close(write)
        wait_until(lambda: "run 1: 1 task: 1 succeeded" in home.log(), 30)


class TestResumeDetached:
    def test_resume_detached_takes_over_running_and_waiting_tasks(self, home: Home) -> None:
        scheduler = running(home, NOTE, "true")
        scheduler.send_signal(signal.SIGQUIT)
        scheduler.wait(30)
        assert "run 1  jobs.csv: 2 tasks" in home.call("resume", "-d", code=0).stdout
        (home.root / "go").touch()
        wait_until(lambda: "run 1: 2 tasks: 2 succeeded" in home.log(), 30)
        assert (home.root / "ran").read_text() == "x\n"

    @pytest.mark.parametrize("how", [(), ("-d",)])
    def test_resume_takes_nothing_over_where_leases_cannot_be_written(self, home: Home, how: tuple[str, ...]) -> None:
        scheduler = running(home, NOTE, "true")
        scheduler.send_signal(signal.SIGQUIT)
        scheduler.wait(30)
        before, open_to_all = home.log(), home.root / "open"
        open_to_all.mkdir()
        open_to_all.chmod(0o777)
        home.env["SCHEDULER_LEASES"] = str(open_to_all)
        said = home.call("resume", *how, code=1).stderr
        assert (
            said.replace("sudo ", "")
            == f"scheduler: {open_to_all} can be written by others and is not sticky: chmod 1777 {open_to_all}\n"
        )
        assert home.log() == before

    def test_resume_detached_refuses_a_living_run_itself(self, home: Home) -> None:
        pid = detached(home, UNTIL_GO)
        assert f"run 1 is alive (process {pid})" in home.call("resume", "-d", code=2).stderr

    def test_resume_all_takes_over_each_unfinished_run_and_names_each(self, home: Home) -> None:
        home.commands("true")
        home.call("run", "jobs.csv", code=0)
        pids = [detached(home, UNTIL_GO, "true", arguments=("-j", "1", "--new")) for _ in range(3)]
        for pid in pids[:2]:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: all(ended(pid) for pid in pids[:2]))
        said = home.call("resume", "--all", "-d", code=0).stdout.splitlines()
        assert [line.partition(" (")[0] for line in said] == [
            "run 2  jobs.csv: taken over",
            "run 3  jobs.csv: taken over",
            "run 4  jobs.csv: is alive: not resumed",
        ]
        (home.root / "go").touch()
        wait_until(lambda: all("2 tasks: 2 succeeded" in home.log(run) for run in (2, 3, 4)), 30)
        wait_until(lambda: "nothing to do" in home.call("resume", "--all", "-d", code=0).stdout, 30)

    def test_resume_all_without_detach_waits_and_exits_with_the_worst_code(self, home: Home) -> None:
        for last in ("true", "false"):
            pid = detached(home, UNTIL_GO, last, arguments=("-j", "1", "--new"))
            os.kill(pid, signal.SIGKILL)
            wait_until(lambda pid=pid: ended(pid))
        (home.root / "go").touch()
        said = home.call("resume", "--all", code=1).stdout
        assert "run 1  ended: exit 0" in said
        assert "run 2  ended: exit 1" in said

    def test_resume_all_refuses_a_run_and_takeover(self, home: Home) -> None:
        for more in (["7"], ["--takeover"]):
            assert "takes neither a run nor --takeover" in home.call("resume", "--all", *more, code=2).stderr


class TestStop:
    def test_stop_lets_running_tasks_end(self, home: Home) -> None:
        pid = detached(home, UNTIL_GO, "true", arguments=("-j", "1"))
        assert "no more tasks start, running tasks finish" in home.call("stop", code=0).stdout
        wait_until(lambda: "nothing more is started; 1 running" in home.log())
        (home.root / "go").touch()
        wait_until(lambda: ended(pid), 30)
        assert home.states() == ["succeeded", "waiting"]

    def test_stop_now_interrupts_running_tasks(self, home: Home) -> None:
        pid = detached(home, UNTIL_GO, "true", arguments=("-j", "1"))
        assert "running tasks are being stopped" in home.call("stop", "r1", "--now", code=0).stdout
        wait_until(lambda: ended(pid), 30)
        assert home.states() == STOPPED

    def test_stop_leave_lets_running_tasks_go_on(self, home: Home) -> None:
        pid = detached(home, UNTIL_GO, "true", arguments=("-j", "1"))
        assert json.loads(home.call("stop", "--leave", "--json", code=0).stdout)["asked"] == "leave"
        wait_until(lambda: ended(pid), 30)
        assert home.states() == ["running", "waiting"]
        (home.root / "go").touch()
        home.call("resume", code=0)
        assert home.states() == ["succeeded", "succeeded"]

    def test_stop_of_a_run_without_a_scheduler_leaves_no_request(self, home: Home) -> None:
        home.call("run", home.commands("true"), code=0)
        assert "run 1 has no scheduler, so it starts no more tasks" in home.call("stop", code=1).stderr
        assert [path.name for path in (home.state / "runs/1/requests").iterdir()] == ["bell"]

    def test_stop_of_a_stopped_scheduler_applies_once_it_is_continued(self, home: Home) -> None:
        pid = detached(home, UNTIL_GO, "true", arguments=("-j", "1"))
        os.kill(pid, signal.SIGSTOP)
        assert "has not answered for 5 s" in home.call("stop", "--leave", code=1).stderr
        os.kill(pid, signal.SIGCONT)
        wait_until(lambda: "the scheduler leaves: 1 running" in home.log(), 30)


class TestLossOfTerminal:
    """The terminal is lost while one task runs and twenty wait."""

    def end_well(self, home: Home, process: subprocess.Popen[bytes] | subprocess.Popen[str]) -> None:
        (home.root / "go").touch()
        assert process.wait(120) == 0
        assert home.states() == ["succeeded"] * 21
        assert (home.root / "ran").read_text() == "x\n" * 21
        told = home.log()
        assert told.count(" start   ") == len(re.findall(r"(?m)^\S+ done ", told)) == 21
        assert "run 1: 21 tasks: 21 succeeded" in told

    def test_a_run_ends_well_after_its_terminal_is_closed(self, home: Home) -> None:
        home.commands(*TWENTY_ONE)
        terminal = Terminal(home, "run", "jobs.csv", "-j", "1")
        wait_until(lambda: terminal.read() and (home.root / "here").exists(), 30)
        terminal.close()
        wait_until(lambda: "hung up: the run continues without its terminal" in home.log(), 30)
        self.end_well(home, terminal.process)

    def test_a_run_ends_well_after_a_hangup(self, home: Home) -> None:
        home.commands(*TWENTY_ONE)
        with (home.root / "seen").open("w") as seen:
            scheduler = home.start("run", "jobs.csv", "-j", "1", stdout=seen)
        wait_until((home.root / "here").exists, 30)
        scheduler.send_signal(signal.SIGHUP)
        wait_until(lambda: "hung up" in home.log(), 30)
        self.end_well(home, scheduler)
        assert (home.root / "seen").read_text().count(" done ") == 0

    def test_a_run_ends_well_after_its_reader_took_one_line(self, home: Home) -> None:
        home.commands(*TWENTY_ONE)
        reader = subprocess.Popen(["head", "-1"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert reader.stdin is not None
        scheduler = home.start("run", "jobs.csv", "-j", "1", stdout=reader.stdin)
        reader.stdin.close()
        assert reader.wait(30) == 0
        assert reader.stdout is not None
        assert reader.stdout.read().startswith("run 1  jobs.csv: 21 tasks")
        reader.stdout.close()
        self.end_well(home, scheduler)

    def test_hints_into_a_closed_pipe_do_not_end_a_run(self, home: Home) -> None:
        """The list was accepted, and then the run ended because its hint on equal rows could not be written."""
        home.commands("true", "true")
        read, write = os.pipe()
        os.close(read)
        with home.start("run", "jobs.csv", stdout=write, stderr=write) as scheduler:
            os.close(write)
        assert scheduler.returncode == 0
        assert home.states() == ["succeeded"] * 2
