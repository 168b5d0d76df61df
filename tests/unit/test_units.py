"""Sizes and times as users write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.units import GIB, MIB, count, duration, parse_duration, parse_size, size

SIZES = {
    "8GiB": 8 * GIB, "8G": 8 * GIB, "8GB": 8 * GIB, "8g": 8 * GIB, " 8 GiB ": 8 * GIB, "0.5GiB": 512 * MIB,
    "900MiB": 900 * MIB, "900mb": 900 * MIB, "1T": 1024 * GIB, "1k": 1024, "0M": 0, "1.5k": 1536,
}  # fmt: skip
TIMES = {
    "90s": 90.0, "1m": 60.0, "1min": 60.0, "1h30m": 5400.0, "2d": 172_800.0, "500ms": 0.5, "1.5h": 5400.0,
    "02:00:00": 7200.0, "1:2:3": 3723.0, " 90S ": 90.0, "1d2h3m4s": 93_784.0, "100:00:00": 360_000.0,
}  # fmt: skip


@pytest.mark.parametrize(("text", "bytes_"), SIZES.items())
def test_sizes_with_units_are_parsed(text: str, bytes_: int) -> None:
    assert parse_size(text) == bytes_


@pytest.mark.parametrize("text", ["8", " 24 ", "0.5"])
def test_size_without_a_unit_is_refused(text: str) -> None:
    bare = text.strip()
    with pytest.raises(ValueError, match=f"'{bare}' has no unit: write {bare}GiB or {bare}MiB"):
        parse_size(text)


@pytest.mark.parametrize("text", ["", "GiB", "-8GiB", "8GiB extra", "8 Gigabyte", "1e9k", "8,5GiB", "nan", "٣ GiBs"])
def test_text_that_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size: write it like 8GiB or 900MiB"):
        parse_size(text)


@pytest.mark.parametrize(("text", "seconds"), TIMES.items())
def test_durations_with_units_are_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


def test_duration_without_a_unit_is_refused() -> None:
    with pytest.raises(ValueError, match="'90' has no unit: write 90s or 90m"):
        parse_duration("90")


@pytest.mark.parametrize("text", ["", "s", "-1s", "1h 30m", "1y", "1:2", "1:60:00", "1s extra"])
def test_text_that_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time: write it like 90s, 1h30m or 02:00:00"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("bytes_", "text"),
    [(24 * GIB, "24.0GiB"), (GIB, "1.0GiB"), (512 * MIB, "512MiB"), (0, "0MiB"), (-2 * GIB, "-2.0GiB"), (1, "0MiB")],
)
def test_sizes_are_written_for_users(bytes_: int, text: str) -> None:
    assert size(bytes_) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"), (-1, "0.0s"), (0.44, "0.4s"), (9.94, "9.9s"), (9.96, "10s"), (41, "41s"), (59.6, "1m00s"),
        (200, "3m20s"), (7500, "2h05m"), (86_399, "23h59m"), (273_600, "3d04h"),
    ],
)  # fmt: skip
def test_durations_are_written_for_users(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "task", "1 task"), (0, "task", "0 tasks"), (2, "batch", "2 batches"), (1234, "GPU", "1,234 GPUs")],
)
def test_counts_are_written_with_their_noun(number: int, noun: str, text: str) -> None:
    assert count(number, noun) == text


@given(st.integers(0, 1 << 50))
def test_written_size_can_be_parsed_again(bytes_: int) -> None:
    assert parse_size(size(bytes_)) == pytest.approx(bytes_, rel=0.06, abs=MIB)


@given(st.text("0123456789.:kmgtibhdsKGB -+_é\n٣", max_size=12))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for read in (parse_size, parse_duration):
        try:
            assert read(text) >= 0
        except ValueError as refused:
            assert str(refused)  # noqa: PT017  # both are right, and neither is another exception
