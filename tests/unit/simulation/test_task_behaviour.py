"""The behaviour of simulated tasks: curves, late peaks, and how far tasks differ from their class."""

from __future__ import annotations

from bisect import bisect_left

import pytest

from scheduler.simulation.task_behaviour import FACTORS, TaskBehaviour, chance, curve, deviation, draw
from scheduler.units import GIB, MIB

MANY = 4000


class TestCurve:
    def test_memory_reaches_its_peak_after_a_tenth_of_the_run(self) -> None:
        assert curve(8 * GIB, 100.0) == ((0.0, 500 * MIB), (10.0, 8 * GIB))

    def test_memory_reaches_its_peak_after_45_seconds_at_the_latest(self) -> None:
        assert curve(8 * GIB, 3600.0)[1][0] == 45.0

    def test_late_task_reaches_its_peak_in_its_last_epoch(self) -> None:
        assert curve(8 * GIB, 1000.0, late=True, epochs=4)[1] == (750.0, 8 * GIB)

    def test_small_task_never_uses_more_than_its_peak(self) -> None:
        assert curve(100 * MIB, 10.0) == ((0.0, 100 * MIB), (1.0, 100 * MIB))

    def test_last_curve_holds_for_all_further_devices(self) -> None:
        truth = TaskBehaviour(1.0, (curve(GIB, 1.0), curve(2 * GIB, 1.0)))
        assert [truth.memory_on(position)[-1][1] // GIB for position in range(4)] == [1, 2, 2, 2]
        assert TaskBehaviour(1.0).memory_on(0) == ()


class TestWork:
    @pytest.mark.parametrize(("epochs", "told", "seconds"), [(10, "2", 20.0), (10, "", 100.0), (None, "2", 100.0)])
    def test_work_follows_the_number_of_epochs(self, epochs: int | None, told: str, seconds: float) -> None:
        assert TaskBehaviour(100.0, epochs=epochs).work(told) == seconds


class TestChance:
    def test_chance_follows_from_seed_and_name(self) -> None:
        assert chance(1, "x", 2) == chance(1, "x", 2)
        assert len({chance(seed, name, 2) for seed in (1, 2) for name in ("x", "y")}) == 4

    def test_chance_is_equally_distributed(self) -> None:
        numbers = sorted(chance(7, n) for n in range(MANY))
        assert all(abs(bisect_left(numbers, share / 10) / MANY - share / 10) < 0.03 for share in range(11))

    def test_one_seed_draws_equal_tasks(self) -> None:
        assert [draw(3, task, GIB, 60.0) for task in range(50)] == [draw(3, task, GIB, 60.0) for task in range(50)]
        assert [draw(3, task, GIB, 60.0) for task in range(50)] != [draw(4, task, GIB, 60.0) for task in range(50)]

    def test_one_task_in_twenty_is_late(self) -> None:
        drawn = [draw(5, task, GIB, 1000.0, epochs=10) for task in range(MANY)]
        late = sum(truth.memory_on(0)[1][0] == 900.0 for truth in drawn)
        assert late / MANY == pytest.approx(0.05, abs=0.015)

    def test_half_of_the_tasks_deviate_by_the_measured_quantiles(self) -> None:
        """A quarter of the factors is 1, so that three eighths of the tasks really differ."""
        factors = [deviation(11, task) for task in range(MANY)]
        assert sum(factor != 1.0 for factor in factors) / MANY == pytest.approx(0.375, abs=0.03)
        assert (min(factors), max(factors)) == pytest.approx((FACTORS[0][1], FACTORS[-1][1]), abs=0.001)
        assert sum(factor > 1.08 for factor in factors) / MANY == pytest.approx(0.05, abs=0.015)
