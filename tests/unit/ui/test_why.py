"""The paragraph of `why`, from the history of a task: the exact text for each state."""

from __future__ import annotations

import time
from typing import Any

import pytest

from scheduler.core.events import Event
from scheduler.core.model import State
from scheduler.core.reporting.forecast import IDLE, NO_ETA, ExpectedTask, Forecast, TimeSpan
from scheduler.core.reporting.run_history import RunHistory, TaskHistory
from scheduler.ui.verbs.eta import of_run
from scheduler.ui.verbs.why import TaskReport, blocked_tasks, paragraph, summary
from tests.support.builders import exited, peaked, placed, refused, run, started, terms

NOON = 1_800_000_000.0


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def why(state: str, *events: Event | list[Event], task: int = 7, **facts: Any) -> str:
    """Return the paragraph of a task after these events, all of them at one moment."""
    history = RunHistory()
    for event in events:
        for one in event if isinstance(event, list) else [event]:
            history.take(one, NOON)
    values = {"terms": terms(), "labels": {"host": "host"}, "run": 3, "alive": True, "now": NOON + 90, **facts}
    return paragraph(TaskReport(task, State(state), history.tasks.get(task, TaskHistory()), **values))


def test_why_names_device_duration_and_peak_of_a_succeeded_task() -> None:
    assert why("succeeded", run(7, peak="900MiB", seconds=200.0)) == (
        "task 7 succeeded at 08:00:00 on host after 3m20s, attempt 1; peak 900MiB, reserved 1.0GiB (source: declared)"
    )


def test_why_names_earlier_attempts_of_a_succeeded_task() -> None:
    ended = why("succeeded", run(7, "oom"), run(7, attempt=2, peak="1GiB", seconds=60.0))
    assert ended == (
        "task 7 succeeded at 08:00:00 on host after 1m00s, attempt 2; "
        "peak 1.0GiB, reserved 1.0GiB (source: declared); earlier attempts: 1 oom"
    )


def test_why_names_exit_code_and_log_of_a_failed_task() -> None:
    failed = run(7, "failed", code=3, seconds=0.4)
    assert why("failed", failed, log="/runs/3/tasks/7/1.log", last="no such file") == (
        "task 7 failed: it ended with exit code 3 at 08:00:00 after 0.4s on host; attempt 1 "
        "without retries (--retries); the last line of its log: no such file; log: /runs/3/tasks/7/1.log; "
        "scheduler retry 7 starts it again"
    )


def test_why_names_signal_and_retries_of_a_killed_task() -> None:
    tried = [*run(7, "failed", code=3), *run(7, "failed", attempt=2, signal=9, seconds=5.0)]
    assert why("failed", tried, terms=terms(retries=1)) == (
        "task 7 failed: it was killed by signal 9 at 08:00:00 after 5.0s on host; attempt 2 of 2 allowed (Retries 1); "
        "earlier attempts: 1 failed; scheduler retry 7 starts it again"
    )


def test_why_counts_the_lost_attempts_of_a_failed_task() -> None:
    lost = [event for number in (1, 2, 3) for event in run(7, "lost", attempt=number, reason="its shim was killed")]
    assert why("failed", lost) == (
        "task 7 failed: its attempts were lost 3 times for reasons outside of the task: its shim was killed; "
        "scheduler retry 7 starts it again"
    )


def test_why_lists_the_reservations_of_a_task_that_ran_out_of_memory() -> None:
    tried = [*run(7, "oom", "1GiB"), *run(7, "oom", "2GiB", attempt=2, peak="2GiB", reason="it wanted 1.0GiB more")]
    assert why("oom", tried) == (
        "task 7 ran out of memory 2 times, the last time alone on host: it wanted 1.0GiB more; "
        "peak 2.0GiB, reserved 2.0GiB (source: declared); reservations in order: 1.0GiB, 2.0GiB; "
        "reduce its memory or use a larger device, then scheduler retry 7"
    )


def test_why_names_the_time_limit_of_a_timed_out_task() -> None:
    assert why("timeout", run(7, "timeout", seconds=90.0), terms=terms(timeout=90.0)) == (
        "task 7 was stopped after 1m30s on host at its time limit of 1m30s (Timeout); to try again: "
        "scheduler set 7 --timeout TIME, then scheduler retry 7"
    )


def test_why_names_resume_for_an_interrupted_task() -> None:
    assert why("interrupted", run(7, "interrupted", seconds=12.0)) == (
        "task 7 was interrupted after 12s, when its run was stopped; scheduler resume r3 starts it again"
    )


def test_why_tells_whether_a_cancelled_task_was_running_or_waiting() -> None:
    assert why("cancelled", run(7, "interrupted", seconds=12.0)) == (
        "task 7 was cancelled after 12s on host; scheduler retry 7 puts it back into the queue"
    )
    assert why("cancelled") == "task 7 was cancelled while it waited; scheduler retry 7 puts it back into the queue"


def test_why_names_the_largest_device_for_a_refused_task() -> None:
    assert why("refused", refused(7, "needs 30.0GiB; the largest device (GPU 0) has 24.0GiB")) == (
        "task 7 was refused: it needs 30.0GiB; the largest device (GPU 0) has 24.0GiB; "
        "give it more GPUs or a larger device, then scheduler retry 7"
    )


def test_why_names_the_run_in_which_a_skipped_task_succeeded() -> None:
    assert why("skipped", done_by=2) == "task 7 was skipped: the same row succeeded in run 2"
    assert why("skipped") == "task 7 was skipped: the run only measures, and starts nothing else"


def test_why_names_release_for_a_held_task() -> None:
    assert why("held") == "task 7 is held: scheduler release 7 puts it back into the queue"


def test_why_names_peak_and_reservation_of_a_running_task_with_and_without_a_scheduler() -> None:
    so_far = [placed(7), started(7), peaked(7, "700MiB")]
    ran = "task 7 is running on host since 08:00:00 (1m30s), attempt 1; peak 700MiB, reserved 1.0GiB (source: declared)"
    assert why("running", *so_far) == ran
    assert why("running", *so_far, alive=False) == (
        ran + "; run 3 has no scheduler, nothing measures the task: scheduler resume r3"
    )


def test_why_names_resume_for_a_waiting_task_without_a_scheduler() -> None:
    tried = [placed(7), started(7), exited(7, "oom", reason="host RAM")]
    assert why("waiting", *tried, alive=False) == (
        "task 7 is waiting; run 3 has no scheduler: scheduler resume r3 continues it; earlier attempts: 1 oom: host RAM"
    )


def test_why_prints_the_reason_that_a_living_scheduler_gives() -> None:
    assert why("waiting", waits="waits for GPU memory; needs 2.0GiB") == ("task 7 waits for GPU memory; needs 2.0GiB")


def test_why_says_no_eta_only_where_the_forecast_has_none() -> None:
    waits, soon = f"needs 2.0GiB; {NO_ETA}; bypassed 0 times", TimeSpan(NOON + 120, NOON + 100, NOON + 150)
    assert NO_ETA in why("waiting", waits=waits)
    told = why("waiting", waits=waits, expected=ExpectedTask(soon, soon))
    assert told.startswith("task 7 needs 2.0GiB; bypassed 0 times; it is expected to start in about 30s")


def test_why_removes_escape_sequences_from_the_last_log_line() -> None:
    assert "\x1b" not in why("failed", run(7, "failed", code=1), last="\x1b[31mred\x1b]0;title\x07")


def test_summary_of_a_run_has_a_next_step_for_each_state() -> None:
    states = {"waiting": 1212, "held": 2, "interrupted": 1, "succeeded": 3, "failed": 1, "oom": 1}
    assert summary(3, "jobs.csv", states, "1,180 for GPU memory, 32 for host RAM", alive=True) == [
        "run 3  jobs.csv: 1,212 waiting, 2 held, 1 interrupted, 3 succeeded, 1 failed, 1 oom",
        "1,212 waiting: 1,180 for GPU memory, 32 for host RAM",
        "2 held: scheduler release --run r3 puts them back into the queue",
        "1 interrupted: scheduler resume r3 starts them again",
        "2 did not succeed: scheduler why ID explains one, scheduler retry r3 starts them again",
    ]


def test_a_run_without_unfinished_tasks_is_idle() -> None:
    assert of_run(Forecast(NOON, None, IDLE), NOON) == "idle: no task waits or runs"


def test_blocked_tasks_of_a_run_are_counted_by_what_they_wait_for() -> None:
    assert blocked_tasks(2, [], NOON) == "2 blocked: 2 for the end of other tasks (After)"
    assert blocked_tasks(1, [NOON + 60], NOON) == "1 blocked: 1 for a start time (Begin), at 08:01 (in 1m00s)"
    assert blocked_tasks(5, [NOON + 120, NOON + 60], NOON) == (
        "5 blocked: 3 for the end of other tasks (After), 2 for a start time (Begin), the first at 08:01 (in 1m00s)"
    )


def test_summary_of_a_run_without_a_scheduler_names_resume() -> None:
    assert summary(3, "jobs.csv", {"waiting": 2}, "", alive=False)[1:] == [
        "its scheduler has ended: scheduler resume r3 continues it, scheduler stop r3 --abandon gives it up",
        "2 waiting",
    ]
    assert summary(3, "jobs.csv", {"succeeded": 2}, "", alive=False)[1:] == []
