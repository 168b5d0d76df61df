"""The sentences of errors."""

from __future__ import annotations

import pytest

from scheduler.errors import InputError


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (InputError("jobs.csv", "is bad", 7, "Memory"), "jobs.csv, row 7, column Memory: is bad"),
        (InputError("jobs.csv", "is bad"), "jobs.csv: is bad"),
        (InputError("", "is bad", 1, "GPUs"), "row 1, column GPUs: is bad"),
    ],
)
def test_an_input_error_names_the_place_as_far_as_it_is_known(error: InputError, sentence: str) -> None:
    assert str(error) == sentence
