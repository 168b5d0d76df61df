"""Slots take one task each, in the user's order, whatever memory it needs; its profile is learned nevertheless."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.brain import Brain
from scheduler.core.model import HOST, DeviceBudget, Placement
from scheduler.core.placement.refusal import Reason
from scheduler.core.profiling.class_profile import Observation, Peaks, Profile
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.units import GIB, MIB
from tests.support.builders import (
    brain,
    decide,
    exited,
    gpu,
    hold,
    host,
    jobs,
    place,
    reasons,
    replay,
    simulate,
    slots,
    started,
    tasks,
    tell,
)

CARDS = (gpu(0), gpu(1), host("64GiB", cores=8))


def where(*placements: Placement) -> dict[int, str]:
    return {placement.task: placement.slot.partition(":")[2] for placement in placements}


def start(brain_: Brain, *budgets: DeviceBudget) -> dict[int, str]:
    """Decide, start what was placed, and return the slot of each task."""
    placements = decide(brain_, *budgets).placements
    tell(brain_, *placements, *(started(one.task) for one in placements))
    return where(*placements)


class TestTurns:
    def test_each_slot_takes_one_task_in_the_order_of_the_list(self) -> None:
        decision = decide(brain(tasks(4)), *slots("1", "0", "0"), *CARDS)
        assert where(*decision.placements) == {1: "0:1", 2: "1:0", 3: "2:0"}
        assert decision.refusals[0].reason is Reason.SLOTS

    def test_the_slot_that_came_free_last_is_taken_first(self) -> None:
        b = brain(tasks(6))
        start(b, *slots("a", "b", "c", "d"), HOST_RAM)
        tell(b, exited(3), exited(1))
        assert start(b, *slots("a", "b", "c", "d"), HOST_RAM) == {5: "0:a", 6: "2:c"}

    def test_a_replay_takes_slots_in_the_same_order(self) -> None:
        done = simulate(jobs(9, seconds=50, peak="2GiB"), *slots("0", "1", "1"), *CARDS)
        again = replay(done.brain, done.submitted, done.book.recorded)
        assert list(again.freed) == list(done.brain.freed)
        assert len(again.freed) == 3

    def test_a_task_may_name_its_slot(self) -> None:
        b = brain([*tasks(1, device="1"), *tasks(1, prefer="1")])
        assert where(*decide(b, *slots("0", "1", "1"), *CARDS).placements) == {1: "1:1", 2: "2:1"}

    def test_jobs_limit_the_tasks_on_slots(self) -> None:
        assert place(brain(tasks(3), jobs=2), *slots("a", "b", "c"), HOST_RAM) == [1, 2]


HOST_RAM = host("64GiB", cores=8)


class TestMemory:
    def test_memory_never_keeps_a_slot_empty(self) -> None:
        full = (gpu(0, free="100MiB"), host("64GiB", free="10MiB", cores=1))
        b = brain(tasks(3, "20GiB", cpus=4.0))
        assert place(b, *slots("0", "0", "0"), *full) == [1, 2, 3]

    def test_the_lease_names_the_gpus_of_a_slot(self) -> None:
        (one,) = decide(brain(tasks(1, "5GiB")), *slots("1,0"), *CARDS).placements
        assert one.gpus == ("GPU-1", "GPU-0")
        assert one.reservation == {"name:0:1,0": 0, "GPU-1": 5 * GIB, "GPU-0": 5 * GIB, HOST: 64 * GIB - 512 * MIB}

    def test_an_unknown_task_is_expected_to_need_its_slots_share(self) -> None:
        placements = decide(brain(tasks(3)), *slots("0", "0", "1"), *CARDS).placements
        half = (24 * GIB - 512 * MIB) // 2
        assert [one.reservation[one.gpus[0]] for one in placements] == [half, half, half * 2]

    def test_a_task_on_a_shared_gpu_is_reserved_the_rest_of_it(self) -> None:
        theirs = [hold("20GiB", key="GPU-0")]
        (one,) = decide(brain(tasks(1)), *slots("0"), *CARDS, leases=theirs).placements
        assert one.reservation["GPU-0"] == 4 * GIB - 512 * MIB

    def test_a_slot_with_an_unknown_name_runs_on_the_host_alone(self) -> None:
        (one,) = decide(brain(tasks(1)), *slots("a"), HOST_RAM).placements
        assert (one.gpus, one.devices) == ((), (HOST,))
        assert one.reservation == {"name:0:a": 0, HOST: 64 * GIB - 512 * MIB}

    def test_unknown_ram_is_expected_to_be_an_equal_share_for_each_slot(self) -> None:
        placements = decide(brain(tasks(3, "1GiB")), *slots("0", "0", "1"), *CARDS).placements
        third = (64 * GIB - 512 * MIB) // 3
        assert [(one.reservation[HOST], one.ram_expected) for one in placements] == [(third, True)] * 3

    def test_unknown_ram_is_never_reserved_beyond_what_is_free(self) -> None:
        little = host("64GiB", free="3GiB", cores=8)
        placements = decide(brain(tasks(3, "1GiB")), *slots("0", "0", "1"), *CARDS[:2], little).placements
        assert [one.reservation[HOST] for one in placements] == [3 * GIB - 512 * MIB, 0, 0]

    def test_a_learned_need_is_reserved_the_next_time(self) -> None:
        known = ProfileIndex({"k": Profile({"0": Peaks(full=(4 * GIB,))})})
        b = brain(tasks(1), knowledge=known, profile="auto")
        b.assign(1, TaskClass("k", "train.py", probes=True))
        (one,) = decide(b, *slots("0"), *CARDS).placements
        assert one.reservation["GPU-0"] == int(4 * GIB * 1.1) + 256 * MIB

    def test_no_task_on_slots_waits_for_a_similar_task_to_be_learned(self) -> None:
        b = brain(tasks(3, epochs=1000), profile="auto")
        for task in (1, 2, 3):
            b.assign(task, TaskClass("k", "train.py", probes=True))
        assert place(b, *slots("0", "0", "1"), *CARDS) == [1, 2, 3]

    def test_a_slot_stays_empty_for_no_similar_task_that_is_being_measured(self) -> None:
        b = brain(tasks(3), profile="live")
        for task in (1, 2, 3):
            b.assign(task, TaskClass("k", "train.py", probes=False))
        assert list(start(b, *slots("0", "1"), *CARDS)) == [1, 2]
        assert place(b, *slots("0", "1", "1"), *CARDS) == [3]

    def test_the_observation_is_of_the_slots_gpus(self) -> None:
        b = brain(tasks(1))
        start(b, *slots("1,0"), *CARDS)
        seen = replace(exited(1), peak={"GPU-1": GIB, "GPU-0": 2 * GIB, HOST: MIB})
        assert b.evidence(seen) == Observation({"0": GIB, "1": 2 * GIB, HOST: MIB}, whole=True)


class TestClosed:
    def test_a_gpu_that_does_not_answer_keeps_its_slots_empty(self) -> None:
        lost = replace(gpu(0), closed="is lost")
        b = brain(tasks(2))
        assert where(*decide(b, *slots("0", "1"), lost, gpu(1), HOST_RAM).placements) == {1: "1:1"}
        assert reasons(brain(tasks(1)), *slots("0"), lost, HOST_RAM) == {1: "closed-device"}

    def test_a_refusal_names_the_task_its_slot_and_why(self) -> None:
        lost = replace(gpu(0), closed="is lost")
        (refused,) = decide(brain(tasks(1)), *slots("0"), lost, HOST_RAM).refusals
        assert (refused.task, refused.device, refused.text) == (1, lost.device.label, "is lost")
        b = brain(tasks(2))
        start(b, *slots("a"), HOST_RAM)
        (refused,) = decide(b, *slots("a"), HOST_RAM).refusals
        assert (refused.task, refused.reason, refused.wanted, refused.total) == (2, Reason.SLOTS, 1, 1)
        assert refused.device == slots("a")[0].device.label

    def test_a_task_on_a_slot_of_another_name_is_refused_for_its_device(self) -> None:
        (refused,) = decide(brain(tasks(1, device="7")), *slots("0"), *CARDS).refusals
        assert (refused.task, refused.reason) == (1, Reason.DEVICE)

    def test_a_task_that_must_be_alone_says_how_many_are_there(self) -> None:
        b = brain([*tasks(1), *tasks(1, exclusive=True)])
        (refused,) = decide(b, *slots("0", "0"), *CARDS).refusals
        assert (refused.task, refused.wanted, refused.room, refused.device) == (2, 1, 1, gpu(0).device.label)

    def test_an_exclusive_task_waits_for_an_empty_gpu(self) -> None:
        b = brain([*tasks(1), *tasks(1, exclusive=True)])
        decision = decide(b, *slots("0", "0"), *CARDS)
        assert where(*decision.placements) == {1: "0:0"}
        assert decision.refusals[0].reason is Reason.ALONE

    def test_unmanaged_processes_close_no_slot(self) -> None:
        from scheduler.core.model import UnmanagedUse

        used = replace(gpu(0, free="1GiB"), unmanaged=(UnmanagedUse(20 * GIB, "ben", 7, 1.0),))
        assert place(brain(tasks(1)), *slots("0"), used, HOST_RAM) == [1]


def test_a_run_with_slots_can_be_simulated() -> None:
    done = simulate(jobs(20, seconds=100, peak="3GiB"), *slots("0", "0", "1"), *CARDS)
    assert done.states == {"succeeded": 20}
    attempts = [task_history.last for task_history in done.history.tasks.values()]
    assert {attempt.devices for attempt in attempts if attempt} == {("name:0:0",), ("name:1:0",), ("name:2:1",)}
