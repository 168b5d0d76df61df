"""The memory that ran out, by the messages of each framework; messages that only resemble an out-of-memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduler.core.profiling.oom_patterns import OomMatch, killed_for_memory, what_ran_out
from scheduler.units import parse_size

WORDS = Path(__file__).parents[3] / "data" / "last-words.txt"


def cases() -> Iterator[tuple[str, str, OomMatch | None]]:
    """Name, message, and what is to be read in it."""
    for case in WORDS.read_text(encoding="utf-8").split("\n## ")[1:]:
        head, _, message = case.partition("\n")
        name, _, what = head.partition(" = ")
        yield name, message, None if what == "nothing" else ran(*what.split(", "))


def ran(part: str, *numbers: str) -> OomMatch:
    said = dict(number.split(" ") for number in numbers)
    position = said.pop("position", None)
    sizes = {name: int(size) if size.isdecimal() else parse_size(size) for name, size in said.items()}
    return OomMatch(part, position=None if position is None else int(position), **sizes)  # type: ignore[arg-type]  # a Part


CASES = {name: (message, what) for name, message, what in cases()}


@pytest.mark.parametrize("name", CASES)
def test_messages_of_frameworks_are_recognised(name: str) -> None:
    message, what = CASES[name]
    assert what_ran_out(message) == what
    assert what_ran_out(f"epoch 1/5 loss 0.3\nTraceback (most recent call last):\n{message}") == what


@pytest.mark.parametrize("name", [name for name, (_, what) in CASES.items() if what is None])
def test_a_different_failure_below_a_handled_out_of_memory_is_no_out_of_memory(name: str) -> None:
    assert what_ran_out(f"{CASES[name][0]}\nKeyError: 'loss'\n") is None


class TestSeveralMessages:
    GPU, PYTHON = CASES["PyTorch, torch 2.5"][0], CASES["RAM, Python"][0]

    def test_the_last_of_several_out_of_memory_messages_counts(self) -> None:
        assert what_ran_out(self.GPU + self.PYTHON) == CASES["RAM, Python"][1]
        assert what_ran_out(self.PYTHON + self.GPU) == CASES["PyTorch, torch 2.5"][1]

    def test_an_out_of_memory_message_in_the_line_of_a_progress_bar_counts(self) -> None:
        assert what_ran_out(f" 5%|▌   | 1/20\r{self.GPU}\r") == CASES["PyTorch, torch 2.5"][1]

    def test_a_harmless_message_does_not_hide_a_failure(self) -> None:
        fine = CASES["TensorFlow does without"][0]
        message, what = CASES["TensorFlow, a tensor"]
        assert what_ran_out(fine + message + fine) == what


@pytest.mark.parametrize(
    ("signal", "code", "kills", "was"),
    [
        (9, None, 1, True),
        (None, 137, 1, True),
        (9, None, 0, False),
        (None, 1, 1, False),
        (15, None, 1, False),
        (None, 0, 3, False),
    ],
)
def test_a_kill_by_the_kernel_is_an_out_of_memory(signal: int | None, code: int | None, kills: int, was: bool) -> None:
    assert killed_for_memory(signal, code, kills) is was
