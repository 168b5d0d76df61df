"""The result file of an attempt: what is read, and why something is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from scheduler.store.result_file import LARGEST_RESULT, ignored, read_result

LINE = b'{"step": 1, "loss": 0.5}\n'


@pytest.mark.parametrize(
    ("text", "values", "word"),
    [
        (b'{"loss": 0.5}', {"loss": 0.5}, ""),
        (LINE * 2, {"step": 1, "loss": 0.5}, ""),
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


def test_missing_file_is_no_fault(tmp_path: Path) -> None:
    assert not ignored(str(tmp_path / "none"))
