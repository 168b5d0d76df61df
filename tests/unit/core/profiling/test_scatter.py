"""Peaks that differ from run to run: how far they scatter, and which arguments matter nevertheless."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product

import pytest

from scheduler.core.model import EstimateSource
from scheduler.core.profiling.family.arguments import slots
from scheduler.core.profiling.family.families import Family
from scheduler.core.profiling.family.scatter import STEADY, Pool, Scatter
from scheduler.core.tasks.fields import words
from scheduler.simulation.task_behaviour import deviation
from scheduler.units import GIB, MIB

Row = tuple[int, int, int, int]
"""The width, batch size, learning rate and dropout of a row."""
GRID: list[Row] = list(product((1, 2, 3, 4), (16, 32, 64, 128), (1, 2, 3, 4, 5), (0, 1, 2, 3)))


def scatter(kinds: Sequence[Sequence[int]]) -> Scatter:
    """Return the scatter of the runs of classes, each on one device."""
    pool = Pool()
    for kind, peaks in enumerate(kinds):
        pool.put(kind, [peaks])
    return pool.scatter()


def plain(row: Row) -> int:
    """Return the usual memory of a row, in bytes."""
    width, batch, _, _ = row
    return width * GIB + width * batch * 4 * MIB


class TestScatter:
    def test_equal_runs_have_no_scatter(self) -> None:
        assert scatter([[GIB, GIB + 50 * MIB], [3 * GIB, 3 * GIB]]) == STEADY

    def test_no_runs_have_no_scatter(self) -> None:
        assert scatter([]) == STEADY

    def test_the_scatter_follows_from_pairs_that_differ(self) -> None:
        runs = [[10 * GIB, 10 * GIB]] * 14 + [[10 * GIB, 12 * GIB]] * 4
        assert scatter(runs).share == pytest.approx(0.15)  # 1 - sqrt(1 - 4 / 20) is 0.106

    def test_further_runs_of_a_class_replace_earlier_ones(self) -> None:
        pool = Pool()
        for runs in ([8 * GIB, 10 * GIB], [8 * GIB, 10 * GIB, 10 * GIB], [8 * GIB, 8 * GIB]):
            pool.put(1, [runs])
        assert pool.scatter() == STEADY

    def test_the_scatter_of_few_runs_reaches_beyond_their_difference(self) -> None:
        assert scatter([[8 * GIB, 10 * GIB]]).reach == pytest.approx(0.3)

    def test_peaks_apart_are_distinguished_from_peaks_beyond_reach(self) -> None:
        peaks = [10 * GIB, 10 * GIB, 10 * GIB, 12 * GIB, 20 * GIB]
        assert Scatter(0.1, 0.3).apart(peaks) == [1, 2]


class Learned:
    """Rows that ran in a random order, some of them twice, with peaks that deviate."""

    def __init__(self, seed: int, truth: Callable[[Row], int] = plain, kinds: int = 80, repeated: int = 40) -> None:
        self.truth = truth
        self.rows = random.Random(seed).sample(GRID, len(GRID))
        self.family = Family()
        for kind, row in enumerate(self.rows):
            self.family.add(kind, slots(words("--width {} --bs {} --lr 0.{} --dropout 0.{}".format(*row))))
        for kind, peaks in self.runs(seed, kinds, repeated):
            self.family.observe(kind, {"0": max(peaks)}, [peaks] if len(peaks) > 1 else [])

    def runs(self, seed: int, kinds: int, repeated: int) -> Iterator[tuple[int, Sequence[int]]]:
        for kind in range(kinds):
            times = 2 if kind < repeated else 1
            yield kind, [round(self.truth(self.rows[kind]) * deviation(seed, 2 * kind + n)) for n in range(times)]

    def matter(self) -> list[str]:
        return [one.name for one in self.family.factors() if not one.neutral]

    def guesses(self) -> list[float]:
        """Return the estimates for task classes that never ran, over what they usually need."""
        found = ((self.family.like(kind), row) for kind, row in enumerate(self.rows[80:], 80))
        return [
            guess.peaks["0"] / self.truth(row) for guess, row in found if guess and guess.by is EstimateSource.SIMILAR
        ]


@pytest.mark.parametrize("seed", range(5))
class TestPeaksThatDeviate:
    def test_arguments_that_change_no_peak_are_found_despite_scatter(self, seed: int) -> None:
        """Each of 500 classes of a sweep was learned by itself, since no two peaks were equal."""
        assert Learned(seed).matter() == ["--width", "--bs"]

    def test_an_estimate_is_not_below_the_usual_peak(self, seed: int) -> None:
        guesses = Learned(seed).guesses()
        assert len(guesses) > 200
        assert sum(guess < 0.95 for guess in guesses) <= len(guesses) * 0.05

    def test_an_effect_that_is_smaller_than_the_scatter_is_found(self, seed: int) -> None:
        def truth(row: Row) -> int:
            return plain(row) if row[2] < 3 else round(plain(row) * 1.15)

        assert "--lr" in Learned(seed, truth, kinds=160).matter()

    def test_one_value_that_needs_far_more_is_found_in_few_runs(self, seed: int) -> None:
        def truth(row: Row) -> int:
            return plain(row) * (3 if row[3] == 3 else 1)

        assert "--dropout" in Learned(seed, truth, kinds=20, repeated=20).matter()

    def test_runs_without_scatter_are_judged_as_strictly_as_before(self, seed: int) -> None:
        learned = Learned(seed, kinds=0)
        for kind in range(120):
            peak = plain(learned.rows[kind])
            learned.family.observe(kind, {"0": peak}, [[peak, peak]])
        before = learned.matter()
        odd = next(kind for kind in range(120, len(GRID)) if learned.family.like(kind) is not None)
        learned.family.observe(odd, {"0": round(1.1 * plain(learned.rows[odd]))})
        assert len(learned.matter()) > len(before)
