"""Why a task ended as it did, from its story: the exact paragraph for each state."""

from __future__ import annotations

import time
from typing import Any

import pytest

from scheduler.core.events import Event
from scheduler.core.model import State
from scheduler.core.results import Fold, Story
from scheduler.view.why import Standing, paragraph, summary
from tests.builders import exited, peaked, placed, refused, run, started, terms

NOON = 1_800_000_000.0


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def says(state: str, *events: Event | list[Event], task: int = 7, **said: Any) -> str:
    """The paragraph of a task to which this happened, all of it at one moment."""
    fold = Fold()
    for event in events:
        for one in event if isinstance(event, list) else [event]:
            fold.take(one, NOON)
    known = {"terms": terms(), "labels": {"host": "host"}, "run": 3, "alive": True, "now": NOON + 90, **said}
    return paragraph(Standing(task, State(state), fold.stories.get(task, Story()), **known))


def test_succeeded() -> None:
    assert says("succeeded", run(7, peak="900MiB", seconds=200.0)) == (
        "task 7 succeeded at 08:00:00 on host after 3m20s, its first attempt; "
        "it held 900MiB at most and was promised 1.0GiB (declared)"
    )


def test_succeeded_after_an_out_of_memory() -> None:
    ended = says("succeeded", run(7, "oom"), run(7, attempt=2, peak="1GiB", seconds=60.0))
    assert ended == (
        "task 7 succeeded at 08:00:00 on host after 1m00s, attempt 2; "
        "it held 1.0GiB at most and was promised 1.0GiB (declared); before that, attempt 1 oom"
    )


def test_failed() -> None:
    failed = run(7, "failed", code=3, seconds=0.4)
    assert says("failed", failed, log="/runs/3/tasks/7/1.log", last="no such file") == (
        "task 7 failed: it ended with exit code 3 at 08:00:00 after 0.4s on host; its first attempt, "
        "no retries (--retries); the last line of its log: no such file; log: /runs/3/tasks/7/1.log; "
        "scheduler retry 7 tries it again"
    )


def test_killed_by_a_signal_after_its_retries() -> None:
    tried = [*run(7, "failed", code=3), *run(7, "failed", attempt=2, signal=9, seconds=5.0)]
    assert says("failed", tried, terms=terms(retries=1)) == (
        "task 7 failed: it was killed by signal 9 at 08:00:00 after 5.0s on host; attempt 2, Retries 1; "
        "before that, attempt 1 failed; scheduler retry 7 tries it again"
    )


def test_lost_too_often() -> None:
    lost = [event for number in (1, 2, 3) for event in run(7, "lost", attempt=number, reason="its shim was killed")]
    assert says("failed", lost) == (
        "task 7 failed, because its attempts were lost to other causes 3 times: its shim was killed; "
        "scheduler retry 7 tries it again"
    )


def test_out_of_memory() -> None:
    tried = [*run(7, "oom", "1GiB"), *run(7, "oom", "2GiB", attempt=2, peak="2GiB", reason="it wanted 1.0GiB more")]
    assert says("oom", tried) == (
        "task 7 ran out of memory 2 times, the last time alone on host: it wanted 1.0GiB more; "
        "it held 2.0GiB at most and was promised 2.0GiB (declared), in order it was promised 1.0GiB, 2.0GiB; "
        "make it need less or give it a larger device, then scheduler retry 7"
    )


def test_timeout() -> None:
    assert says("timeout", run(7, "timeout", seconds=90.0), terms=terms(timeout=90.0)) == (
        "task 7 was stopped after 1m30s on host, because its time limit is 1m30s (Timeout); "
        "scheduler set 7 --timeout TIME and scheduler retry 7 let it try again"
    )


def test_interrupted() -> None:
    assert says("interrupted", run(7, "interrupted", seconds=12.0)) == (
        "task 7 was stopped after 12s when its run was; scheduler resume 3 starts it again"
    )


def test_cancelled_while_it_ran_and_while_it_waited() -> None:
    assert says("cancelled", run(7, "interrupted", seconds=12.0)) == (
        "task 7 was cancelled after 12s on host; scheduler retry 7 lets it wait again"
    )
    assert says("cancelled") == "task 7 was cancelled while it waited; scheduler retry 7 lets it wait again"


def test_refused() -> None:
    assert says("refused", refused(7, "wants 30.0GiB, the largest device (GPU 0) has 24.0GiB")) == (
        "task 7 was refused: it wants 30.0GiB, the largest device (GPU 0) has 24.0GiB; "
        "give it more GPUs or a larger device, then scheduler retry 7"
    )


def test_skipped() -> None:
    assert says("skipped", done_by=2) == "task 7 was skipped: the same row succeeded in run 2"
    assert says("skipped") == "task 7 was skipped: only what tasks need was to be learned"


def test_held() -> None:
    assert says("held") == "task 7 is held: scheduler release 7 lets it wait for its turn again"


def test_running_with_and_without_a_scheduler() -> None:
    so_far = [placed(7), started(7), peaked(7, "700MiB")]
    ran = (
        "task 7 runs on host since 08:00:00 (1m30s), its first attempt; "
        "it held 700MiB at most and was promised 1.0GiB (declared)"
    )
    assert says("running", *so_far) == ran
    assert says("running", *so_far, alive=False) == (
        ran + "; run 3 has no scheduler, so nobody watches it: scheduler resume 3"
    )


def test_waiting_without_a_scheduler() -> None:
    tried = [placed(7), started(7), exited(7, "oom", reason="host RAM")]
    assert says("waiting", *tried, alive=False) == (
        "task 7 waits, and run 3 has no scheduler that could start it: scheduler resume 3 goes on with it; "
        "it was tried before: attempt 1 oom: host RAM"
    )


def test_what_its_scheduler_says() -> None:
    assert says("waiting", waits="waits for GPU memory; needs 2.0GiB") == ("task 7 waits for GPU memory; needs 2.0GiB")


def test_nothing_reaches_a_terminal_that_it_would_act_upon() -> None:
    assert "\x1b" not in says("failed", run(7, "failed", code=1), last="\x1b[31mred\x1b]0;title\x07")


def test_a_run() -> None:
    states = {"waiting": 1212, "held": 2, "interrupted": 1, "succeeded": 3, "failed": 1, "oom": 1}
    assert summary(3, "jobs.csv", states, "1,180 for GPU memory, 32 for host RAM", alive=True) == [
        "run 3  jobs.csv: 1,212 waiting, 2 held, 1 interrupted, 3 succeeded, 1 failed, 1 oom",
        "1,212 wait: 1,180 for GPU memory, 32 for host RAM",
        "2 held: scheduler release --run 3 lets them wait for their turn again",
        "1 interrupted: scheduler resume 3 starts them again",
        "2 ended without success: scheduler why ID says why, scheduler retry 3 tries again",
    ]


def test_a_run_without_a_scheduler() -> None:
    assert summary(3, "jobs.csv", {"waiting": 2}, "", alive=False)[1] == (
        "2 wait, and run 3 has no scheduler: scheduler resume 3 goes on with them"
    )
