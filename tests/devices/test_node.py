"""Sentences about GPUs, taken apart into what is wrong and what cures it."""

from __future__ import annotations

import pytest

from scheduler.devices.node import apart, hung, hung_at_start, trouble, why_not


@pytest.mark.parametrize(
    "sentence",
    [
        trouble(15, "GPU_IS_LOST", "nvmlX"),
        trouble(16, "RESET_REQUIRED", "nvmlX"),
        trouble(4, "NO_PERMISSION", "nvmlX"),
        trouble(3, "NOT_SUPPORTED", "nvmlX"),
        trouble(999, "UNKNOWN", "nvmlX"),
        *(why_not(code, "WORD", there=True)[0] for code in (9, 12, 18, 999)),
        hung_at_start(10),
    ],
)
def test_each_has_its_own_cure_once(sentence: str) -> None:
    what, cure = apart(sentence)
    assert f": {cure}" in sentence
    assert cure not in what
    assert len(what) + len(cure) + 2 == len(sentence)


def test_one_without_is_cured_by_a_reboot_if_by_anything() -> None:
    sentence = f"GPU 1 {hung('nvmlX', 3)}"
    assert apart(sentence) == (sentence, apart(hung_at_start(10))[1])
