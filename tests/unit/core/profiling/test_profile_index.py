"""The index of what is known about classes: what it says of numbers that it does not know, and what scripts share."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from scheduler.core.model import HOST
from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.units import GIB, MIB

GPU = "0"


def seen(peaks: Mapping[str, int]) -> Observation:
    return Observation(peaks, seconds=10.0)


def kind(key: str, family: str = "train.py", *slots: tuple[str, str]) -> TaskClass:
    return TaskClass(key, f"{family} --x {key}", False, family, slots)


def index(*peaks: Mapping[str, int], family: str = "train.py") -> ProfileIndex:
    """Return an index of classes of one script, each with these peaks."""
    made = ProfileIndex()
    for place, its in enumerate(peaks, 1):
        number = made.number(kind(f"k{place}", family, ("--x", str(place))))
        assert number == place
        made.learn(number, seen(its))
    return made


class TestUnknown:
    """Number 0 is of a task that has no class."""

    def test_nothing_is_said_about_a_number_that_is_unknown(self) -> None:
        made = index()
        assert (made.script(0), made.kind(0), made.guess(0), made.usual_busy(0)) == ("", None, None, 0.0)
        assert (made.has_succeeded(0), made.expected(0, 5), made.duration(0, 5)) == (False, 0.0, 0.0)
        assert (made.usual(0.9, 1), made.usual_ram(0, 0.9, 1), made.sized) == (0, 0, 0)
        assert made.some_without_gpu is False

    def test_nothing_is_learned_about_a_number_that_is_unknown(self) -> None:
        made = index()
        assert made.learn(7, seen({GPU: GIB})) is False
        assert (made.note_absence(7, 1, sure=True), made.withdraw_absence(7), made.note_use(7, {GPU: 1})) == (
            [],
            [],
            [],
        )
        assert (made.outgrew(7, {GPU: GIB}), made.news(), list(made.learned())) == (False, [], [])


class TestRam:
    def test_the_highest_ram_of_a_script_is_usual_for_its_classes(self) -> None:
        made = index({GPU: GIB, HOST: 3 * GIB}, {GPU: GIB, HOST: 2 * GIB})
        fresh = made.number(kind("new"))
        assert made.usual_ram(fresh, 0.9, 99) == 3 * GIB

    def test_the_expected_ram_of_a_living_task_counts_until_more_is_known(self) -> None:
        made = index()
        first, second, other = made.number(kind("a")), made.number(kind("b")), made.number(kind("c", "other.py"))
        made.expect_ram(first, 5 * GIB)
        made.expect_ram(second, 4 * GIB)
        assert [made.usual_ram(one, 0.9, 1) for one in (first, second, other)] == [5 * GIB, 5 * GIB, 0]
        made.learn(first, seen({GPU: GIB, HOST: GIB}))
        assert made.usual_ram(second, 0.9, 99) == GIB

    def test_classes_without_a_script_share_nothing(self) -> None:
        made = index()
        first, second = made.number(kind("a", "")), made.number(kind("b", ""))
        made.expect_ram(first, 5 * GIB)
        made.learn(first, seen({GPU: GIB, HOST: 2 * GIB}))
        assert made.usual_ram(second, 0.9, 99) == 0
        assert made.usual_ram(second, 0.9, 1) == 2 * GIB, "that of all classes, once there are enough"


class TestSizes:
    def test_the_usual_need_is_that_of_all_classes_once_enough_are_known(self) -> None:
        made = index(*({GPU: number * GIB, HOST: MIB} for number in range(1, 11)))
        assert made.sized == 10
        assert made.usual(0.5, 10) == 5 * GIB
        assert made.usual(0.5, 11) == 0
        assert (made.is_unlike(GIB // 4, 0.5, 10), made.is_unlike(GIB // 2, 0.5, 10)) == (True, False)
        assert made.is_unlike(GIB // 4, 0.5, 11) is False

    def test_a_class_that_had_gpus_and_used_none_is_noticed(self) -> None:
        made = index({GPU: GIB})
        assert made.some_without_gpu is False
        number = made.number(kind("none"))
        assert made.note_absence(number, 1, sure=True) == [number]
        assert made.some_without_gpu is True
        assert made.withdraw_absence(number) == [number]
        assert made.withdraw_absence(number) == []


class TestKnown:
    def test_a_class_keeps_its_number_and_its_script(self) -> None:
        made = index({GPU: GIB}, {GPU: 2 * GIB})
        assert made.number(kind("k2", "train.py", ("--x", "2"))) == 2
        assert [made.script(number) for number in (1, 2)] == ["train.py"] * 2
        assert [made.has_succeeded(number) for number in (1, 2)] == [True, True]
        assert [(family, its) for family, _, its in made.learned()] == [("train.py", True)] * 2

    def test_a_new_class_is_expected_to_need_what_similar_ones_do(self) -> None:
        made = index(*({GPU: (2 + number) * GIB, HOST: GIB} for number in range(1, 9)))
        guess = made.guess(made.number(kind("new", "train.py", ("--x", "9"))))
        assert guess is not None
        assert guess.peaks[GPU] == pytest.approx(11 * GIB, rel=0.2)

    def test_arguments_that_no_class_has_are_named(self) -> None:
        made = ProfileIndex(ignore=("--seed",), only=("--batch", "--lr"))
        assert made.unheard() == ["--batch", "--lr", "--seed"]
        made.number(kind("a", "train.py", ("--batch", "4"), ("--seed", "1")))
        assert made.unheard() == ["--lr"]
