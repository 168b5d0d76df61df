"""Which parameters vary in a list, and what its tasks are called."""

from __future__ import annotations

from pathlib import PurePath

import pytest

from scheduler.core.model import Spec, Terms
from scheduler.core.tasks import command
from scheduler.core.tasks.parameters import ParameterSample, last_part, script_of, stem, told, varying


def spec(text: str, *, filename: str = "", **own: str) -> Spec:
    return Spec(1, ".", "-1" if filename else "", filename or text, "", (), tuple(own.items()), Terms())


@pytest.mark.parametrize(("words", "script"), [
    ("python -u train.py --lr 1", "train"), ("python3.11 -X dev -W error src/fit.py", "fit"),
    ("python -m pkg.train --lr 1", "train"), ("python -c pass", "python"), ("python", "python"),
    ("torchrun --nproc_per_node=2 train.py --lr 1", "train"), ("accelerate launch train.py", "train"),
    ("uv run python -u train.py", "train"), ("env A=1 ./fit.sh", "fit"), ("bash run.sh 1", "run"),
    ("nice -n 5 python -m pkg.fit", "fit"), ("./bin/trainer --lr 1", "trainer"), ("", ""),
])  # fmt: skip
def test_script_of_a_command_is_found_behind_its_launchers(words: str, script: str) -> None:
    assert script_of(words.split())[0] == script


@pytest.mark.parametrize(
    "path", ["a/train.py", "train", "./x.tar.gz", ".bashrc", "a/.b.c", "dir/", "a.", "..", "/", "a//b"]
)
def test_names_of_files_are_those_of_paths(path: str) -> None:
    assert (last_part(path), stem(path)) == (PurePath(path).name, PurePath(path).stem)


def test_parameters_are_own_columns_and_named_arguments() -> None:
    row = spec("python -u t.py --lr=0.1 batch_size=8 data.csv --no-cache --lr 9", Seed="3", LR="0.1")
    assert command.row_parameters(row) == {"Seed": "3", "LR": "0.1", "no_cache": "yes", "batch_size": "8"}


def test_argument_with_the_id_of_its_task_is_no_parameter() -> None:
    assert command.row_parameters(spec("python t.py --lr=0.1 --out=runs/{id} --tag={{id}}")) == {
        "lr": "0.1", "tag": "{{id}}",
    }  # fmt: skip


def test_command_line_for_a_shell_has_its_parameters_as_well() -> None:
    assert command.row_parameters(spec("""/bin/sh -c 'python t.py --lr 0.1 > log'""")) == {"lr": "0.1"}
    assert command.row_parameters(spec("""bash -lc 'CUDA=0 python t.py --lr 0.1 >log 2>&1'""")) == {"lr": "0.1"}
    assert command.row_parameters(spec("""/bin/sh -c "echo it's" """)) == {}


@pytest.mark.parametrize(
    "line", ["exit 7; true --lr 1", "cat x | a --lr 1", "f=$(x) a --lr 1", "a --lr 1 && b", "a\nb"]
)
def test_line_of_several_commands_has_no_parameters(line: str) -> None:
    assert command.row_parameters(spec(f"sh -c '{line}'")) == {}
    assert command.name(spec(f"sh -c '{line}'", lr="1"), varies=("lr",)) == f"sh -c {line}"


def test_only_what_differs_varies_and_equal_columns_count_once() -> None:
    rows = [{"a": "1", "b": "x", "copy": "1", "c": "7"}, {"a": "2", "b": "x", "copy": "2"}]
    assert varying(rows) == ("a", "c")
    assert varying(rows[:1]) == ()
    assert varying([]) == ()


def test_labels_of_outputs_are_no_parameters_unless_nothing_else_varies() -> None:
    assert varying([{"lr": "1", "out": "a", "seed": "5"}, {"lr": "2", "out": "b", "seed": "2"}, {"lr": "2"}]) == (
        "lr", "seed",
    )  # fmt: skip
    assert varying([{"out": "a"}, {"out": "b"}]) == ("out",)


def test_name_has_the_last_part_of_a_path_and_no_blanks() -> None:
    values = {"data": "/data/sets/imagenet/", "note": "two words", "empty": ""}
    assert told("train", values, ("data", "note", "empty")) == "train data=imagenet note=two_words"


def test_task_with_a_name_of_its_own_keeps_it() -> None:
    named = Spec(1, ".", "", "python t.py --lr 1", "mine", (), (), Terms())
    assert command.name(named, varies=("lr",)) == "mine"
    assert command.name(spec("python -u t.py --lr 1")) == "t --lr 1"
    assert command.name(spec("python -u t.py --token=abc --lr 1"), varies=("lr", "token")) == "t lr=1 token=***"


def test_sample_of_a_long_list_is_small_and_reaches_its_end() -> None:
    sample = ParameterSample()
    taken = [number for number in range(1_000_000) if sample.wants_next()]
    assert taken[: sample.FIRST] == list(range(sample.FIRST))
    assert len(taken) < 5000
    assert taken[-1] > 990_000
