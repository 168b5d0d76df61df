"""The history of a run from its events: the attempts of each task, and the run in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.events import Arrived, Event
from scheduler.core.model import HOST, Outcome, Purpose, State
from scheduler.core.reporting.memory_timeline import MemoryTimeline
from scheduler.core.reporting.run_history import MOST_RECENT, RunHistory, RunSummary, totals
from scheduler.units import GIB
from tests.support.builders import asked, exited, peaked, placed, refused, resized, run, started


def history(*told: tuple[float, Event | Sequence[Event]]) -> RunHistory:
    """Return the history of events, each given as (time, event or events)."""
    taken = RunHistory()
    for at, events in told:
        for event in events if isinstance(events, Sequence) else (events,):
            taken.take(event, at)
    return taken


class TestAttempts:
    def test_an_attempt_has_its_times_devices_outcome_and_memory(self) -> None:
        (attempt,) = history(
            (10, placed(1, "2GiB")), (11, started(1)), (15, exited(1, peak="1GiB", seconds=4.0, code=0))
        ).tasks[1].attempts  # fmt: skip
        assert (attempt.number, attempt.purpose, attempt.devices) == (1, Purpose.RUN, (HOST,))
        assert (attempt.placed, attempt.started, attempt.ended, attempt.seconds) == (10, 11, 15, 4.0)
        assert (attempt.outcome, attempt.code, attempt.signal) == (Outcome.SUCCEEDED, 0, None)
        assert (attempt.reserved, attempt.peak) == ({HOST: 2 * GIB}, {HOST: GIB})

    @pytest.mark.parametrize(
        ("end", "reason"),
        [
            ({"code": 1, "last": "ValueError: x"}, "ValueError: x"),
            ({"code": 1, "last": "ValueError: x", "reason": "exit 1: a hint"}, "exit 1: a hint"),
            ({"signal": 6, "last": "what():  x"}, "what():  x"),
            ({"signal": 15, "last": "epoch 3 loss 0.1"}, ""),
        ],
    )
    def test_the_reason_of_a_failure_is_its_error_unless_a_signal_from_outside_ended_it(
        self, end: dict[str, Any], reason: str
    ) -> None:
        taken = history((0, placed(1)), (1, started(1)), (2, exited(1, "failed", **end)))
        assert taken.tasks[1].attempts[0].reason == reason

    def test_the_highest_peak_counts_whether_the_sampler_or_the_shim_saw_it(self) -> None:
        taken = history((0, placed(1)), (1, peaked(1, "3GiB")), (2, peaked(1, "2GiB")), (3, exited(1, peak="1GiB")))
        assert taken.tasks[1].attempts[0].peak == {HOST: 3 * GIB}

    def test_the_last_reservation_of_an_attempt_counts(self) -> None:
        taken = history((0, placed(1, "8GiB")), (5, resized(1, "2GiB", "settled")))
        assert taken.tasks[1].attempts[0].reserved == {HOST: 2 * GIB}

    def test_attempts_of_a_task_are_in_order(self) -> None:
        taken = history((0, run(1, "oom")), (5, run(1, "failed", attempt=2)))
        assert [(a.number, a.outcome) for a in taken.tasks[1].attempts] == [(1, "oom"), (2, "failed")]

    def test_retries_and_out_of_memories_are_counted(self) -> None:
        taken = history((0, run(1, "oom")), (5, run(1, "oom", attempt=2)), (9, run(1, attempt=3)), (9, run(2)))
        assert (taken.retried, taken.ooms) == (2, 2)

    def test_the_last_attempt_is_the_last_one_that_is_no_probe(self) -> None:
        taken = history((0, run(1)), (5, placed(1, attempt=2, purpose=Purpose.PROBE)))
        assert taken.tasks[1].last is taken.tasks[1].attempts[0]

    def test_a_task_that_was_only_probed_has_no_last_attempt(self) -> None:
        assert history((5, placed(1, purpose=Purpose.PROBE))).tasks[1].last is None

    def test_a_second_start_is_an_adoption(self) -> None:
        taken = history((0, placed(1)), (1, started(1)), (50, started(1)))
        assert taken.tasks[1].attempts[0].started == 1

    def test_tasks_that_never_ran_have_no_attempts(self) -> None:
        assert history((0, asked("drain"))).tasks == {}

    def test_a_batch_was_submitted_when_it_arrived_or_with_the_run(self) -> None:
        taken = history((50, Arrived(2)))
        assert [taken.submitted(batch, 5.0) for batch in (1, 2, 3)] == [5.0, 50, 50]

    def test_a_refused_task_has_its_reason(self) -> None:
        assert history((0, refused(1, "too large"))).tasks[1].refused == "too large"


class TestNeighbours:
    def test_neighbours_are_the_most_attempts_at_one_moment(self) -> None:
        taken = history((0, placed(1)), (1, placed(2)), (2, exited(1)), (3, placed(3)))
        assert [task_history.attempts[0].neighbours for task_history in taken.tasks.values()] == [1, 1, 1]

    def test_attempts_on_other_devices_are_no_neighbours(self) -> None:
        taken = history((0, placed(1, device="GPU-0")), (1, placed(2, device="GPU-1")))
        assert [task_history.attempts[0].neighbours for task_history in taken.tasks.values()] == [0, 0]

    def test_attempts_that_ended_before_are_no_neighbours(self) -> None:
        taken = history((0, placed(1)), (1, exited(1)), (2, placed(2)))
        assert taken.tasks[2].attempts[0].neighbours == 0


class TestTotals:
    def numbers(self) -> RunHistory:
        return history(
            (100, placed(1, "2GiB")),
            (100, placed(2, "2GiB")),
            (110, exited(1, seconds=10, peak="1GiB")),
            (140, exited(2, "oom", seconds=40, peak="2GiB")),
            (140, placed(2, "3GiB", attempt=2, purpose=Purpose.PROBE)),
            (150, exited(2, attempt=2, seconds=10, peak="2GiB")),
            (150, placed(3)),
        )

    def test_totals_have_makespan_tasks_at_once_and_states(self) -> None:
        total = totals(self.numbers(), {State.SUCCEEDED: 1, State.RUNNING: 2, State.FAILED: 0}, 4 * GIB)
        assert (total.makespan, total.spent, total.at_once) == (50, 60, 1.2)
        assert (total.tasks, total.ooms) == (3, 1)
        assert total.states == {State.SUCCEEDED: 1, State.RUNNING: 2}
        assert total.probing == pytest.approx(10 / 60)

    def test_totals_have_the_use_of_memory_and_sources_of_estimates(self) -> None:
        total = totals(self.numbers(), {}, 4 * GIB)
        assert total.memory_use == pytest.approx((1 * 10 + 2 * 40 + 2 * 10) / (4 * 50))
        assert total.reserved_for_peaks == 2.0
        assert total.source == {"declared": 2}

    def test_totals_of_an_empty_run_are_zero(self) -> None:
        total = totals(RunHistory(), {}, 0)
        assert (total.makespan, total.spent, total.at_once, total.memory_use, total.probing) == (0, 0, 1, 0, 0)


class TestOneAtATime:
    def alone(self, *ends: tuple[float, float | None]) -> tuple[float, float] | None:
        """Return what attempts that ran side by side would have taken alone, by their seconds and solo seconds."""
        starts = [(0, placed(number)) for number in range(len(ends))]
        stops = [(100, exited(number, seconds=seconds, solo=solo)) for number, (seconds, solo) in enumerate(ends)]
        return totals(history(*starts, *stops), {}, 0).alone

    def test_attempts_after_one_another_took_what_they_took(self) -> None:
        events = [(0, placed(1)), (10, exited(1, seconds=10)), (10, placed(2)), (20, exited(2, seconds=10))]
        assert totals(history(*events), {}, 0).alone == (20, 20)

    def test_attempts_side_by_side_take_what_their_epochs_take_alone(self) -> None:
        assert self.alone((10, 5.0), (10, 10.0)) == (15, 15)

    def test_nothing_is_told_of_attempts_side_by_side_whose_time_alone_is_unknown(self) -> None:
        assert self.alone((10, None), (10, None)) is None
        assert self.alone((10, 5.0), (10, 5.0), (10, None)) is None

    def test_measured_attempts_bound_the_time_of_the_others(self) -> None:
        assert self.alone((10, 5.0), (10, 10.0), (10, 8.0), (20, None)) == (23 + 10, 23 + 20)

    def test_an_out_of_memory_counts_as_no_work(self) -> None:
        events = [(0, placed(1)), (10, exited(1, "oom", seconds=10)), (10, placed(1, attempt=2))]
        found = history(*events, (20, exited(1, attempt=2, seconds=7)))
        assert totals(found, {}, 0).alone == (7, 7)


class TestSummary:
    def test_summary_keeps_only_the_attempts_that_ended_last(self) -> None:
        history, summary = RunHistory(), RunSummary()
        tasks = MOST_RECENT + 10
        for task in range(1, tasks + 1):
            for at, event in enumerate([placed(task), started(task), exited(task, seconds=3)], task):
                history.take(event, at)
                summary.take(event, at)
        assert (len(history.tasks), len(summary.living)) == (tasks, 0)
        assert summary.ended_attempt is summary.recent[tasks]
        assert list(summary.recent) == list(range(11, tasks + 1))
        kept = [len(kept) for kept in vars(summary).values() if isinstance(kept, dict | set | list) and kept]
        assert kept == [MOST_RECENT, 1, 1]
        assert totals(summary, {}, GIB) == totals(history, {}, GIB)

    def test_summary_knows_a_living_attempt_until_it_ends(self) -> None:
        summary = RunSummary()
        summary.take(placed(1, "2GiB"), 5.0)
        summary.take(peaked(1, "1GiB"), 6.0)
        assert (summary.living[1].placed, summary.living[1].peak) == (5.0, {HOST: GIB})
        summary.take(exited(1, "failed", code=3, seconds=2), 7.0)
        assert (summary.living, summary.ended_attempt and summary.ended_attempt.code) == ({}, 3)

    def test_a_run_after_a_run_is_a_retry_and_a_run_after_a_probe_is_not(self) -> None:
        summary = RunSummary()
        probe = [placed(1, purpose=Purpose.PROBE), exited(1), *run(1, "oom", attempt=2)]
        for event in [*probe, *run(1, attempt=3)]:
            summary.take(event, 1.0)
        assert summary.retried == 1

    def test_stretch_of_a_task_is_that_of_its_newest_run(self) -> None:
        summary = RunSummary()
        for event in (placed(1), exited(1, "failed", stretch=3.0), placed(2), exited(2, stretch=2.0)):
            summary.take(event, 1.0)
        assert totals(summary, {}, 0).stretched == [(1, 3.0), (2, 2.0)]
        for event in (placed(1, attempt=2), exited(1, attempt=2, stretch=1.1)):
            summary.take(event, 2.0)
        assert totals(summary, {}, 0).stretched == [(2, 2.0)]


def test_memory_over_time_is_kept_for_each_host_of_several_nodes() -> None:
    timeline = MemoryTimeline()
    for event, at in (
        (replace(placed(1, "2GiB"), node="n1"), 1.0), (replace(placed(2, "3GiB"), node="n2"), 2.0),
        (peaked(1, "1GiB"), 3.0), (replace(placed(3, "4GiB", device="GPU-n1-0"), node="n1"), 4.0),
        (exited(2, peak="2GiB"), 5.0),
    ):  # fmt: skip
        timeline.take(event, at)
    first, second, _ = timeline.tracks
    assert first.steps == {"host@n1": [(1.0, 2 * GIB, 0), (3.0, 2 * GIB, GIB)]}
    assert second.steps == {"host@n2": [(2.0, 3 * GIB, 2 * GIB)]}
    assert [track.shown for track in timeline.tracks] == [("host@n1",), ("host@n2",), ("GPU-n1-0",)]
