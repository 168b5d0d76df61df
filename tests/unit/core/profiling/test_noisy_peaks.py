"""Peaks that differ from run to run: which arguments matter nevertheless, and what is expected of new classes."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import pytest

from scheduler.core.profiling.family.arguments import slots
from scheduler.core.profiling.family.families import Family
from scheduler.core.tasks.fields import words
from scheduler.simulation.task_behaviour import deviation
from scheduler.units import GIB, MIB

Row = tuple[int, int, int, int]
"""The width, batch size, learning rate and dropout of a row."""
GRID: list[Row] = list(product((1, 2, 3, 4), (16, 32, 64, 128), (1, 2, 3, 4, 5), (0, 1, 2, 3)))


def plain(row: Row) -> int:
    """Return the usual memory of a row, in bytes."""
    width, batch, _, _ = row
    return width * GIB + width * batch * 4 * MIB


class Learned:
    """Rows that ran once, in a random order, with peaks that deviate."""

    def __init__(self, seed: int, truth: Callable[[Row], int] = plain, kinds: int = 80) -> None:
        self.truth, self.kinds = truth, kinds
        self.rows = random.Random(seed).sample(GRID, len(GRID))
        self.family = Family()
        for kind, row in enumerate(self.rows):
            self.family.add(kind, slots(words("--width {} --bs {} --lr 0.{} --dropout 0.{}".format(*row))))
        for kind in range(kinds):
            self.family.observe(kind, {"0": round(truth(self.rows[kind]) * deviation(seed, kind))})

    def matter(self) -> list[str]:
        return [one.name for one in self.family.factors() if not one.neutral]

    def guesses(self) -> list[float]:
        """Return the estimates for task classes that never ran, over what they usually need."""
        found = ((self.family.like(kind), row) for kind, row in enumerate(self.rows[self.kinds :], self.kinds))
        return [guess.peaks["0"] / self.truth(row) for guess, row in found if guess is not None]


@pytest.mark.parametrize("seed", range(5))
class TestPeaksThatDeviate:
    def test_arguments_that_change_no_peak_are_found_though_no_class_ran_twice(self, seed: int) -> None:
        """Each of 320 classes of a grid was learned by itself, since no two peaks were equal."""
        assert Learned(seed).matter() == ["--width", "--bs"]

    def test_an_estimate_is_not_below_the_usual_peak(self, seed: int) -> None:
        guesses = Learned(seed).guesses()
        assert len(guesses) > 200
        assert sum(guess < 0.95 for guess in guesses) <= len(guesses) * 0.05

    def test_an_effect_of_a_sixth_is_found(self, seed: int) -> None:
        def truth(row: Row) -> int:
            return plain(row) if row[2] < 3 else round(plain(row) * 1.15)

        assert "--lr" in Learned(seed, truth, kinds=160).matter()

    def test_one_value_that_needs_far_more_is_found_in_few_runs(self, seed: int) -> None:
        def truth(row: Row) -> int:
            return plain(row) * (3 if row[3] == 3 else 1)

        assert "--dropout" in Learned(seed, truth, kinds=20).matter()


def test_load_of_a_class_that_never_ran_follows_from_its_arguments() -> None:
    from scheduler.core.profiling.family.class_summaries import Beside

    family = Family()
    for kind, width in enumerate(range(100, 1200, 50)):
        family.add(kind, slots(["--width", str(width)]))
        if kind < 20:
            family.observe(kind, {"0": width * 8 * MIB}, Beside(busy=width / 2000))
    guess = family.like(21)
    assert guess is not None
    assert guess.busy == pytest.approx(1150 / 2000, rel=0.02)


def test_usual_peak_of_each_of_many_models_is_part_of_the_function() -> None:
    dice, family = random.Random(1), Family()
    models = {f"m{n}": dice.randrange(1, 12) * GIB for n in range(20)}
    rows = [(model, bs, rate) for model in models for bs in (16, 32, 64) for rate in range(4)]
    dice.shuffle(rows)
    for kind, (model, bs, rate) in enumerate(rows):
        family.add(kind, slots(words(f"--model {model} --bs {bs} --lr 0.{rate}")))
    for kind, (model, bs, _) in enumerate(rows[:200]):
        family.observe(kind, {"0": models[model] + bs * models[model] // 100})
    assert "usual(--model)" in family.computed()[0].words
    guesses = [(family.like(kind), rows[kind]) for kind in range(200, len(rows))]
    ratios = [guess.peaks["0"] / (models[row[0]] * (1 + row[1] / 100)) for guess, row in guesses if guess is not None]
    assert len(ratios) > 30
    assert sum(0.9 < ratio < 1.5 for ratio in ratios) >= 0.9 * len(ratios)
