"""The end of an attempt that ran out of memory: which memory, and how much it requested."""

from __future__ import annotations

import sys

import pytest

from scheduler.core.model import Outcome
from tests.e2e.conftest import Driver

TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 1 has a total capacity of 23.64 GiB of which 1.25 GiB is free."
)

ACCESS = "RuntimeError: CUDA error: an illegal memory access was encountered"


def says(words: str, then: str) -> str:
    return f"echo '{words}' >&2; {then}"


def test_last_words_of_a_full_gpu_are_oom(driver: Driver) -> None:
    exited = driver.run_sh(says(TORCH, "exit 1"))
    assert (exited.outcome, exited.part, exited.asked, exited.position) == (Outcome.OOM, "gpu", 2 << 30, 1)
    assert exited.reason == "exit 1, out of GPU memory according to its output"


def test_last_words_of_a_full_host_are_oom(driver: Driver) -> None:
    exited = driver.run(sys.executable, "-c", "raise MemoryError")
    assert (exited.outcome, exited.part, exited.asked, exited.position) == (Outcome.OOM, "host", 0, None)
    assert exited.reason == "exit 1, out of host memory according to its output"


@pytest.mark.parametrize("signal", ["ABRT", "BUS"])
def test_last_words_of_an_aborted_program_are_oom(driver: Driver, signal: str) -> None:
    exited = driver.run_sh(says("  what():  std::bad_alloc", f"kill -{signal} $$"))
    assert (exited.outcome, exited.part) == (Outcome.OOM, "host")
    assert exited.reason.startswith("signal ")


@pytest.mark.parametrize(
    "script",
    [
        says(TORCH, "exit 0"),
        says("KeyError: 1", "exit 1"),
        says("KeyError: 1", "kill -ABRT $$"),
        says(ACCESS, "exit 1"),
    ],
    ids=["it helped itself", "something else was wrong", "it aborted after another error", "an illegal access"],
)
def test_other_last_words_are_no_oom(driver: Driver, script: str) -> None:
    exited = driver.run_sh(script)
    assert exited.outcome in (Outcome.SUCCEEDED, Outcome.FAILED)
    assert (exited.part, exited.asked, exited.position) == ("", 0, None)


@pytest.mark.parametrize(
    "script",
    [
        says("cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "exit 1"),
        says("", "kill -SEGV $$"),
        says(TORCH, "kill -KILL $$"),
    ],
    ids=["words of several causes", "it crashed in silence", "it was killed"],
)
def test_a_failure_that_may_be_one_awaits_a_look_at_its_gpu(driver: Driver, script: str) -> None:
    exited = driver.run_sh(script)
    assert (exited.outcome, exited.part) == (Outcome.FAILED, "gpu")


def test_last_words_after_long_output_are_oom(driver: Driver) -> None:
    exited = driver.run_sh(f"seq 100000; {says(TORCH, 'exit 3')}")
    assert exited.part == "gpu"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_last_words_in_utf_16_are_oom(driver: Driver, encoding: str) -> None:
    write = (
        f"import sys; sys.stderr.buffer.write({('x' * 70001 + chr(10) + TORCH)!r}.encode({encoding!r})); sys.exit(1)"
    )
    assert driver.run(sys.executable, "-c", write).part == "gpu"


def test_another_error_after_one_that_was_handled_is_no_oom(driver: Driver) -> None:
    script = f"try:\n    raise RuntimeError({TORCH!r})\nexcept RuntimeError as exc:\n    print(exc, flush=True)\n"
    script += "{}['loss']\n"
    exited = driver.run(sys.executable, "-c", script)
    assert (exited.outcome, exited.last) == (Outcome.FAILED, "KeyError: 'loss'")


@pytest.mark.long
def test_last_words_after_200_mb_of_output_are_oom(driver: Driver) -> None:
    exited = driver.run_sh(f"yes epoch | head -c 200000000; {says(TORCH, 'exit 1')}")
    assert exited.part == "gpu"
