"""The arguments of a script that determine its memory, learned from the peaks of its task classes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import permutations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.model import EstimateSource
from scheduler.core.profiling.family import computed_peaks, families
from scheduler.core.profiling.family.argument_table import MOST_SLOTS
from scheduler.core.profiling.family.arguments import Slots, slots
from scheduler.core.profiling.family.families import Family
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.tasks.fields import words
from scheduler.units import MIB
from tests.support.builders import Size, size
from tests.support.share import cases


def family(*commands: str, **said: Iterable[str]) -> Family:
    """Return a family with a class for every different command, numbered from 0, and a row for each command."""
    new = Family(**said)
    numbers: dict[str, int] = {}
    for command in commands:
        new.add(numbers.setdefault(command, len(numbers)), slots(words(command)))
    return new


def see(of: Family, peaks: Mapping[int, Size | Mapping[str, Size]]) -> Family:
    """Observe the peaks of these classes, on the first GPU unless a part is given, and return the family."""
    for kind, peak in peaks.items():
        by_part = peak if isinstance(peak, Mapping) else {"0": peak}
        of.observe(kind, {part: size(bytes_) for part, bytes_ in by_part.items()})
    return of


def guessed(of: Family, kind: int) -> int | None:
    """Return the estimate for a task class on the first GPU, or None."""
    guess = of.like(kind)
    return guess and guess.peaks["0"]


def kinds_of(guess: families.FamilyEstimate) -> tuple[int, ...]:
    """Return the classes that an estimate was taken from."""
    return tuple(guess.of.kinds)


def names(of: Family, **said: bool) -> list[str]:
    """Return the names of the factors with these properties."""
    return [one.name for one in of.factors() if all(getattr(one, key) is value for key, value in said.items())]


def learned(of: Family) -> list[str]:
    """Return the arguments that are neither left out nor named by the user."""
    return names(of, left_out=False, said=False)


GRID = [f"--lr {lr} --bs {bs} --opt {opt}" for lr in (1, 2, 3) for bs in (16, 32, 64) for opt in ("sgd", "adam")]
"""Class 6 * lr + 2 * bs + opt, each counted from 0."""


class TestFactors:
    def test_every_slot_with_two_values_is_a_factor(self) -> None:
        of = family("--lr 1 --bs 16 --amp", "--lr 1 --bs 32 --amp", "--lr 2 --bs 16 --amp")
        assert [(one.name, one.values) for one in of.factors()] == [("--lr", 2), ("--bs", 2)]

    def test_arguments_that_change_together_are_one_factor(self) -> None:
        of = family("--opt sgd --wd 0 --bs 1", "--opt adam --wd 1 --bs 1", "--opt sgd --wd 0 --bs 2")
        assert [one.slots for one in of.factors()] == [("--opt", "--wd"), ("--bs",)]

    def test_arguments_that_no_longer_change_together_become_two_factors(self) -> None:
        of = family("--opt sgd --wd 0", "--opt adam --wd 1")
        assert [one.slots for one in of.factors()] == [("--opt", "--wd")]
        of.add(2, slots(["--opt", "adam", "--wd", "0"]))
        assert [one.slots for one in of.factors()] == [("--opt",), ("--wd",)]

    def test_a_flag_that_some_rows_have_is_a_factor(self) -> None:
        of = family("--lr 1", "--lr 1 --amp", "--lr 2", "--lr 2 --amp")
        assert [(one.name, one.values) for one in of.factors()] == [("--lr", 2), ("--amp", 2)]

    def test_a_flag_and_its_opposite_are_one_factor(self) -> None:
        assert [one.slots for one in family("--amp", "--no-amp").factors()] == [("--amp", "--no-amp")]

    def test_a_family_of_one_row_has_no_factors(self) -> None:
        of = family("--lr 1 --out a")
        assert of.factors() == []
        assert of.like(0) is None

    def test_very_many_names_share_a_slot(self) -> None:
        of = family(*(f"--flag{n} --lr {n % 2}" for n in range(MOST_SLOTS * 3)))
        assert len(of.factors()) <= MOST_SLOTS + 1
        assert see(of, {0: "2GiB"}).like(MOST_SLOTS * 3 - 1) is None


class TestLabels:
    def test_a_text_that_differs_in_each_of_eight_rows_is_a_label(self) -> None:
        of = family(*(f"--lr {n % 4} --where a{n}" for n in range(8)))
        assert names(of, left_out=True) == ["--where"]

    def test_a_text_that_differs_in_each_of_seven_rows_is_no_label(self) -> None:
        of = family(*(f"--lr {n % 4} --where a{n}" for n in range(7)))
        assert names(of, left_out=True) == []

    def test_a_text_that_a_row_repeats_is_no_label(self) -> None:
        of = family(*(f"--lr {n % 4} --where a{n}" for n in [*range(8), 7]))
        assert names(of, left_out=True) == []

    def test_a_text_with_the_name_of_a_label_is_one_from_three_rows_on(self) -> None:
        of = family(*(f"--lr {n % 2} --output_dir a{n}" for n in range(3)))
        assert names(of, left_out=True) == ["--output_dir"]

    def test_a_text_with_the_name_of_a_label_is_one_although_a_row_occurs_twice(self) -> None:
        of = family(*(f"--lr {n % 2} --output_dir a{n}" for n in [0, 1, 2, 2]))
        assert names(of, left_out=True) == ["--output_dir"]

    def test_rows_of_earlier_runs_count_for_labels(self) -> None:
        of = family("--lr 1 --output_dir a")
        for kind, slot in ((1, "b"), (2, "c")):
            of.add(kind, slots(["--lr", "2", "--output_dir", slot]), rows=0)
        assert names(of, left_out=True) == ["--output_dir"]

    def test_numbers_are_no_labels(self) -> None:
        assert learned(family(*(f"--lr {n % 4} --decay 0.{n}1" for n in range(8)))) == ["--lr", "--decay"]

    def test_numbers_with_the_name_of_a_label_are_labels(self) -> None:
        assert names(family(*(f"--lr {n % 2} --seed {n}" for n in range(4))), left_out=True) == ["--seed"]

    def test_labels_that_change_together_are_one_factor(self) -> None:
        of = family(*(f"--lr {n % 2} --out a{n} --name b{n}" for n in range(4)))
        assert [one.slots for one in of.factors() if one.left_out] == [("--out", "--name")]

    @pytest.mark.parametrize("name", ["--model", "--model_name", "--data_dir", "--config", "task"])
    def test_models_data_and_configurations_are_no_labels(self, name: str) -> None:
        assert name in learned(family(*(f"{name}=a{n} --lr {n % 2}" for n in range(10))))

    def test_files_with_settings_are_no_labels(self) -> None:
        assert learned(family(*(f"a{n}.yaml --lr {n % 2}" for n in range(10)))) == ["1", "--lr"]

    def test_the_only_argument_that_varies_is_no_label(self) -> None:
        assert learned(family(*(f"--kind a{n}" for n in range(10)))) == ["--kind"]

    def test_a_run_name_made_of_two_arguments_is_a_label_even_if_it_repeats(self) -> None:
        rows = product((1, 2), (16, 32), (0, 1))
        of = family(*(f"--lr {lr} --bs {bs} --amp {amp} --title lr{lr}_bs{bs}" for lr, bs, amp in rows))
        assert learned(of) == ["--lr", "--bs", "--amp"]
        assert names(of, left_out=True) == ["--title"]

    def test_a_name_with_more_information_than_the_arguments_is_no_label(self) -> None:
        rows = product((1, 2), (16, 32), "xy")
        of = family(*(f"--lr {lr} --bs {bs} --title {lr}_{bs}_{more}" for lr, bs, more in rows), *GRID[:2])
        assert "--title" in learned(of)

    def test_rows_that_differ_in_labels_only_are_alike(self) -> None:
        of = see(family(*(f"--bs 1 --seed {n} --out o{n}" for n in range(5))), {2: "3GiB"})
        assert [guessed(of, kind) for kind in range(5)] == [size("3GiB")] * 5
        assert of.claims() == frozenset()


class TestNeutral:
    def test_an_argument_is_neutral_after_three_values_with_equal_peaks(self) -> None:
        of = family(*(f"--lr {n}" for n in range(10)))
        assert not see(of, {0: "2GiB", 1: "2GiB"}).claims()
        assert see(of, {2: "2GiB"}).claims() == {"--lr"}
        assert guessed(of, 9) == size("2GiB")

    def test_an_argument_with_two_values_is_neutral_after_both(self) -> None:
        of = see(family(*GRID), {0: "2GiB", 1: "2.05GiB", 2: "2GiB"})
        assert of.claims() == {"--opt"}
        assert guessed(of, 3) == pytest.approx(size("2.05GiB"), rel=0.02)
        assert guessed(of, 4) is None

    def test_an_argument_with_three_values_is_not_neutral_after_two(self) -> None:
        of = see(family("--opt a --lr 1", "--opt b --lr 1", "--opt a --lr 2"), dict.fromkeys(range(3), "2GiB"))
        assert of.claims() == {"--opt", "--lr"}
        of.add(3, slots(["--opt", "c", "--lr", "1"]))
        assert of.claims() == {"--lr"}
        assert of.like(3) is None

    @pytest.mark.parametrize(
        ("low", "high", "alike"),
        [("10GiB", "10.5GiB", True), ("10GiB", "10.6GiB", False), ("100MiB", "164MiB", True),
         ("100MiB", "165MiB", False)],
    )  # fmt: skip
    def test_peaks_within_five_per_cent_or_64_mib_are_equal(self, low: str, high: str, alike: bool) -> None:
        of = family("--amp", "", *(f"--amp --lr {n}" for n in range(3)))
        see(of, {0: low, 1: high, 2: low, 3: low})
        assert ("--amp" in of.claims()) is alike

    def test_an_argument_is_neutral_only_if_it_is_on_every_device(self) -> None:
        of = family("--workers 0", "--workers 9")
        see(of, {0: {"0": "4GiB", "host": "1GiB"}, 1: {"0": "4GiB", "host": "9GiB"}})
        assert of.claims() == frozenset()

    def test_a_device_that_one_class_does_not_use_is_a_difference(self) -> None:
        of = see(family("--device cpu", "--device cuda"), {0: {"host": "1GiB"}, 1: {"host": "1GiB", "0": "4GiB"}})
        assert of.claims() == frozenset()

    def test_a_neutral_argument_is_ignored_when_others_are_compared(self) -> None:
        of = see(family(*GRID), {0: "2GiB", 1: "2GiB"})
        see(of, {7: "2GiB", 12: "2GiB"})
        assert of.claims() == {"--opt", "--lr"}

    def test_two_values_of_three_do_not_make_an_argument_neutral_beside_neutral_ones(self) -> None:
        assert see(family(*GRID), {0: "2GiB", 1: "2GiB", 7: "2GiB"}).claims() == {"--opt"}

    def test_an_argument_is_not_neutral_if_it_changes_the_peak_elsewhere(self) -> None:
        of = see(family(*GRID), {0: "2GiB", 1: "2GiB", 4: "8GiB", 5: "12GiB"})
        assert of.claims() == frozenset()

    def test_models_by_name_are_not_alike_before_their_peaks_are_known(self) -> None:
        of = see(family(*(f"--model {name} --out {name}" for name in ("vit", "resnet", "bert"))), {0: "2GiB"})
        assert of.like(1) is None
        see(of, {1: "9GiB"})
        assert of.like(2) is None
        assert of.claims() == frozenset()

    def test_the_order_of_observations_makes_no_difference(self) -> None:
        peaks = {kind: f"{2 + kind // 2 % 3}GiB" for kind in range(0, 18, 3)}
        backwards = dict(reversed(peaks.items()))
        assert see(family(*GRID), peaks).factors() == see(family(*GRID), backwards).factors()


class TestContradiction:
    SQUARE = tuple(f"--lr {lr} --bs {bs}" for lr in "abcd" for bs in "efgh")
    """Class 4 * lr + bs, each counted from 0."""

    def square(self) -> Family:
        """Return a family whose two factors are neutral, each after three values."""
        of = see(family(*self.SQUARE), dict.fromkeys([0, 1, 2, 4, 8], "2GiB"))
        assert of.claims() == {"--lr", "--bs"}
        assert guessed(of, 15) == size("2GiB")
        return of

    def test_a_contradiction_takes_back_what_was_known_of_other_classes(self) -> None:
        of = see(self.square(), {15: "3GiB"})
        assert of.claims() == frozenset()
        assert of.like(5) is None

    def test_few_more_peaks_show_which_argument_a_contradiction_came_from(self) -> None:
        of = see(self.square(), {7: "3GiB", 11: "3GiB", 5: "2GiB", 9: "2GiB"})
        assert of.claims() == {"--lr"}
        assert (guessed(of, 15), guessed(of, 13)) == (size("3GiB"), size("2GiB"))

    def test_an_argument_is_neutral_again_when_the_lower_peaks_have_risen(self) -> None:
        of = see(family(*(f"--lr {n}" for n in range(4))), {0: "2GiB", 1: "2GiB", 2: "2GiB", 3: "6GiB"})
        assert of.claims() == frozenset()
        assert see(of, {0: "6GiB", 1: "6GiB", 2: "6GiB"}).claims() == {"--lr"}

    def test_few_classes_that_differ_in_labels_alone_and_far_in_their_peaks_say_nothing(self) -> None:
        of = family(*(f"--lr {n % 2} --where a{n}" for n in range(20)))
        assert see(of, {0: "2GiB", 2: "4GiB"}).like(4) is None
        see(of, dict.fromkeys(range(4, 16, 2), "3GiB"))
        assert guessed(of, 18) == size("4GiB")

    def test_labels_are_left_out_where_an_argument_explains_a_difference(self) -> None:
        of = family(*(f"--lr {n % 3} --where a{n}" for n in range(9)))
        see(of, {0: "2GiB", 1: "2GiB", 2: "2GiB"})
        assert of.claims() == {"--lr"}
        see(of, {5: "4GiB", 8: "4GiB", 2: "4GiB"})
        assert of.claims() == frozenset()
        assert names(of, left_out=True) == ["--where"]
        assert (guessed(of, 3), guessed(of, 4)) == (size("2GiB"), size("2GiB"))


class TestIgnoreAndOnly:
    def test_an_ignored_argument_is_neutral_before_any_peak_is_known(self) -> None:
        of = see(family(*GRID, ignore=["lr", "--opt"]), {0: "2GiB"})
        assert guessed(of, 13) == size("2GiB")
        assert of.like(2) is None
        assert names(of, said=True, neutral=True) == ["--lr", "--opt"]

    def test_an_ignored_argument_stays_neutral_whatever_the_peaks_are(self) -> None:
        of = see(family(*GRID, ignore=["lr"]), {0: "2GiB", 6: "9GiB"})
        assert guessed(of, 12) == size("9GiB")
        assert of.claims() == frozenset()

    def test_arguments_that_are_not_ignored_are_still_learned(self) -> None:
        of = see(family(*GRID, ignore=["lr"]), {0: "2GiB", 8: "2GiB", 1: "2GiB"})
        assert of.claims() == {"--opt"}

    def test_only_the_named_arguments_matter(self) -> None:
        of = see(family(*GRID, only=["bs"]), {0: "2GiB", 2: "4GiB"})
        assert [guessed(of, kind) for kind in (13, 15, 17)] == [size("2GiB"), size("4GiB"), None]
        assert names(of, said=True, neutral=False) == ["--bs"]

    def test_a_named_argument_matters_even_if_peaks_are_equal(self) -> None:
        of = see(family(*(f"--bs {n} --lr {n % 2}" for n in range(9)), only=["bs"]), dict.fromkeys(range(5), "2GiB"))
        assert of.like(8) is None

    def test_ignored_names_match_with_and_without_dashes(self) -> None:
        of = family("--batch_size 1 --lr 1", "--batch_size 2 --lr 1", "--batch_size 1 --lr 2", only=["batch-size"])
        assert names(of, neutral=False) == ["--batch_size"]

    def test_an_ignored_argument_leaves_the_arguments_that_change_with_it(self) -> None:
        of = family("--a 1 --b 1", "--a 2 --b 2", ignore=["a"])
        assert [(one.name, one.said) for one in of.factors()] == [("--a", True), ("--b", False)]


class TestSimilarClasses:
    def test_an_estimate_is_the_highest_peak_of_similar_classes_on_each_device(self) -> None:
        of = family(*(f"--lr 1 --seed {n}" for n in range(4)))
        see(of, {0: {"0": "4GiB", "host": "1000MiB"}, 1: {"0": "4.1GiB", "host": "960MiB"}})
        guess = of.like(2)
        assert guess is not None
        assert guess.peaks == {"0": size("4.1GiB"), "host": size("1000MiB")}
        assert (guess.by, kinds_of(guess)) == (EstimateSource.SIMILAR, (0, 1))

    def test_a_duplicate_of_a_row_has_its_class(self) -> None:
        of = family("--lr 1", "--lr 1", "--lr 2")
        assert see(of, {0: "1GiB"}).like(1) is None
        assert [one.values for one in of.factors()] == [2]

    def test_classes_of_earlier_runs_count_as_similar(self) -> None:
        of = Family()
        for kind in range(3):
            of.add(kind, slots(["--lr", str(kind)]), rows=0)
        of.add(3, slots(["--lr", "9"]))
        assert guessed(see(of, dict.fromkeys(range(3), "2GiB")), 3) == size("2GiB")

    def test_a_higher_peak_of_a_similar_class_counts_at_once(self) -> None:
        of = see(family(*(f"--lr {n}" for n in range(6))), dict.fromkeys(range(3), "2GiB"))
        assert guessed(of, 4) == size("2GiB")
        assert guessed(see(of, {3: "2.05GiB"}), 4) == size("2.05GiB")

    def test_an_estimate_names_all_similar_classes_it_was_taken_from(self) -> None:
        of = see(family(*(f"--lr {n}" for n in range(6))), dict.fromkeys(range(3), "2GiB"))
        assert of.like(4) is not None
        guess = see(of, {3: "2GiB"}).like(4)
        assert guess is not None
        assert kinds_of(guess) == (0, 1, 2, 3)


class TestComputedPeaks:
    SIZES = (16, 24, 32, 48, 64, 96, 128, 192, 40)

    def sizes(self, *more: int) -> Family:
        """Return a family of these batch sizes, numbered as in SIZES."""
        return family(*(f"--bs {bs}" for bs in (*self.SIZES, *more)))

    def test_eight_peaks_on_a_line_give_the_peak_of_a_ninth_class(self) -> None:
        of = see(self.sizes(), {kind: f"{1000 + 50 * bs}MiB" for kind, bs in enumerate(self.SIZES[:8])})
        guess = of.like(8)
        assert guess is not None
        assert guess.by is EstimateSource.INTERPOLATED
        assert guess.peaks["0"] == pytest.approx(3000 * MIB, rel=0.01)

    def test_too_few_peaks_give_no_estimate(self) -> None:
        assert see(self.sizes(), {0: "2GiB", 2: "4GiB", 4: "8GiB"}).like(3) is None

    def test_numbers_that_are_labels_give_no_estimate(self) -> None:
        peaks = ("2GiB", "8GiB", "3GiB", "9GiB", "5GiB", "2GiB", "7GiB", "3GiB")
        of = see(family(*(f"--config {n}" for n in range(9))), dict(enumerate(peaks)))
        assert of.like(8) is None


# ---- a grid of 320 rows, learned while it runs ----

HYPERPARAMETERS: dict[str, list[str]] = {
    "lr": ["0.1", "0.03", "0.01", "0.003"],
    "bs": ["16", "32", "64", "128"],
    "dropout": ["0", "0.1", "0.2", "0.3", "0.5"],
    "opt": ["adam", "sgd"],
    "aug": ["none", "flip"],
}
ALSO = {"opt": ("--wd", "--momentum"), "lr": ("--warmup",)}
"""Arguments that change together: one hyperparameter is given as three arguments, one as two."""
ORDERS = list(permutations(HYPERPARAMETERS))
AT_ONCE = 4
MOST_UNKNOWN = 64
"""Rows of a grid in order, until every argument was seen with enough values; each is reserved an expectation."""

Row = dict[str, str]
Truth = Callable[[Row], dict[str, int]]


def grid(order: Iterable[str]) -> list[Row]:
    """Return all rows in the order of itertools.product."""
    order = list(order)
    return [dict(zip(order, values, strict=True)) for values in product(*(HYPERPARAMETERS[name] for name in order))]


def command(row: Row) -> Slots:
    """Return a row's slots; all its values occur again in its output directory and its name."""
    said = []
    for name, value in row.items():
        said += [f"--{name}", value]
        for also in ALSO.get(name, ()):
            said += [also, str(HYPERPARAMETERS[name].index(value))]
    label = "_".join(name + value for name, value in row.items())
    return slots([*said, "--output_dir", f"out/{label}", "--name", label])


def nothing_matters(row: Row) -> dict[str, int]:
    return {"host": size("2GiB"), "0": size("6GiB")}


def batch_size_matters(row: Row) -> dict[str, int]:
    return {"host": size("2GiB"), "0": size("2GiB") + int(row["bs"]) * 100 * MIB}


class Played:
    """Rows that start in their order: known ones at once, unknown ones up to four at a time."""

    def __init__(self, rows: list[Row], truth: Truth, remembers: bool = False) -> None:
        self.rows, self.truth, self.remembers = rows, truth, remembers
        self.family = Family()
        for kind, row in enumerate(rows):
            self.family.add(kind, command(row))
        self.unknown = self.rounds = self.too_little = 0
        waiting = list(range(len(rows)))
        while waiting:
            waiting = self.round(waiting)

    def round(self, waiting: list[int]) -> list[int]:
        """Start what can start of the waiting rows, and return the others."""
        known = [kind for kind in waiting if self.known(kind)]
        running = list(self.unknown_ones(waiting, known))[:AT_ONCE]
        for kind in [*running, *(known if self.remembers else ())]:
            self.family.observe(kind, self.truth(self.rows[kind]))
        self.unknown += len(running)
        self.rounds += 1
        started = {*running, *known}
        assert started, "nothing can start"
        return [kind for kind in waiting if kind not in started]

    def known(self, kind: int) -> bool:
        guess = self.family.like(kind)
        if guess is None:
            return False
        real = self.truth(self.rows[kind])
        self.too_little += any(real[part] > guess.peaks.get(part, 0) * 1.1 for part in real)
        return True

    @staticmethod
    def unknown_ones(waiting: list[int], known: list[int]) -> Iterator[int]:
        apart = set(known)
        return (kind for kind in waiting if kind not in apart)


class TestGridOf320Rows:
    SOME = random.Random(320).sample(ORDERS, 10)

    @pytest.mark.parametrize("truth", [nothing_matters, batch_size_matters])
    @pytest.mark.parametrize("order", SOME, ids="-".join)
    def test_at_most_a_fifth_of_the_rows_of_a_grid_starts_unknown(self, order: tuple[str, ...], truth: Truth) -> None:
        played = Played(grid(order), truth)
        assert (played.unknown <= MOST_UNKNOWN, played.too_little) == (True, 0), played.unknown

    @pytest.mark.slow
    @pytest.mark.parametrize("remembers", [False, True])
    @pytest.mark.parametrize("truth", [nothing_matters, batch_size_matters])
    def test_few_rows_of_a_grid_start_unknown_in_any_order(self, truth: Truth, remembers: bool) -> None:
        tried = random.Random(321).sample(ORDERS, cases(len(ORDERS), 30))
        played = [Played(grid(order), truth, remembers) for order in tried]
        assert max(one.unknown for one in played) <= MOST_UNKNOWN
        assert max(one.rounds for one in played) <= 16
        assert sum(one.too_little for one in played) == 0

    def test_exactly_the_arguments_that_matter_are_found(self) -> None:
        found = Played(grid(HYPERPARAMETERS), batch_size_matters).family
        assert names(found, neutral=False) == ["--bs"]
        assert found.claims() == {"--lr", "--dropout", "--opt", "--aug"}
        assert [one.slots for one in found.factors() if one.left_out] == [("--output_dir", "--name")]

    def test_no_more_rows_of_a_shuffled_grid_start_unknown(self) -> None:
        rows = grid(HYPERPARAMETERS)
        for seed in range(5):
            random.Random(seed).shuffle(rows)
            assert Played(rows, nothing_matters).unknown <= MOST_UNKNOWN, seed


class TestCost:
    KINDS = 5000

    def commands(self) -> Iterator[Slots]:
        for n, (a, b, c, d) in enumerate(product(range(10), range(10), range(10), range(5))):
            said = f"--a {a} --a2 {a} --b {b} --c {c} --d {d} --x 1 --y 1 --z 1 --out o{n} --name n{n}"
            yield slots(said.split())

    @pytest.mark.parametrize("peaks", [1, 10, 100])
    def test_a_growing_list_is_not_analysed_anew_at_each_question(
        self, monkeypatch: pytest.MonkeyPatch, peaks: int
    ) -> None:
        fitted = []
        fit = computed_peaks.fit
        monkeypatch.setattr(computed_peaks, "fit", lambda *said: fitted.append(1) or fit(*said))
        of = Family()
        for kind, said in enumerate(self.commands()):
            of.add(kind, said)
            of.observe(kind, {"0": size("2GiB") * (1 + kind % peaks)})
            of.like(kind)
        assert len(fitted) < 300


# ---- whatever it is given ----

COMMANDS = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 2), st.sampled_from("xyz"), st.booleans()), min_size=2, max_size=14
)
PEAKS = st.lists(st.tuples(st.integers(0, 13), st.sampled_from([1000, 1040, 1090, 2000, 3000])), max_size=14)


def made(rows: list[tuple[int, int, str, bool]]) -> Family:
    return family(*(f"--a {a} --b {b} --c {c}{' --d' * d} --e {a}{b}" for a, b, c, d in rows))


class TestProperties:
    @given(COMMANDS, PEAKS)
    def test_no_class_is_like_others_with_lower_peaks_alone(self, rows: list, peaks: list) -> None:
        of, known = made(rows), {}
        for kind, peak in peaks:
            if kind < len(set(rows)):
                known[kind] = peak * MIB
                see(of, {kind: peak * MIB})
        for kind, peak in known.items():
            guess = guessed(of, kind)
            assert guess is not None
            assert guess >= peak

    @given(COMMANDS, PEAKS)
    def test_questions_do_not_change_a_family(self, rows: list, peaks: list) -> None:
        asked, unasked = made(rows), made(rows)
        for kind, peak in peaks:
            if kind < len(set(rows)):
                see(asked, {kind: peak * MIB})
                see(unasked, {kind: peak * MIB})
                asked.like(kind)
                asked.claims()
        assert asked.factors() == unasked.factors()
        assert [guessed(asked, kind) for kind in range(len(set(rows)))] == [
            guessed(unasked, kind) for kind in range(len(set(rows)))
        ]


def test_named_arguments_do_not_apply_to_a_script_without_them() -> None:
    of = family("--model a", "--model b", only=["bs"])
    of.observe(0, {"0": 10 * 2**30})
    assert of.like(1) is None


def test_a_named_argument_that_no_task_has_is_reported() -> None:
    known = ProfileIndex(only=["bs", "batchsize"], ignore=["--seed"])
    known.number(TaskClass("k", "train.py", False, "f", (("--bs", "8"),)))
    assert known.unheard() == ["--seed", "batchsize"]
