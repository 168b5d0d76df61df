"""How fast a task gets on, and what its neighbours cost it."""

from __future__ import annotations

import pytest

from scheduler.core.attempts.throughput import Colocation, Throughput, alone
from scheduler.core.events import Exited
from scheduler.core.model import Placement, State
from scheduler.core.reporting.run_history import stretched, totals
from scheduler.ui.terminal import closing
from tests.support.builders import Simulation, gpu, jobs, simulate


def seen(*sightings: tuple[float, float, bool]) -> Throughput:
    """Return the throughput after sightings: epochs done, at which second, whether another task ran beside it."""
    pace = Throughput()
    for epochs, at, beside in sightings:
        pace.see(epochs, at, beside=beside)
    return pace


class TestStretch:
    def test_beside_others_over_alone(self) -> None:
        assert seen((0, 0, False), (1, 10, False), (3, 50, True)).stretch == 2.0

    def test_who_was_never_alone_is_compared_with_its_first_epoch(self) -> None:
        assert seen((0, 0, True), (1, 10, True), (2, 30, True), (3, 50, True)).stretch == 2.0

    def test_its_first_crowded_epoch_counts_once_it_was_alone(self) -> None:
        assert seen((0, 0, True), (1, 30, True), (2, 60, False), (3, 70, False)).stretch == 3.0

    def test_who_was_always_alone_was_not_stretched(self) -> None:
        assert seen((0, 0, False), (1, 10, False), (2, 90, False)).stretch is None

    def test_a_neighbour_between_two_epochs_makes_it_a_crowded_one(self) -> None:
        pace = seen((0, 0, False), (1, 10, False), (1, 15, True), (2, 40, False), (3, 50, False))
        assert pace.stretch == 3.0

    def test_parts_of_epochs_add_up(self) -> None:
        steps = [(n / 10, float(n), False) for n in range(11)]
        assert seen(*steps, (2, 30, True)).stretch == pytest.approx(2.0)

    @pytest.mark.parametrize("sightings", [[], [(0, 0, True)], [(0, 0, True), (0.5, 10, True)]])
    def test_too_little_was_seen(self, sightings: list[tuple[float, float, bool]]) -> None:
        assert seen(*sightings).stretch is None


class TestCrowd:
    def test_who_shares_a_device(self) -> None:
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
    """One that has a GPU to itself for three quarters of its work, and three that are beside it till then."""
    long = jobs(1, seconds=4000, memory="1GiB", epochs=40, utilisation=1.0)
    return simulate(long + jobs(3, seconds=1000, memory="1GiB", epochs=40, utilisation=1.0), gpu(0))


class TestRuns:
    def test_who_was_beside_others_and_then_alone(self) -> None:
        ((task, times),) = stretched(crowded().fold)
        assert (task, times) == (1, pytest.approx(4.0, rel=0.02))

    def test_little_is_not_told(self) -> None:
        busy = jobs(1, seconds=4000, memory="1GiB", epochs=40, utilisation=0.7)
        run = simulate(busy + jobs(1, seconds=1000, memory="1GiB", epochs=40, utilisation=0.7), gpu(0))
        assert run.fold.tasks[1].attempts[0].stretch == pytest.approx(1.4, rel=0.02)
        assert stretched(run.fold) == []

    def test_the_closing_lines_name_the_worst(self) -> None:
        said = closing.total_lines(totals(crowded().fold, {State.SUCCEEDED: 4}, 1), 7)
        assert "slowed down: epochs of 1 task took at least 1.5 times as long beside other tasks" in said[-2]
        assert "task 1 the most, 4.0 times;" in said[-1]

    def test_where_nothing_suffered_nothing_is_said(self) -> None:
        run = simulate(jobs(2, seconds=100, memory="1GiB", epochs=10), gpu(0), gpu(1))
        assert not any("slowed down" in line for line in closing.total_lines(totals(run.fold, {}, 1), 7))


class TestAlone:
    @pytest.mark.parametrize(("own", "others"), [(0.2, 0.3), (0.8, 0.8), (0.3, 1.5), (1.0, 1.0), (0.6, 0.0)])
    def test_what_it_gets_beside_others_tells_what_it_would_do_alone(self, own: float, others: float) -> None:
        share = own / max(1.0, own + others)
        assert alone(share, others) == pytest.approx(own)

    def test_while_the_gpu_idles_now_and_then_it_gets_all_it_asks_for_whatever_others_are_taken_for(self) -> None:
        assert alone(0.2, 1.5, whole=0.8) == 0.2
        assert alone(0.2, 0.5, whole=1.0) == pytest.approx(0.125)

    def test_a_gpu_that_never_idles_tells_no_more_than_what_the_others_are_taken_for(self) -> None:
        assert alone(0.2, 1.2, whole=1.0) == pytest.approx(0.3)

    def test_the_load_of_a_task_is_not_raised_by_neighbours_without_a_measured_load(self) -> None:
        run = simulate(jobs(4, seconds=100, memory="1GiB", utilisation=0.2), gpu(0))
        assert [e.busy for e in run.events if isinstance(e, Placement)] == [0.5] * 4
        assert [e.busy for e in run.events if isinstance(e, Exited)] == [0.2] * 4

    def test_never_more_than_all_of_it(self) -> None:
        assert alone(0.9, 5.0) == 1.0
