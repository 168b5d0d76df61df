"""The Brain: only events change it, and asked twice it decides the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.brain import Brain
from scheduler.core.events import Event, Peaked, Resized, Skipped, Submitted
from scheduler.core.model import HOST, Budget, Decision, KnownBy, Purpose, State
from scheduler.errors import Forbidden
from scheduler.units import GIB, MIB
from tests.builders import (
    asked,
    brain,
    decide,
    event_of,
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
from tests.doors.contracts import contract

BUSY: list[Callable[[], Brain]] = [
    lambda: brain(tasks(5, "8GiB")),
    lambda: brain(tasks(3), tasks(4, priority=1), order="global"),
    lambda: tell(brain(tasks(4, "10GiB", retries=1)), placed(2), run(1, "failed"), run(3, "oom", peak="11GiB")),
    lambda: tell(brain(tasks(60, "1MiB", cpus=0.01) + tasks(1, "20GiB")), *(placed(n, "1MiB") for n in range(3, 50))),
    lambda: brain(tasks(2, "99GiB") + tasks(2, "1GiB", exclusive=True), jobs=3),
]
"""Brains in the middle of something."""


class TestDeciding:
    @pytest.mark.parametrize("make", BUSY)
    def test_it_changes_nothing(self, make: Callable[[], Brain]) -> None:
        b = make()
        before, first = picture(b), decide(b)
        assert decide(b) == first
        assert picture(b) == before

    @pytest.mark.parametrize("make", BUSY)
    def test_what_it_decides_can_be_applied(self, make: Callable[[], Brain]) -> None:
        b = make()
        decision = decide(b)
        tell(b, *(event_of(placement) for placement in decision.placements))
        tell(b, *(refused(refusal.task) for refusal in decision.impossible))
        assert {placement.task for placement in decision.placements} <= {task.id for task in b.living()}

    def test_nothing_of_nobody(self) -> None:
        assert decide(brain()) == Decision()

    def test_nothing_without_devices(self) -> None:
        assert brain(tasks(1)).decide(machine(gpu(0, free="0M"))).placements == ()

    def test_an_attempt_has_the_next_number(self) -> None:
        b = tell(brain(tasks(1, retries=2)), run(1, "failed"), run(1, "lost", attempt=2))
        assert [placement.attempt for placement in decide(b).placements] == [3]

    def test_only_so_many_are_named(self) -> None:
        b = brain([one for n in range(100) for one in tasks(1, f"{n + 9000}MiB")])
        assert 0 < len(decide(b, host(free="8GiB")).refusals) <= 16

    @contract("S3-D8")
    def test_what_never_fits_is_told_beside_what_does(self) -> None:
        decision = decide(brain(tasks(1, "25GiB") + tasks(1, "1GiB")))
        assert [refusal.task for refusal in decision.impossible] == [1]
        assert [placement.task for placement in decision.placements] == [2]

    def test_what_was_refused_is_never_told_again(self) -> None:
        b = tell(brain(tasks(1, "25GiB")), refused(1))
        assert (decide(b), states(b), b.over) == (Decision(), {1: "refused"}, True)


class TestReplay:
    """A Brain that is told the same events again is the same Brain."""

    def test_of_a_whole_life(self) -> None:
        def life() -> Brain:
            b = brain(tasks(3, "4GiB", retries=1), tasks(3, priority=2))
            tell(b, placed(1, "4GiB"), placed(2, "4GiB"), started(1), started(2), peaked(1, "3GiB"), resized(1, "3GiB"))
            tell(b, exited(1, "failed"), exited(2, "oom", peak="5GiB"), asked("drain"), asked("resume"))
            return tell(b, run(1, attempt=2), run(3, "lost"), placed(4, "1GiB"))

        assert picture(life()) == picture(life())
        assert decide(life()) == decide(life())

    @given(st.data())
    def test_of_any_life(self, data: st.DataObject) -> None:
        lived: list[Event] = []
        b = a_life(data, lived)
        again = Brain(b.rules, b.terms)
        for event in lived:
            again.apply(event)
        assert picture(again) == picture(b)
        for budget in (host(), host(free="3GiB"), host(cores=1), gpu(0)):
            assert decide(again, budget) == decide(b, budget)


def a_life(data: st.DataObject, lived: list[Event]) -> Brain:
    """Whatever decisions and chance make of some tasks; every event is noted."""
    b = brain(order=data.draw(st.sampled_from(["batch", "global"])), overtakes=2)

    def live(event: Event) -> None:
        b.apply(event)
        lived.append(event)

    for _ in range(data.draw(st.integers(1, 15))):
        if data.draw(st.booleans()) or not b.tasks:
            memories = data.draw(st.lists(st.sampled_from([None, "1GiB", "9GiB", "25GiB"]), min_size=1, max_size=4))
            terms = [one for memory in memories for one in tasks(1, memory, retries=1, priority=len(memories))]
            numbers = [len(b.terms) + offset for offset in range(len(terms))]
            b.terms.extend(terms)
            live(Submitted(b.roll.batches + 1, len(b.roll) + 1, numbers))
        decision = decide(b, host(free=data.draw(st.sampled_from(["24GiB", "6GiB"]))))
        for event in [*map(event_of, decision.placements), *(refused(r.task) for r in decision.impossible)]:
            live(event)
        for task in list(b.living()):
            outcome = data.draw(st.sampled_from(["", "succeeded", "failed", "oom", "lost", "interrupted"]))
            if outcome:
                live(exited(task.id, outcome, task.attempts, peak="2GiB"))
    return b


class TestBatches:
    def test_one_after_another(self) -> None:
        b = submit(brain(tasks(2)), tasks(3))
        assert (len(b.roll), b.roll.batches, b.waiting) == (5, 2, 5)
        assert ordered(b) == [1, 2, 3, 4, 5]

    def test_ids_need_not_follow(self) -> None:
        b = submit(brain(tasks(2)), tasks(2), first=50)
        assert ordered(b) == [1, 2, 50, 51]
        assert states(tell(b, run(50)))[50] == "succeeded"

    def test_no_barrier_between_them(self) -> None:
        b = brain(tasks(1, "20GiB"), tasks(1, "20GiB"), tasks(1, "1GiB"))
        assert starts(b) == [1, 3]


class TestOver:
    def test_from_the_start_where_there_is_nothing(self) -> None:
        assert brain().over

    def test_once_the_last_one_ended(self) -> None:
        b = tell(brain(tasks(2)), run(1), placed(2))
        assert not b.over
        assert tell(b, exited(2)).over

    def test_finished_tasks_leave_no_details(self) -> None:
        b = tell(brain(tasks(3)), run(1), run(2, "failed"), run(3, "timeout"))
        assert (b.tasks, b.placements(), b.task(1)) == ({}, [], None)


class TestDraining:
    def test_nothing_more_is_started(self) -> None:
        b = tell(brain(tasks(3, "1GiB")), placed(1), asked("drain"))
        assert (decide(b), b.draining, b.over) == (Decision(), True, False)

    def test_over_once_the_running_ones_ended(self) -> None:
        b = tell(brain(tasks(3)), placed(1), asked("drain"), exited(1))
        assert b.over
        assert states(b) == {1: "succeeded", 2: "waiting", 3: "waiting"}

    def test_what_comes_back_meanwhile_stays(self) -> None:
        b = tell(brain(tasks(1)), placed(1), asked("drain"), exited(1, "lost"))
        assert (b.over, states(b)) == (True, {1: "waiting"})

    def test_a_resume_ends_it(self) -> None:
        b = tell(brain(tasks(2, "1GiB")), asked("drain"), asked("resume"))
        assert starts(b) == [1, 2]


class TestStopping:
    def test_who_was_asked_is_known(self) -> None:
        b = tell(brain(tasks(3)), placed(1), placed(2), asked("stop", 1))
        assert {task.id: task.asked for task in b.living()} == {1: "stop", 2: ""}

    def test_stopped_ones_are_interrupted(self) -> None:
        b = tell(brain(tasks(2)), placed(1), asked("drain"), asked("stop", 1), exited(1, "interrupted"))
        assert (states(b), b.over) == ({1: "interrupted", 2: "waiting"}, True)

    def test_an_interrupted_one_waits_for_a_resume(self) -> None:
        b = tell(brain(tasks(2, "1GiB")), placed(1), asked("stop", 1), exited(1, "interrupted"))
        assert starts(b) == [2]
        assert starts(tell(b, asked("resume"))) == [1, 2]

    def test_it_goes_on_counting_its_attempts(self) -> None:
        """A number used again would write into the log of the first, and be taken for it."""
        b = tell(brain(tasks(1)), run(1, "interrupted"), asked("resume"))
        assert [placement.attempt for placement in decide(b).placements] == [2]
        tell(b, run(1, "interrupted", attempt=2), asked("resume"))
        assert [placement.attempt for placement in decide(b).placements] == [3]

    def test_it_does_not_forget_what_it_learned(self) -> None:
        b = tell(brain(tasks(1, "2GiB", retries=1)), run(1, "oom", "2GiB", peak="8GiB"))
        (before,) = decide(b).placements
        tell(b, run(1, "interrupted", attempt=2), asked("resume"))
        (after,) = decide(b).placements
        assert after.promise == before.promise
        assert before.promise[HOST] > 8 * GIB

    def test_only_those_who_were_named_come_back(self) -> None:
        b = tell(brain(tasks(2)), run(1, "interrupted"), run(2, "interrupted"), asked("resume", 2))
        assert states(b) == {1: "interrupted", 2: "waiting"}

    def test_who_does_not_wait_cannot_come_back(self) -> None:
        with pytest.raises(Forbidden, match="task 1 cannot be resumed: it is running, not interrupted"):
            tell(brain(tasks(1)), placed(1), asked("resume", 1))


class TestOutOfMemory:
    def test_the_promise_grows_with_every_one(self) -> None:
        b = brain(tasks(1, "1GiB"))
        promises = []
        for attempt in range(1, 5):
            (placement,) = decide(b).placements
            promises.append(placement.promise[HOST])
            tell(b, event_of(placement), exited(1, "oom", attempt, peak=placement.promise[HOST]))
        assert promises[0] == GIB
        assert all(more >= 1.25 * less for less, more in pairwise(promises))
        assert states(b) == {1: "oom"}

    def test_an_unknown_one_stays_unknown_to_its_equals(self) -> None:
        b = tell(brain(tasks(2)), run(1, "oom", "11GiB", peak="11GiB"))
        promised = {placement.task: placement.promise[HOST] for placement in decide(b).placements}
        assert promised[1] == size("16.5GiB")
        assert promised[2] == (size("23.5GiB") - promised[1]) // 2

    def test_what_it_peaked_at_counts_whoever_saw_it(self) -> None:
        b = tell(brain(tasks(1, "1GiB")), placed(1), peaked(1, "6GiB"), exited(1, "oom", peak="2GiB"))
        assert decide(b).placements[0].promise == {HOST: 9 * GIB}

    def test_it_does_not_use_up_retries(self) -> None:
        b = tell(brain(tasks(1, retries=1)), run(1, "oom"), run(1, "failed", attempt=2))
        assert states(b) == {1: "waiting"}


class TestRetries:
    def test_as_many_as_the_row_says(self) -> None:
        b = brain(tasks(1, retries=2))
        for attempt in (1, 2, 3):
            assert starts(b) == [1]
            tell(b, run(1, "failed", attempt=attempt))
        assert (starts(b), states(b)) == ([], {1: "failed"})

    def test_none_without_a_word(self) -> None:
        assert states(tell(brain(tasks(1)), run(1, "failed"))) == {1: "failed"}

    def test_the_third_lost_in_a_row_is_told_with_its_reason(self) -> None:
        b = brain(tasks(1))
        stories: list[list[str]] = []
        for attempt in (1, 2, 3):
            tell(b, placed(1, attempt=attempt))
            stories.append(b.tasks[1].story)
            tell(b, exited(1, "lost", attempt, reason="its shim was killed"))
        assert stories[-1][-1] == "running -> failed: attempt 3 lost its shim was killed"
        assert states(b) == {1: "failed"}


class TestWatching:
    def living(self, promise: str = "4GiB", known_by: KnownBy = KnownBy.DECLARED) -> Brain:
        return tell(brain(tasks(1)), placed(1, promise, known_by=known_by), started(1))

    def test_a_new_peak_is_worth_an_event(self) -> None:
        assert self.living().watch(1, 1, {HOST: GIB}) == [Peaked(1, 1, {HOST: GIB})]

    def test_a_little_more_is_not(self) -> None:
        b = tell(self.living(), peaked(1, "1GiB"))
        assert b.watch(1, 1, {HOST: GIB + 60 * MIB}) == []

    def test_more_than_was_promised_grows_the_promise(self) -> None:
        grown, *_ = [e for e in self.living("1GiB").watch(1, 1, {HOST: 2 * GIB}) if isinstance(e, Resized)]
        assert (grown.cause, grown.promise) == ("grew", {HOST: int(2 * GIB * 1.1) + 256 * MIB})

    def test_watching_changes_nothing_by_itself(self) -> None:
        b = self.living("1GiB")
        before = picture(b)
        b.watch(1, 1, {HOST: 9 * GIB}, now=99.0)
        assert picture(b) == before

    def test_who_does_not_live_is_not_watched(self) -> None:
        b = tell(self.living(), exited(1))
        assert b.watch(1, 1, {HOST: GIB}) == []
        assert b.watch(7, 1, {HOST: GIB}) == []

    def test_an_older_attempt_is_not_watched(self) -> None:
        b = tell(brain(tasks(1, retries=1)), run(1, "failed"), placed(1, attempt=2))
        assert b.watch(1, 1, {HOST: GIB}) == []

    def test_a_new_attempt_starts_from_nothing(self) -> None:
        b = tell(brain(tasks(1, retries=1)), placed(1), peaked(1, "2GiB"), exited(1, "failed"), placed(1, attempt=2))
        assert b.watch(1, 2, {HOST: GIB}) == [Peaked(1, 2, {HOST: GIB})]

    def test_a_promise_that_grew_is_room_that_is_gone(self) -> None:
        b = tell(brain(tasks(2, "10GiB")), placed(1, "10GiB"))
        assert starts(b) == [2]
        assert reasons(tell(b, resized(1, "16GiB"))) == {2: "memory"}

    def test_a_promise_that_shrank_is_room_again(self) -> None:
        b = tell(brain(tasks(2, "10GiB")), placed(1, "16GiB"))
        assert starts(b) == []
        assert starts(tell(b, resized(1, "8GiB", "settled"))) == [2]


class TestSettling:
    """An unknown task is promised much, until it has held still for long enough."""

    def unknown(self, purpose: Purpose = Purpose.RUN) -> Brain:
        b = brain(tasks(1), settle=5.0)
        b.apply(placed(1, "12GiB", known_by=KnownBy.LIVE, purpose=purpose), 100.0)
        b.apply(started(1), 101.0)
        return b

    def seen(self, b: Brain, at: float, memory: str) -> list[Resized]:
        events = b.watch(1, 1, {HOST: size(memory)}, at)
        for event in events:
            b.apply(event, at)
        return [event for event in events if isinstance(event, Resized)]

    def test_then_it_is_cut_to_what_it_was_seen_to_need(self) -> None:
        b = self.unknown()
        assert self.seen(b, 102.0, "2GiB") == []
        assert self.seen(b, 106.9, "2GiB") == []
        (cut,) = self.seen(b, 107.0, "2GiB")
        assert (cut.cause, cut.promise) == ("settled", {HOST: int(2 * GIB * 1.1) + 256 * MIB})

    def test_every_new_peak_starts_the_wait_again(self) -> None:
        b = self.unknown()
        self.seen(b, 102.0, "2GiB")
        self.seen(b, 106.0, "3GiB")
        assert self.seen(b, 107.5, "3GiB") == []
        assert self.seen(b, 111.0, "3GiB")

    def test_once_is_enough(self) -> None:
        b = self.unknown()
        self.seen(b, 102.0, "2GiB")
        assert self.seen(b, 110.0, "2GiB")
        assert self.seen(b, 120.0, "2GiB") == []

    def test_it_grows_at_once_if_it_rises_after_all(self) -> None:
        b = self.unknown()
        self.seen(b, 102.0, "2GiB")
        self.seen(b, 110.0, "2GiB")
        (grown,) = self.seen(b, 120.0, "6GiB")
        assert grown.cause == "grew"

    def test_not_while_it_holds_nothing(self) -> None:
        b = self.unknown()
        assert self.seen(b, 200.0, "0M") == []

    def test_a_declared_promise_stays_as_it_was_said(self) -> None:
        b = brain(tasks(1, "12GiB"))
        b.apply(placed(1, "12GiB"), 100.0)
        b.apply(started(1), 101.0)
        self.seen(b, 102.0, "2GiB")
        assert self.seen(b, 300.0, "2GiB") == []


def test_the_story_of_a_task_is_told_in_order() -> None:
    b = tell(
        brain(tasks(1, retries=3)), run(1, "failed"), placed(1, attempt=2), started(1, 2), resized(1, "2GiB", attempt=2)
    )
    assert b.tasks[1].story == [
        "waiting -> running: attempt 1 placed on host",
        "started pid 1001",
        "running -> waiting: attempt 1 failed",
        "waiting -> running: attempt 2 placed on host",
        "started pid 1001",
        "promise grew",
    ]


@pytest.mark.parametrize("budgets", [(host(),), (gpu(0), gpu(1)), (host(), gpu(0))])
def test_any_devices_will_do(budgets: Sequence[Budget]) -> None:
    gpus = sum(budget.device.is_gpu for budget in budgets)
    b = brain(tasks(2 * gpus, "10GiB", cpus=0.1) + tasks(2 if gpus < len(budgets) else 0, "10GiB", gpus=0, cpus=0.1))
    assert len(place(b, *budgets)) == 2 * len(budgets)
    assert b.roll.counts[State.RUNNING] == 2 * len(budgets)


def test_the_last_try_after_out_of_memories_is_alone() -> None:
    b = brain(tasks(1, "4GiB"))
    alone = []
    for attempt in range(1, 5):
        (placement,) = decide(b).placements
        alone.append(placement.alone)
        tell(b, event_of(placement), started(1, attempt), exited(1, "oom", attempt))
    assert alone == [False, False, False, True]
    assert states(b) == {1: "oom"}


class TestSkipped:
    def test_rows_that_another_run_did_are_over_before_anything_starts(self) -> None:
        b = tell(brain(tasks(4, "1GiB")), Skipped(7, (1, 3)))
        assert states(b) == {1: "skipped", 2: "waiting", 3: "skipped", 4: "waiting"}
        assert starts(b) == [2, 4]

    def test_where_all_of_them_were_the_run_is_over(self) -> None:
        assert tell(brain(tasks(2)), Skipped(7, (1, 2))).over

    def test_only_what_waits_can_be(self) -> None:
        with pytest.raises(Forbidden, match="succeeded in run 7"):
            tell(brain(tasks(1)), placed(1), Skipped(7, (1,)))
