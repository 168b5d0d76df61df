"""The arms of an experiment in turn, its readings as JSON, and its verdict."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from scheduler.app.run.options import ranked
from scheduler.experiment.arms import Arm, Experiment, copies_needed, mps_arms, priority_arms
from scheduler.experiment.readings import BatchWait, Reading, Summary, summaries
from scheduler.experiment.report import Report
from scheduler.experiment.verdict import ExperimentContext, verdict
from scheduler.runtime.settings import Settings

REAL = ExperimentContext()


def reading(arm: str, makespan: float, repeat: int = 1, waits: tuple[BatchWait, ...] = ()) -> Reading:
    return Reading(arm, repeat, repeat, 10, 10, 100, makespan, 5.0, 0, 1, 0, 0, waits)


def of(arm: Arm, *makespans: float) -> Summary:
    return Summary(arm, [reading(arm.name, makespan, place) for place, makespan in enumerate(makespans, 1)])


BASE, PACKED, SHARED = mps_arms(["50"], [])


def test_every_repeat_begins_with_another_arm() -> None:
    arms = mps_arms(["100"], [])
    names = [(repeat, arm.name) for repeat, arm in Experiment("mps", "jobs.csv", arms, 2).in_turn()]
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


def test_an_arm_with_batches_keeps_them_for_a_list_of_commands() -> None:
    arms, columns = priority_arms([5, 20], ["batch", "global"]), ("Command", "Priority")
    assert [ranked(arm.settings(Settings()), columns).order for arm in arms] == ["batch", "batch", "global"]


def test_throughput_counts_what_succeeded() -> None:
    one = reading("packed", 3600.0)
    assert (one.tasks_per_hour, one.epochs_per_hour) == (10.0, 100.0)


def test_verdict_recommends_mps_where_no_repeat_without_it_was_as_fast() -> None:
    said = verdict([of(BASE, 100, 101), of(PACKED, 50, 51), of(SHARED, 40, 41)], REAL, of_priority=False)
    assert said.endswith("more: use MPS")


def test_verdict_shows_no_difference_where_repeats_overlap() -> None:
    said = verdict([of(BASE, 100, 101), of(PACKED, 50, 60), of(SHARED, 49, 58)], REAL, of_priority=False)
    assert "no difference beyond the spread of the repeats: leave MPS off" in said


def test_verdict_advises_against_mps_that_is_slower() -> None:
    said = verdict([of(BASE, 100, 101), of(PACKED, 50, 51), of(SHARED, 60, 61)], REAL, of_priority=False)
    assert said.endswith("less: leave MPS off")


def test_verdict_of_a_single_repeat_shows_no_spread() -> None:
    assert "in a single repeat, which shows no spread" in verdict(
        [of(BASE, 100), of(PACKED, 50), of(SHARED, 40)], REAL, of_priority=False
    )


def test_verdict_names_packing_that_increases_nothing() -> None:
    said = verdict([of(BASE, 100, 101), of(PACKED, 100, 102)], REAL, of_priority=False)
    assert said.startswith("One per GPU completes")
    assert "packing more tasks does not increase that" in said


def test_verdict_of_a_simulation_without_assumed_speed_makes_no_claim_about_mps() -> None:
    said = verdict(
        [of(BASE, 100, 101), of(PACKED, 50, 51), of(SHARED, 50, 51)], ExperimentContext(True, 1.0), of_priority=False
    )
    assert said.startswith("In the simulation, ")
    assert said.endswith("the gain of MPS can only be measured on real GPUs")


def test_verdict_of_a_simulation_says_that_the_gain_of_mps_is_assumed_and_recommends_nothing() -> None:
    found = [of(BASE, 100, 101), of(PACKED, 50, 51), of(SHARED, 40, 41)]
    said = verdict(found, ExperimentContext(simulated=True, mps_speed=1.3), of_priority=False)
    assert "if MPS gives 1.3x (assumed), packed, MPS 50% completes" in said
    assert said.endswith("measure it on real GPUs")
    assert "use MPS" not in said


def test_arms_with_equal_numbers_are_one_row_of_the_table() -> None:
    twice = replace(PACKED, name="packed twice")
    found = [of(BASE, 100, 101), of(PACKED, 50, 51), of(twice, 50, 51), of(SHARED, 50, 51)]
    report = Report(Experiment("mps", "jobs.csv", [one.arm for one in found], 2), found, REAL)
    assert [arm["name"] for arm in report.data()["arms"]] == ["one per GPU", "packed = packed twice", "packed, MPS 50%"]
    assert sum(line.startswith("packed = packed twice  ") for line in report.lines()) == 1


def test_wait_of_a_priority_is_the_mean_over_all_batches() -> None:
    waits = (BatchWait(1, 1, 1, 10.0, 10.0), BatchWait(2, 1, 3, 50.0, 90.0), BatchWait(2, 4, 1, 7.0, 7.0))
    assert reading("--num 5", 100.0, waits=waits).waited() == {1: 40.0, 4: 7.0}


def test_verdict_on_batches_compares_the_waits_of_the_best_priority() -> None:
    few, many = priority_arms([5, 40], ["batch"])
    found = [
        reading(few.name, 100.0, waits=(BatchWait(1, 1, 1, 60.0, 60.0),)),
        reading(many.name, 90.0, waits=(BatchWait(1, 1, 1, 5.0, 5.0),)),
    ]
    said = verdict(summaries([few, many], found), REAL, of_priority=True)
    assert "shortest with --num 40" in said
    assert "tasks of priority 1 wait 5.0s with --num 40 and 1m00s with --num 5" in said


def test_reading_is_the_same_after_writing_and_reading_its_json() -> None:
    waits = (BatchWait(1, 1, 1, 10.0, 10.0),)
    state = {"gpus_before": [{"uuid": "GPU-1"}], "gpus_after": [], "percentages_read_back": {"GPU 0": 50.0}}
    one = Reading("packed", 1, 7, 10, 9, 100, 60.0, 5.0, 1, 3, 2, 2, waits, 12.5, state)
    data = one.to_dict()
    assert list(data) == [
        "arm", "repeat", "run", "tasks", "succeeded", "epochs", "makespan_s", "task_mean_s", "ooms", "residents_max",
        "under_mps", "mps_clients", "energy_j", "waits", "machine_state",
    ]  # fmt: skip
    assert data["waits"] == [{"batch": 1, "priority": 1, "tasks": 1, "wait_mean_s": 10.0, "wait_max_s": 10.0}]
    assert Reading.from_dict(json.loads(json.dumps(data))).to_dict() == data


def test_equal_arms_have_one_name_in_which_common_words_stand_once() -> None:
    full, half = (Arm(f"packed, MPS {share}%", True) for share in (100, 50))
    found = [of(BASE, 100, 101), of(full, 50, 51), of(half, 50, 51)]
    report = Report(Experiment("mps", "jobs.csv", [one.arm for one in found], 2), found, REAL)
    assert [arm["name"] for arm in report.data()["arms"]] == ["one per GPU", "packed, MPS 100% = 50%"]
