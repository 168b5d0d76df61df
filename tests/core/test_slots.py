"""Slots: one task each, in the user's order, whatever memory it needs; what it needs is learned all the same."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.brain import Brain
from scheduler.core.kinds import Kind
from scheduler.core.knowledge import Evidence, Knowledge, Peaks, Profile
from scheduler.core.model import HOST, Budget, Placement
from scheduler.units import GIB, MIB
from tests.builders import (
    brain,
    decide,
    event_of,
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


def start(brain_: Brain, *budgets: Budget) -> dict[int, str]:
    """Decide, and have it come true: who got which slot."""
    placements = decide(brain_, *budgets).placements
    tell(brain_, *(event_of(one) for one in placements), *(started(one.task) for one in placements))
    return where(*placements)


class TestTurns:
    def test_each_takes_one_task_in_the_order_of_the_list(self) -> None:
        decision = decide(brain(tasks(4)), *slots("1", "0", "0"), *CARDS)
        assert where(*decision.placements) == {1: "0:1", 2: "1:0", 3: "2:0"}
        assert decision.refusals[0].reason == "slots"

    def test_what_came_free_last_is_taken_first(self) -> None:
        b = brain(tasks(6))
        start(b, *slots("a", "b", "c", "d"), HOST_RAM)
        tell(b, exited(3), exited(1))
        assert start(b, *slots("a", "b", "c", "d"), HOST_RAM) == {5: "0:a", 6: "2:c"}

    def test_a_replay_takes_them_in_the_same_order(self) -> None:
        done = simulate(jobs(9, seconds=50, peak="2GiB"), *slots("0", "1", "1"), *CARDS)
        again = replay(done.brain, done.submitted, done.book.recorded)
        assert list(again.freed) == list(done.brain.freed)
        assert len(again.freed) == 3

    def test_a_task_may_name_its_slot(self) -> None:
        b = brain([*tasks(1, device="1"), *tasks(1, prefer="1")])
        assert where(*decide(b, *slots("0", "1", "1"), *CARDS).placements) == {1: "1:1", 2: "2:1"}

    def test_at_most_so_many_at_once(self) -> None:
        assert place(brain(tasks(3), jobs=2), *slots("a", "b", "c"), HOST_RAM) == [1, 2]


HOST_RAM = host("64GiB", cores=8)


class TestMemory:
    def test_it_never_holds_a_slot_back(self) -> None:
        full = (gpu(0, free="100MiB"), host("64GiB", free="10MiB", cores=1))
        b = brain(tasks(3, "20GiB", cpus=4.0))
        assert place(b, *slots("0", "0", "0"), *full) == [1, 2, 3]

    def test_the_lease_names_the_cards_of_a_slot(self) -> None:
        (one,) = decide(brain(tasks(1, "5GiB")), *slots("1,0"), *CARDS).placements
        assert one.gpus == ("GPU-1", "GPU-0")
        assert one.promise == {"name:0:1,0": 0, "GPU-1": 5 * GIB, "GPU-0": 5 * GIB, HOST: 0}

    def test_who_needs_nobody_knows_what_is_taken_to_need_its_share(self) -> None:
        placements = decide(brain(tasks(3)), *slots("0", "0", "1"), *CARDS).placements
        half = (24 * GIB - 512 * MIB) // 2
        assert [one.promise[one.gpus[0]] for one in placements] == [half, half, half * 2]

    def test_of_a_card_that_others_use_it_is_promised_what_is_left(self) -> None:
        theirs = [hold("20GiB", key="GPU-0")]
        (one,) = decide(brain(tasks(1)), *slots("0"), *CARDS, holds=theirs).placements
        assert one.promise["GPU-0"] == 4 * GIB - 512 * MIB

    def test_a_name_that_nobody_knows_runs_on_the_host_alone(self) -> None:
        (one,) = decide(brain(tasks(1)), *slots("a"), HOST_RAM).placements
        assert (one.gpus, one.devices, one.promise) == ((), (HOST,), {"name:0:a": 0, HOST: 0})

    def test_what_is_learned_is_promised_next_time(self) -> None:
        known = Knowledge({"k": Profile({"0": Peaks(full=(4 * GIB,))})})
        b = brain(tasks(1), knowledge=known, profile="auto")
        b.assign(1, Kind("k", "train.py", probes=True))
        (one,) = decide(b, *slots("0"), *CARDS).placements
        assert one.promise["GPU-0"] == int(4 * GIB * 1.1) + 256 * MIB

    def test_nobody_waits_for_one_like_it_to_be_learned(self) -> None:
        b = brain(tasks(3, epochs=1000), profile="auto")
        for task in (1, 2, 3):
            b.assign(task, Kind("k", "train.py", probes=True))
        assert place(b, *slots("0", "0", "1"), *CARDS) == [1, 2, 3]

    def test_the_evidence_is_of_its_cards(self) -> None:
        b = brain(tasks(1))
        start(b, *slots("1,0"), *CARDS)
        seen = replace(exited(1), peak={"GPU-1": GIB, "GPU-0": 2 * GIB, HOST: MIB})
        assert b.evidence(seen) == Evidence({"0": GIB, "1": 2 * GIB, HOST: MIB}, whole=True)


class TestClosed:
    def test_a_card_that_does_not_answer_keeps_its_slots_empty(self) -> None:
        lost = replace(gpu(0), closed="is lost")
        b = brain(tasks(2))
        assert where(*decide(b, *slots("0", "1"), lost, gpu(1), HOST_RAM).placements) == {1: "1:1"}
        assert reasons(brain(tasks(1)), *slots("0"), lost, HOST_RAM) == {1: "closed-device"}

    def test_who_must_be_alone_waits_for_that(self) -> None:
        b = brain([*tasks(1), *tasks(1, exclusive=True)])
        decision = decide(b, *slots("0", "0"), *CARDS)
        assert where(*decision.placements) == {1: "0:0"}
        assert decision.refusals[0].reason == "alone"

    def test_strangers_close_none(self) -> None:
        from scheduler.core.model import Foreign

        used = replace(gpu(0, free="1GiB"), foreign=(Foreign(20 * GIB, "ben", 7, 1.0),))
        assert place(brain(tasks(1)), *slots("0"), used, HOST_RAM) == [1]


def test_a_run_of_slots_can_be_simulated() -> None:
    done = simulate(jobs(20, seconds=100, peak="3GiB"), *slots("0", "0", "1"), *CARDS)
    assert done.states == {"succeeded": 20}
    attempts = [story.last for story in done.fold.stories.values()]
    assert {attempt.devices for attempt in attempts if attempt} == {("name:0:0",), ("name:1:0",), ("name:2:1",)}
