"""Verbs that change or await something: on a living run, a dead one, another user's, and with a wrong id."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.ports import Request
from scheduler.runtime.paths import StatePaths
from scheduler.runtime.users import user_name
from scheduler.store.run import requests
from tests.e2e.sharing.test_two_users import User, common, users  # noqa: F401 - fixtures
from tests.support.faults import fault
from tests.support.gpu_home import GpuHome, holding
from tests.support.killing import Home, Started
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

UNTIL = "sh -c 'echo attempt $SCHEDULER_ATTEMPT; until [ -e go{} ]; do sleep 0.02; done'"
"""A task that ends once there is a file."""


class Lists(Home):
    """A home with one run: tasks 0 and 1 run until go0 and go1 exist, and tasks 2 to 4 wait for them."""

    def begin(self, *flags: str, rows: tuple[str, ...] = ("true", "false", "true")) -> Lists:
        self.commands(UNTIL.format(0), UNTIL.format(1), *rows)
        self.call("run", "-d", "jobs.csv", "--devices", "host", "--slots", "2", "--name", "mine", *flags, code=0)
        wait_until(lambda: self.states()[:2] == ["running", "running"], 30)
        return self

    def go(self, *numbers: int) -> None:
        for number in numbers:
            (self.root / f"go{number}").touch()

    def ask(self, *words: str, code: int = 0) -> list[str]:
        """Return what a verb prints, without the line that names the run."""
        head, *said = self.call(*words, code=code).stdout.splitlines()
        assert head.startswith("run 1  jobs.csv"), head
        return said

    def until(self, *states: str) -> None:
        wait_until(lambda: self.states() == [*states], 30)

    def starts(self) -> list[str]:
        """Return the lines of the log about starts: moment, `start`, task, name, priority, …"""
        return [line for line in self.log().splitlines() if line.split()[1:2] == ["start"]]

    def leave(self) -> None:
        """End the scheduler; running tasks go on."""
        self.call("stop", "--leave", code=0)
        self.until_gone()

    def crash(self) -> None:
        os.kill(self.scheduler(), signal.SIGKILL)
        self.until_gone()

    def until_gone(self) -> None:
        wait_until(lambda: not self.facts()["alive"], 30)

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.call("results", "r1", "--json", code=0).stdout)["run"]
        return facts

    def asked(self) -> list[str]:
        """Return the requests that have no answer yet."""
        return sorted(path.name for path in (self.state / "runs/1/requests").glob("*.request"))


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Lists]:
    made = Lists(tmp_path)
    yield made
    made.end()


class TestLivingRun:
    def test_cancel_stops_a_running_task_and_a_waiting_one(self, home: Lists) -> None:
        home.begin()
        assert home.ask("cancel", "0,2") == ["task 0: is being stopped, then cancelled", "task 2: cancelled"]
        home.until("cancelled", "running", "cancelled", "failed", "succeeded")
        assert home.ask("cancel", "0,3", code=1) == [
            "task 0: already ended: cancelled",
            "task 3: already ended: failed",
        ]

    def test_held_tasks_start_only_after_release(self, home: Lists) -> None:
        home.begin()
        assert home.ask("hold", "2-4") == ["tasks 2-4: held"]
        home.go(0, 1)
        wait_until(lambda: "nothing runs and 3 tasks of this run are held: scheduler release" in home.log(), 30)
        assert home.states() == ["succeeded", "succeeded", "held", "held", "held"]
        assert home.ask("release", "last") == ["task 4: released"]
        home.until("succeeded", "succeeded", "held", "held", "succeeded")
        assert home.ask("release", "--run", "mine") == ["tasks 2-3: released"]
        home.until("succeeded", "succeeded", "succeeded", "failed", "succeeded")

    def test_hold_of_what_runs_or_is_over_changes_nothing(self, home: Lists) -> None:
        home.begin()
        home.go(0)
        wait_until(lambda: home.states()[0] == "succeeded", 30)
        assert home.ask("hold", "0-1", code=1) == [
            "task 0: already ended: succeeded",
            "task 1: runs already and is not changed",
        ]

    def test_set_changes_priority_and_timeout_of_a_waiting_task(self, home: Lists) -> None:
        home.begin()
        assert home.ask("set", "4", "--priority", "-5", "--timeout", "90m") == [
            "task 4: priority 0 → -5, timeout unset → 1h30m"
        ]
        home.go(0)
        home.until("succeeded", "running", "succeeded", "failed", "succeeded")
        lines = home.starts()
        assert [line.split()[2] for line in lines] == ["0", "1", "4", "2", "3"]
        assert "prio -5" in lines[2]
        assert [task["priority"] for task in home.tasks()] == [0, 0, 0, 0, -5]

    def test_a_time_limit_that_was_set_is_kept(self, home: Lists) -> None:
        home.begin(rows=("sleep 60",))
        home.ask("set", "2", "--timeout", "100ms")
        home.go(0)
        wait_until(lambda: home.states()[2] == "timeout", 30)

    def test_set_of_the_run(self, home: Lists) -> None:
        home.begin(rows=(UNTIL.format(2), UNTIL.format(3)))
        paused = "-j unlimited → 0 (paused: running tasks finish, no more tasks start)"
        assert home.ask("set", "r1", "-j", "0") == [paused]
        home.go(0, 1)
        wait_until(lambda: "the run is paused (-j 0)" in home.log(), 30)
        assert home.states() == ["succeeded", "succeeded", "waiting", "waiting"]
        assert home.ask("set", "mine", "-j", "1") == ["-j 0 → 1"]
        home.until("succeeded", "succeeded", "running", "waiting")

    def test_devices_are_disabled_and_enabled(self, home: Lists) -> None:
        home.begin()
        assert home.ask("devices", "disable", "host") == ["no more tasks start: all devices are disabled"]
        home.go(0, 1)
        wait_until(lambda: "may not start on host: disabled for this run" in home.log(), 30)
        assert json.loads(home.call("devices", "--json", code=0).stdout)["devices"][-1]["disabled_for"] == [1]
        assert home.ask("devices", "enable", "host") == ["new tasks start on host"]
        home.until("succeeded", "succeeded", "succeeded", "failed", "succeeded")

    def test_retry_of_a_run_repeats_cancelled_and_failed_tasks(self, home: Lists) -> None:
        home.begin()
        home.ask("cancel", "1,4")
        home.until("running", "cancelled", "succeeded", "failed", "cancelled")
        (home.root / "go1").touch()
        assert home.ask("retry", "--run", "1") == [
            "tasks 1, 4: queued again (was cancelled)",
            "task 3: queued again (was failed)",
        ]
        home.until("running", "succeeded", "succeeded", "failed", "succeeded")
        assert [task["attempts"] for task in home.tasks()] == [1, 2, 1, 2, 1]
        assert home.call("logs", "1", code=0).stdout == "attempt 2\n"

    def test_stop_now_interrupts_running_tasks_and_ends_the_scheduler(self, home: Lists) -> None:
        home.begin()
        home.call("stop", "mine", "--now", code=0)
        home.until_gone()
        assert home.states() == ["interrupted", "interrupted", "waiting", "waiting", "waiting"]

    def test_a_request_is_answered_after_its_commit(self, home: Lists) -> None:
        """A scheduler is killed right after its answer; the next one knows the change."""
        home.begin()
        home.ask("set", "4", "--priority", "-5", "--retries", "2")
        home.ask("hold", "2")
        home.ask("set", "mine", "-j", "1")
        home.crash()
        assert [task["priority"] for task in home.tasks()] == [0, 0, 0, 0, -5]
        home.go(0, 1)
        home.call("resume", "-d", code=0)
        home.until("succeeded", "succeeded", "held", "failed", "succeeded")
        assert [line.split()[2] for line in home.starts()] == ["0", "1", "4", "3"]

    def test_resume_stops_a_task_whose_cancel_was_committed_before_the_scheduler_died(self, home: Lists) -> None:
        """The commit was the scheduler's last act; the next scheduler of the run stops the task."""
        home.begin(rows=())
        pid = home.scheduler()
        os.kill(pid, signal.SIGSTOP)
        try:
            home.call("cancel", "0", code=1)
        finally:
            os.kill(pid, signal.SIGKILL)
        home.until_gone()
        home.go(1)
        home.call("resume", code=1)
        assert home.states() == ["cancelled", "succeeded"]

    def test_a_stopped_scheduler_applies_a_request_once_it_is_continued(self, home: Lists) -> None:
        home.begin(rows=("true",))
        pid = home.scheduler()
        os.kill(pid, signal.SIGSTOP)
        try:
            said = home.call("hold", "2", code=1).stderr
        finally:
            os.kill(pid, signal.SIGCONT)
        assert "the scheduler of run 1 has not answered for 5 s: it carries out the request when it continues" in said
        home.until("running", "running", "held")

    def test_a_request_is_answered_within_a_tenth_of_a_second(self, home: Lists) -> None:
        home.begin()
        places, taken = StatePaths(home.state).run(1), []
        for turn in range(20):
            began = time.monotonic()
            answers = requests.ask(places, Request("hold" if turn % 2 == 0 else "release", (4,)), 30)
            taken.append(time.monotonic() - began)
            assert answers is not None
            assert answers[0].done
        print(f"answered within {min(taken):.3f} to {max(taken):.3f} s")
        assert sorted(taken)[len(taken) // 4] < 0.1

    def test_hold_json_lists_an_answer_for_each_group_of_tasks(self, home: Lists) -> None:
        home.begin()
        said = json.loads(home.call("hold", "2", "0", "--json", code=1).stdout)
        assert said["runs"] == [
            {
                "run": 1,
                "file": "jobs.csv",
                "applied": "now",
                "answers": [
                    {"tasks": [2], "done": True, "says": "held"},
                    {"tasks": [0], "done": False, "says": "runs already and is not changed"},
                ],
            }
        ]


@pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
def test_gpus_taken_from_a_run_get_no_new_starts(tmp_path: Path) -> None:
    """Running tasks there go on; the answer names the devices that are left; devices of other runs are refused."""
    home = GpuHome(tmp_path, gpus=3)
    first, then = holding("20GiB", until="first", Memory="20GiB"), holding("20GiB", Memory="20GiB")
    home.jobs(*[first] * 3, *[then] * 3)
    try:
        with home.going():
            home.wait_for(3)
            said = home.call("set", "r1", "--devices", "0-1", "-j", "2", code=0).stdout.splitlines()
            assert said[1:] == [
                "-j unlimited → 2",
                "new tasks start on GPU 0, GPU 1, host, none on GPU 2 (running tasks there continue)",
            ]
            said = home.call("devices", "disable", "7", "--run", "1", code=1).stdout.splitlines()
            assert said[1].startswith("unchanged: '7' is not one of this run's devices (GPU 0, GPU 1, GPU 2, host)")
            shown = json.loads(home.call("devices", "--json", code=0).stdout)["devices"]
            assert [one["disabled_for"] for one in shown] == [[], [], [1], []]
            home.go("first")
            assert sorted(one.gpus for one in home.wait_for(5)[3:]) == [(0,), (1,)]
            said = home.call("set", "5", "--device", "2", code=0).stdout.splitlines()
            assert said[1:] == ["task 5: device unset → 2"]
            home.go()
            home.wait_for_words("may not start on GPU 2: disabled for this run")
            home.call("devices", "enable", "2", code=0)
        assert [one.gpus for one in home.tries()][-1] == (2,)
    finally:
        home.end()


class TestDeadRun:
    """Requests to a run without a scheduler are recorded, and `resume` applies them before anything starts."""

    def recorded(self, home: Lists, *words: str) -> list[str]:
        said = home.call(*words, code=0).stdout.splitlines()
        assert said[0] == (
            "run 1  jobs.csv  has no scheduler: recorded, applied at its next start (scheduler resume r1)"
        )
        return said[1:]

    def test_resume_applies_cancel_hold_and_set_that_were_recorded_without_a_scheduler(self, home: Lists) -> None:
        home.begin().leave()
        assert self.recorded(home, "cancel", "0") == ["task 0: is being stopped, then cancelled"]
        assert self.recorded(home, "hold", "2") == ["task 2: held"]
        assert self.recorded(home, "set", "4", "--priority", "-9") == ["task 4: priority 0 → -9"]
        assert self.recorded(home, "set", "mine", "-j", "1") == ["-j unlimited → 1"]
        assert home.states() == ["running", "running", "waiting", "waiting", "waiting"]
        home.go(1)
        home.call("resume", "-d", code=0)
        home.until("cancelled", "succeeded", "held", "failed", "succeeded")
        assert [line.split()[2] for line in home.starts()] == ["0", "1", "4", "3"]
        assert home.asked() == []

    def test_retry_of_a_run_that_is_over(self, home: Lists) -> None:
        home.commands("sh -c 'test -e mended'", "true")
        home.call("run", "jobs.csv", code=1)
        assert self.recorded(home, "retry") == ["task 0: queued again (was failed)"]
        pending = "recorded: retry r1; scheduler resume r1 carries it out"
        assert pending in home.call("list", "r1").stdout.splitlines()
        assert pending in home.call("list").stdout.splitlines()
        assert home.states() == ["failed", "succeeded"]
        assert home.ask("retry", "0", code=1) == [
            "task 0: is waiting: only a task that ended without success can be retried"
        ]
        (home.root / "mended").touch()
        said = home.call("resume", code=0).stdout
        assert said.startswith("run 1  jobs.csv: taken over; 2 ended, 0 ran, 0 waiting\n")
        assert home.call("resume", code=0).stdout.startswith("run 1  jobs.csv: all 2 tasks have ended: nothing to do\n")
        assert home.states() == ["succeeded", "succeeded"]
        assert home.ask("retry", "--run", "1", code=1)[0].startswith("no task of the run failed")
        assert home.asked() == []

    def test_resume_applies_release_and_disabled_devices_that_were_recorded_without_a_scheduler(
        self, home: Lists
    ) -> None:
        home.begin()
        home.ask("hold", "2")
        home.leave()
        assert self.recorded(home, "release", "2") == ["task 2: released"]
        assert self.recorded(home, "devices", "disable", "host") == ["no more tasks start: all devices are disabled"]
        home.go(0, 1)
        home.call("resume", "-d", code=0)
        wait_until(lambda: "may not start on host: disabled for this run" in home.log(), 30)
        assert home.states() == ["succeeded", "succeeded", "waiting", "waiting", "waiting"]

    def test_a_request_that_would_change_nothing_is_not_recorded(self, home: Lists) -> None:
        home.begin().leave()
        assert home.ask("release", "2", code=1) == ["task 2: is not held: waiting"]
        assert home.asked() == []

    def test_stop_of_a_run_without_a_scheduler_records_nothing(self, home: Lists) -> None:
        home.begin().crash()
        said = home.call("stop", "r1", code=1).stderr
        assert said.startswith("scheduler: run 1 has no scheduler, so it starts no more tasks")
        assert home.asked() == []


class TestWait:
    def test_wait_for_a_task_exits_with_its_code(self, home: Lists) -> None:
        home.begin(rows=("sh -c 'exit 7'",))
        with home.start("wait", "2", stdout=subprocess.PIPE) as waiting:
            home.go(0)
            assert waiting.wait(30) == 7
            assert waiting.stdout is not None
            assert waiting.stdout.read() == "run 1  jobs.csv: task 2 failed, exit 7\n"
        assert home.states()[1] == "running"

    def test_wait_for_a_run_exits_with_1_if_a_task_failed(self, home: Lists) -> None:
        home.begin(rows=("false",))
        with home.start("wait", "mine", stdout=subprocess.PIPE) as waiting:
            home.go(0, 1)
            assert waiting.wait(30) == 1
            assert waiting.stdout is not None
            assert waiting.stdout.read() == "run 1  jobs.csv: 2 succeeded, 1 failed\n"

    def test_wait_ends_when_the_scheduler_of_the_run_ends(self, home: Lists) -> None:
        home.begin(rows=())
        with home.start("wait", stdout=subprocess.PIPE) as waiting:
            home.leave()
            assert waiting.wait(30) == 1
            assert waiting.stdout is not None
            assert "2 running; 2 tasks not ended, and no scheduler: scheduler resume r1" in waiting.stdout.read()

    def test_ctrl_c_ends_wait_and_not_the_run(self, home: Lists) -> None:
        home.begin(rows=())
        with home.start("wait", "0", stderr=subprocess.PIPE) as waiting:
            wait_until(lambda: _reads_the_journal(waiting), 30)
            waiting.send_signal(signal.SIGINT)
            assert waiting.wait(30) == 130
            assert waiting.stderr is not None
            assert waiting.stderr.read() == ""
        assert home.states() == ["running", "running"]

    def test_wait_for_several_tasks_reports_all_their_states(self, home: Lists) -> None:
        home.begin()
        home.go(0, 1)
        home.until("succeeded", "succeeded", "succeeded", "failed", "succeeded")
        assert home.call("wait", "0-2", code=0).stdout == "run 1  jobs.csv: 3 succeeded\n"
        said = json.loads(home.call("wait", "2-3", "--json", code=1).stdout)
        assert said["runs"][0]["states"] == {"succeeded": 1, "failed": 1}
        assert said["runs"][0]["tasks"] == [{"id": 2, "state": "succeeded"}, {"id": 3, "state": "failed"}]


def _reads_the_journal(process: Started) -> bool:
    """Tell whether a process has opened the journal."""
    with contextlib.suppress(OSError):
        return any(os.readlink(fd).endswith("/journal.db") for fd in Path(f"/proc/{process.pid}/fd").iterdir())
    return False


class TestLogs:
    def test_logs_follow_shows_all_attempts_to_the_end(self, home: Lists) -> None:
        home.commands(
            "sh -c 'echo try $SCHEDULER_ATTEMPT; until [ -e go$SCHEDULER_ATTEMPT ]; do sleep 0.02; done; exit 1'"
        )
        home.call("run", "-d", "jobs.csv", "--retries", "1", code=0)
        with home.start("logs", "last", "-f", stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
            assert following.stdout is not None
            assert following.stderr is not None
            assert following.stdout.readline() == "try 1\n"
            home.go(1)
            assert following.stdout.readline() == "try 2\n"
            home.go(2)
            assert following.wait(30) == 0
            assert following.stderr.read() == "hint:   attempt 2 of task 0\n"
        assert home.call("logs", "0", code=0).stdout == "try 2\n"

    def test_logs_follow_waits_for_a_task_that_has_not_started(self, home: Lists) -> None:
        home.begin(rows=("echo hello",))
        said = home.call("logs", "2", code=1).stderr
        assert said.startswith("scheduler: task 2 of run 1 has not started yet: scheduler logs 2 -f waits for it")
        with home.start("logs", "2", "-f", stdout=subprocess.PIPE) as following:
            home.go(0)
            assert following.wait(30) == 0
            assert following.stdout is not None
            assert following.stdout.read() == "hello\n"

    def test_logs_follow_a_task_that_runs_on_without_a_scheduler(self, home: Lists) -> None:
        home.begin(rows=()).leave()
        with home.start("logs", "0", "-f", stdout=subprocess.PIPE) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == "attempt 1\n"
            home.go(0)
            assert following.wait(30) == 0

    def test_logs_json_has_run_task_attempt_and_text(self, home: Lists) -> None:
        home.begin(rows=())
        wait_until(lambda: home.call("logs", "0", code=0).stdout, 30)
        said = json.loads(home.call("logs", "0", "--json", code=0).stdout)
        assert (said["run"], said["task"], said["attempt"], said["text"]) == (1, 0, 1, "attempt 1\n")
        assert Path(said["log"]).read_text() == "attempt 1\n"

    def test_logs_of_a_task_without_output_say_so(self, home: Lists) -> None:
        home.commands("true")
        home.call("run", "jobs.csv", code=0)
        done = home.call("logs", "0", code=0)
        assert (done.stdout, done.stderr) == ("", "hint:   task 0 of run 1 has no output: succeeded\n")


CONTROLS = [
    ("cancel", "{}"), ("hold", "{}"), ("release", "{}"), ("retry", "{}"), ("set", "{}", "--priority", "1"),
    ("wait", "{}"), ("logs", "{}"),
]  # fmt: skip


class TestWrongIds:
    @pytest.fixture
    def over(self, home: Lists) -> Lists:
        home.commands("true", "true")
        home.call("run", "jobs.csv", "--name", "mine", code=0)
        return home

    @pytest.mark.parametrize("words", CONTROLS, ids=lambda words: words[0])
    def test_an_unknown_task_id_is_refused_by_every_verb(self, over: Lists, words: tuple[str, ...]) -> None:
        said = over.call(*(word.format(77) for word in words), code=2).stderr
        shows = "scheduler list shows unfinished and recently ended tasks"
        assert said == f"scheduler: there is no task 77 in {over.state}/runs: {shows}\n"
        said = over.call(*(word.format("9-7") for word in words), code=2).stderr
        assert said == "scheduler: 9-7 ends before it begins: write 7-9\n"
        assert over.asked() == []

    @pytest.mark.parametrize(
        ("words", "says"),
        [
            ("0-8", "0-8 has 2 tasks: there are no tasks 2-8 in {}/runs"),
            ("1-2", "1-2 has 1 task: there is no task 2 in {}/runs"),
            ("r1.1-9", "r1.1-9: run 1 has 2 tasks, the last of them is r1.2"),
        ],
    )
    def test_ids_of_a_range_that_do_not_exist_are_named(self, over: Lists, words: str, says: str) -> None:
        assert over.call("wait", words, code=0).stderr == f"hint:   {says.format(over.state)}\n"
        assert over.call("cancel", words, code=1).stderr == f"hint:   {says.format(over.state)}\n"

    def test_a_range_whose_ids_all_exist_gets_no_hint(self, over: Lists) -> None:
        assert over.call("wait", "0-1", code=0).stderr == over.call("wait", "r1.1-2", code=0).stderr == ""

    def test_a_task_id_is_refused_before_the_first_run_with_how_to_start_one(self, home: Lists) -> None:
        said = home.call("why", "3", code=2).stderr
        assert said.startswith(
            f"scheduler: there is no task 3, and no run yet in {home.state}/runs: scheduler run FILE"
        )

    @pytest.mark.parametrize(
        "words", [("hold",), ("retry",), ("wait",), ("set", "--priority", "1"), ("set", "-j", "1")]
    )
    def test_an_unknown_run_is_refused_by_every_verb(self, over: Lists, words: tuple[str, ...]) -> None:
        assert "no run here is called 'absent'" in over.call(*words, "--run", "absent", code=2).stderr
        assert "there is no run 77 in" in over.call(*words, "--run", "77", code=2).stderr

    @pytest.mark.parametrize(
        ("words", "why"),
        [
            ("set 1,0", "change either fields of tasks (--priority -5) or limits of a run"),
            ("set 1,0 --priority 1 -j 2", "change either fields of tasks"),
            ("set 0 --memory 8", "--memory: '8' has no unit: write 8GiB or 8MiB"),
            ("set 0 --retries -1", "--retries: -1 is below 0"),
            ("set r1 -j -1", "-j -1: give a whole number from 0"),
            ("set r1 --max-per-device 0", "--max-per-device 0: give a whole number from 1"),
            ("set 0,1 -j 2", "apply to one run, not to tasks"),
            ("set 0 1 -j 2", "apply to one run, not to tasks"),
            ("cancel", "the following arguments are required: ID"),
            (
                "cancel mine",
                "'mine' is not a task: write an id like 17, several like 17-40,52, the twelfth task of run 3 ",
            ),
            ("hold 0 --run 1", "give either a run (--run), or tasks (--task)"),
            ("devices disable", "name a device, such as scheduler devices disable 2"),
            ("devices disable host", "you have no unfinished run to change"),
            ("logs", "name tasks or a run, such as scheduler logs 17"),
            ("logs 0,1 -f", "logs -f follows the output of one task"),
            ("logs 0 -n 0", "-n 0: give a whole number of at least 1"),
            ("set 0 --prio 1", "unrecognized arguments: --prio 1: did you mean --priority? (scheduler set --help)"),
            ("set 0 --xyz 1", "unrecognized arguments: --xyz 1 (scheduler set --help)"),
            ("completion", "the following arguments are required: shell"),
            ("completion bash all", "completion: bash takes no more arguments (scheduler completion --help)"),
        ],
    )
    def test_wrong_words_are_refused_in_one_sentence(self, over: Lists, words: str, why: str) -> None:
        said = over.call(*words.split(), code=2).stderr
        assert why in said
        assert (said.startswith("scheduler: "), said.count("\n")) == (True, 1)

    def test_set_refuses_memory_that_no_device_has(self, home: Lists) -> None:
        home.begin()
        [said] = home.ask("set", "2", "--memory", "900TiB", code=1)
        assert said.startswith("task 2: unchanged: it needs 921600.0GiB; the largest device (host) has ")

    def test_task_ids_of_several_runs_reach_each_run(self, over: Lists) -> None:
        over.commands("false", name="other.csv")
        over.call("run", "other.csv", code=1)
        said = over.call("retry", "0,2", code=1).stdout.splitlines()
        assert said == [
            "run 1  jobs.csv",
            "task 0: already ended: succeeded",
            "run 2  other.csv  has no scheduler: recorded, applied at its next start (scheduler resume r2)",
            "task 2: queued again (was failed)",
        ]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
class TestAnotherUser:
    @pytest.fixture
    def alice_and_bob(self, users: list[User]) -> list[User]:  # noqa: F811 - the fixture
        for user in users:
            user.root.mkdir()
            user.write("jobs.csv", "Command", [UNTIL.format(0)], ["true"])
            for path in (user.root, user.root / "jobs.csv"):
                os.chown(path, user.uid, user.uid)
        users[0].call("run", "-d", "jobs.csv", "--devices", "host", "--slots", "1", code=0)
        wait_until(lambda: users[0].states() == ["running", "waiting"], 30)
        return users

    def as_root(self, alice: User, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "scheduler", *words, "--state", str(alice.state)],
            cwd=alice.root, env=alice.env, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    @fault(58)
    @pytest.mark.parametrize("words", CONTROLS, ids=lambda words: words[0])
    def test_a_task_of_another_user_is_refused_and_unchanged(
        self, alice_and_bob: list[User], words: tuple[str, ...]
    ) -> None:
        alice, bob = alice_and_bob
        owner = user_name(alice.uid)
        said = bob.call(*(word.format(0) for word in words), code=2).stderr
        assert f"task 0 belongs to {owner}: only {owner} or root can read or change it" in said
        said = bob.call(*(word.format(0) for word in words), "--state", str(alice.state), code=1).stderr
        assert f"{alice.state}/runs cannot be read: Permission denied" in said
        assert alice.states() == ["running", "waiting"]

    @fault(58)
    def test_root_controls_tasks_of_a_user_whose_files_stay_the_users(self, alice_and_bob: list[User]) -> None:
        alice = alice_and_bob[0]
        as_root = functools.partial(self.as_root, alice)
        assert "task 1: held" in as_root("hold", "--task", "1").stdout
        assert alice.states() == ["running", "held"]
        assert "is being stopped, then cancelled" in as_root("cancel", "0").stdout
        wait_until(lambda: alice.states() == ["cancelled", "held"], 30)
        assert "task 1: released" in alice.call("release", "--task", "1", code=0).stdout
        wait_until(lambda: alice.states() == ["cancelled", "succeeded"], 30)
        wait_until(lambda: not json.loads(alice.call("results", "--json").stdout)["run"]["alive"], 30)
        as_root("retry", "--task", "0")
        owners = {path.stat().st_uid for path in alice.state.rglob("*")}
        assert owners == {alice.uid}

    @fault(51)
    def test_root_follows_no_link_in_a_users_state(self, alice_and_bob: list[User], common: Path) -> None:  # noqa: F811 - the fixture
        """A link that led to /etc made it accessible to root only."""
        alice, elsewhere = alice_and_bob[0], common / "etc"
        elsewhere.mkdir(mode=0o755)
        requests = alice.state / "runs/1/requests"
        requests.rename(requests.with_name("before"))
        requests.symlink_to(elsewhere)
        os.chown(requests, alice.uid, alice.uid, follow_symlinks=False)
        said = self.as_root(alice, "hold", "--task", "1").stderr
        assert f"{requests} belongs to user {alice.uid}, not to you" in said
        assert (stat.S_IMODE(elsewhere.stat().st_mode), [*elsewhere.iterdir()]) == (0o755, [])
        requests.unlink()
        requests.with_name("before").rename(requests)

    @fault(58)
    def test_root_does_not_resume_a_run_of_another_user(self, alice_and_bob: list[User]) -> None:
        """Commands that a user had written to run as that user ran as root."""
        alice = alice_and_bob[0]
        os.kill(alice.scheduler(), signal.SIGKILL)
        wait_until(lambda: not json.loads(alice.call("results", "--json").stdout)["run"]["alive"], 30)
        said = self.as_root(alice, "resume", "r1")
        assert (said.returncode, f"run 1 belongs to user {alice.uid}" in said.stderr) == (1, True)
        assert alice.states() == ["running", "waiting"]


@pytest.mark.parametrize("verb", ["list", "why", "results", "wait", "cancel", "retry", "resume", "stop", "logs"])
@pytest.mark.parametrize("word", ["\u00b2", "9" * 5000, "1-" + "9" * 5000])
def test_a_word_that_resembles_a_number_is_refused_in_one_sentence(tmp_path: Path, verb: str, word: str) -> None:
    said = Home(tmp_path).call(verb, word, code=2).stderr
    assert said.startswith(("scheduler: ", "usage: "))
    assert len(said.splitlines()[-1]) < 6000
