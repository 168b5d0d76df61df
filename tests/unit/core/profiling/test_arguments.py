"""The arguments of a command as named slots, and what the name of a slot tells."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.profiling.family.arguments import (
    is_content,
    is_number,
    labels,
    plain_name,
    slots,
)
from scheduler.core.tasks.fields import words


class TestSlots:
    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("--lr=0.1", [("--lr", "0.1")]),
            ("--lr 0.1 -b 32", [("--lr", "0.1"), ("-b", "32")]),
            ("--amp --lr 0.1", [("--amp", ""), ("--lr", "0.1")]),
            ("--amp", [("--amp", "")]),
            ("--empty=", [("--empty", "")]),
            ("--shift -1 --decay -1e-3", [("--shift", "-1"), ("--decay", "-1e-3")]),
            ("--input -", [("--input", "-")]),
            ("--filter a=b", [("--filter", "a=b")]),
            ("lr=0.1 +model.depth=3 db/kind=x", [("lr", "0.1"), ("+model.depth", "3"), ("db/kind", "x")]),
            ("a.yaml b.yaml", [("1", "a.yaml"), ("2", "b.yaml")]),
            ("--x 1 a --y 2 b", [("--x", "1"), ("1", "a"), ("--y", "2"), ("2", "b")]),
            ("--set a --set b --set=c", [("--set", "a"), ("--set#2", "b"), ("--set#3", "c")]),
            ("x=1 x=2", [("x", "1"), ("x#2", "2")]),
            ("", []),
        ],
    )
    def test_every_argument_has_a_name(self, text: str, named: list[tuple[str, str]]) -> None:
        assert slots(words(text)) == tuple(named)

    @pytest.mark.parametrize(
        "redirected",
        ["> out.log", ">out.log", ">> out.log", "2> err", "2>err", "2>&1", "> out.log 2>&1", "&> all", "&>>all",
         "< in", "<in", ">| out", ">& out", "2>&1 | tee -a out.log"],
    )  # fmt: skip
    def test_redirections_are_no_arguments(self, redirected: str) -> None:
        assert slots(words(f"--lr 0.1 {redirected}")) == (("--lr", "0.1"),)

    def test_redirections_are_no_value_of_a_flag(self) -> None:
        assert slots(words("--amp > out.log --lr 0.1")) == (("--amp", ""), ("--lr", "0.1"))

    def test_a_pipe_into_anything_else_is_part_of_what_runs(self) -> None:
        assert slots(words("a | python b.py")) == (("1", "a"), ("2", "|"), ("3", "python"), ("4", "b.py"))

    @given(st.lists(st.text(max_size=5)))
    def test_slots_of_a_command_have_different_names(self, said: list[str]) -> None:
        names = [name for name, _ in slots(said)]
        assert len(names) == len(set(names))


class TestNames:
    @pytest.mark.parametrize("name", ["--output_dir", "--run-name", "hydra.run.dir", "seed", "--wandbProject", "--tag"])
    def test_names_of_outputs_runs_and_seeds_are_labels(self, name: str) -> None:
        assert labels(name)

    @pytest.mark.parametrize("name", ["--model_name", "--data-dir", "--dataset", "--lr", "1", "--runner", "--config"])
    def test_names_of_models_data_and_hyperparameters_are_no_labels(self, name: str) -> None:
        assert not labels(name)

    def test_names_of_models_and_data_are_content(self) -> None:
        assert is_content("--model_name")
        assert is_content("trainData")
        assert not is_content("--lr")

    @pytest.mark.parametrize("said", ["batch-size", "batch_size", "--batch-size", "--batch_size#2", "+batch_size"])
    def test_dashes_and_underscores_in_names_are_equal(self, said: str) -> None:
        assert plain_name(said) == "batch_size"

    @pytest.mark.parametrize(
        ("text", "number"),
        [("1", True), ("-1.5e-3", True), (".5", True), ("5.", True), ("", False), ("1e", False), ("nan", False),
         ("0x1", False), ("1,2", False)],
    )  # fmt: skip
    def test_only_plain_decimal_numbers_are_numbers(self, text: str, number: bool) -> None:
        assert is_number(text) is number
