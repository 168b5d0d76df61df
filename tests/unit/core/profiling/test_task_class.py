"""The parts of a command that make tasks one class: the script that really runs, arguments, interpreter, device."""

from __future__ import annotations

import pytest

from scheduler.core.profiling.task_class import TaskClass, files_of, kind, said_by, script_of
from scheduler.inputs.lines import form_of_lines
from tests.support.builders import spec

SCRIPTS = [
    ("train.py --lr 0.1", ("train.py",)),
    ("-m pkg.train --lr 0.1", ("pkg/train.py", "pkg/train/__main__.py")),
    ("-u train.py --lr 0.1", ("train.py",)),
]
COMMANDS = [
    ("python train.py --lr 0.1", ("train.py",)),
    ("python -m pkg.train --lr 0.1", ("pkg/train.py", "pkg/train/__main__.py")),
    ("torchrun --nproc_per_node 2 train.py --lr 0.1", ("train.py",)),
    ("python -m torch.distributed.run --nproc_per_node=2 train.py", ("train.py",)),
    ("accelerate launch --num_processes 2 train.py --lr 0.1", ("train.py",)),
    ("python -m torch.distributed.run --no-python run.sh", ("run.sh",)),
    ("bash run.sh 0.1", ("run.sh",)),
    ("./train --lr 0.1", ("",)),
]


@pytest.mark.parametrize(("filename", "files"), SCRIPTS)
def test_the_script_of_a_row_is_the_file_that_runs(filename: str, files: tuple[str, ...]) -> None:
    row = spec(filename)
    assert files_of(row, script_of(row)) == files


@pytest.mark.parametrize(("command", "files"), COMMANDS)
def test_the_script_of_a_command_is_the_file_that_runs(command: str, files: tuple[str, ...]) -> None:
    row = spec("", command=command)
    assert files_of(row, script_of(row)) == files


def of(filename: str, digest: str = "d", device: str = "host 24GiB", **said: str) -> TaskClass:
    row = spec("", command=said["command"]) if said else spec(filename)
    return kind(row, "both", "/usr/bin/python3", digest, device)


def test_equal_rows_are_of_one_class() -> None:
    assert of("train.py --lr 0.1") == of("train.py --lr 0.1")


@pytest.mark.parametrize("other", ["train.py --lr 0.1 --epochs 7", "train.py --id=5 --lr 0.1"])
def test_epochs_and_id_do_not_change_the_class(other: str) -> None:
    assert of("train.py --lr 0.1").key == of(other).key


def test_another_content_device_or_argument_is_another_class() -> None:
    first = of("train.py --lr 0.1")
    others = [
        of("train.py --lr 0.1", digest="e"),
        of("train.py --lr 0.1", device="1 x A100 80GiB"),
        of("train.py --lr 0.2"),
    ]
    assert len({first.key, *(other.key for other in others)}) == 4


def test_classes_that_differ_in_arguments_only_are_of_one_family() -> None:
    assert of("train.py --lr 0.1").family == of("train.py --lr 0.2 --bs 8").family
    assert of("train.py --lr 0.1").family != of("train.py --lr 0.1", digest="e").family


def test_the_words_before_the_script_are_the_launcher_and_part_of_the_family() -> None:
    two = of("", command="torchrun --nproc_per_node 2 train.py --lr 0.1")
    four = of("", command="torchrun --nproc_per_node 4 train.py --lr 0.1")
    assert two.family != four.family
    assert two.slots == (("--lr", "0.1"),)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python train.py --lr 0.1 > log.1 2>&1", ["python", "train.py", "--lr", "0.1"]),
        ("python train.py --lr 0.1 >>log.1 2> err", ["python", "train.py", "--lr", "0.1"]),
        ("A=1 python train.py < /dev/null", ["A=1", "python", "train.py"]),
        ("python train.py | tee log", ["python", "train.py", "|", "tee", "log"]),
        ("echo 'a > b'", ["echo", "a > b"]),
        ("echo 'unended", ["/bin/sh", "-c", "echo 'unended"]),
    ],
)
def test_redirections_of_a_shell_line_do_not_change_the_class(line: str, words: list[str]) -> None:
    form = form_of_lines({})
    assert said_by(form.spec([line], 1)) == words
