"""The Brain: only events change it, and a repeated question gets an equal decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.brain import Brain
from scheduler.core.causes import DependencyStep
from scheduler.core.events import Depended, Event, Peaked, Resized, Skipped, Submitted
from scheduler.core.model import HOST, Decision, DeviceBudget, EstimateSource, Purpose, State
from scheduler.errors import ForbiddenEvent
from scheduler.units import GIB, MIB
from tests.e2e.older_tools.contracts import contract
from tests.support.builders import (
    asked,
    brain,
    decide,
    exited,
    gpu,
    host,
    machine,
    ordered,
    peaked,
    picture,
    place,
    placed,
    reasons,
    refused,
    resized,
    run,
    size,
    started,
    starts,
    states,
    submit,
    tasks,
    tell,
)

BUSY: list[Callable[[], Brain]] = [
    lambda: brain(tasks(5, "8GiB")),
    lambda: brain(tasks(3), tasks(4, priority=1), order="global"),
    lambda: tell(brain(tasks(4, "10GiB", retries=1)), placed(2), run(1, "failed"), run(3, "oom", peak="11GiB")),
    lambda: tell(brain(tasks(60, "1MiB", cpus=0.01) + tasks(1, "20GiB")), *(placed(n, "1MiB") for n in range(3, 50))),
    lambda: brain(tasks(2, "99GiB") + tasks(2, "1GiB", exclusive=True), jobs=3),
]
"""Brains in the middle of a run."""


class TestDeciding:
    @pytest.mark.parametrize("make", BUSY)
    def test_a_decision_changes_nothing_and_is_repeatable(self, make: Callable[[], Brain]) -> None:
        b = make()
        before, first = picture(b), decide(b)
        assert decide(b) == first
        assert picture(b) == before

    @pytest.mark.parametrize("make", BUSY)
    def test_a_decision_can_be_applied(self, make: Callable[[], Brain]) -> None:
        b = make()
        decision = decide(b)
        tell(b, *decision.placements)
        tell(b, *(refused(refusal.task) for refusal in decision.impossible))
        assert {placement.task for placement in decision.placements} <= {task.id for task in b.living()}

    def test_without_tasks_nothing_is_decided(self) -> None:
        assert decide(brain()) == Decision()

    def test_without_devices_nothing_is_placed(self) -> None:
        assert brain(tasks(1)).decide(machine(gpu(0, free="0M"))).placements == ()

    def test_an_attempt_has_the_next_number(self) -> None:
        b = tell(brain(tasks(1, retries=2)), run(1, "failed"), run(1, "lost", attempt=2))
        assert [placement.attempt for placement in decide(b).placements] == [3]

    def test_a_decision_names_a_limited_number_of_refusals(self) -> None:
        b = brain([one for n in range(100) for one in tasks(1, f"{n + 9000}MiB")])
        assert 0 < len(decide(b, host(free="8GiB")).refusals) <= 16

    @contract("S3-D8")
    def test_impossible_tasks_are_returned_beside_placements(self) -> None:
        decision = decide(brain(tasks(1, "25GiB") + tasks(1, "1GiB")))
        assert [refusal.task for refusal in decision.impossible] == [1]
        assert [placement.task for placement in decision.placements] == [2]

    def test_a_refused_task_is_not_refused_again(self) -> None:
        b = tell(brain(tasks(1, "25GiB")), refused(1))
        assert (decide(b), states(b), b.over) == (Decision(), {1: "refused"}, True)


class TestReplay:
    """A Brain that applies the events of another one equals it."""

    def test_a_replay_of_a_whole_life_gives_an_equal_brain(self) -> None:
        def life() -> Brain:
            b = brain(tasks(3, "4GiB", retries=1), tasks(3, priority=2))
            tell(b, placed(1, "4GiB"), placed(2, "4GiB"), started(1), started(2), peaked(1, "3GiB"), resized(1, "3GiB"))
            tell(b, exited(1, "failed"), exited(2, "oom", peak="5GiB"), asked("drain"), asked("resume"))
            return tell(b, run(1, attempt=2), run(3, "lost"), placed(4, "1GiB"))

        assert picture(life()) == picture(life())
        assert decide(life()) == decide(life())

    @given(st.data())
    def test_a_replay_of_any_life_gives_an_equal_brain(self, data: st.DataObject) -> None:
        lived: list[Event] = []
        b = a_life(data, lived)
        again = Brain(b.rules, b.terms)
        for event in lived:
            again.apply(event)
        assert picture(again) == picture(b)
        for budget in (host(), host(free="3GiB"), host(cores=1), gpu(0)):
            assert decide(again, budget) == decide(b, budget)


def a_life(data: st.DataObject, lived: list[Event]) -> Brain:
    """Let decisions and chance act on some tasks, and return every event."""
    b = brain(order=data.draw(st.sampled_from(["batch", "global"])), bypass_limit=2)

    def live(event: Event) -> None:
        b.apply(event)
        lived.append(event)

    for _ in range(data.draw(st.integers(1, 15))):
        if data.draw(st.booleans()) or not b.tasks:
            memories = data.draw(st.lists(st.sampled_from([None, "1GiB", "9GiB", "25GiB"]), min_size=1, max_size=4))
            terms = [one for memory in memories for one in tasks(1, memory, retries=1, priority=len(memories))]
            numbers = [len(b.terms) + offset for offset in range(len(terms))]
            b.terms.extend(terms)
            live(Submitted(b.task_table.batches + 1, len(b.task_table) + 1, numbers))
        decision = decide(b, host(free=data.draw(st.sampled_from(["24GiB", "6GiB"]))))
        for event in [*decision.placements, *(refused(r.task) for r in decision.impossible)]:
            live(event)
        for task in list(b.living()):
            outcome = data.draw(st.sampled_from(["", "succeeded", "failed", "oom", "lost", "interrupted"]))
            if outcome:
                live(exited(task.id, outcome, task.attempts, peak="2GiB"))
    return b


class TestBatches:
    def test_batches_are_submitted_one_after_another(self) -> None:
        b = submit(brain(tasks(2)), tasks(3))
        assert (len(b.task_table), b.task_table.batches, b.waiting) == (5, 2, 5)
        assert ordered(b) == [1, 2, 3, 4, 5]

    def test_ids_of_batches_need_not_be_consecutive(self) -> None:
        b = submit(brain(tasks(2)), tasks(2), first=50)
        assert ordered(b) == [1, 2, 50, 51]
        assert states(tell(b, run(50)))[50] == "succeeded"

    def test_batches_are_no_barrier(self) -> None:
        b = brain(tasks(1, "20GiB"), tasks(1, "20GiB"), tasks(1, "1GiB"))
        assert starts(b) == [1, 3]


class TestOver:
    def test_an_empty_run_is_over_from_the_start(self) -> None:
        assert brain().over

    def test_a_run_is_over_after_its_last_task_ended(self) -> None:
        b = tell(brain(tasks(2)), run(1), placed(2))
        assert not b.over
        assert tell(b, exited(2)).over

    def test_finished_tasks_leave_no_details(self) -> None:
        b = tell(brain(tasks(3)), run(1), run(2, "failed"), run(3, "timeout"))
        assert (b.tasks, b.placements(), b.task(1)) == ({}, [], None)


class TestDraining:
    def test_a_draining_run_starts_nothing(self) -> None:
        b = tell(brain(tasks(3, "1GiB")), placed(1), asked("drain"))
        assert (decide(b), b.draining, b.over) == (Decision(), True, False)

    def test_a_draining_run_is_over_after_its_running_tasks_ended(self) -> None:
        b = tell(brain(tasks(3)), placed(1), asked("drain"), exited(1))
        assert b.over
        assert states(b) == {1: "succeeded", 2: "waiting", 3: "waiting"}

    def test_tasks_that_come_back_while_draining_stay_waiting(self) -> None:
        b = tell(brain(tasks(1)), placed(1), asked("drain"), exited(1, "lost"))
        assert (b.over, states(b)) == (True, {1: "waiting"})

    def test_a_resume_ends_draining(self) -> None:
        b = tell(brain(tasks(2, "1GiB")), asked("drain"), asked("resume"))
        assert starts(b) == [1, 2]


class TestStopping:
    def test_a_stop_is_noted_on_the_task(self) -> None:
        b = tell(brain(tasks(3)), placed(1), placed(2), asked("stop", 1))
        assert {task.id: task.asked for task in b.living()} == {1: "stop", 2: None}

    def test_stopped_tasks_are_interrupted(self) -> None:
        b = tell(brain(tasks(2)), placed(1), asked("drain"), asked("stop", 1), exited(1, "interrupted"))
        assert (states(b), b.over) == ({1: "interrupted", 2: "waiting"}, True)

    def test_an_interrupted_task_waits_for_a_resume(self) -> None:
        b = tell(brain(tasks(2, "1GiB")), placed(1), asked("stop", 1), exited(1, "interrupted"))
        assert starts(b) == [2]
        assert starts(tell(b, asked("resume"))) == [1, 2]

    def test_a_resumed_task_continues_the_numbers_of_its_attempts(self) -> None:
        """An attempt with a used number would append to the log of the first one, and be taken for it."""
        b = tell(brain(tasks(1)), run(1, "interrupted"), asked("resume"))
        assert [placement.attempt for placement in decide(b).placements] == [2]
        tell(b, run(1, "interrupted", attempt=2), asked("resume"))
        assert [placement.attempt for placement in decide(b).placements] == [3]

    def test_a_resumed_task_keeps_its_floors(self) -> None:
        b = tell(brain(tasks(1, "2GiB", retries=1)), run(1, "oom", "2GiB", peak="8GiB"))
        (before,) = decide(b).placements
        tell(b, run(1, "interrupted", attempt=2), asked("resume"))
        (after,) = decide(b).placements
        assert after.reservation == before.reservation
        assert before.reservation[HOST] > 8 * GIB

    def test_only_named_tasks_are_resumed(self) -> None:
        b = tell(brain(tasks(2)), run(1, "interrupted"), run(2, "interrupted"), asked("resume", 2))
        assert states(b) == {1: "interrupted", 2: "waiting"}

    def test_a_task_that_is_not_interrupted_cannot_be_resumed(self) -> None:
        with pytest.raises(ForbiddenEvent, match="task 1 cannot be resumed: it is running, not interrupted"):
            tell(brain(tasks(1)), placed(1), asked("resume", 1))


class TestOutOfMemory:
    def test_the_reservation_grows_with_every_out_of_memory(self) -> None:
        b = brain(tasks(1, "1GiB"))
        reservations = []
        for attempt in range(1, 5):
            (placement,) = decide(b).placements
            reservations.append(placement.reservation[HOST])
            tell(b, placement, exited(1, "oom", attempt, peak=placement.reservation[HOST]))
        assert reservations[0] == GIB
        assert all(more >= 1.25 * less for less, more in pairwise(reservations))
        assert states(b) == {1: "oom"}

    def test_equals_of_an_unknown_task_stay_unknown_after_its_out_of_memory(self) -> None:
        b = tell(brain(tasks(2)), run(1, "oom", "11GiB", peak="11GiB"))
        reserved = {placement.task: placement.reservation[HOST] for placement in decide(b).placements}
        assert reserved[1] == size("16.5GiB")
        assert reserved[2] == (size("23.5GiB") - reserved[1]) // 2

    def test_the_observed_peak_counts_whatever_its_source(self) -> None:
        b = tell(brain(tasks(1, "1GiB")), placed(1), peaked(1, "6GiB"), exited(1, "oom", peak="2GiB"))
        assert decide(b).placements[0].reservation == {HOST: 9 * GIB}

    def test_an_out_of_memory_does_not_use_up_retries(self) -> None:
        b = tell(brain(tasks(1, retries=1)), run(1, "oom"), run(1, "failed", attempt=2))
        assert states(b) == {1: "waiting"}


class TestRetries:
    def test_a_failed_task_is_retried_as_often_as_its_row_says(self) -> None:
        b = brain(tasks(1, retries=2))
        for attempt in (1, 2, 3):
            assert starts(b) == [1]
            tell(b, run(1, "failed", attempt=attempt))
        assert (starts(b), states(b)) == ([], {1: "failed"})

    def test_a_failed_task_without_retries_stays_failed(self) -> None:
        assert states(tell(brain(tasks(1)), run(1, "failed"))) == {1: "failed"}

    def test_the_third_loss_in_a_row_fails_with_its_reason(self) -> None:
        b = brain(tasks(1))
        histories: list[list[str]] = []
        for attempt in (1, 2, 3):
            tell(b, placed(1, attempt=attempt))
            histories.append(b.tasks[1].history)
            tell(b, exited(1, "lost", attempt, reason="its shim was killed"))
        assert histories[-1][-1] == "running -> failed: attempt 3 lost its shim was killed"
        assert states(b) == {1: "failed"}


class TestWatching:
    def living(self, reservation: str = "4GiB", source: EstimateSource = EstimateSource.DECLARED) -> Brain:
        return tell(brain(tasks(1)), placed(1, reservation, source=source), started(1))

    def test_a_new_peak_is_an_event(self) -> None:
        assert self.living().watch(1, 1, {HOST: GIB}) == [Peaked(1, 1, {HOST: GIB})]

    def test_a_slightly_higher_use_is_no_event(self) -> None:
        b = tell(self.living(), peaked(1, "1GiB"))
        assert b.watch(1, 1, {HOST: GIB + 60 * MIB}) == []

    def test_use_above_the_reservation_raises_it(self) -> None:
        grown, *_ = [e for e in self.living("1GiB").watch(1, 1, {HOST: 2 * GIB}) if isinstance(e, Resized)]
        assert (grown.cause, grown.reservation) == ("grew", {HOST: int(2 * GIB * 1.1) + 256 * MIB})

    def test_watching_changes_nothing_by_itself(self) -> None:
        b = self.living("1GiB")
        before = picture(b)
        b.watch(1, 1, {HOST: 9 * GIB}, now=99.0)
        assert picture(b) == before

    def test_a_task_that_does_not_live_is_not_watched(self) -> None:
        b = tell(self.living(), exited(1))
        assert b.watch(1, 1, {HOST: GIB}) == []
        assert b.watch(7, 1, {HOST: GIB}) == []

    def test_an_older_attempt_is_not_watched(self) -> None:
        b = tell(brain(tasks(1, retries=1)), run(1, "failed"), placed(1, attempt=2))
        assert b.watch(1, 1, {HOST: GIB}) == []

    def test_a_new_attempt_starts_without_a_peak(self) -> None:
        b = tell(brain(tasks(1, retries=1)), placed(1), peaked(1, "2GiB"), exited(1, "failed"), placed(1, attempt=2))
        assert b.watch(1, 2, {HOST: GIB}) == [Peaked(1, 2, {HOST: GIB})]

    def test_a_raised_reservation_reduces_the_capacity(self) -> None:
        b = tell(brain(tasks(2, "10GiB")), placed(1, "10GiB"))
        assert starts(b) == [2]
        assert reasons(tell(b, resized(1, "16GiB"))) == {2: "memory"}

    def test_a_lowered_reservation_increases_the_capacity(self) -> None:
        b = tell(brain(tasks(2, "10GiB")), placed(1, "16GiB"))
        assert starts(b) == []
        assert starts(tell(b, resized(1, "8GiB", "settled"))) == [2]


class TestSettling:
    """An unknown task is reserved much until it has settled."""

    def unknown(self, purpose: Purpose = Purpose.RUN) -> Brain:
        b = brain(tasks(1), settle=5.0)
        b.apply(placed(1, "12GiB", source=EstimateSource.MEASURED, purpose=purpose), 100.0)
        b.apply(started(1), 101.0)
        return b

    def seen(self, b: Brain, at: float, memory: str) -> list[Resized]:
        events = b.watch(1, 1, {HOST: size(memory)}, at)
        for event in events:
            b.apply(event, at)
        return [event for event in events if isinstance(event, Resized)]

    def test_a_settled_reservation_is_cut_to_the_observed_need(self) -> None:
        b = self.unknown()
        assert self.seen(b, 102.0, "2GiB") == []
        assert self.seen(b, 106.9, "2GiB") == []
        (cut,) = self.seen(b, 107.0, "2GiB")
        assert (cut.cause, cut.reservation) == ("settled", {HOST: int(2 * GIB * 1.1) + 256 * MIB})

    def test_every_new_peak_restarts_the_settle_time(self) -> None:
        b = self.unknown()
        self.seen(b, 102.0, "2GiB")
        self.seen(b, 106.0, "3GiB")
        assert self.seen(b, 107.5, "3GiB") == []
        assert self.seen(b, 111.0, "3GiB")

    def test_a_task_settles_once(self) -> None:
        b = self.unknown()
        self.seen(b, 102.0, "2GiB")
        assert self.seen(b, 110.0, "2GiB")
        assert self.seen(b, 120.0, "2GiB") == []

    def test_a_settled_reservation_grows_at_once_with_the_use(self) -> None:
        b = self.unknown()
        self.seen(b, 102.0, "2GiB")
        self.seen(b, 110.0, "2GiB")
        (grown,) = self.seen(b, 120.0, "6GiB")
        assert grown.cause == "grew"

    def test_a_task_without_any_use_does_not_settle(self) -> None:
        b = self.unknown()
        assert self.seen(b, 200.0, "0M") == []

    def test_a_declared_reservation_stays_as_declared(self) -> None:
        b = brain(tasks(1, "12GiB"))
        b.apply(placed(1, "12GiB"), 100.0)
        b.apply(started(1), 101.0)
        self.seen(b, 102.0, "2GiB")
        assert self.seen(b, 300.0, "2GiB") == []


def test_the_history_of_a_task_is_in_order() -> None:
    b = tell(
        brain(tasks(1, retries=3)), run(1, "failed"), placed(1, attempt=2), started(1, 2), resized(1, "2GiB", attempt=2)
    )
    assert b.tasks[1].history == [
        "waiting -> running: attempt 1 placed on host",
        "started pid 1001",
        "running -> waiting: attempt 1 failed",
        "waiting -> running: attempt 2 placed on host",
        "started pid 1001",
        "reservation grew",
    ]


@pytest.mark.parametrize("budgets", [(host(),), (gpu(0), gpu(1)), (host(), gpu(0))])
def test_a_task_may_run_on_any_kind_of_device(budgets: Sequence[DeviceBudget]) -> None:
    gpus = sum(budget.device.is_gpu for budget in budgets)
    b = brain(
        tasks(2 * gpus, "10GiB", host_memory="1GiB", cpus=0.1)
        + tasks(2 if gpus < len(budgets) else 0, "9GiB", gpus=0, cpus=0.1)
    )
    assert len(place(b, *budgets)) == 2 * len(budgets)
    assert b.state_counts[State.RUNNING] == 2 * len(budgets)


def test_the_last_attempt_after_out_of_memories_is_alone() -> None:
    b = brain(tasks(1, "4GiB"))
    alone = []
    for attempt in range(1, 5):
        (placement,) = decide(b).placements
        alone.append(placement.alone)
        tell(b, placement, started(1, attempt), exited(1, "oom", attempt))
    assert alone == [False, False, False, True]
    assert states(b) == {1: "oom"}


class TestSkipped:
    def test_skipped_rows_are_over_before_anything_starts(self) -> None:
        b = tell(brain(tasks(4, "1GiB")), Skipped(7, (1, 3)))
        assert states(b) == {1: "skipped", 2: "waiting", 3: "skipped", 4: "waiting"}
        assert starts(b) == [2, 4]

    def test_a_run_whose_rows_are_all_skipped_is_over(self) -> None:
        assert tell(brain(tasks(2)), Skipped(7, (1, 2))).over

    def test_only_waiting_rows_can_be_skipped(self) -> None:
        with pytest.raises(ForbiddenEvent, match="succeeded in run 7"):
            tell(brain(tasks(1)), placed(1), Skipped(7, (1,)))


def depended(step: str, *tasks: int, **said: Any) -> Depended:
    return Depended(DependencyStep(step), tasks, **said)


class TestDependencies:
    def test_a_blocked_task_is_not_placed_before_its_parent_has_succeeded(self) -> None:
        some = tell(brain(tasks(2, "1GiB")), depended("block", 2, after=(1,)))
        assert starts(some, host()) == [1]
        assert states(some) == {1: "waiting", 2: "blocked"}
        tell(some, run(1))
        tell(some, some.dependencies.due())
        assert starts(some, host()) == [2]

    def test_a_run_with_a_blocked_task_is_not_over(self) -> None:
        some = tell(brain(tasks(2, "1GiB")), depended("block", 2, after=(1,)), run(1))
        assert not some.over

    def test_a_failed_parent_skips_its_child_and_the_run_is_over(self) -> None:
        some = tell(brain(tasks(2, "1GiB")), depended("block", 2, after=(1,)), run(1, "failed"))
        assert some.dependencies.due() == [depended("skip", 2, parent=1)]
        tell(some, depended("skip", 2, parent=1))
        assert some.over
        assert states(some) == {1: "failed", 2: "skipped"}

    def test_retry_of_the_parent_blocks_its_skipped_child_again(self) -> None:
        some = tell(brain(tasks(2, "1GiB")), depended("block", 2, after=(1,)), run(1, "failed"))
        tell(some, some.dependencies.due())
        tell(some, asked("retry", 1))
        assert some.dependencies.due() == [depended("block", 2)]

    def test_a_skipped_task_that_was_tried_before_goes_on_with_its_next_attempt(self) -> None:
        some = tell(brain(tasks(2, "1GiB")), run(2, "failed"), asked("retry", 2))
        tell(some, depended("block", 2, after=(1,)), depended("skip", 2, parent=1), depended("ready", 2))
        tell(some, run(2, attempt=2))
        assert states(some)[2] == "succeeded"

    def test_only_learning_skips_blocked_tasks_too(self) -> None:
        some = tell(brain(tasks(2, "1GiB")), depended("block", 2, after=(1,)), asked("skip"))
        assert states(some) == {1: "skipped", 2: "skipped"}

    def test_a_blocked_task_can_be_held_and_cancelled(self) -> None:
        some = tell(brain(tasks(3, "1GiB")), depended("block", 2, 3, after=(1,)), asked("hold", 2), asked("cancel", 3))
        assert states(some) == {1: "waiting", 2: "held", 3: "cancelled"}
