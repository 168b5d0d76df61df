"""From what is known of a task to what it is reserved."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model import HOST, EstimateSource, Placement, Profiling, Purpose
from scheduler.core.profiling import estimator
from scheduler.core.profiling.profile_index import Observation, PredictedPeak, Profile
from scheduler.core.profiling.task_class import TaskClass
from scheduler.units import GIB, MIB
from tests.support.builders import rules, size, terms

RULES = rules(profile="auto")
SIZES = st.integers(1, 64 * GIB)
PROBES = TaskClass("k", "train.py", probes=True)


def full_runs(*peaks: str) -> Profile:
    """A kind that ran so often, with these peaks."""
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
    def test_what_the_row_says(self) -> None:
        asked = estimator.need(terms("8GiB", cpus=2.5), None, RULES)
        assert (asked.host.bytes, asked.host.bare, asked.cores, asked.source) == (
            8 * GIB,
            8 * GIB,
            2.5,
            EstimateSource.DECLARED,
        )

    def test_host_memory_says_it_as_well(self) -> None:
        assert estimator.need(terms(host_memory="3GiB"), None, RULES).host.bytes == 3 * GIB

    def test_unknown(self) -> None:
        asked = estimator.need(terms(), None, RULES)
        assert (asked.host.bytes, asked.cores, asked.source) == (None, 1.0, EstimateSource.MEASURED)

    def test_what_its_kind_was_seen_to_need_with_the_margin(self) -> None:
        asked = estimator.need(terms(), None, RULES, full_runs("10GiB"))
        assert (asked.host.bytes, asked.host.bare) == (size("11.25GiB"), 10 * GIB)
        assert asked.source is EstimateSource.PROFILE

    def test_what_those_like_it_need_is_not_cut_below_that(self) -> None:
        guess = PredictedPeak({"0": 10 * GIB}, EstimateSource.SIMILAR)
        (asked,) = estimator.need(terms(), None, RULES, gpus=1, guess=guess).gpus
        assert (asked.bytes, asked.bare, asked.least) == (size("11.25GiB"), 0, 10 * GIB)

    def test_the_row_is_believed_before_the_kind(self) -> None:
        assert estimator.need(terms("8GiB"), None, RULES, full_runs("10GiB")).host.bytes == 8 * GIB

    def test_no_kind_is_believed_where_nothing_is_learned(self) -> None:
        assert estimator.need(terms(), None, rules(profile="off"), full_runs("10GiB")).host.bytes is None

    def test_exclusive_is_alone(self) -> None:
        assert estimator.need(terms(exclusive=True), None, RULES).alone


class TestReservation:
    def test_ten_per_cent_and_a_quarter_gib_more(self) -> None:
        assert estimator.with_margin(10 * GIB, RULES) == 11 * GIB + 256 * MIB

    def test_less_where_five_full_runs_agree(self) -> None:
        profile = full_runs("10GiB", "10GiB", "10.1GiB", "10GiB", "10GiB")
        assert estimator.reserved_for(profile.part(HOST), RULES) == int(size("10.1GiB") * 1.03) + 128 * MIB

    def test_not_less_where_four_agree(self) -> None:
        assert estimator.reserved_for(full_runs(*["10GiB"] * 4).part(HOST), RULES) == size("11.25GiB")

    def test_not_less_where_they_differ(self) -> None:
        profile = full_runs("10GiB", "10GiB", "10.3GiB", "10GiB", "10GiB")
        assert estimator.reserved_for(profile.part(HOST), RULES) == estimator.with_margin(size("10.3GiB"), RULES)

    @given(SIZES, SIZES)
    def test_more_for_more(self, one: int, other: int) -> None:
        low, high = sorted((one, other))
        assert low < estimator.with_margin(low, RULES) <= estimator.with_margin(high, RULES)


class TestProbing:
    @pytest.mark.parametrize(("epochs", "probed"), [(99, False), (100, True), (10_000, True), (None, False)])
    def test_where_it_costs_a_fiftieth_at_most(self, epochs: int | None, probed: bool) -> None:
        assert estimator.should_probe(terms(epochs=epochs), RULES, PROBES) is probed

    def test_never_what_takes_no_epochs(self) -> None:
        assert not estimator.should_probe(terms(epochs=1000), RULES, TaskClass("k", "x", probes=False))

    @pytest.mark.parametrize(("profile", "probed"), [("probe", True), ("auto", False), ("live", False), ("off", False)])
    def test_as_the_user_wants(self, profile: str, probed: bool) -> None:
        assert estimator.should_probe(terms(epochs=5), rules(profile=Profiling(profile)), PROBES) is probed

    def test_a_probe_is_a_need_of_its_own(self) -> None:
        asked = estimator.need(terms(epochs=1000), None, RULES, Profile(), PROBES)
        assert (asked.host.bytes, asked.purpose, asked.source) == (None, Purpose.PROBE, EstimateSource.PROBE)

    def test_what_is_known_is_not_probed(self) -> None:
        assert estimator.need(terms(epochs=1000), None, RULES, full_runs("1GiB"), PROBES).purpose is Purpose.RUN
        assert estimator.need(terms("1GiB", epochs=1000), None, RULES, Profile(), PROBES).purpose is Purpose.RUN


class TestAfterAnOutOfMemory:
    @given(SIZES, SIZES)
    def test_no_less_than_before_and_more_than_it_held(self, reserved: int, peak: int) -> None:
        least = estimator.after_oom(reserved, peak, RULES)
        assert least >= reserved
        assert least >= estimator.with_margin(peak, RULES)

    def test_what_it_held_and_asked_for_besides(self) -> None:
        assert estimator.after_oom(20 * GIB, 4 * GIB, RULES, asked=2 * GIB) == estimator.with_margin(6 * GIB, RULES)

    def test_half_again_what_it_held(self) -> None:
        assert estimator.after_oom(4 * GIB, 4 * GIB, RULES) == 6 * GIB


class TestGrowth:
    def test_a_reservation_that_is_kept_stays(self) -> None:
        assert estimator.grown({HOST: GIB}, {HOST: GIB}, RULES) is None

    def test_one_that_is_not_grows_at_once(self) -> None:
        assert estimator.grown({HOST: GIB}, {HOST: 2 * GIB}, RULES) == {HOST: estimator.with_margin(2 * GIB, RULES)}

    def test_only_where_it_is_not(self) -> None:
        grown = estimator.grown({"GPU-0": GIB, "GPU-1": GIB}, {"GPU-0": GIB, "GPU-1": 2 * GIB}, RULES)
        assert grown == {"GPU-0": GIB, "GPU-1": estimator.with_margin(2 * GIB, RULES)}

    @given(SIZES, SIZES)
    def test_it_grows_above_what_is_held(self, reserved: int, used: int) -> None:
        grown = estimator.grown({HOST: reserved}, {HOST: used}, RULES)
        assert (grown is None) == (used <= reserved)
        assert grown is None or grown[HOST] > used


def reserved(reservation: dict[str, int]) -> Placement:
    return Placement(1, 1, Purpose.RUN, reservation, 1.0, EstimateSource.MEASURED)


class TestCut:
    def test_to_the_peak_with_its_margin(self) -> None:
        assert estimator.cut(reserved({HOST: 12 * GIB}), {HOST: 4 * GIB}, RULES) == {
            HOST: estimator.with_margin(4 * GIB, RULES)
        }

    def test_never_above_what_it_was(self) -> None:
        assert estimator.cut(reserved({HOST: 4 * GIB}), {HOST: 4 * GIB}, RULES) == {HOST: 4 * GIB}

    def test_not_while_it_holds_nothing_somewhere(self) -> None:
        """A task that still reads its data has not settled."""
        assert estimator.cut(reserved({"GPU-0": GIB, "GPU-1": GIB}), {"GPU-0": GIB}, RULES) is None


class TestNewPeak:
    def test_the_first_one_is(self) -> None:
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
    def test_above_the_last_by_64_mib_and_two_per_cent(self, before: str, now: str, new: bool) -> None:
        assert estimator.is_new_peak(size(before), size(now), RULES) is new

    @given(SIZES)
    def test_less_never_is(self, peak: int) -> None:
        assert not estimator.is_new_peak(peak, peak, RULES)
        assert not estimator.is_new_peak(peak, peak - 1, RULES)
