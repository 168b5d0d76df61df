"""The wait queue: its order, and how often a waiting task was bypassed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.brain import Brain
from scheduler.core.events import Skipped
from scheduler.core.model import HOST, DeviceBudget, State, Terms, UnmanagedUse
from scheduler.core.profiling.class_profile import Peaks, Profile
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.queue.wait_queue import out_of_turn
from scheduler.units import GIB
from tests.e2e.older_tools.contracts import contract
from tests.support.builders import (
    asked,
    brain,
    exited,
    gpu,
    hold,
    host,
    machine,
    ordered,
    place,
    placed,
    reasons,
    refused,
    run,
    starts,
    submit,
    tasks,
    tell,
)


def slow() -> ProfileIndex:
    """Return the class of a task that takes long."""
    return ProfileIndex({"slow": Profile(epoch_seconds=9, parts={HOST: Peaks([1])})})


class TestRank:
    def test_equal_tasks_rank_in_order_of_arrival(self) -> None:
        assert ordered(brain(tasks(4))) == [1, 2, 3, 4]

    def test_a_smaller_priority_ranks_first(self) -> None:
        b = brain(tasks(1, priority=3) + tasks(1, priority=1) + tasks(1, priority=2))
        assert ordered(b) == [2, 3, 1]

    def test_a_batch_ranks_before_any_priority(self) -> None:
        b = brain(tasks(2, priority=3), tasks(2, priority=1))
        assert ordered(b) == [1, 2, 3, 4]

    def test_a_priority_ranks_before_any_batch_in_global_order(self) -> None:
        b = brain(tasks(2, priority=3), tasks(2, priority=1), tasks(1, priority=3), order="global")
        assert ordered(b) == [3, 4, 1, 2, 5]

    def test_requests_do_not_affect_the_rank(self) -> None:
        b = brain(tasks(1, "8GiB") + tasks(1, "1GiB") + tasks(1, "8GiB") + tasks(1))
        assert ordered(b) == [1, 2, 3, 4]

    def test_the_longest_known_task_ranks_first(self) -> None:
        b = brain(
            tasks(4, epochs=10), knowledge=ProfileIndex({"slow": Profile(epoch_seconds=9, parts={HOST: Peaks([1])})})
        )
        b.assign(3, TaskClass("slow", "slow.py", probes=True))
        assert ordered(b) == [3, 1, 2, 4]

    def test_a_priority_ranks_before_any_duration(self) -> None:
        b = brain(
            tasks(1) + tasks(1, priority=5, epochs=10), knowledge=ProfileIndex({"slow": Profile(epoch_seconds=9)})
        )
        b.assign(2, TaskClass("slow", "slow.py", probes=True))
        assert ordered(b) == [1, 2]

    def test_ids_may_begin_at_zero(self) -> None:
        b = brain(tasks(2) + tasks(1, priority=1), first=0)
        assert ordered(tell(b, run(0, "oom"))) == [0, 1, 2]


class TestReturningTasks:
    def test_a_task_that_came_back_has_its_rank_again(self) -> None:
        b = tell(brain(tasks(4)), placed(1), placed(2), exited(1, "lost"))
        assert ordered(b) == [1, 3, 4]

    def test_tasks_that_came_back_are_ranked_among_each_other(self) -> None:
        b = tell(brain(tasks(5)), *(placed(task) for task in (1, 2, 3, 4)), *(exited(t, "lost") for t in (3, 1, 4)))
        assert ordered(b) == [1, 3, 4, 5]

    def test_a_task_after_an_out_of_memory_is_a_group_of_its_own(self) -> None:
        """Tasks that were equal before do not wait for the memory that only this task needs."""
        b = tell(brain(tasks(3, "10GiB")), run(1, "oom", "10GiB", peak="16GiB"))
        assert ordered(b) == [1, 2, 3]
        assert starts(b, host(free="12GiB"), leases=[hold("12GiB", "12GiB")]) == [2]

    def test_task_zero_after_an_out_of_memory_is_a_group_of_its_own(self) -> None:
        b = tell(brain(tasks(3, "10GiB"), first=0), run(0, "oom", "10GiB", peak="16GiB"))
        assert starts(b, host(free="12GiB"), leases=[hold("12GiB", "12GiB")]) == [1]

    def test_interrupted_tasks_come_back_after_a_resume(self) -> None:
        b = tell(brain(tasks(3)), placed(1), placed(2), exited(1, "interrupted"), exited(2), asked("resume"))
        assert ordered(b) == [1, 3]


class TestBypassing:
    def test_no_task_has_been_bypassed_at_first(self) -> None:
        assert bypassed(brain(tasks(3))) == {1: 0, 2: 0, 3: 0}

    def test_a_start_of_a_later_ranked_task_counts_as_a_bypass(self) -> None:
        b = tell(brain(tasks(5)), placed(4), placed(2))
        assert bypassed(b) == {1: 2, 3: 1, 5: 0}

    def test_a_start_of_an_earlier_ranked_task_is_no_bypass(self) -> None:
        assert bypassed(tell(brain(tasks(3)), placed(1), placed(2))) == {3: 0}

    def test_a_task_that_leaves_the_queue_without_a_start_is_no_bypass(self) -> None:
        assert bypassed(tell(brain(tasks(3)), refused(2))) == {1: 0, 3: 0}

    def test_starts_while_a_task_did_not_wait_are_no_bypass(self) -> None:
        b = tell(brain(tasks(4)), placed(1), placed(3), placed(4), exited(1, "lost"))
        assert bypassed(b) == {1: 0, 2: 2}

    def test_starts_after_a_task_came_back_count(self) -> None:
        b = tell(brain(tasks(4)), placed(3), placed(1), exited(1, "lost"), placed(4))
        assert bypassed(b) == {1: 1, 2: 2}

    @pytest.mark.parametrize("order", ["batch", "global"])
    def test_starts_before_a_task_was_submitted_are_no_bypass(self, order: str) -> None:
        b = tell(brain(tasks(4, priority=5), order=order), placed(2), placed(3))
        submit(b, tasks(2, priority=1))
        assert bypassed(b) == {1: 2, 4: 0, 5: 0, 6: 0}

    def test_starts_of_tasks_that_ranked_before_it_then_are_no_bypass(self) -> None:
        b = brain(
            tasks(4, epochs=10), knowledge=ProfileIndex({"slow": Profile(epoch_seconds=9, parts={HOST: Peaks([1])})})
        )
        tell(b, placed(2), placed(3))
        b.assign(4, TaskClass("slow", "slow.py", probes=True))
        assert bypassed(b) == {4: 0, 1: 2}

    def test_the_count_is_forgotten_after_a_start(self) -> None:
        b = tell(brain(tasks(3)), placed(2), placed(1), exited(1, "lost"))
        assert bypassed(b) == {1: 0, 3: 0}


class TestBypassLimit:
    """A task that was bypassed 50 times closes the devices that it could use to all tasks behind it."""

    @contract("S3-D14")
    def test_at_most_fifty_bypasses_in_one_pass(self) -> None:
        b = big_and_small(80)
        assert len(place(b, ROOM, leases=OTHER_RUN)) == 50
        assert bypassed(b)[1] == 50

    def test_at_most_fifty_bypasses_in_many_passes(self) -> None:
        b = big_and_small(80)
        while started := place(b, SMALL_ROOM, leases=MORE):
            tell(b, *(exited(task) for task in started))
        assert bypassed(b)[1] == 50
        assert bypassed(b)[52] == 0

    def test_at_most_fifty_bypasses_where_priority_ranks_before_submissions(self) -> None:
        """Less urgent tasks of later submissions bypass an urgent one so often; more urgent ones start all the same."""
        b = brain(tasks(1, "20GiB", priority=1), order="global")
        for _ in range(8):
            submit(b, small(10, priority=5))
        assert len(place(b, ROOM, leases=OTHER_RUN)) == 50
        submit(b, small(2))
        assert (place(b, ROOM, leases=OTHER_RUN), bypassed(b)[1]) == ([82, 83], 50)

    def test_tasks_behind_are_refused_as_kept_waiting(self) -> None:
        b = big_and_small(60)
        place(b, ROOM, leases=OTHER_RUN)
        refusals = b.decide(machine(ROOM, leases=OTHER_RUN)).refusals
        assert [(refusal.task, refusal.reason) for refusal in refusals] == [(1, "memory"), (52, "kept")]

    def test_tasks_ranked_before_it_are_not_kept_waiting(self) -> None:
        b = tell(brain(tasks(1, "16MiB", cpus=0.01, priority=-1) + tasks(1, "20GiB") + small(60)), placed(1))
        assert len(place(b, ROOM, leases=OTHER_RUN)) == 50
        assert starts(b, ROOM, leases=OTHER_RUN) == []
        assert starts(tell(b, exited(1, "lost")), ROOM, leases=OTHER_RUN) == [1]

    def test_a_bypassed_task_starts_as_soon_as_it_fits(self) -> None:
        b = big_and_small(80)
        gone = place(b, ROOM, leases=OTHER_RUN)
        tell(b, *(exited(task) for task in gone))
        assert starts(b, host())[:2] == [1, 52]

    def test_devices_that_a_bypassed_task_cannot_use_stay_open(self) -> None:
        b = brain(tasks(1, "20GiB", device="GPU-0") + small(60), max_gpu_load=99)
        place(b, gpu(0, free="8GiB"), gpu(1, free="7GiB"), leases=ON_GPU)
        decision = b.decide(machine(gpu(0, free="7GiB"), gpu(1, free="7GiB"), leases=ON_GPU))
        assert bypassed(b)[1] == 60
        assert decision.placements == ()
        submit(b, tasks(1, "1GiB", cpus=0.01))
        later = b.decide(machine(gpu(0, free="8GiB"), gpu(1, free="7GiB"), leases=ON_GPU))
        assert [p.devices for p in later.placements] == [("GPU-1",)]

    def test_another_bypass_limit_applies(self) -> None:
        b = brain(tasks(1, "20GiB") + small(80), bypass_limit=3)
        assert len(place(b, ROOM, leases=OTHER_RUN)) == 3

    def test_a_bypass_limit_of_zero_is_strict_order(self) -> None:
        b = brain(tasks(1, "20GiB") + small(80), bypass_limit=0)
        assert place(b, ROOM, leases=OTHER_RUN) == []

    def test_a_task_that_no_device_can_hold_keeps_no_other_waiting(self) -> None:
        b = brain(tasks(1, "25GiB") + small(80), bypass_limit=0)
        assert len(place(b, ROOM, leases=OTHER_RUN)) == 80


class TestUnmanagedMemory:
    """A device is kept only for a task that would fit there if every lease ended."""

    @pytest.mark.parametrize(
        "budgets",
        [[host(free="22.5GiB", cores=99)], [gpu(0, free="22.5GiB")], [host(free="22.5GiB", cores=99, cap="23.5GiB")]],
    )
    def test_a_task_that_unmanaged_memory_keeps_from_starting_keeps_no_device(
        self, budgets: list[DeviceBudget]
    ) -> None:
        b = brain(tasks(1, "22.9GiB") + small(60), max_gpu_load=99, bypass_limit=3)
        assert len(place(b, *budgets)) == 60
        submit(b, small(1))
        assert reasons(b, *budgets) == {1: "unmanaged"}
        assert starts(b, *budgets) == [62]

    def test_the_device_is_kept_again_after_unmanaged_memory_has_left(self) -> None:
        b = brain(tasks(1, "23GiB") + small(60), max_gpu_load=99, bypass_limit=3)
        assert len(place(b, gpu(0, free="22.5GiB"))) == 60
        submit(b, small(1))
        assert starts(b, gpu(0)) == []
        assert reasons(b, gpu(0)) == {1: "memory", 62: "kept"}

    def test_only_the_gpu_that_a_task_could_have_is_kept(self) -> None:
        b = brain(tasks(1, "20GiB") + small(80), max_gpu_load=99, bypass_limit=3)
        here = gpu(0, free="7GiB"), gpu(1, free="7GiB")
        place(b, *here, leases=ON_GPU)
        submit(b, small(5))
        assert {p.devices for p in b.decide(machine(*here, leases=ON_GPU)).placements} == {("GPU-1",)}

    def test_a_task_on_two_gpus_keeps_none_where_unmanaged_memory_fills_one(self) -> None:
        b = brain(tasks(1, "20GiB", gpus=2) + small(60), max_gpu_load=99, bypass_limit=3)
        here = gpu(0, free="8GiB"), gpu(1, free="7GiB")
        assert len(place(b, *here, leases=ON_GPU)) == 60
        assert reasons(b, *here, leases=ON_GPU) == {1: "unmanaged"}

    def test_a_task_on_a_gpu_keeps_none_where_unmanaged_memory_fills_the_ram(self) -> None:
        others = tasks(60, "16MiB", host_memory="16MiB", cpus=0.01)
        b = brain(tasks(1, "20GiB", host_memory="20GiB") + others, max_gpu_load=99, bypass_limit=3)
        assert len(place(b, gpu(0), host(free="16GiB", cores=100))) == 60

    def test_the_reservation_of_an_unseen_attempt_counts_as_released(self) -> None:
        """An attempt that has just started has memory that is neither free nor measured as used."""
        b = tell(brain(tasks(1, "16GiB") + tasks(1, "22GiB") + small(60), bypass_limit=0), placed(1, "10GiB"))
        assert reasons(b, host(free="14GiB", cores=100)) == {2: "memory", 3: "kept"}

    @pytest.mark.parametrize(("held", "reason"), [(4, "unmanaged"), (0, "memory")])
    def test_unmanaged_memory_does_not_count_as_released_while_a_reservation_is_not_measured(
        self, held: int, reason: str
    ) -> None:
        """The task that has just started has not used its 8 GiB yet: they are free and reserved at the same time."""
        b = tell(brain(tasks(1, "8GiB") + tasks(1, "22GiB"), bypass_limit=0), placed(1, "8GiB"))
        unmanaged = (UnmanagedUse(held * GIB, "ben", 77, 1000.0),) if held else ()
        assert reasons(b, replace(host(free="20GiB", cores=100), unmanaged=unmanaged)) == {2: reason}

    def test_the_next_task_publishes_its_ticket_in_place_of_one_that_waits_for_unmanaged_memory(self) -> None:
        b = brain(tasks(1, "23GiB") + tasks(2, "20GiB"))
        wait = b.decide(machine(gpu(0, free="22.5GiB"))).wait
        assert wait is not None
        assert wait.task == 3
        alone = brain(tasks(1, "23GiB")).decide(machine(gpu(0, free="22.5GiB"))).wait
        assert alone is not None
        assert alone.task == 1

    def test_the_owner_of_unmanaged_memory_is_named(self) -> None:
        notebook = UnmanagedUse(3 * GIB // 2, "ben", 4711)
        seen = replace(gpu(0, free="22.5GiB"), unmanaged=(notebook,))
        (refusal,) = brain(tasks(1, "23GiB")).decide(machine(seen)).refusals
        assert (refusal.reason, refusal.text) == ("unmanaged", "1.5GiB of process 4711 of ben")


ROOM = host("24GiB", free="8GiB", cores=100)
SMALL_ROOM = host("24GiB", free="600MiB", cores=100)
OTHER_RUN, MORE, ON_GPU = (
    [hold(held, held, cores=0, key=key)] for held, key in (("16GiB", HOST), ("23GiB", HOST), ("16GiB", "GPU-0"))
)
"""Leases of another run for the memory that is not free."""


def small(many: int, priority: int = 0) -> list[Terms]:
    return tasks(many, "16MiB", cpus=0.01, priority=priority)


def big_and_small(many: int) -> Brain:
    return brain(tasks(1, "20GiB") + small(many))


def bypassed(b: Brain) -> dict[int, int]:
    return {task: b.wait_queue.bypassed(task) for task in ordered(b)}


def test_a_follower_behind_the_last_head_that_was_bypassed_too_often_is_not_passed_over() -> None:
    large, small = tasks(1, "8GiB"), tasks(1, "1GiB")
    walk = brain(large + small + large).wait_queue.walk()
    assert walk.front() == 1
    walk.keep(8.0, 0.0)
    walk.take()
    assert walk.front(bytes_=1.0, except_above=100.0, forced=2) == 2
    walk.skip()
    assert walk.front(bytes_=1.0, except_above=100.0, forced=2) == 3


# ---- against a model that counts by hand ----


class Model:
    """The queue as a plain list that is sorted anew and counted one by one."""

    def __init__(self, order: str) -> None:
        self.brain = brain(order=order, max_ooms=9)
        self.order = order
        self.waiting: dict[int, tuple[int, ...]] = {}
        self.ranks: dict[int, tuple[int, ...]] = {}
        self.running: set[int] = set()
        self.passed: Counter[int] = Counter()

    def submit(self, priorities: list[int]) -> None:
        batch, first = self.brain.task_table.batches + 1, len(self.ranks) + 1
        submit(self.brain, [one for p in priorities for one in tasks(1, priority=p)])
        for task, priority in enumerate(priorities, first):
            self.ranks[task] = (batch, priority, task) if self.order == "batch" else (priority, batch, task)
            self.waiting[task] = self.ranks[task]

    def start(self, task: int) -> None:
        attempts = self.brain.tasks[task].attempts if task in self.brain.tasks else 0
        tell(self.brain, placed(task, attempt=attempts + 1))
        rank = self.waiting.pop(task)
        self.running.add(task)
        self.passed.pop(task, None)
        self.passed.update(other for other, its in self.waiting.items() if its < rank)

    def end(self, task: int, outcome: str) -> None:
        tell(self.brain, exited(task, outcome, self.brain.tasks[task].attempts))
        self.running.remove(task)
        if self.brain.state(task) is State.WAITING:
            self.waiting[task] = self.ranks[task]

    def keep(self, task: int, load: float) -> None:
        """Cache the least request of a task if it is the head of its group, as a decision does."""
        walk = self.brain.wait_queue.walk()
        while (front := walk.front()) is not None and front != task:
            walk.skip()
        if front == task:
            walk.keep(1.0, load)

    def agrees(self) -> None:
        line = ordered(self.brain)
        assert line == sorted(self.waiting, key=self.waiting.__getitem__)
        queue = self.brain.wait_queue
        assert {task: queue.bypassed(task) for task in line} == {t: self.passed[t] for t in line}
        assert queue.requests.lightest == min(queue.requests._loads, default=0.0)


def moves(model: Model, data: st.DataObject) -> Iterator[str]:
    """Yield possible moves one after another."""
    for _ in range(data.draw(st.integers(1, 25))):
        can = [
            "submit",
            "keep",
            "forget",
            *(["start"] * 3 if model.waiting else []),
            *(["end"] * 2 if model.running else []),
        ]
        yield data.draw(st.sampled_from(can))


@pytest.mark.parametrize("order", ["batch", "global"])
@settings(max_examples=25)
@given(data=st.data())
def test_order_and_counts_equal_those_of_a_plain_list(order: str, data: st.DataObject) -> None:
    model = Model(order)
    for move in moves(model, data):
        if move == "submit":
            model.submit(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)))
        elif move == "keep":
            for task in data.draw(st.lists(st.sampled_from(sorted(model.waiting)))) if model.waiting else ():
                model.keep(task, data.draw(st.sampled_from([0.0, 0.25, 0.5])))
        elif move == "forget":
            model.brain.wait_queue.forget(0)
        elif move == "start":
            model.start(data.draw(st.sampled_from(sorted(model.waiting))))
        else:
            outcome = data.draw(st.sampled_from(["succeeded", "lost", "oom", "failed"]))
            model.end(data.draw(st.sampled_from(sorted(model.running))), outcome)
        model.agrees()


def test_ranks_of_started_tasks_are_forgotten_when_no_task_ranks_before_them() -> None:
    """The queue of a long run keeps only ranks that still count."""
    b = brain(tasks(500, "1GiB"))
    for task in range(1, 500):
        other = task + 1 if task % 2 else task - 1
        tell(b, placed(other), exited(other))
    assert len(b.wait_queue._passed) <= 1


def test_a_group_without_tasks_leaves_nothing() -> None:
    b = brain(tasks(5_000, "1GiB"))
    for task in range(1, 5_001):
        tell(b, placed(task), exited(task))
    assert (ordered(b), b.waiting, len(b.tasks)) == ([], 0, 0)
    submit(b, tasks(2, "1GiB"))
    assert ordered(b) == [5_001, 5_002]


class TestOutOfTurn:
    """Better priorities that wait in later batches."""

    def test_better_priorities_behind_a_batch_with_worse_ones_are_counted(self) -> None:
        b = brain(tasks(2, priority=2) + tasks(1, priority=0), tasks(3, priority=1) + tasks(1, priority=2))
        assert out_of_turn(b.task_table, b.terms) == {1: 3}

    def test_better_priorities_inside_a_batch_are_not_counted(self) -> None:
        b = brain(tasks(2, priority=2) + tasks(2, priority=1), tasks(2, priority=2) + tasks(1, priority=3))
        assert out_of_turn(b.task_table, b.terms) == {}

    def test_tasks_that_do_not_wait_are_not_counted(self) -> None:
        b = tell(brain(tasks(1, priority=5), tasks(2, priority=1), tasks(1, priority=0)), Skipped(1, (1,)))
        assert out_of_turn(b.task_table, b.terms) == {0: 1}


class TestMovedRanks:
    """Tasks get another rank when the time of their class is learned; their bypasses still count."""

    @pytest.mark.parametrize("longer", [1, 3])
    def test_bypass_counts_stay_when_a_rank_changes(self, longer: int) -> None:
        b = brain(tasks(4, "20GiB", epochs=1) + tasks(5, "1GiB", epochs=1))
        for number in range(1, 10):
            b.assign(number, TaskClass(f"k{number}", "a.py", probes=False))
        for number in range(5, 8):
            tell(b, placed(number))
        before = bypassed(b)
        assert before[longer] == 3
        b.profiles.profile(b.kind_of(longer)).ranked_seconds = 100.0
        b.wait_queue.refresh(b.kind_of(longer))
        assert ordered(b)[0] == longer
        assert bypassed(b) == before
        tell(b, placed(9))
        assert bypassed(b)[longer] == 4
        b.profiles.profile(b.kind_of(longer)).ranked_seconds = 0.0
        b.wait_queue.refresh(b.kind_of(longer))
        assert bypassed(b)[longer] == 4

    def test_a_task_whose_rank_fell_behind_its_bypassers_is_not_bypassed_too_often(self) -> None:
        """It was bypassed 54 times: the tasks that had bypassed it rank before it now, so that a pass did not look
        at it.
        """
        b = brain([*tasks(2, "20GiB", epochs=1), *tasks(6, "1GiB", epochs=1)], bypass_limit=3, max_gpu_load=99)
        for number in range(1, 9):
            b.assign(number, TaskClass(f"k{number}", "a.py", probes=False))
        ranks(b, {2: 100, 3: 50, 4: 50})
        tell(b, placed(3, device="GPU-0"), placed(4, device="GPU-0"))
        ranks(b, {1: 20, 2: 10})
        held = [hold("15GiB", "15GiB", key="GPU-0")]
        assert starts(b, gpu(0, free="9GiB"), leases=held) == [5]
        assert bypassed(b)[2] == 2
        assert place(b, gpu(0, free="9GiB"), leases=held) == [5]
        assert bypassed(b)[2] == 3


def ranks(b: Brain, seconds: dict[int, float]) -> None:
    """Give each of these tasks a class of its own that takes so many seconds."""
    for task, long in seconds.items():
        b.profiles.profile(b.kind_of(task)).ranked_seconds = long
        b.wait_queue.refresh(b.kind_of(task))


def test_unlooked_tasks_of_several_groups_are_as_many_as_asked_for() -> None:
    b = brain(tasks(2, "1GiB"), tasks(5, "2GiB"))
    assert b.wait_queue.unlooked(3) == [1, 2, 3]


def test_tasks_of_directories_that_could_not_be_entered_stand_in_groups_of_their_own() -> None:
    b = brain(tasks(3, "1GiB"))
    b.locate(1, "/data/a")
    b.locate(2, "/data/b")
    assert b.wait_queue.first_together(9) == [3]
