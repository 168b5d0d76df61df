"""Since when tasks wait, in queues of many batches."""

from __future__ import annotations

import time

from scheduler.core.queue.waiting_times import WaitingTimes


def test_each_batch_waits_since_it_was_accepted() -> None:
    times = WaitingTimes()
    for batch, at in ((1, 10.0), (2, 10.0), (3, 30.0)):
        times.accepted(batch, at)
    assert [times.since(7, batch) for batch in (0, 1, 2, 3, 9)] == [0.0, 10.0, 10.0, 30.0, 30.0]


def test_times_are_restored_when_all_batches_are_read_before_their_times() -> None:
    times = WaitingTimes()
    for batch in (1, 2, 3, 4):
        times.accepted(batch, 0.0)
    times.accepted(2, 20.0)
    times.accepted(4, 40.0)
    assert [times.since(7, batch) for batch in (1, 2, 3, 4)] == [0.0, 20.0, 20.0, 40.0]


def test_a_task_that_waits_again_has_its_own_time() -> None:
    times = WaitingTimes()
    times.accepted(1, 10.0)
    times.again(7, 50.0)
    assert (times.since(7, 1), times.since(8, 1)) == (50.0, 10.0)


def test_a_queue_of_many_submissions_is_read_in_linear_time() -> None:
    def seconds(batches: int) -> float:
        times, began = WaitingTimes(), time.process_time()
        for batch in range(batches):
            times.accepted(batch, 0.0)
        for batch in range(batches):
            times.accepted(batch, float(batch))
        return time.process_time() - began

    assert min(seconds(40_000) for _ in range(3)) < 20 * min(seconds(4000) for _ in range(3))
