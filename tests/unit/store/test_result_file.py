"""The result file of an attempt: what is read, and why something is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler.store.result_file import LARGEST_RESULT, ignored, read_result

LINE = b'{"step": 1, "loss": 0.5}\n'


@pytest.mark.parametrize(
    ("text", "values", "word"),
    [
        (b'{"loss": 0.5}', {"loss": 0.5}, ""),
        (LINE * 2, {"step": 1, "loss": 0.5}, ""),
        (LINE + b'{"step": 2, "lo', {"step": 1, "loss": 0.5}, ""),
        (LINE * 9000, {"step": 1, "loss": 0.5}, ""),
        (b"", {}, ""),
        (b" {}\n", {}, ""),
        (b'{"loss": 0.', {}, "neither a JSON object"),
        (b"[1, 2]", {}, "neither a JSON object"),
        (b'{"text": "' + b"x" * LARGEST_RESULT + b'"}', {}, "it has 64KiB, and one JSON object may have 64KiB"),
    ],
)
def test_file_without_a_result_says_why(tmp_path: Path, text: bytes, values: dict[str, float], word: str) -> None:
    (tmp_path / "result").write_bytes(text)
    assert read_result(str(tmp_path / "result")) == values
    if not values:
        said = ignored(str(tmp_path / "result"))
        assert word in said
        assert bool(said) is bool(word)


def test_missing_file_is_no_fault_and_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    assert not ignored(str(tmp_path / "none"))
    os.mkfifo(tmp_path / "pipe")
    assert "ignored: " in ignored(str(tmp_path / "pipe"))


def test_huge_file_is_named_with_a_short_size(tmp_path: Path) -> None:
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(10 << 30)
    assert "it has 10.0GiB, and" in ignored(str(tmp_path / "huge"))
