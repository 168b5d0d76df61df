"""Rows of a trace as simulated tasks: their behaviour, and what is known of them beforehand."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.model import Spec, Terms
from scheduler.core.profiling.class_profile import Profile
from scheduler.simulation.workload import (
    TOLD_EPOCHS,
    InitialKnowledge,
    MeasuredTask,
    TraceRow,
    arriving_over,
    batches_by_arrival,
    from_profile,
    kind_of,
    peaks_of,
    trace_row,
    workload,
)
from scheduler.units import GIB


def row(config: str = "a.py", seconds: float = 600.0, peak: int = 4 * GIB, gpus: int = 1, **said: Any) -> TraceRow:
    spec = Spec(2, "", "-1", config, "", (), (), Terms(epochs=20, gpus=gpus))
    return TraceRow(spec, seconds, peak, **said)


class TestTruth:
    def test_workload_without_deviation_has_the_measured_peaks(self) -> None:
        (one,) = workload([row(busy=0.7)], InitialKnowledge(), deviation=False).tasks
        assert (one.truth.seconds, one.truth.utilisation, peaks_of(one)) == (600.0, 0.7, (4 * GIB, 0))

    def test_tasks_on_gpus_load_their_data_for_their_share_of_the_time(self) -> None:
        given = workload([row(), row(gpus=0)], InitialKnowledge(), loading=0.1).tasks
        assert [one.truth.loading for one in given] == [60.0, 0.0]

    def test_half_of_the_peaks_deviate(self) -> None:
        given = workload([row()] * 1000, InitialKnowledge(), seed=3, largest=24 * GIB).tasks
        assert 300 < sum(peaks_of(one)[0] != 4 * GIB for one in given) < 550

    def test_one_seed_gives_equal_workloads(self) -> None:
        first, again, other = (workload([row()] * 50, InitialKnowledge(), seed=seed).tasks for seed in (3, 3, 4))
        assert first == again != other

    def test_no_peak_deviates_above_the_largest_device(self) -> None:
        given = workload([row(peak=23 * GIB)] * 500, InitialKnowledge(), largest=24 * GIB).tasks
        assert max(peaks_of(one)[0] for one in given) == 24 * GIB

    def test_task_above_the_largest_device_stays_as_it_is(self) -> None:
        given = workload([row(peak=30 * GIB)] * 100, InitialKnowledge(), largest=24 * GIB).tasks
        assert min(peaks_of(one)[0] for one in given) > 24 * GIB

    def test_host_memory_is_kept_beside_gpus_and_without(self) -> None:
        beside, alone = workload([row(host_peak=GIB), row(gpus=0)], InitialKnowledge(), deviation=False).tasks
        assert (peaks_of(beside), peaks_of(alone)) == ((4 * GIB, GIB), (0, 4 * GIB))


class TestKnown:
    def profile(self, rows: list[TraceRow], known: InitialKnowledge) -> Profile:
        given = workload(rows, known, deviation=False)
        return given.known[kind_of(given.tasks[0].spec).key]

    def test_workload_without_knowledge_has_no_profiles(self) -> None:
        assert workload([row()], InitialKnowledge()).known == {}

    def test_known_times_give_epochs_of_one_length(self) -> None:
        rows = [row(seconds=900.0), row(seconds=100.0)]
        epochs = [one.spec.terms.epochs for one in workload(rows, InitialKnowledge(times=True)).tasks]
        profile = self.profile(rows, InitialKnowledge(times=True))
        assert epochs == [TOLD_EPOCHS, 10]
        assert [profile.epoch_seconds * number for number in epochs if number] == [900.0, 100.0]
        assert not profile.knows(1)

    def test_known_peaks_are_profiles_of_classes(self) -> None:
        profile = self.profile([row(gpus=2, host_peak=GIB)], InitialKnowledge(peaks=True))
        assert profile.peaks == {"0": 4 * GIB, "1": 4 * GIB, "host": GIB}
        assert profile.epoch_seconds == 0.0

    def test_oracle_declares_the_peak_of_every_task(self) -> None:
        given = workload([row()] * 20, InitialKnowledge(own=True), seed=2, largest=24 * GIB).tasks
        assert [one.spec.terms.memory for one in given] == [peaks_of(one)[0] for one in given]

    def test_rows_of_one_configuration_are_one_class(self) -> None:
        assert kind_of(row("a.py --lr 1").spec) == kind_of(row("a.py --lr 1", seconds=5).spec)
        assert kind_of(row("a.py --lr 1").spec).key != kind_of(row("a.py --lr 2").spec).key
        assert kind_of(row(gpus=1).spec).key != kind_of(row(gpus=2).spec).key


class TestMeasured:
    def test_first_measurement_has_precedence(self) -> None:
        known = (
            MeasuredTask(seconds=5.0)
            .over(MeasuredTask(seconds=9.0, peak=GIB))
            .over(MeasuredTask(peak=2 * GIB, cores=3.0))
        )
        assert (known.seconds, known.peak, known.cores, known.busy) == (5.0, GIB, 3.0, None)

    def test_measurement_comes_from_a_profile(self) -> None:
        profile = Profile(epoch_seconds=3.0, busy=0.4)
        assert from_profile(profile, 20, 1) == MeasuredTask(seconds=60.0, busy=0.4)
        assert from_profile(profile, None, 1).seconds is None

    @pytest.mark.parametrize(("epochs", "seconds"), [(None, 7.0), (20, 60.0)])
    def test_command_without_epochs_takes_the_whole_duration(self, epochs: int | None, seconds: float) -> None:
        assert from_profile(Profile(epoch_seconds=3.0, whole_seconds=7.0), epochs, 1).seconds == seconds

    @pytest.mark.parametrize(("gpus", "cores"), [(0, 1.0), (1, 0.0)])
    def test_row_without_measurements_gets_usual_values(self, gpus: int, cores: float) -> None:
        made = trace_row(row(gpus=gpus).spec, MeasuredTask(seconds=5.0, peak=GIB))
        assert (made.arrives, made.busy, made.cores, made.host_peak) == (0.0, 1.0, cores, 0)


def test_random_arrivals_keep_the_order_of_rows() -> None:
    times = [one.arrives for one in arriving_over([row()] * 100, 3600.0, 1)]
    assert times == sorted(times)
    assert (times[0], 3000 < times[-1] < 3600) == (0.0, True)


def test_rows_that_arrive_together_are_one_batch() -> None:
    given = workload([row(arrives=at) for at in (5.0, 0.0, 5.0)], InitialKnowledge(), deviation=False).tasks
    assert [(at, len(rows)) for at, rows in batches_by_arrival(given)] == [(0.0, 1), (5.0, 2)]
