"""`scheduler submit`: tasks from any terminal join one standing queue, once each, whatever is killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from scheduler.store.machine.locked_files import is_locked
from tests.support.killing import Home, environment, kill
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE = 60.0
ANSWER_IS_LOST = """
import sys
from scheduler.cli.main import main
from scheduler.errors import StateError
from scheduler.store.run import requests

def post(*_):
    raise StateError("the disk is full")

def fetch(*what):
    assert there(*what)[0].done
    requests.post = post
    return []

there, requests.fetch = requests.fetch, fetch
sys.exit(main(sys.argv[1:]))
"""
"""A program whose first submission is accepted, while neither the answer nor a second request finds room."""
SLOW_TO_LOAD = """
import sys, time
from scheduler.app.run import run_loop
from scheduler.cli.main import main

run_loop.load_modules = lambda: time.sleep(60)
sys.exit(main(sys.argv[1:]))
"""
"""A program whose queue takes a minute to load what its later tasks need."""
NOTE = "echo $SCHEDULER_TASK_ID >> done"
"""A line for a shell that notes the task's id."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    made.env["SCHEDULER_QUEUE_IDLE"] = "1h"
    yield made
    made.end()


def submit(home: Home, *words: str, **how: object) -> str:
    """Submit something and return the ids that were printed."""
    return home.call("submit", *words, code=0, **how).stdout.strip()


def runs(home: Home) -> list[str]:
    return sorted(path.name for path in home.state.glob("runs/*"))


def ended(home: Home, *states: str, run: int = 1) -> None:
    """Wait until the tasks of a run have these states."""
    wait_until(lambda: home.states(str(run)) == [*states], PATIENCE, pause=0.1)


def lines(home: Home, name: str = "done") -> list[str]:
    path = home.root / name
    return path.read_text().splitlines() if path.exists() else []


class TestOneQueue:
    def test_submits_join_one_run_and_print_their_ids(self, home: Home) -> None:
        assert [submit(home, "--", "true"), submit(home, "exit 3"), submit(home, "--", "true")] == ["0", "1", "2"]
        ended(home, "succeeded", "failed", "succeeded")
        assert runs(home) == ["1"]

    def test_exec_detached_is_a_submission(self, home: Home) -> None:
        submit(home, "--", "true")
        assert json.loads(home.call("exec", "-d", "--json", "--", "true", code=0).stdout) == {
            "format": 1, "run": 1, "queue": "queue", "tasks": [1],
        }  # fmt: skip

    def test_a_line_is_read_by_a_shell_and_words_are_not(self, home: Home) -> None:
        submit(home, "echo $((40 + 2)) > line && echo more >> line")
        submit(home, "--", "touch", "a b", "$x")
        ended(home, "succeeded", "succeeded")
        assert lines(home, "line") == ["42", "more"]
        assert (home.root / "a b").exists()
        assert (home.root / "$x").exists()

    def test_a_list_joins_as_a_whole_with_its_columns(self, home: Home) -> None:
        (home.root / "sub").mkdir()
        listing = home.write(
            "jobs.csv", "Command,Directory,Priority,lr", ["touch here", "sub", 5, 0.1], ["true", "", 1, 1]
        )
        assert submit(home, listing) == "0-1"
        ended(home, "succeeded", "succeeded")
        assert (home.root / "sub" / "here").exists()
        assert [task["lr"] for task in home.tasks()] == ["0.1", "1"]

    def test_a_table_fills_the_command_after_it(self, home: Home) -> None:
        assert submit(home, home.write("table.csv", "x", "1", "2"), "--", "touch", "x{x}") == "0-1"
        ended(home, "succeeded", "succeeded")
        assert (home.root / "x2").exists()

    def test_each_line_of_standard_input_is_a_task(self, home: Home) -> None:
        read, write = os.pipe()
        os.write(write, b"touch a\n\n# nothing\ntouch b; touch c\n")
        os.close(write)
        assert submit(home, "--stdin", stdin=read) == "0-1"
        os.close(read)
        ended(home, "succeeded", "succeeded")
        assert (home.root / "c").exists()

    def test_tasks_rank_by_priority_over_all_submissions(self, home: Home) -> None:
        submit(home, "until [ -e go ]; do sleep 0.01; done", "--exclusive", "yes")
        for priority in ("3", "-1", "2"):
            submit(home, NOTE, "--priority", priority, "--exclusive", "yes")
        (home.root / "go").touch()
        ended(home, *["succeeded"] * 4)
        assert lines(home) == ["2", "3", "1"]

    def test_the_first_submission_is_answered_before_the_queue_loads_what_later_tasks_need(self, home: Home) -> None:
        words = [sys.executable, "-c", SLOW_TO_LOAD, "submit", "--", "true"]
        done = subprocess.run(
            words, cwd=home.root, env=home.env, capture_output=True, text=True, timeout=50, check=True
        )
        assert done.stdout.strip() == "0"

    def test_another_queue_is_another_run(self, home: Home) -> None:
        submit(home, "--", "true")
        submit(home, "--queue", "night", "--", "true")
        assert runs(home) == ["1", "2"]
        assert home.call("list", "night", code=0).stdout.startswith("run 2  night")

    def test_an_idle_queue_is_not_the_latest_run_once_another_has_begun(self, home: Home) -> None:
        submit(home, "--", "true")
        assert home.call("results", "--json", code=0).stdout.startswith('{"format": 1, "run": {"number": 1,')
        home.call("run", home.commands("true"), code=0)
        assert home.call("results", "--json", code=0).stdout.startswith('{"format": 1, "run": {"number": 2,')

    def test_two_first_submits_at_once_start_one_scheduler(self, home: Home) -> None:
        started = [home.start("submit", NOTE, stdout=subprocess.PIPE) for _ in range(6)]
        ids = [process.communicate(timeout=PATIENCE)[0].strip() for process in started]
        assert sorted(ids) == [str(number) for number in range(6)]
        ended(home, *["succeeded"] * 6)
        assert runs(home) == ["1"]
        assert sorted(lines(home)) == sorted(ids)


class TestShellOfTheSubmitter:
    def test_each_task_has_the_directory_environment_umask_and_python_of_its_submitter(self, home: Home) -> None:
        other = home.root / "other"
        other.mkdir()
        submit(home, "pwd; echo $COLOUR; umask >> u")
        environ = {**home.env, "COLOUR": "blue"}
        line = 'pwd; echo $COLOUR; umask >> u; echo "[$LEFT]"'
        submit(home, line, cwd=other, env=environ, preexec_fn=lambda: os.umask(0o077))
        submit(home, line, cwd=other, env={**environ, "LEFT": "x"})
        ended(home, *["succeeded"] * 3)
        logs = [Path(task["log"]).read_text().splitlines() for task in home.tasks()]
        assert logs == [[str(home.root), ""], [str(other), "blue", "[]"], [str(other), "blue", "[x]"]]
        assert (lines(home, "u"), sorted(lines(home, "other/u"))) == (["0022"], ["0022", "0077"])

    def test_the_python_of_a_list_is_that_of_the_shell_or_the_flag(self, home: Home) -> None:
        (home.root / "train.py").write_text("import sys; print(sys.executable, *sys.argv[1:])")
        python = home.root / "bin" / "python"
        python.parent.mkdir()
        python.symlink_to(sys.executable)
        listing = home.write("jobs.csv", "Directory,Executable,Filename,Epochs", ".,-1,train.py,3")
        submit(home, listing)
        submit(home, listing, "--python", str(python))
        ended(home, "succeeded", "succeeded")
        said = [Path(task["log"]).read_text().split() for task in home.tasks()]
        assert [words[0] for words in said] == [sys.executable, str(python)]
        assert said[0][1:] == ["--epochs=3", "--id=0"]

    def test_secrets_reach_the_task_and_no_file(self, home: Home) -> None:
        for value in ("one-hidden-value", "two-hidden-value"):
            submit(home, "echo ${MY_API_KEY} | cut -c-3", env={**home.env, "MY_API_KEY": value})
        ended(home, "succeeded", "succeeded")
        assert [Path(task["log"]).read_text().strip() for task in home.tasks()] == ["one", "two"]
        found = subprocess.run(["grep", "-rl", "hidden-value", home.state], capture_output=True, text=True, check=False)
        assert found.stdout == ""

    def test_a_task_whose_directory_was_removed_waits_alone_with_its_name(self, home: Home) -> None:
        gone = home.root / "gone"
        gone.mkdir()
        submit(home, "until [ -e go ]; do sleep 0.01; done", "--exclusive", "yes")
        submit(home, "true", cwd=gone)
        submit(home, "true")
        shutil.rmtree(gone)
        (home.root / "go").touch()
        ended(home, "succeeded", "waiting", "succeeded")
        wait_until(lambda: str(gone) in home.call("why", "--task", "1", code=0).stdout, PATIENCE)  # between two trials
        gone.mkdir()
        ended(home, *["succeeded"] * 3)

    def test_a_task_whose_directory_stays_away_fails_alone_with_its_name(self, home: Home) -> None:
        home.env["SCHEDULER_DIRECTORY_WAIT"] = "2s"
        gone = home.root / "gone"
        gone.mkdir()
        submit(home, "until [ -e go ]; do sleep 0.01; done", "--exclusive", "yes")
        submit(home, "true", cwd=gone)
        submit(home, "true")
        submit(home, "true", "--after", "1")
        shutil.rmtree(gone)
        (home.root / "go").touch()
        ended(home, "succeeded", "failed", "succeeded", "skipped")
        assert str(gone) in home.call("why", "--task", "1", code=0).stdout
        gone.mkdir()
        home.call("retry", "1", code=0)
        ended(home, *["succeeded"] * 4)


class TestLife:
    def test_an_idle_queue_ends_and_the_next_submit_starts_a_new_run(self, home: Home) -> None:
        home.env["SCHEDULER_QUEUE_IDLE"] = "300ms"
        assert submit(home, NOTE) == "0"
        pid = home.scheduler()
        wait_until(lambda: not home.living(), PATIENCE)
        assert pid
        assert submit(home, NOTE) == "1"
        wait_until(lambda: lines(home) == ["0", "1"], PATIENCE)
        assert runs(home) == ["1", "2"]

    def test_wait_for_a_queue_ends_with_its_tasks_and_names_held_ones(self, home: Home) -> None:
        submit(home, NOTE)
        submit(home, NOTE, "--hold")
        with home.start("wait", "queue", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as waiting:
            assert waiting.stderr is not None
            assert waiting.stderr.readline() == "hint:   only held tasks are left: scheduler release 1\n"
            home.call("release", "1", code=0)
            assert waiting.communicate(timeout=PATIENCE) == ("run 1  queue: 2 succeeded\n", "")
        assert home.scheduler(), "it waits for more tasks"
        home.call("stop", "queue", code=0)
        home.call("wait", "queue", code=0)
        assert not is_locked(home.state / "runs/1"), "it was stopped"

    def test_a_queue_is_idle_only_while_nothing_is_left(self, home: Home) -> None:
        home.env["SCHEDULER_QUEUE_IDLE"] = "10ms"
        submit(home, "until [ -e go ]; do sleep 0.01; done; " + NOTE)
        submit(home, NOTE)
        (home.root / "go").touch()
        wait_until(lambda: sorted(lines(home)) == ["0", "1"], PATIENCE)
        assert runs(home) == ["1"]

    def test_the_next_submit_takes_over_what_a_killed_scheduler_left(self, home: Home) -> None:
        submit(home, "until [ -e go ]; do sleep 0.01; done; " + NOTE, "--exclusive", "yes")
        submit(home, NOTE)
        kill(home.scheduler())
        assert submit(home, NOTE) == "2"
        (home.root / "go").touch()
        ended(home, *["succeeded"] * 3)
        assert sorted(lines(home)) == ["0", "1", "2"]
        assert runs(home) == ["1"]

    def test_tasks_accepted_while_the_scheduler_is_killed_again_and_again_run_once(self, home: Home) -> None:
        ids: list[str] = []
        over = threading.Event()

        def keep_submitting() -> None:
            while not over.is_set():
                said = home.call("submit", NOTE)
                ids.extend(said.stdout.split() if said.returncode == 0 else ())

        terminals = [threading.Thread(target=keep_submitting) for _ in range(2)]
        for terminal in terminals:
            terminal.start()
        for _ in range(6):
            time.sleep(0.7)  # at any moment: the kills are the subject
            with contextlib.suppress(ValueError, FileNotFoundError):
                kill(home.scheduler())
        over.set()
        for terminal in terminals:
            terminal.join()
        ids += [submit(home, NOTE)]
        wait_until(lambda: {*ids} <= {*lines(home)}, PATIENCE, pause=0.1)
        assert Counter(lines(home)).most_common(1)[0][1] == 1
        assert len({*ids}) == len(ids)

    def test_stop_ends_the_queue_and_the_next_submit_goes_on_with_it(self, home: Home) -> None:
        submit(home, "until [ -e go ]; do sleep 0.01; done; " + NOTE, "--exclusive", "yes")
        submit(home, NOTE, "--exclusive", "yes")
        home.call("stop", "queue", code=0)
        said = home.call("submit", "--", "true", code=2).stderr
        assert said == "scheduler: the queue is being stopped: submit again once it has ended\n"
        (home.root / "go").touch()
        wait_until(lambda: not home.living(), PATIENCE)
        assert submit(home, NOTE) == "2"
        wait_until(lambda: sorted(lines(home)) == ["0", "1", "2"], PATIENCE)

    def test_200_waiting_tasks_take_two_processes_and_80_mib_at_most(self, home: Home) -> None:
        other = {**home.env, "SCHEDULER_STATE": str(home.root / "other")}
        most = f"{psutil.virtual_memory().available * 6 // 10 >> 20}MiB"
        home.call("run", "-d", home.write("hold.csv", "Command,HostMemory", f"sleep 300,{most}"), env=other, code=0)
        wait_until(lambda: home.call("list", "--state", "running", "-c", "id", env=other).stdout, PATIENCE)
        with (home.root / "lines").open("w+") as file:
            file.write("".join(f"sleep {100 + one}\n" for one in range(200)))
            file.seek(0)
            submit(home, "--stdin", "--host-memory", most, stdin=file)
        assert home.states("1") == ["waiting"] * 200
        state = f"SCHEDULER_STATE={home.state}".encode()
        mine = [pid for pid in home.living() if state in environment(pid)]
        assert len(mine) <= 2
        assert sum(map(pss, mine)) < 80 << 10


def pss(pid: int) -> int:
    """Return the memory of a process in KiB, with its part of what it shares."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(next(line.split()[1] for line in text.splitlines() if line.startswith("Pss:")))


class TestTickets:
    """Wait tickets of schedulers that were killed with -9."""

    def tickets(self, home: Home) -> int:
        return len([*home.leases.glob("ticket.*")])

    def test_wait_tickets_of_killed_schedulers_do_not_add_up_and_the_last_one_is_removed_by_another_run(
        self, home: Home
    ) -> None:
        home.write("jobs.csv", "Command,Exclusive", ["sh -c 'touch has; until [ -e go ]; do sleep 0.05; done'", "yes"])
        home.call("run", "jobs.csv", "-d", code=0)
        wait_until((home.root / "has").exists, PATIENCE)
        home.call("stop", "r1", "--leave", code=0)  # its scheduler would remove the tickets of others
        submit(home, "true")
        wait_until(lambda: self.tickets(home) == 1, PATIENCE)
        for _ in range(3):
            kill(home.scheduler(2))
            home.call("resume", "r2", "-d", code=0)
            wait_until(lambda: self.tickets(home) == 1, PATIENCE)
        kill(home.scheduler(2))
        (home.root / "go").touch()
        wait_until(lambda: not [*home.leases.glob("[0-9]*")], PATIENCE)
        assert self.tickets(home) == 1
        home.call("run", home.commands("true", name="other.csv"), code=0)
        assert self.tickets(home) == 0


class TestBadInput:
    def test_a_queue_of_another_version_is_named_as_such(self, home: Home) -> None:
        submit(home, "--", "true")
        ended(home, "succeeded")
        kill(home.scheduler())
        with contextlib.closing(sqlite3.connect(home.state / "runs/1/journal.db")) as journal, journal:
            journal.execute("UPDATE meta SET value = '1' WHERE name = 'format'")
        for words in (("list", "queue"), ("stop", "queue"), ("submit", "--", "true")):
            assert "run 1 was written by an older version" in home.call(*words).stderr

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            ((), "no command was given: write it like"),
            (("--",), "no command was given: write it like"),
            (("true", "--", "true"), "give the command once"),
            (("--stdin", "--", "true"), "--stdin reads all commands"),
            (("--", "nothere"), "'nothere' is not a program on PATH"),
            (("--queue", "7", "--", "true"), "--queue 7: write a name"),
            (("--queue", "../x", "--", "true"), "--queue ../x: write a name"),
            (("--memory", "8", "--", "true"), "--memory: "),
            (("--memory", "x", "true"), "--memory: "),
            (("nothere.csv",), "nothere.csv: it cannot be read: no such file"),
            (("train.py",), "train.py: it is a Python file, not a list of tasks"),
            (("python", "train.py"), "unrecognized arguments: train.py: write a command of several words after --"),
        ],
    )
    def test_bad_input_of_submit_is_refused_in_one_sentence_and_starts_nothing(
        self, home: Home, words: tuple[str, ...], sentence: str
    ) -> None:
        (home.root / "train.py").touch()
        said = home.call("submit", *words, code=2).stderr
        assert sentence in said
        assert said.count("\n") == 1
        assert runs(home) == []

    @pytest.mark.parametrize(
        ("words", "sentence"),
        [
            (("--memory", "900TiB", "--", "true"), "--memory: needs 921600.0GiB; the largest device (host) has"),
            (("--gpus", "2", "true"), "--gpus: needs 2 GPUs; this machine has none"),
            (("--device", "7", "true"), "--device: there is no device '7' in this run; there is: host"),
            (("jobs.csv",), "jobs.csv, row 3, column Memory: needs 921600.0GiB"),
        ],
    )
    def test_submit_refuses_what_no_device_can_hold_and_uses_no_id(
        self, home: Home, words: tuple[str, ...], sentence: str
    ) -> None:
        home.write("jobs.csv", "Command,Memory", "true,", "true,900TiB")
        said = home.call("submit", *words, code=2).stderr
        assert sentence in said
        assert submit(home, "--", "true") == "0"

    def test_settings_of_a_run_do_not_go_with_a_detached_exec(self, home: Home) -> None:
        said = home.call("exec", "-d", "--max-load", "2", "--", "true", code=2).stderr
        assert said.startswith("scheduler: --max-load does not go with -d: the task joins the queue")

    def test_an_empty_list_submits_nothing_and_says_so(self, home: Home) -> None:
        done = home.call("submit", home.write("jobs.csv", "Command"), code=0)
        assert (done.stdout, done.stderr) == ("", "hint:   nothing was submitted: jobs.csv has no task\n")
        assert runs(home) == []

    def test_empty_standard_input_submits_nothing_and_says_so(self, home: Home) -> None:
        done = home.call("submit", "--stdin", code=0, stdin=subprocess.DEVNULL)
        assert (done.stdout, done.stderr) == ("", "hint:   nothing was submitted: standard input has no task\n")
        assert runs(home) == []

    def test_a_queue_of_another_version_is_named(self, home: Home) -> None:
        home.env["SCHEDULER_QUEUE_IDLE"] = "100ms"
        submit(home, "--", "true")
        wait_until(lambda: not home.living(), PATIENCE)
        with contextlib.closing(sqlite3.connect(home.state / "runs/1/journal.db")) as journal:
            journal.execute("UPDATE meta SET value = '999' WHERE name = 'format'")
            journal.commit()
        said = home.call("submit", "--", "true", code=1).stderr
        assert "format 999" in said
        assert said.count("\n") == 1

    def test_a_submission_whose_answer_a_full_disk_swallowed_is_not_refused(self, home: Home) -> None:
        submit(home, "--", "true")
        words = [sys.executable, "-c", ANSWER_IS_LOST, "submit", "--", "true"]
        done = subprocess.run(words, cwd=home.root, env=home.env, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "1", "")
        ended(home, "succeeded", "succeeded")

    def test_ctrl_c_withdraws_a_submission_that_has_no_answer(self, home: Home) -> None:
        submit(home, "--", "true")
        pid = home.scheduler()
        os.kill(pid, signal.SIGSTOP)
        try:
            with home.start("submit", NOTE, stderr=subprocess.PIPE) as process:
                wait_until(lambda: [*home.state.glob("runs/1/requests/*.request")], PATIENCE)
                process.send_signal(signal.SIGINT)
                assert process.wait(PATIENCE) == 130
        finally:
            os.kill(pid, signal.SIGCONT)
        assert submit(home, "--", "true") == "1"
        assert lines(home) == []


class TestDependencies:
    def test_submits_wait_for_earlier_ones_by_id_and_by_name(self, home: Home) -> None:
        (home.root / "work.sh").write_text(f"until test -e go; do sleep 0.05; done\n{NOTE}\n")
        submit(home, "--name", "prep", "--", "sh", "work.sh")
        submit(home, "--after", "prep", NOTE)
        submit(home, "--after", "1, prep", NOTE)
        wait_until(lambda: home.states("1") == ["running", "blocked", "blocked"], PATIENCE, pause=0.1)
        (home.root / "go").touch()
        ended(home, "succeeded", "succeeded", "succeeded")
        assert lines(home) == ["0", "1", "2"]

    def test_a_child_is_skipped_when_its_parent_fails_and_comes_back_with_the_parents_retry(self, home: Home) -> None:
        work = "until test -e go; do sleep 0.05; done; test -e ready"
        submit(home, "--name", "prep", work)
        submit(home, "--after", "prep", NOTE)
        (home.root / "go").touch()
        ended(home, "failed", "skipped")
        (home.root / "ready").touch()
        home.call("retry", "0", code=0)
        ended(home, "succeeded", "succeeded")

    def test_a_child_of_a_cancelled_task_is_skipped(self, home: Home) -> None:
        submit(home, "--name", "prep", "--", "sleep", "600")
        submit(home, "--after", "prep", NOTE)
        submit(home, "--after", "ended:prep", NOTE)
        wait_until(lambda: home.states("1") == ["running", "blocked", "blocked"], PATIENCE, pause=0.1)
        home.call("cancel", "0", code=0)
        ended(home, "cancelled", "skipped", "succeeded")

    def test_a_parent_that_has_failed_is_refused_with_the_two_cures(self, home: Home) -> None:
        submit(home, "--name", "prep", "--", "false")
        submit(home, "--after", "ended:prep", "--name", "clean", "--", "true")
        ended(home, "failed", "succeeded")
        said = home.call("submit", "--after", "clean,prep", "--", "true", code=2).stderr
        cures = "scheduler retry 0 first, or write ended:prep to wait for its end with or without success"
        assert said == f"scheduler: --after: task 0 ended without success (failed): {cures}\n"

    def test_a_list_can_name_tasks_of_the_queue_by_name(self, home: Home) -> None:
        submit(home, "--name", "prep", f"until test -e go; do sleep 0.05; done; {NOTE}")
        home.write("jobs.csv", "Command,After", [f"sh -c '{NOTE}'", "prep"])
        home.call("run", "-d", "jobs.csv", "--devices", "host", code=0)
        wait_until(lambda: home.states("2") == ["blocked"], PATIENCE, pause=0.1)
        (home.root / "go").touch()
        ended(home, "succeeded", run=2)
        assert lines(home) == ["0", "1"]

    def test_an_unknown_parent_is_refused_in_a_sentence_that_names_the_flag(self, home: Home) -> None:
        submit(home, "--", "true")
        said = home.call("submit", "--after", "perp", "--", "true", code=2).stderr
        assert said.startswith("scheduler: --after: no task has the name 'perp'")
        assert submit(home, "--", "true") == "1"
