"""Grids of parameters: order, patterns and the need for a shell."""

from __future__ import annotations

import random

import pytest

from scheduler.core.tasks import param_grid
from scheduler.core.tasks.param_grid import BadPattern
from tests.e2e.older_tools.contracts import contract

AB = {"a": ["0", "1", "2"], "b": ["x", "y"]}


def filled(pattern: str, **values: list[str]) -> list[str]:
    return [param_grid.command(pattern, chosen) for chosen in param_grid.combinations(values)]


def in_random_order(seed: int, **values: list[str]) -> list[str]:
    return [" ".join(chosen.values()) for chosen in param_grid.shuffled(values, random.Random(seed).shuffle)]


class TestOrder:
    @contract("H-04")
    def test_the_last_parameter_of_a_grid_varies_fastest(self) -> None:
        assert filled("{a} {b}", **AB) == ["0 x", "0 y", "1 x", "1 y", "2 x", "2 y"]

    @contract("H-02", "H-03")
    def test_a_seed_gives_one_order_in_every_version(self) -> None:
        assert in_random_order(1, **AB) == ["1 x", "1 y", "2 y", "0 x", "2 x", "0 y"]

    @contract("H-02")
    def test_every_combination_of_a_grid_occurs_once(self) -> None:
        found = in_random_order(7, a=[*"0123"], b=[*"xyz"], c=[*"pq"])
        assert sorted(found) == sorted(f"{a} {b} {c}" for a in "0123" for b in "xyz" for c in "pq")

    def test_a_shuffled_grid_has_the_order_of_shuffled_combinations(self) -> None:
        values = {"a": [*"01234"], "b": [*"xyz"], "c": [*"pqrs"]}
        expected = [*param_grid.combinations(values)]
        random.Random(3).shuffle(expected)
        assert [*param_grid.shuffled(values, random.Random(3).shuffle)] == expected

    def test_a_grid_with_an_empty_parameter_is_empty(self) -> None:
        assert filled("{a}", a=["1"], b=[]) == in_random_order(1, a=["1"], b=[]) == []

    @contract("H-07")
    def test_an_unused_parameter_multiplies(self) -> None:
        assert filled("{a}", a=["1", "2"], b=["x", "y"]) == ["1", "1", "2", "2"]

    @contract("H-09")
    @pytest.mark.parametrize(("most", "number"), [(0, 0), (4, 4), (6, 6), (99, 6), (None, 6)])
    def test_a_grid_can_be_limited_to_its_first_commands(self, most: int | None, number: int) -> None:
        assert len([*param_grid.first(param_grid.combinations(AB), most)]) == number


class TestPatterns:
    @contract("H-05")
    def test_double_braces_stay_and_values_can_be_indexed(self) -> None:
        assert filled("x {{a}} ${{HOME}} {a[0]}", a=["17"]) == ["x {a} ${HOME} 1"]

    @contract("H-06")
    def test_values_are_inserted_as_they_are(self) -> None:
        assert filled("f {a}", a=["b 'c", '"', "-0.1"]) == ["f b 'c", 'f "', "f -0.1"]

    @contract("H-05", "H-08")
    @pytest.mark.parametrize(
        ("pattern", "words"),
        [
            ("p {c}", "{c}, which no -p gives: add -p c"),
            ("p ${HOME}", "{HOME}, which no -p gives"),
            ("p {}", "names no parameter: write {NAME}"),
            ("p {0}", "names no parameter: write {NAME}"),
            ("p {a:.3f}", "values are texts"),
            ("p {a", "write {{ and }}"),
            ("p a}", "write {{ and }}"),
            ("p {a[9]}", "cannot be filled"),
            ("p {a.b}", "cannot be filled"),
            ("p {a[b]}", "cannot be filled"),
        ],
    )
    def test_a_pattern_that_cannot_be_filled_is_refused_in_one_sentence(self, pattern: str, words: str) -> None:
        with pytest.raises(BadPattern) as said:
            param_grid.command(pattern, {"a": "1"})
        assert words in str(said.value)

    @pytest.mark.parametrize("text", ["python train.py --lr 0.1", "./run -x a=b c/d:e@f,g"])
    def test_a_command_without_special_characters_needs_no_shell(self, text: str) -> None:
        assert param_grid.needs_no_shell(text)

    @pytest.mark.parametrize(
        "text", ["a | b", "a > b", "A=1 b", "a 'b'", "a; b", "a $b", "a *", "a # b", "~/a", "a {b}"]
    )
    def test_a_command_with_special_characters_needs_a_shell(self, text: str) -> None:
        assert not param_grid.needs_no_shell(text)
