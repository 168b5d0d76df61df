"""Profiles: the peaks, times, cores and load of attempts, and the source of what is known."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model import HOST, EstimateSource
from scheduler.core.profiling.class_profile import MOST_PEAKS, Observation, Peaks, Profile
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.units import GIB
from tests.support.builders import rules

PEAKS = st.lists(st.integers(1, 100), min_size=1, max_size=2 * MOST_PEAKS)
RUN = Observation({"0": 2 * GIB, HOST: GIB}, seconds=100.0, epochs=10, cpu_seconds=150.0, busy=0.5)
PROBE = replace(RUN, whole=False, probe=True)
PARTLY = replace(RUN, whole=False)
FAILED = replace(RUN, whole=False, broken=True)


def profile(*seen: Observation) -> Profile:
    made = Profile()
    for one in seen:
        made.learn(one)
    return made


@given(PEAKS)
def test_the_peak_is_the_highest_of_the_newest_full_runs(peaks: list[int]) -> None:
    made = profile(*(replace(RUN, peaks={"0": peak}) for peak in peaks))
    assert made.part("0").full == peaks[-MOST_PEAKS:]
    assert made.peaks == {"0": max(peaks[-MOST_PEAKS:])}


@given(PEAKS, PEAKS)
def test_an_attempt_that_was_not_whole_raises_a_profile_and_never_lowers_it(full: list[int], part: list[int]) -> None:
    made = profile(*(replace(RUN, peaks={"0": peak}) for peak in full))
    before = made.peaks["0"]
    for peak in part:
        made.learn(replace(PARTLY, peaks={"0": peak}))
    assert made.peaks["0"] == max(before, *part)


def test_a_full_run_with_as_much_replaces_what_was_seen_otherwise() -> None:
    part = Peaks(lower=5)
    part.learn(4, RUN)
    assert (part.lower, part.peak) == (5, 5)
    part.learn(5, RUN)
    assert (part.lower, part.peak) == (0, 5)


@pytest.mark.parametrize(
    ("seen", "source"),
    [
        ((RUN,), EstimateSource.PROFILE),
        ((PROBE,), EstimateSource.PROBE),
        ((PROBE, RUN), EstimateSource.PROFILE),
        ((PARTLY,), EstimateSource.PROFILE),
        ((PARTLY, PROBE), EstimateSource.PROFILE),
        ((PARTLY, replace(PROBE, peaks={"0": 3 * GIB})), EstimateSource.PROBE),
    ],
)
def test_a_profile_is_a_probes_as_long_as_no_full_run_is_known(
    seen: tuple[Observation, ...], source: EstimateSource
) -> None:
    made = profile(*seen)
    assert made.source(1) is source
    made.earlier = True
    assert made.source(1) is EstimateSource.PROFILE


def test_the_use_of_a_failed_attempt_is_the_least_that_is_needed_while_nothing_is_known() -> None:
    part = profile(FAILED, replace(FAILED, peaks={"0": GIB})).part("0")
    assert (part.known, part.above, part.peak) == (False, 2 * GIB, 0)
    later = profile(RUN, replace(FAILED, peaks={"0": 3 * GIB})).part("0")
    assert (later.known, later.above, later.peak) == (True, 0, 3 * GIB)


def test_use_makes_a_class_unknown_that_seemed_to_need_no_gpu() -> None:
    part = profile(replace(RUN, peaks={"0": 0, HOST: GIB})).part("0")
    assert part.known
    part.note_use(3)
    part.note_use(2)
    assert (part.known, part.full, part.above, part.without) == (False, [], 3, False)


@pytest.mark.parametrize(
    ("peaks", "gpus", "without"),
    [
        ({"0": 0, HOST: 5}, 1, True),
        ({"0": 0, HOST: 5}, 2, False),
        ({"0": 0, "1": 0}, 2, True),
        ({"0": 0, "1": 5}, 2, False),
        ({HOST: 0}, 0, False),
    ],
)
def test_a_class_is_without_gpus_if_each_of_them_is_known_to_be_unused(
    peaks: dict[str, int], gpus: int, without: bool
) -> None:
    assert profile(replace(RUN, peaks=peaks)).is_without(gpus) is without


@pytest.mark.parametrize(("peaks", "number"), [({"0": 5}, 1), ({"0": 5, "1": 5}, 2), ({HOST: 5}, 0)])
def test_a_profile_is_known_for_the_gpus_on_which_it_was_seen(peaks: dict[str, int], number: int) -> None:
    made = profile(replace(PARTLY, peaks=peaks))
    assert [gpus for gpus in (0, 1, 2) if made.knows(gpus)] == ([number] if number < 2 else [1, 2])


def test_times_are_the_mean_of_the_last_and_all_before() -> None:
    made = profile(RUN)
    assert (made.whole_seconds, made.epoch_seconds) == (100.0, 10.0)
    made.learn(replace(RUN, seconds=300.0, epochs=10))
    assert (made.whole_seconds, made.epoch_seconds) == (200.0, 20.0)
    assert [made.expected(epochs) for epochs in (5, None, 0)] == [100.0, 200.0, 200.0]


def test_measured_epochs_count_before_those_that_are_derived() -> None:
    assert profile(replace(RUN, epoch_seconds=7.0)).epoch_seconds == 7.0
    assert profile(replace(RUN, epochs=None)).epoch_seconds == 0.0
    assert profile(replace(RUN, seconds=0.0)).epoch_seconds == 0.0


def test_a_probe_tells_of_epochs_and_cores_and_not_how_long_a_whole_run_takes() -> None:
    made = profile(PROBE)
    assert (made.whole_seconds, made.epoch_seconds, made.cores) == (0.0, 10.0, 1.5)


@pytest.mark.parametrize("seen", [PARTLY, FAILED])
def test_an_attempt_that_was_not_whole_tells_nothing_of_times_and_cores(seen: Observation) -> None:
    made = profile(seen)
    assert (made.whole_seconds, made.epoch_seconds, made.cores) == (0.0, 0.0, 0.0)
    assert made.busy == (0.0 if seen.broken else 0.5)


def test_cores_are_the_most_of_attempts_that_took_a_second() -> None:
    made = profile(RUN, replace(RUN, cpu_seconds=100.0))
    assert made.cores == 1.5
    assert profile(replace(RUN, seconds=0.9, cpu_seconds=9.0)).cores == 0.0
    assert profile(replace(RUN, seconds=1.0, cpu_seconds=3.0)).cores == 3.0


def test_the_load_is_the_mean_of_the_last_and_all_before() -> None:
    assert profile(RUN).busy == 0.5
    assert profile(RUN, replace(RUN, busy=1.0)).busy == 0.75
    assert profile(RUN, replace(RUN, busy=0.0)).busy == 0.5


@pytest.mark.parametrize(
    ("seen", "settlings"),
    [
        (PARTLY, 1),
        (RUN, 0),
        (FAILED, 0),
        (PROBE, 0),
        (replace(PARTLY, peaks={HOST: 5}), 0),
        (replace(PARTLY, peaks={}), 0),
    ],
)
def test_settled_attempts_are_counted_on_their_own_devices(seen: Observation, settlings: int) -> None:
    assert profile(seen).settlings == settlings


@pytest.mark.parametrize(
    ("said", "seen", "sure"),
    [
        ({}, (), False),
        ({"earlier": True}, (), True),
        ({}, (RUN,), True),
        ({}, (PROBE,), True),
        ({}, (replace(RUN, peaks={HOST: 5}),), False),
        ({}, (PARTLY,), False),
        ({}, (PARTLY, PARTLY), True),
    ],
)
def test_a_profile_is_sure_after_a_full_run_or_several_that_settled(
    said: dict[str, Any], seen: tuple[Observation, ...], sure: bool
) -> None:
    made = profile(*seen)
    for name, value in said.items():
        setattr(made, name, value)
    assert made.is_sure(rules(sure_after=2)) is sure


def test_the_ranked_time_follows_the_learned_one_in_steps() -> None:
    made = profile(RUN)
    assert (made.rerank(), made.ranked_seconds) == (True, 10.0)
    assert (made.rerank(), made.ranked_seconds) == (False, 10.0)
    made.epoch_seconds = 10.0 * (1 + 0.01)
    assert (made.rerank(), made.ranked_seconds) == (False, 10.0)
    made.epoch_seconds = 30.0
    assert (made.rerank(), made.ranked_seconds) == (True, 30.0)


@pytest.mark.parametrize(
    ("full", "settled"),
    [([100] * 5, True), ([100] * 4, False), ([100, 102, 101, 100, 102], True), ([100, 103, 100, 100, 100], False)],
)
def test_full_runs_within_two_percent_settle_a_peak(full: list[int], settled: bool) -> None:
    assert Peaks(full).settled(rules(tight_samples=5, tight_spread=0.02)) is settled
    random.Random(7).shuffle(full)
    assert Peaks(full).settled(rules(tight_samples=5, tight_spread=0.02)) is settled


def test_use_below_a_share_of_all_known_classes_is_unlike_them() -> None:
    known = ProfileIndex()
    assert not known.is_unlike(0, 0.5, 1)
    for number, peak in enumerate((4, 6)):
        known.learn(known.number(TaskClass(f"k{number}", "a.py", False)), Observation({"0": peak * GIB}))
    assert [known.is_unlike(used, 0.5, 2) for used in (2 * GIB - 1, 2 * GIB)] == [True, False]
    assert not known.is_unlike(0, 0.5, 3), "too few are known"
