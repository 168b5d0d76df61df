"""Runs that a Python program starts: tasks as objects, DataFrames, threads and event loops."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import scheduler
from scheduler import Finished, InputError, Task, UsageError, run, runs


@pytest.fixture(autouse=True)
def own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCHEDULER_LEASES", str(tmp_path / "leases"))


def two(tmp_path: Path) -> Finished:
    tasks = [
        Task(command=["sh", "-c", 'echo "{\\"loss\\": 0.5}" > "$SCHEDULER_RESULT"'], name="good", columns={"lr": 0.1}),
        Task(command="sh -c 'exit 3'", name="bad", priority=-1, memory="100MiB"),
    ]
    return run(tasks, state=str(tmp_path / "state"))


def test_run_takes_tasks_and_returns_their_results_in_a_frame(tmp_path: Path) -> None:
    done = two(tmp_path)
    frame = done.frame
    assert list(frame["name"]) == ["bad", "good"]
    assert list(frame["exit_code"]) == [3, 0]
    assert frame.set_index("name").loc["good", "result.loss"] == 0.5
    assert frame.set_index("name").loc["good", "lr"] == "0.1"
    assert (frame["ended"] >= frame["started"]).all()
    assert done.counts == {"succeeded": 1, "failed": 1}
    assert not done.succeeded


def test_curves_of_a_run_are_a_frame_with_a_row_for_each_point(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    tasks = [Task(command=["sh", "-c", "for n in 1 2 3; do echo epoch $n loss 0.$n; done"])]
    curves = run(tasks, state=str(tmp_path / "state")).curves
    assert curves.to_dict("list") == {
        "task": [0, 0, 0], "metric": ["loss"] * 3, "step": [1.0, 2.0, 3.0], "value": [0.1, 0.2, 0.3],
    }  # fmt: skip


def test_runs_lists_earlier_runs_newest_first(tmp_path: Path) -> None:
    first, second = two(tmp_path), two(tmp_path)
    assert [found.number for found in runs(str(tmp_path / "state"))] == [second.number, first.number]


def test_run_takes_a_csv_file(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("Command\ntrue\n")
    assert run(tmp_path / "jobs.csv", state=str(tmp_path / "state")).succeeded


def test_run_names_a_bad_task_and_starts_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tasks, row 2, column Memory: '8' has no unit"):
        run([Task(command="true"), Task(command="true", memory="8")], state=str(tmp_path / "state"))
    assert runs(str(tmp_path / "state")) == []


def test_run_refuses_a_missing_program_and_leaves_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tasks, row 1, column Command: 'nosuch' is not a program on PATH"):
        run([Task(command=["nosuch"])], state=str(tmp_path / "state"))
    assert runs(str(tmp_path / "state")) == []


def test_run_takes_a_generator_of_tasks(tmp_path: Path) -> None:
    assert run((Task(command="true") for _ in range(2)), state=str(tmp_path / "state")).counts == {"succeeded": 2}


@pytest.mark.parametrize("jobs", [Task(command="true"), None, 3])
def test_run_refuses_an_object_that_is_no_list_of_tasks(jobs: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is neither the path of a file nor a list of Tasks"):
        run(jobs, state=str(tmp_path / "state"))


def test_run_refuses_a_number_as_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="name=5: a name must not be a number, with or without r"):
        run([Task(command="true")], state=str(tmp_path / "state"), name="5")


@pytest.mark.parametrize("name", ["jobs_at_once", "slots", "max_per_device", "max_failures"])
@pytest.mark.parametrize("number", [0, -1, "2"])
def test_run_refuses_a_limit_that_lets_nothing_start(name: str, number: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^{name}={number!r}: give a whole number of at least 1$"):
        run([Task(command="true")], state=str(tmp_path / "state"), **{name: number})


def test_run_restores_the_signal_handlers(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    run([Task(command="true")], state=str(tmp_path / "state"))
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before


def test_run_in_another_thread_changes_no_signal_handler(tmp_path: Path) -> None:
    seen: list[object] = []
    quiet = signal.getsignal(signal.SIGINT)

    def work() -> None:
        done = run([Task(command="true")], state=str(tmp_path / "state"))
        seen.extend((done.succeeded, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)
    assert seen == [True, quiet]


def test_run_works_beside_a_running_event_loop(tmp_path: Path) -> None:
    async def both() -> tuple[bool, int]:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        done = await asyncio.to_thread(run, [Task(command="sleep 0.3")], state=str(tmp_path / "state"))
        ticking.cancel()
        return done.succeeded, ticks

    good, ticks = asyncio.run(both())
    assert good
    assert ticks > 5


def test_the_package_exports_its_public_names() -> None:
    assert sorted(scheduler.__all__) == [
        "CallFailed", "CallFuture", "ConfigError", "ConfigManager", "Executor", "Failure", "Finished", "GPUTask",
        "GPUTaskScheduler", "InputError", "LeaseTimeout", "NoLease", "NotPassed", "ProcessLease", "RemoteError",
        "SchedulerError", "StateError", "SubmittedTasks", "Task", "UsageError", "lease", "run", "runs", "submit",
    ]  # fmt: skip
    assert all(getattr(scheduler, name) for name in (*scheduler.__all__, "map"))
