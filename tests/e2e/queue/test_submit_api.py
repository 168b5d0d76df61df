"""`scheduler.submit` in a program: tasks of a standing queue, waited for, cancelled and passed on."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler import InputError, StateError, SubmittedTasks, Task, UsageError, submit
from tests.support.killing import Home, command_line
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

PATIENCE = 30.0


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """Yield a home whose variables this process has, as a program of its user would."""
    made = Home(tmp_path)
    made.env["SCHEDULER_QUEUE_IDLE"] = "1h"
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield made
    made.end()


def sleeping(**fields: object) -> Task:
    return Task(command=["sleep", "60"], **fields)  # type: ignore[arg-type]  # fields of a task


def running(tasks: SubmittedTasks) -> None:
    wait_until(lambda: set(tasks.states().values()) == {"running"}, PATIENCE)


def test_submitted_tasks_end_with_their_states_and_columns(home: Home) -> None:
    script = 'echo "{\\"loss\\": 0.5}" > "$SCHEDULER_RESULT"'
    tasks = submit([Task(command=["sh", "-c", script], columns={"lr": 0.1}), Task(command="false", name="bad")])
    assert tasks.wait(PATIENCE) == {0: "succeeded", 1: "failed"}
    assert not tasks.succeeded
    good, bad = tasks.tasks
    assert (good["lr"], good["result.loss"]) == ("0.1", 0.5)
    assert (bad["name"], bad["exit_code"]) == ("bad", 1)


def test_submissions_from_python_and_from_a_shell_join_one_queue(home: Home) -> None:
    first = submit(Task(command="true"))
    assert home.call("submit", "--", "true", code=0).stdout.strip() == "1"
    second = submit([Task(command="true")])
    assert (first.ids, second.ids, first.run, second.run) == ((0,), (2,), 1, 1)
    assert second.wait(PATIENCE) == {2: "succeeded"}


def test_queue_started_by_a_program_is_a_process_of_its_own(home: Home) -> None:
    submit(Task(command="true"))
    said = command_line(home.scheduler())
    assert "scheduler.app.queue" in said, said  # a copy of this process would have its command line


def test_submission_of_an_invalid_task_accepts_nothing(home: Home) -> None:
    with pytest.raises(InputError, match="row 2, column Memory: '8' has no unit"):
        submit([Task(command="true"), Task(command="true", memory="8")])
    assert not home.state.exists()


def test_submission_after_an_unknown_task_is_refused_with_its_row(home: Home) -> None:
    with pytest.raises(InputError, match=r"^tasks, row 1, column After: no task has the name 'prep'"):
        submit([Task(command="true", after="prep")])


def test_submission_of_no_tasks_starts_no_queue(home: Home) -> None:
    tasks = submit([])
    assert (tasks.wait(), tasks.tasks, tasks.succeeded) == ({}, [], True)
    assert not list(home.state.glob("runs/*"))


def test_cancel_stops_running_tasks_and_leaves_ended_ones(home: Home) -> None:
    tasks = submit([Task(command="true"), sleeping()])
    wait_until(lambda: tasks.states() == {0: "succeeded", 1: "running"}, PATIENCE)
    tasks.cancel()
    assert tasks.wait(PATIENCE) == {0: "succeeded", 1: "cancelled"}


def test_wait_raises_after_its_timeout_and_the_task_goes_on(home: Home) -> None:
    tasks = submit(sleeping())
    with pytest.raises(TimeoutError, match=r"1 of 1 tasks have not ended after 0\.2 s"):
        tasks.wait(0.2)
    running(tasks)


def test_wait_starts_a_queue_again_whose_scheduler_was_killed(home: Home) -> None:
    tasks = submit(Task(command=["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"]))
    running(tasks)
    os.kill(home.scheduler(), signal.SIGKILL)
    (home.root / "go").touch()
    assert tasks.wait(PATIENCE) == {0: "succeeded"}


def test_wait_names_the_command_that_continues_a_stopped_queue(home: Home) -> None:
    tasks = submit([sleeping(), sleeping(begin="+2h")])
    wait_until(lambda: tasks.states()[0] == "running", PATIENCE)
    home.call("stop", "queue", "--now", code=0)
    with pytest.raises(
        StateError, match="the queue was stopped while 2 of 2 tasks were unfinished: scheduler resume r1"
    ):
        tasks.wait(PATIENCE)


def test_submitted_tasks_can_be_pickled_and_read_in_another_thread(home: Home) -> None:
    tasks = submit(Task(command="true"))
    tasks.wait(PATIENCE)
    copied, found = pickle.loads(pickle.dumps(tasks)), []
    assert copied.states() == {0: "succeeded"}
    reader = threading.Thread(target=lambda: found.append(tasks.states()))
    reader.start()
    reader.join()
    assert found == [tasks.states()]


def test_submitted_tasks_are_found_again_by_their_ids(home: Home) -> None:
    tasks = submit([Task(command="true"), Task(command="false")], queue="mine")
    tasks.wait(PATIENCE)
    found = SubmittedTasks.find([1, 0])
    assert (found.run, found.queue, found.states()) == (1, "mine", {0: "succeeded", 1: "failed"})
    submit(Task(command="true")).wait(PATIENCE)
    with pytest.raises(UsageError, match="0, 2: the tasks belong to 2 runs"):
        SubmittedTasks.find([0, 2])


def test_curves_of_running_tasks_are_read_before_their_end(home: Home) -> None:
    script = "for n in 1 2; do echo epoch $n loss 0.$n; done; while [ ! -e go ]; do sleep 0.05; done"
    tasks = submit([Task(command=["sh", "-c", script]), sleeping(begin="+2h")])
    wait_until(lambda: tasks.curves()[0] == {"loss": [(1.0, 0.1), (2.0, 0.2)]}, PATIENCE)
    assert tasks.curves()[1] == {}
    assert tasks.states()[0] == "running"
    (home.root / "go").touch()
