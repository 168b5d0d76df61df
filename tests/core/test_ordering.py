"""Who comes next, and how often a waiting task was passed by later ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.core.brain import Brain
from scheduler.core.events import Skipped
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Knowledge, Peaks, Profile
from scheduler.core.model import HOST, State, Terms
from scheduler.core.ordering import out_of_turn
from tests.builders import (
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
    refused,
    run,
    starts,
    submit,
    tasks,
    tell,
)
from tests.doors.contracts import contract


def slow() -> Knowledge:
    """Of one kind that takes long."""
    return Knowledge({"slow": Profile(epoch_seconds=9, parts={HOST: Peaks([1])})})


class TestRank:
    def test_as_they_came(self) -> None:
        assert ordered(brain(tasks(4))) == [1, 2, 3, 4]

    def test_a_smaller_priority_first(self) -> None:
        b = brain(tasks(1, priority=3) + tasks(1, priority=1) + tasks(1, priority=2))
        assert ordered(b) == [2, 3, 1]

    def test_a_batch_before_any_priority(self) -> None:
        b = brain(tasks(2, priority=3), tasks(2, priority=1))
        assert ordered(b) == [1, 2, 3, 4]

    def test_a_priority_before_any_batch_where_the_order_is_global(self) -> None:
        b = brain(tasks(2, priority=3), tasks(2, priority=1), tasks(1, priority=3), order="global")
        assert ordered(b) == [3, 4, 1, 2, 5]

    def test_what_they_ask_for_does_not_matter(self) -> None:
        b = brain(tasks(1, "8GiB") + tasks(1, "1GiB") + tasks(1, "8GiB") + tasks(1))
        assert ordered(b) == [1, 2, 3, 4]

    def test_the_longest_first_where_that_is_known(self) -> None:
        b = brain(
            tasks(4, epochs=10), knowledge=Knowledge({"slow": Profile(epoch_seconds=9, parts={HOST: Peaks([1])})})
        )
        b.assign(3, Kind("slow", "slow.py", probes=True))
        assert ordered(b) == [3, 1, 2, 4]

    def test_a_priority_before_any_length(self) -> None:
        b = brain(tasks(1) + tasks(1, priority=5, epochs=10), knowledge=Knowledge({"slow": Profile(epoch_seconds=9)}))
        b.assign(2, Kind("slow", "slow.py", probes=True))
        assert ordered(b) == [1, 2]

    def test_ids_from_nought(self) -> None:
        b = brain(tasks(2) + tasks(1, priority=1), first=0)
        assert ordered(tell(b, run(0, "oom"))) == [0, 1, 2]


class TestComingBack:
    def test_where_its_rank_says(self) -> None:
        b = tell(brain(tasks(4)), placed(1), placed(2), exited(1, "lost"))
        assert ordered(b) == [1, 3, 4]

    def test_among_others_that_came_back(self) -> None:
        b = tell(brain(tasks(5)), *(placed(task) for task in (1, 2, 3, 4)), *(exited(t, "lost") for t in (3, 1, 4)))
        assert ordered(b) == [1, 3, 4, 5]

    def test_one_that_was_out_of_memory_stands_alone(self) -> None:
        """What only it needs keeps none of its equals waiting."""
        b = tell(brain(tasks(3, "10GiB")), run(1, "oom", "10GiB", peak="16GiB"))
        assert ordered(b) == [1, 2, 3]
        assert starts(b, host(free="12GiB"), holds=[hold("12GiB", "12GiB")]) == [2]

    def test_the_first_of_all_ids_does_so_too(self) -> None:
        b = tell(brain(tasks(3, "10GiB"), first=0), run(0, "oom", "10GiB", peak="16GiB"))
        assert starts(b, host(free="12GiB"), holds=[hold("12GiB", "12GiB")]) == [1]

    def test_after_an_interruption(self) -> None:
        b = tell(brain(tasks(3)), placed(1), placed(2), exited(1, "interrupted"), exited(2), asked("resume"))
        assert ordered(b) == [1, 3]


class TestOvertaking:
    def test_nobody_has_been_overtaken_at_first(self) -> None:
        assert overtaken(brain(tasks(3))) == {1: 0, 2: 0, 3: 0}

    def test_by_whoever_is_ranked_behind(self) -> None:
        b = tell(brain(tasks(5)), placed(4), placed(2))
        assert overtaken(b) == {1: 2, 3: 1, 5: 0}

    def test_not_by_whoever_is_ranked_before(self) -> None:
        assert overtaken(tell(brain(tasks(3)), placed(1), placed(2))) == {3: 0}

    def test_not_by_what_leaves_the_line_otherwise(self) -> None:
        assert overtaken(tell(brain(tasks(3)), refused(2))) == {1: 0, 3: 0}

    def test_not_while_it_did_not_wait(self) -> None:
        b = tell(brain(tasks(4)), placed(1), placed(3), placed(4), exited(1, "lost"))
        assert overtaken(b) == {1: 0, 2: 2}

    def test_once_more_after_it_came_back(self) -> None:
        b = tell(brain(tasks(4)), placed(3), placed(1), exited(1, "lost"), placed(4))
        assert overtaken(b) == {1: 1, 2: 2}

    @pytest.mark.parametrize("order", ["batch", "global"])
    def test_not_before_it_was_there(self, order: str) -> None:
        b = tell(brain(tasks(4, priority=5), order=order), placed(2), placed(3))
        submit(b, tasks(2, priority=1))
        assert overtaken(b) == {1: 2, 4: 0, 5: 0, 6: 0}

    def test_not_by_what_was_before_it_until_more_was_known(self) -> None:
        b = brain(
            tasks(4, epochs=10), knowledge=Knowledge({"slow": Profile(epoch_seconds=9, parts={HOST: Peaks([1])})})
        )
        tell(b, placed(2), placed(3))
        b.assign(4, Kind("slow", "slow.py", probes=True))
        assert overtaken(b) == {4: 0, 1: 2}

    def test_forgotten_once_it_started(self) -> None:
        b = tell(brain(tasks(3)), placed(2), placed(1), exited(1, "lost"))
        assert overtaken(b) == {1: 0, 3: 0}


class TestBound:
    """A task that was overtaken 50 times closes the devices it could use for all behind it."""

    @contract("S3-D14")
    def test_fifty_and_no_more_in_one_pass(self) -> None:
        b = big_and_small(80)
        assert len(place(b, ROOM)) == 50
        assert overtaken(b)[1] == 50

    def test_fifty_and_no_more_in_many_passes(self) -> None:
        b = big_and_small(80)
        while started := place(b, SMALL_ROOM):
            tell(b, *(exited(task) for task in started))
        assert overtaken(b)[1] == 50
        assert overtaken(b)[52] == 0

    def test_those_behind_are_told(self) -> None:
        b = big_and_small(60)
        place(b, ROOM)
        refusals = b.decide(machine(ROOM)).refusals
        assert [(refusal.task, refusal.reason) for refusal in refusals] == [(1, "memory"), (52, "closed")]

    def test_those_before_it_are_not_kept_waiting(self) -> None:
        b = tell(brain(tasks(1, "16MiB", cpus=0.01, priority=-1) + tasks(1, "20GiB") + small(60)), placed(1))
        assert len(place(b, ROOM)) == 50
        assert starts(b, ROOM) == []
        assert starts(tell(b, exited(1, "lost")), ROOM) == [1]

    def test_it_starts_as_soon_as_there_is_room(self) -> None:
        b = big_and_small(80)
        gone = place(b, ROOM)
        tell(b, *(exited(task) for task in gone))
        assert starts(b, host())[:2] == [1, 52]

    def test_devices_it_cannot_use_stay_open(self) -> None:
        b = brain(tasks(1, "20GiB", device="GPU-0") + small(60), max_gpu_load=99)
        place(b, gpu(0, free="8GiB"), gpu(1, free="7GiB"))
        decision = b.decide(machine(gpu(0, free="7GiB"), gpu(1, free="7GiB")))
        assert overtaken(b)[1] == 60
        assert decision.placements == ()
        submit(b, tasks(1, "1GiB", cpus=0.01))
        assert [p.devices for p in b.decide(machine(gpu(0, free="8GiB"), gpu(1, free="7GiB"))).placements] == [
            ("GPU-1",)
        ]

    def test_another_bound(self) -> None:
        b = brain(tasks(1, "20GiB") + small(80), overtakes=3)
        assert len(place(b, ROOM)) == 3

    def test_none_at_all_is_strict_order(self) -> None:
        b = brain(tasks(1, "20GiB") + small(80), overtakes=0)
        assert place(b, ROOM) == []

    def test_a_task_that_no_device_can_hold_keeps_nobody_waiting(self) -> None:
        b = brain(tasks(1, "25GiB") + small(80), overtakes=0)
        assert len(place(b, ROOM)) == 80


ROOM = host("24GiB", free="8GiB", cores=100)
SMALL_ROOM = host("24GiB", free="600MiB", cores=100)


def small(many: int) -> list[Terms]:
    return tasks(many, "16MiB", cpus=0.01)


def big_and_small(many: int) -> Brain:
    return brain(tasks(1, "20GiB") + small(many))


def overtaken(b: Brain) -> dict[int, int]:
    return {task: b.line.overtaken(task) for task in ordered(b)}


# ---- against a model that counts by hand ----


class Model:
    """The line as a plain list: sorted anew and counted one by one."""

    def __init__(self, order: str) -> None:
        self.brain = brain(order=order, max_ooms=9)
        self.order = order
        self.waiting: dict[int, tuple[int, ...]] = {}
        self.ranks: dict[int, tuple[int, ...]] = {}
        self.running: set[int] = set()
        self.passed: Counter[int] = Counter()

    def submit(self, priorities: list[int]) -> None:
        batch, first = self.brain.roll.batches + 1, len(self.ranks) + 1
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

    def agrees(self) -> None:
        line = ordered(self.brain)
        assert line == sorted(self.waiting, key=self.waiting.__getitem__)
        assert {task: self.brain.line.overtaken(task) for task in line} == {t: self.passed[t] for t in line}


def moves(model: Model, data: st.DataObject) -> Iterator[str]:
    """One possible thing after another."""
    for _ in range(data.draw(st.integers(1, 25))):
        can = ["submit", *(["start"] * 3 if model.waiting else []), *(["end"] * 2 if model.running else [])]
        yield data.draw(st.sampled_from(can))


@pytest.mark.parametrize("order", ["batch", "global"])
@settings(max_examples=25)
@given(data=st.data())
def test_order_and_counts_are_those_of_a_plain_list(order: str, data: st.DataObject) -> None:
    model = Model(order)
    for move in moves(model, data):
        if move == "submit":
            model.submit(data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=6)))
        elif move == "start":
            model.start(data.draw(st.sampled_from(sorted(model.waiting))))
        else:
            outcome = data.draw(st.sampled_from(["succeeded", "lost", "oom", "failed"]))
            model.end(data.draw(st.sampled_from(sorted(model.running))), outcome)
        model.agrees()


def test_passed_ranks_are_forgotten_once_nobody_stands_before_them() -> None:
    """A long run's line holds on to no more than what is still of use."""
    b = brain(tasks(500, "1GiB"))
    for task in range(1, 500):
        other = task + 1 if task % 2 else task - 1
        tell(b, placed(other), exited(other))
    assert len(b.line._passed) <= 1


def test_a_group_that_was_worked_off_leaves_nothing() -> None:
    b = brain(tasks(5_000, "1GiB"))
    for task in range(1, 5_001):
        tell(b, placed(task), exited(task))
    assert (ordered(b), b.waiting, len(b.tasks)) == ([], 0, 0)
    submit(b, tasks(2, "1GiB"))
    assert ordered(b) == [5_001, 5_002]


class TestOutOfTurn:
    """Better priorities that wait in later batches."""

    def test_those_behind_a_batch_with_worse_ones(self) -> None:
        b = brain(tasks(2, priority=2) + tasks(1, priority=0), tasks(3, priority=1) + tasks(1, priority=2))
        assert out_of_turn(b.roll, b.terms) == {1: 3}

    def test_inside_a_batch_there_are_none(self) -> None:
        b = brain(tasks(2, priority=2) + tasks(2, priority=1), tasks(2, priority=2) + tasks(1, priority=3))
        assert out_of_turn(b.roll, b.terms) == {}

    def test_what_does_not_wait_is_in_nobodys_way(self) -> None:
        b = tell(brain(tasks(1, priority=5), tasks(2, priority=1), tasks(1, priority=0)), Skipped(1, (1,)))
        assert out_of_turn(b.roll, b.terms) == {0: 1}


class TestMovedRanks:
    """A kind's time is learned: its tasks rank elsewhere, and were overtaken as often as before."""

    @pytest.mark.parametrize("longer", [1, 3])
    def test_the_counts_stay(self, longer: int) -> None:
        b = brain(tasks(4, "20GiB", epochs=1) + tasks(5, "1GiB", epochs=1))
        for number in range(1, 10):
            b.assign(number, Kind(f"k{number}", "a.py", probes=False))
        for number in range(5, 8):
            tell(b, placed(number))
        before = overtaken(b)
        assert before[longer] == 3
        b.knowledge.profile(b.roll.kind(longer)).ranked_seconds = 100.0
        b.line.refresh(b.roll.kind(longer))
        assert ordered(b)[0] == longer
        assert overtaken(b) == before
        tell(b, placed(9))
        assert overtaken(b)[longer] == 4
        b.knowledge.profile(b.roll.kind(longer)).ranked_seconds = 0.0
        b.line.refresh(b.roll.kind(longer))
        assert overtaken(b)[longer] == 4

    def test_who_moved_behind_those_that_passed_it_is_not_passed_too_often(self) -> None:
        """It was overtaken 54 times: what had passed it ranks before it now, so that a pass did not look at it."""
        b = brain([*tasks(2, "20GiB", epochs=1), *tasks(6, "1GiB", epochs=1)], overtakes=3, max_gpu_load=99)
        for number in range(1, 9):
            b.assign(number, Kind(f"k{number}", "a.py", probes=False))
        ranks(b, {2: 100, 3: 50, 4: 50})
        tell(b, placed(3, device="GPU-0"), placed(4, device="GPU-0"))
        ranks(b, {1: 20, 2: 10})
        assert starts(b, gpu(0, free="9GiB")) == [5]
        assert overtaken(b)[2] == 2
        assert place(b, gpu(0, free="9GiB")) == [5]
        assert overtaken(b)[2] == 3


def ranks(b: Brain, seconds: dict[int, float]) -> None:
    """So long these tasks take, each of a kind of its own."""
    for task, long in seconds.items():
        b.knowledge.profile(b.roll.kind(task)).ranked_seconds = long
        b.line.refresh(b.roll.kind(task))
