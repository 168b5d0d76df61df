"""The peak as a function of a script's arguments: its terms, the share that its bound covers, the unknown cases."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import exp

import pytest

from scheduler.core.profiling.family.peak_function import Row, fit
from scheduler.units import GIB, MIB

Truth = Callable[[random.Random, list], float]


def trials(number: int, truth: Truth, seed: int) -> tuple[list[Row], list[int]]:
    """Return trials of a random search (rate, batch, width, depth, optimiser) and their peaks."""
    dice, rows, peaks = random.Random(seed), list[Row](), []
    for _ in range(number):
        row = [
            10 ** dice.uniform(-5, -1),
            float(dice.choice((16, 32, 64, 128))),
            float(round(2 ** dice.uniform(7, 11))),
            float(dice.randint(2, 12)),
            dice.choice(("adam", "sgd")),
        ]
        rows.append(row)
        peaks.append(round(truth(dice, row)))
    return rows, peaks


def transformer(dice: random.Random, row: list) -> float:
    return 800 * MIB + row[3] * row[2] * (64 * row[2] + 4096 * row[1])


def noisy(dice: random.Random, row: list) -> float:
    return transformer(dice, row) * dice.lognormvariate(0, 0.1)


def optimiser_doubles(dice: random.Random, row: list) -> float:
    return transformer(dice, row) * (2 if row[4] == "adam" else 1)


def unseen(dice: random.Random, row: list) -> float:
    return transformer(dice, row) * dice.choice((1, 3))


def of_another_shape(dice: random.Random, row: list) -> float:
    return GIB * exp(row[2] / 900) * (1 + row[3] % 3)


def nothing(dice: random.Random, row: list) -> float:
    return 3 * GIB * dice.lognormvariate(0, 0.05)


def test_a_dozen_trials_suffice_for_three_arguments() -> None:
    rows, peaks = trials(112, transformer, 1)
    found = fit(rows[:12], peaks[:12])
    assert found is not None
    assert found.places == {1, 2, 3}
    guesses = [(found.predict(row, 0.75), peak) for row, peak in zip(rows[12:], peaks[12:], strict=True)]
    assert all(abs(guess.middle - peak) < 0.05 * peak for guess, peak in guesses if guess is not None)


@pytest.mark.parametrize("truth", [transformer, noisy, optimiser_doubles, unseen, of_another_shape])
@pytest.mark.parametrize("number", [12, 40, 100])
def test_the_bound_holds_for_the_stated_share_whatever_the_shape(truth: Truth, number: int) -> None:
    below = []
    for seed in range(12):
        rows, peaks = trials(number + 60, truth, seed)
        found = fit(rows[:number], peaks[:number])
        for row, peak in zip(rows[number:], peaks[number:], strict=True) if found else ():
            guess = found.predict(row, 0.75) if found else None
            below += [peak <= guess.bound * 1.01] if guess is not None else []
    assert sum(below) >= (0.66 if number < 40 else 0.70) * len(below)


def test_the_bound_is_wider_for_peaks_that_no_argument_explains() -> None:
    def width(truth: Truth) -> float:
        rows, peaks = trials(80, truth, 5)
        found = fit(rows, peaks)
        assert found is not None
        return found.error(0.75)

    assert width(unseen) > 1.3 > 1.15 > width(noisy)


def test_nothing_is_made_up_where_nothing_matters() -> None:
    assert [fit(*trials(60, nothing, seed)) for seed in range(10)].count(None) >= 8


def test_too_few_trials_are_no_function() -> None:
    assert fit(*trials(7, transformer, 1)) is None


def test_a_new_value_of_an_argument_that_repeats_is_unknown() -> None:
    rows: list[Row] = [[float(bs), name] for bs in (16, 32, 64) for name in ("a", "b") for _ in range(3)]
    found = fit(rows, [round((row[0] if isinstance(row[0], float) else 0) * 100 * MIB) for row in rows])
    assert found is not None
    assert found.predict([32.0, "a"], 0.75) is not None
    assert found.predict([32.0, "c"], 0.75) is None
    assert found.predict([128.0, "a"], 0.75) is None


def test_words_name_the_terms_and_their_amounts() -> None:
    found = fit(*trials(40, transformer, 1))
    assert found is not None
    assert found.words(["lr", "bs", "width", "depth", "opt"]) == (
        "800 MiB + 4 KiB x bs x width x depth + 64 B x width x width x depth"
    )


def test_a_share_of_a_byte_for_each_step_of_an_argument_is_written_in_bytes() -> None:
    found = fit([[float(number)] for number in range(2, 80, 2)], list(range(1, 40)))
    assert found is not None
    assert "0.5 B x n" in found.words(["n"])


def test_a_text_that_matters_is_found_among_large_peaks() -> None:
    rows: list[Row] = [[float(rate), name] for rate in range(5) for name in ("resnet", "vit")]
    found = fit(rows, [(20 if row[1] == "vit" else 5) * GIB for row in rows])
    assert found is not None
    assert found.words(["lr", "model"]) == "5 GiB + 15 GiB x (model = vit)"
    assert (found.is_neutral(0, 5), found.is_neutral(1, 2)) == (True, False)


def test_three_equal_peaks_are_a_constant_and_three_others_are_none() -> None:
    rows: list[Row] = [[0.1], [0.2], [0.3]]
    found = fit(rows, [2 * GIB, 2 * GIB, 2 * GIB + 50 * MIB])
    assert found is not None
    assert found.places == frozenset()
    assert fit(rows, [2 * GIB, 4 * GIB, 2 * GIB]) is None


def test_a_text_beside_values_with_which_it_never_occurred_is_unknown() -> None:
    seen = [("a", p, bs) for p in ("half", "full") for bs in (8.0, 16.0, 32.0)] + [
        ("b", "half", bs) for bs in (8.0, 16.0)
    ]
    rows: list[Row] = [list(row) for row in (*seen, *seen)]
    size = {"a": GIB, "b": 6 * GIB}
    found = fit(rows, [round(size[str(model)] * (1 if p == "half" else 2)) for model, p, _ in (*seen, *seen)])
    assert found is not None
    assert found.predict(["a", "full", 16.0], 0.75) is not None
    assert found.predict(["b", "full", 16.0], 0.75) is None
