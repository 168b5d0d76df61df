"""Sentences about GPUs, split into trouble and cure."""

from __future__ import annotations

from pathlib import Path

import pytest

import scheduler
from scheduler.devices.gpu.child_faults import Fault, SamplerLimits, find_hang, hung_at_start
from scheduler.devices.gpu.discovery import answer
from scheduler.devices.gpu.inventory import apart, trouble, why_not
from scheduler.devices.sampler_child import LibraryCall, SamplerChild


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
def test_each_trouble_has_its_own_cure(sentence: str) -> None:
    what, cure = apart(sentence)
    assert f": {cure}" in sentence
    assert cure not in what
    assert len(what) + len(cure) + 2 == len(sentence)


def test_trouble_without_a_cure_suggests_a_reboot() -> None:
    fault = find_hang(LibraryCall("1", "nvmlX", 0.0, 0.0), SamplerLimits(call=3.0), 4.0)
    assert fault is not None
    sentence = f"GPU 1 {fault.sentence}"
    assert sentence == "GPU 1 does not answer: nvmlX hung for 3 s"
    assert apart(sentence) == (sentence, apart(hung_at_start(10))[1])


def test_sampler_that_ends_before_it_could_read_a_gpu_can_be_tried_again() -> None:
    child = SamplerChild("gpu.none", Path(scheduler.__file__).parents[1])  # it ends at its import
    fault = answer(child, SamplerLimits())
    assert isinstance(fault, Fault)
    assert apart(fault.sentence) == (
        "the sampler of the GPUs ended before it could read any (exit code 1)",
        "try again",
    )
