"""The older tool that makes commands of a parameter grid: its contract, through the command line."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.older_tools.contracts import contract
from tests.support.killing import Home

AB = ("p {a} {b}", "-p", "a", "0", "1", "2", "-p", "b", "x", "y")
IN_ORDER = ("--sampling-mode", "grid")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def lines(home: Home, *words: str) -> list[str]:
    return home.call("simple-hypersearch", *words, code=0).stdout.splitlines()


def refused(home: Home, *words: str) -> str:
    """Return the one sentence of a refusal."""
    done = home.call("simple-hypersearch", *words, code=2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1)
    return done.stderr


class TestCombinations:
    @contract("H-01", "H-02", "H-03")
    def test_a_seed_repeats_the_random_order(self, home: Home) -> None:
        assert lines(home, *AB, "--seed", "1") == ["p 1 x", "p 1 y", "p 2 y", "p 0 x", "p 2 x", "p 0 y"]
        assert lines(home, "--n-samples=3", "--seed=1", *AB) == ["p 1 x", "p 1 y", "p 2 y"]

    @contract("H-01", "H-04")
    def test_sampling_mode_grid_prints_commands_in_order(self, home: Home) -> None:
        assert lines(home, *IN_ORDER, *AB) == [f"p {a} {b}" for a in "012" for b in "xy"]
        assert lines(home, *AB, "--sampling", "grid", "--n-sam", "1") == ["p 0 x"]

    @contract("H-01")
    def test_parameter_is_the_long_name_of_p(self, home: Home) -> None:
        assert lines(home, "{a}", "--parameter", "a", "1", "2", *IN_ORDER) == ["1", "2"]

    @contract("H-06")
    @pytest.mark.parametrize("value", ["-0.1", "-1e-3", "--x", "-", "a b", "'q'"])
    def test_a_value_may_be_any_text(self, home: Home, value: str) -> None:
        assert lines(home, "f {a}", "-p", "a", value, "2", *IN_ORDER) == [f"f {value}", "f 2"]

    @contract("H-07")
    def test_the_last_of_two_equal_names_counts_and_no_values_give_no_command(self, home: Home) -> None:
        assert lines(home, "{a}", "-p", "a", "1", "-p", "a", "2") == ["2"]
        assert lines(home, "{a}", "-p", "a") == []

    @contract("H-10")
    def test_line_ends_stay_in_the_command(self, home: Home) -> None:
        assert lines(home, "train {a}\nrm x", "-p", "a", "1") == ["train 1", "rm x"]


class TestBadInput:
    @contract("H-05", "H-08")
    def test_a_placeholder_without_a_parameter_is_refused(self, home: Home) -> None:
        assert "the command asks for {c}, which no -p gives: add -p c VALUE ..." in refused(
            home, "p {c}", "-p", "a", "1"
        )

    @contract("H-08")
    def test_a_command_without_parameters_is_refused(self, home: Home) -> None:
        assert "no parameters: give at least one, as in -p lr 0.1 0.01" in refused(home, "p")

    @contract("H-09")
    def test_a_negative_number_of_samples_is_refused(self, home: Home) -> None:
        assert "--n-samples -1: give a whole number from 0" in refused(home, *AB, "--n-samples=-1")
        assert lines(home, *AB, "--n-samples", "0") == []

    def test_a_seed_that_is_no_number_is_refused(self, home: Home) -> None:
        assert "--seed x: give a whole number" in refused(home, *AB, "--seed", "x")

    def test_p_without_a_name_is_refused(self, home: Home) -> None:
        assert "-p: write a name and its values after it, as in -p lr 0.1 0.01" in refused(home, "p", "-p")

    @contract("H-11")
    def test_hypersearch_ends_quietly_when_its_reader_has_gone(self, home: Home) -> None:
        numbers = [str(number) for number in range(60)]
        words = ["{a} {b} {c}", *IN_ORDER, *[w for name in "abc" for w in ("-p", name, *numbers)]]
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with home.start("simple-hypersearch", *words, **piped) as process:
            assert process.stdout
            assert process.stdout.readline() == "0 0 0\n"
            process.stdout.close()
            assert process.wait(60) == 1
            assert process.stderr
            assert process.stderr.read() == ""
