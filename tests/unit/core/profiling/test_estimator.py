"""The estimate of a task's need, and the reservation that follows from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model import HOST, EstimateSource, Placement, Profiling, Purpose
from scheduler.core.profiling import estimator
from scheduler.core.profiling.class_profile import Observation, PredictedPeak, Profile
from scheduler.core.profiling.task_class import TaskClass
from scheduler.units import GIB, MIB
from tests.support.builders import rules, size, terms

RULES = rules(profile="auto")
SIZES = st.integers(1, 64 * GIB)
PROBES = TaskClass("k", "train.py", probes=True)


def full_runs(*peaks: str) -> Profile:
    """Return the profile of a task class that ran once for each of these peaks."""
    profile = Profile()
    for peak in peaks:
        profile.learn(Observation({HOST: size(peak)}, seconds=100.0, epochs=10, cpu_seconds=150.0))
    return profile


class TestTimes:
    def test_a_whole_run_counts_half_as_much_as_all_before_it(self) -> None:
        profile = Profile()
        for seconds in (10.0, 20.0):
            profile.learn(Observation({HOST: GIB}, seconds=seconds))
        assert profile.whole_seconds == 15.0

    @pytest.mark.parametrize(("seconds", "cores"), [(0.9, 0.0), (1.0, 3.0)])
    def test_cores_are_not_measured_in_less_than_a_second(self, seconds: float, cores: float) -> None:
        profile = Profile()
        profile.learn(Observation({HOST: GIB}, seconds=seconds, cpu_seconds=3 * seconds))
        assert profile.cores == cores

    def test_the_rank_follows_a_time_that_is_a_quarter_off(self) -> None:
        profile = Profile(epoch_seconds=12.5, ranked_seconds=10.0)
        assert (profile.rerank(), profile.ranked_seconds) == (False, 10.0)
        profile.epoch_seconds = 12.6
        assert (profile.rerank(), profile.ranked_seconds) == (True, 12.6)


class TestNeed:
    def test_a_declared_need_comes_from_the_row(self) -> None:
        asked = estimator.need(terms("8GiB", cpus=2.5), None, RULES)
        assert (asked.host.bytes, asked.host.bare, asked.cores, asked.source) == (
            8 * GIB,
            8 * GIB,
            2.5,
            EstimateSource.DECLARED,
        )

    def test_a_declared_host_memory_is_the_need_without_gpus(self) -> None:
        assert estimator.need(terms(host_memory="3GiB"), None, RULES).host.bytes == 3 * GIB

    def test_the_need_of_an_unknown_task_is_measured(self) -> None:
        asked = estimator.need(terms(), None, RULES)
        assert (asked.host.bytes, asked.cores, asked.source) == (None, 1.0, EstimateSource.MEASURED)

    def test_a_known_class_needs_its_peak_with_the_margin(self) -> None:
        asked = estimator.need(terms(), None, RULES, full_runs("10GiB"))
        assert (asked.host.bytes, asked.host.bare) == (size("11.25GiB"), 10 * GIB)
        assert asked.source is EstimateSource.PROFILE

    def test_a_need_taken_from_similar_classes_is_not_cut_below_their_peak(self) -> None:
        guess = PredictedPeak({"0": 10 * GIB}, EstimateSource.SIMILAR)
        (asked,) = estimator.need(terms(), None, RULES, gpus=1, guess=guess).gpus
        assert (asked.bytes, asked.bare, asked.least) == (size("11.25GiB"), 0, 10 * GIB)

    def test_a_declared_need_comes_before_the_profile(self) -> None:
        assert estimator.need(terms("8GiB"), None, RULES, full_runs("10GiB")).host.bytes == 8 * GIB

    def test_profiles_are_ignored_with_profile_off(self) -> None:
        assert estimator.need(terms(), None, rules(profile="off"), full_runs("10GiB")).host.bytes is None

    def test_an_exclusive_task_needs_its_device_alone(self) -> None:
        assert estimator.need(terms(exclusive=True), None, RULES).alone


class TestReservation:
    def test_the_margin_is_ten_per_cent_and_a_quarter_gib(self) -> None:
        assert estimator.with_margin(10 * GIB, RULES) == 11 * GIB + 256 * MIB

    def test_the_margin_is_smaller_where_five_full_runs_agree(self) -> None:
        profile = full_runs("10GiB", "10GiB", "10.1GiB", "10GiB", "10GiB")
        assert estimator.reserved_for(profile.part(HOST), RULES) == int(size("10.1GiB") * 1.03) + 128 * MIB

    def test_the_margin_is_whole_where_only_four_runs_agree(self) -> None:
        assert estimator.reserved_for(full_runs(*["10GiB"] * 4).part(HOST), RULES) == size("11.25GiB")

    def test_the_margin_is_whole_where_five_runs_differ(self) -> None:
        profile = full_runs("10GiB", "10GiB", "10.3GiB", "10GiB", "10GiB")
        assert estimator.reserved_for(profile.part(HOST), RULES) == estimator.with_margin(size("10.3GiB"), RULES)

    @given(SIZES, SIZES)
    def test_a_larger_peak_gets_a_larger_reservation(self, one: int, other: int) -> None:
        low, high = sorted((one, other))
        assert low < estimator.with_margin(low, RULES) <= estimator.with_margin(high, RULES)


class TestProbing:
    @pytest.mark.parametrize(("epochs", "probed"), [(99, False), (100, True), (10_000, True), (None, False)])
    def test_a_task_is_probed_only_if_a_probe_costs_a_fiftieth_at_most(self, epochs: int | None, probed: bool) -> None:
        assert estimator.should_probe(terms(epochs=epochs), RULES, PROBES) is probed

    def test_a_task_without_epochs_is_never_probed(self) -> None:
        assert not estimator.should_probe(terms(epochs=1000), RULES, TaskClass("k", "x", probes=False))

    @pytest.mark.parametrize(("profile", "probed"), [("probe", True), ("auto", False), ("live", False), ("off", False)])
    def test_the_setting_profile_decides_whether_tasks_are_probed(self, profile: str, probed: bool) -> None:
        assert estimator.should_probe(terms(epochs=5), rules(profile=Profiling(profile)), PROBES) is probed
        at_little_cost = estimator.should_probe(terms(epochs=1000), rules(profile=Profiling(profile)), PROBES)
        assert at_little_cost is (profile in ("probe", "auto"))

    def test_a_probe_has_a_need_of_its_own(self) -> None:
        asked = estimator.need(terms(epochs=1000), None, RULES, Profile(), PROBES)
        assert (asked.host.bytes, asked.purpose, asked.source) == (None, Purpose.PROBE, EstimateSource.PROBE)

    def test_a_task_of_known_or_declared_need_is_not_probed(self) -> None:
        assert estimator.need(terms(epochs=1000), None, RULES, full_runs("1GiB"), PROBES).purpose is Purpose.RUN
        assert estimator.need(terms("1GiB", epochs=1000), None, RULES, Profile(), PROBES).purpose is Purpose.RUN


class TestAfterAnOutOfMemory:
    @given(SIZES, SIZES)
    def test_after_an_out_of_memory_more_is_reserved_than_before_and_than_was_used(
        self, reserved: int, peak: int
    ) -> None:
        least = estimator.after_oom(reserved, peak, RULES)
        assert least >= reserved
        assert least >= estimator.with_margin(peak, RULES)

    def test_after_an_out_of_memory_the_failed_request_is_added_to_the_use(self) -> None:
        assert estimator.after_oom(20 * GIB, 4 * GIB, RULES, asked=2 * GIB) == estimator.with_margin(6 * GIB, RULES)

    def test_after_an_out_of_memory_without_a_request_half_the_use_is_added(self) -> None:
        assert estimator.after_oom(4 * GIB, 4 * GIB, RULES) == 6 * GIB


class TestGrowth:
    def test_a_reservation_that_is_not_exceeded_stays(self) -> None:
        assert estimator.grown({HOST: GIB}, {HOST: GIB}, RULES) is None

    def test_a_reservation_that_is_exceeded_grows_at_once(self) -> None:
        assert estimator.grown({HOST: GIB}, {HOST: 2 * GIB}, RULES) == {HOST: estimator.with_margin(2 * GIB, RULES)}

    def test_a_reservation_grows_only_on_the_device_where_it_is_exceeded(self) -> None:
        grown = estimator.grown({"GPU-0": GIB, "GPU-1": GIB}, {"GPU-0": GIB, "GPU-1": 2 * GIB}, RULES)
        assert grown == {"GPU-0": GIB, "GPU-1": estimator.with_margin(2 * GIB, RULES)}

    @given(SIZES, SIZES)
    def test_a_grown_reservation_is_above_the_use(self, reserved: int, used: int) -> None:
        grown = estimator.grown({HOST: reserved}, {HOST: used}, RULES)
        assert (grown is None) == (used <= reserved)
        assert grown is None or grown[HOST] > used


def reserved(reservation: dict[str, int]) -> Placement:
    return Placement(1, 1, Purpose.RUN, reservation, 1.0, EstimateSource.MEASURED)


class TestCut:
    def test_a_settled_reservation_is_cut_to_the_peak_with_its_margin(self) -> None:
        assert estimator.cut(reserved({HOST: 12 * GIB}), {HOST: 4 * GIB}, RULES) == {
            HOST: estimator.with_margin(4 * GIB, RULES)
        }

    def test_a_cut_never_raises_a_reservation(self) -> None:
        assert estimator.cut(reserved({HOST: 4 * GIB}), {HOST: 4 * GIB}, RULES) == {HOST: 4 * GIB}

    def test_a_reservation_is_not_cut_while_a_device_is_unused(self) -> None:
        """A task that still reads its data has not settled."""
        assert estimator.cut(reserved({"GPU-0": GIB, "GPU-1": GIB}), {"GPU-0": GIB}, RULES) is None


class TestNewPeak:
    def test_the_first_use_is_a_new_peak(self) -> None:
        assert estimator.is_new_peak(0, 1, RULES)
        assert not estimator.is_new_peak(0, 0, RULES)

    @pytest.mark.parametrize(
        ("before", "now", "new"),
        [
            ("1GiB", "1088MiB", False),
            ("1GiB", "1089MiB", True),
            ("10GiB", "10.15GiB", False),
            ("10GiB", "10.3GiB", True),
        ],
    )
    def test_a_new_peak_is_64_mib_and_two_per_cent_above_the_last(self, before: str, now: str, new: bool) -> None:
        assert estimator.is_new_peak(size(before), size(now), RULES) is new

    @given(SIZES)
    def test_a_use_that_is_not_higher_is_no_new_peak(self, peak: int) -> None:
        assert not estimator.is_new_peak(peak, peak, RULES)
        assert not estimator.is_new_peak(peak, peak - 1, RULES)
