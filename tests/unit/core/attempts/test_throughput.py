"""The throughput of a task, and its slowdown by neighbours."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core.attempts.throughput import Colocation, Throughput, alone
from scheduler.core.events import Exited, Resized
from scheduler.core.model import Placement, State
from scheduler.core.reporting.run_history import stretched, totals
from scheduler.ui.terminal import closing
from scheduler.units import GIB
from tests.support.builders import Simulation, gpu, jobs, simulate


def seen(*sightings: tuple[float, float, bool]) -> Throughput:
    """Return the throughput after sightings: epochs done, at which second, whether another task ran beside it."""
    pace = Throughput()
    for epochs, at, beside in sightings:
        pace.see(epochs, at, beside=beside)
    return pace


class TestStretch:
    def test_the_stretch_is_the_time_beside_others_over_the_time_alone(self) -> None:
        assert seen((0, 0, False), (1, 10, False), (3, 50, True)).stretch == 2.0

    def test_a_task_that_was_never_alone_is_compared_with_its_first_epoch(self) -> None:
        assert seen((0, 0, True), (1, 10, True), (2, 30, True), (3, 50, True)).stretch == 2.0

    def test_the_first_epoch_beside_others_counts_once_the_task_was_alone(self) -> None:
        assert seen((0, 0, True), (1, 30, True), (2, 60, False), (3, 70, False)).stretch == 3.0

    def test_a_task_that_was_always_alone_has_no_stretch(self) -> None:
        assert seen((0, 0, False), (1, 10, False), (2, 90, False)).stretch is None

    def test_an_epoch_with_a_neighbour_in_its_middle_counts_as_shared(self) -> None:
        pace = seen((0, 0, False), (1, 10, False), (1, 15, True), (2, 40, False), (3, 50, False))
        assert pace.stretch == 3.0

    def test_fractions_of_epochs_add_up(self) -> None:
        steps = [(n / 10, float(n), False) for n in range(11)]
        assert seen(*steps, (2, 30, True)).stretch == pytest.approx(2.0)

    @pytest.mark.parametrize("sightings", [[], [(0, 0, True)], [(0, 0, True), (0.5, 10, True)]])
    def test_too_few_epochs_give_no_stretch(self, sightings: list[tuple[float, float, bool]]) -> None:
        assert seen(*sightings).stretch is None


class TestSoloShare:
    def test_epochs_alone_show_the_share_of_its_time_that_a_task_would_have_taken_alone(self) -> None:
        assert seen((0, 0, False), (1, 10, False), (3, 70, True)).solo_share == pytest.approx(30 / 70)

    def test_a_task_that_was_never_alone_shows_nothing(self) -> None:
        assert seen((0, 0, True), (1, 10, True), (2, 30, True), (3, 50, True)).solo_share is None

    def test_a_task_whose_epochs_were_faster_beside_others_took_no_longer_alone(self) -> None:
        assert seen((0, 0, False), (1, 30, False), (3, 40, True)).solo_share == 1.0


class TestColocation:
    def test_tasks_are_beside_each_other_while_they_share_a_device(self) -> None:
        crowd = Colocation()
        crowd.enter((1, 1), ["GPU-0"])
        assert not crowd.beside((1, 1))
        crowd.enter((2, 1), ["GPU-0", "GPU-1"])
        crowd.enter((3, 1), ["GPU-2"])
        assert [crowd.beside((task, 1)) for task in (1, 2, 3)] == [True, True, False]
        crowd.leave((2, 1))
        assert not crowd.beside((1, 1))

    def test_an_ended_task_is_beside_no_other(self) -> None:
        assert not Colocation().beside((1, 1))


def crowded() -> Simulation:
    """Return a run of a task that has its GPU alone for 3/4 of its work, and of three that are beside it before."""
    long = jobs(1, seconds=4000, memory="1GiB", epochs=40, utilisation=1.0)
    return simulate(long + jobs(3, seconds=1000, memory="1GiB", epochs=40, utilisation=1.0), gpu(0))


class TestRuns:
    def test_a_task_beside_others_and_then_alone_gets_its_stretch(self) -> None:
        ((task, times),) = stretched(crowded().history)
        assert (task, times) == (1, pytest.approx(4.0, rel=0.02))

    def test_a_small_stretch_is_not_reported(self) -> None:
        busy = jobs(1, seconds=4000, memory="1GiB", epochs=40, utilisation=0.7)
        run = simulate(busy + jobs(1, seconds=1000, memory="1GiB", epochs=40, utilisation=0.7), gpu(0))
        assert run.history.tasks[1].attempts[0].stretch == pytest.approx(1.4, rel=0.02)
        assert stretched(run.history) == []

    def test_the_closing_lines_name_the_worst(self) -> None:
        said = closing.total_lines(totals(crowded().history, {State.SUCCEEDED: 4}, 1), 7)
        assert "slowed down: epochs of 1 task took at least 1.5 times as long beside other tasks" in said[-2]
        assert "task 1 the most, 4.0 times;" in said[-1]

    def test_the_closing_lines_name_no_slowdown_where_there_was_none(self) -> None:
        run = simulate(jobs(2, seconds=100, memory="1GiB", epochs=10), gpu(0), gpu(1))
        assert not any("slowed down" in line for line in closing.total_lines(totals(run.history, {}, 1), 7))


class TestAlone:
    @pytest.mark.parametrize(("own", "others"), [(0.2, 0.3), (0.8, 0.8), (0.3, 1.5), (1.0, 1.0), (0.6, 0.0)])
    def test_the_load_alone_follows_from_the_load_beside_others(self, own: float, others: float) -> None:
        share = own / max(1.0, own + others)
        assert alone(share, others) == pytest.approx(own)

    def test_the_load_on_a_gpu_that_idles_at_times_is_taken_as_measured(self) -> None:
        assert alone(0.2, 1.5, whole=0.8) == 0.2
        assert alone(0.2, 0.5, whole=1.0) == pytest.approx(0.125)

    def test_the_load_on_a_gpu_that_never_idles_depends_on_the_estimates_of_the_others(self) -> None:
        assert alone(0.2, 1.2, whole=1.0) == pytest.approx(0.3)

    def test_the_load_of_a_task_is_not_raised_by_neighbours_without_a_measured_load(self) -> None:
        run = simulate(jobs(4, seconds=100, memory="1GiB", utilisation=0.2), gpu(0))
        assert [e.busy for e in run.events if isinstance(e, Placement)] == [0.5] * 4
        assert [e.busy for e in run.events if isinstance(e, Exited)] == [0.2] * 4

    def test_the_load_on_a_gpu_that_never_idles_follows_from_neighbours_whose_load_was_measured(self) -> None:
        assert alone(0.2, 9.0, whole=1.0, scale=1.5) == pytest.approx(0.3)
        assert alone(0.2, 9.0, whole=0.8, scale=1.5) == 0.2

    def test_the_loads_of_new_classes_on_a_full_gpu_are_measured_by_those_that_were_measured_before(self) -> None:
        first = jobs(1, seconds=5000, memory="1GiB", utilisation=0.6)
        later = [replace(one, arrives=100.0) for one in jobs(3, memory="1GiB", utilisation=0.2, seconds=100)]
        run = simulate([*first, *later], gpu(0))
        found = {e.task: e.busy for e in run.events if isinstance(e, Exited)}
        assert found == pytest.approx({1: 0.6, 2: 0.2, 3: 0.2, 4: 0.2}, abs=0.05)

    def test_a_measured_load_replaces_the_expected_one_while_the_task_runs(self) -> None:
        run = simulate(jobs(4, seconds=1000, memory="1GiB", utilisation=0.2), gpu(0))
        resized = [e for e in run.events if isinstance(e, Resized) and e.cause == "load"]
        assert {e.task: e.busy for e in resized} == pytest.approx(dict.fromkeys(range(1, 5), 0.2))
        assert all(set(e.reservation.values()) == {GIB} for e in resized)

    def test_the_load_alone_is_never_more_than_the_whole_gpu(self) -> None:
        assert alone(0.9, 5.0) == 1.0
