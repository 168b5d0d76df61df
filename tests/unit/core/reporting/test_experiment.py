"""Arms in turn, and what their numbers say."""

from __future__ import annotations

import pytest

from scheduler.core.reporting.experiment import (
    Arm,
    BatchWait,
    ExperimentContext,
    Reading,
    Summary,
    compare_mps,
    compare_orders,
    copies_needed,
    mps_arms,
    priority_arms,
    summaries,
    turns,
)

REAL = ExperimentContext()


def reading(arm: str, makespan: float, repeat: int = 1, waits: tuple[BatchWait, ...] = ()) -> Reading:
    return Reading(arm, repeat, repeat, 10, 10, 100, makespan, 5.0, 0, 1, 0, 0, waits)


def of(arm: Arm, *makespans: float) -> Summary:
    return Summary(arm, [reading(arm.name, makespan, place) for place, makespan in enumerate(makespans, 1)])


BASE, PACKED, SHARED = mps_arms(["50"], [])


def test_every_repeat_begins_with_another_arm() -> None:
    arms = mps_arms(["100"], [])
    names = [(repeat, arm.name) for repeat, arm in turns(arms, 2)]
    assert [name for _, name in names[:3]] == ["one per GPU", "packed", "packed, MPS 100%"]
    assert [name for _, name in names[3:]] == ["packed", "packed, MPS 100%", "one per GPU"]


def test_copies_are_run_without_and_with_mps_but_one_at_a_time_alone() -> None:
    arms = mps_arms(["100"], [1, 2])
    assert [(arm.per_device, arm.mps) for arm in arms] == [(1, False), (2, False), (2, True)]


@pytest.mark.parametrize(("copies", "gpus", "tasks"), [([1, 2, 4, 8], 2, 16), ([2, 3], 1, 6), ([1], 4, 4)])
def test_every_number_of_copies_comes_out_even(copies: list[int], gpus: int, tasks: int) -> None:
    assert copies_needed(copies, gpus) == tasks


def test_one_arm_stands_for_all_batches_where_priority_alone_ranks() -> None:
    assert [arm.name for arm in priority_arms([5, 20], ["batch", "global"])] == [
        "--num 5",
        "--num 20",
        "--order global",
    ]


def test_throughput_counts_what_succeeded() -> None:
    one = reading("packed", 3600.0)
    assert (one.tasks_per_hour, one.epochs_per_hour) == (10.0, 100.0)


def test_mps_pays_where_no_repeat_without_it_was_as_fast() -> None:
    said = compare_mps([of(BASE, 100, 101), of(PACKED, 50, 51), of(SHARED, 40, 41)], REAL)
    assert said.endswith("more: use MPS")


def test_repeats_that_overlap_show_no_difference() -> None:
    said = compare_mps([of(BASE, 100, 101), of(PACKED, 50, 60), of(SHARED, 49, 58)], REAL)
    assert "no difference that the repeats show: leave MPS off" in said


def test_mps_that_costs_is_left_off() -> None:
    said = compare_mps([of(BASE, 100, 101), of(PACKED, 50, 51), of(SHARED, 60, 61)], REAL)
    assert said.endswith("less: leave MPS off")


def test_a_single_repeat_proves_nothing() -> None:
    assert "tells no spread" in compare_mps([of(BASE, 100), of(PACKED, 50), of(SHARED, 40)], REAL)


def test_packing_that_brings_nothing_is_not_praised() -> None:
    said = compare_mps([of(BASE, 100, 101), of(PACKED, 100, 102)], REAL)
    assert said.startswith("One per GPU does")
    assert "no more than that" in said


def test_a_simulation_says_nothing_of_mps_that_nobody_put_in() -> None:
    said = compare_mps([of(BASE, 100, 101), of(PACKED, 50, 51), of(SHARED, 50, 51)], ExperimentContext(True, 1.0))
    assert said.startswith("In simulation")
    assert said.endswith("only real GPUs can tell")


def test_waits_are_means_over_all_batches() -> None:
    waits = (BatchWait(1, 1, 1, 10.0, 10.0), BatchWait(2, 1, 3, 50.0, 90.0), BatchWait(2, 4, 1, 7.0, 7.0))
    assert reading("--num 5", 100.0, waits=waits).waited() == {1: 40.0, 4: 7.0}


def test_the_best_priority_is_what_batches_are_judged_by() -> None:
    few, many = priority_arms([5, 40], ["batch"])
    found = [
        reading(few.name, 100.0, waits=(BatchWait(1, 1, 1, 60.0, 60.0),)),
        reading(many.name, 90.0, waits=(BatchWait(1, 1, 1, 5.0, 5.0),)),
    ]
    said = compare_orders(summaries([few, many], found), REAL)
    assert "least with --num 40" in said
    assert "priority 1 waits 5.0s with --num 40 and 1m00s with --num 5" in said
