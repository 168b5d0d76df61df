"""The judgement of an out-of-memory of an attempt that had nearly all of a device."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.attempts.out_of_memory import Use, devices_at_end, judged_at_edge
from scheduler.core.events import Edge, Exited
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import DeviceBudget, EstimateSource, Outcome, Placement, Purpose, UnmanagedUse
from scheduler.units import GIB, MIB
from tests.support.builders import brain, exited, gpu, rules, run, states, tasks, tell

OOM = Exited(1, 1, Outcome.OOM, code=1, part="gpu", reason="exit 1, out of GPU memory", peak={"GPU-0": 22 * GIB})
PLACEMENT = Placement(1, 1, Purpose.RUN, {"GPU-0": 23 * GIB}, 1.0, EstimateSource.MEASURED)


def judged(
    event: Exited = OOM,
    placement: Placement = PLACEMENT,
    budgets: tuple[DeviceBudget, ...] = (gpu(0, free="2GiB"),),
    used: Use | None = None,
    named: str = "",
    varies: bool = False,
    edges: int = 0,
) -> Exited:
    """Return how the end of an attempt on GPU 0, which used 22 GiB of it, is judged."""
    task = TaskState(1, 0, placement=placement, edges=edges)
    use = {(1, 1): {"GPU-0": 22 * GIB}, **(used or {})}
    devices = devices_at_end(event, placement, budgets, use, named)
    return judged_at_edge(event, task, devices, varies, rules())


def unmanaged(size: int) -> DeviceBudget:
    return replace(gpu(0, free="1GiB"), unmanaged=(UnmanagedUse(size),))


def test_task_that_had_a_whole_gpu_fails_with_the_numbers() -> None:
    seen = judged()
    assert seen.edge is Edge.FINAL
    assert seen.reason == (
        "exit 1, out of GPU memory: 23.0GiB of the 24.0GiB of GPU-0 were reserved for it, "
        "and 22.0GiB were seen in use; GPU-0 has no more for it"
    )


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"budgets": (unmanaged(600 * MIB),)}, "something else used 600MiB of GPU-0"),
        ({"budgets": (replace(gpu(0, free="1GiB"), unreclaimed=GIB),)}, "something else used 1.0GiB of GPU-0"),
        ({"used": {(2, 1): {"GPU-0": GIB}}}, "something else used 1.0GiB of GPU-0"),
        (
            {"used": {(1, 1): {"GPU-0": 20 * GIB}}, "budgets": (gpu(0, free="0GiB"),)},
            "something else used 4.0GiB of GPU-0",
        ),
        ({"varies": True}, "attempts like it have needed less"),
        ({"varies": True, "edges": 1}, "attempts like it have needed less, but it is the second time"),
    ],
    ids=["a process", "unreclaimed memory", "another task", "memory of no process", "known peaks", "the second time"],
)
def test_task_is_started_once_more_if_something_else_used_memory_or_its_peaks_vary(
    said: dict[str, Any], words: str
) -> None:
    seen = judged(**said)
    assert seen.edge is Edge.ONCE_MORE
    assert seen.reason.endswith(f"; {words}")


@pytest.mark.parametrize(
    "said",
    [
        {"placement": replace(PLACEMENT, reservation={"GPU-0": 21 * GIB})},
        {"budgets": (gpu(0, free="2GiB"), gpu(1, total="48GiB"))},
        {"budgets": (replace(gpu(0), closed="is lost"),)},
        {"budgets": (replace(gpu(0), age=3.0),)},
        {"budgets": ()},
        {"event": replace(OOM, asked=3 * GIB)},
        {"event": replace(OOM, part="host")},
    ],
    ids=["it had less", "a larger GPU", "a lost GPU", "a GPU not seen", "an unknown GPU", "its need is known", "RAM"],
)
def test_task_that_may_get_more_is_retried_as_ever(said: dict[str, Any]) -> None:
    assert judged(**said).edge is Edge.NO


def test_task_whose_row_names_the_smaller_gpu_has_no_larger_one() -> None:
    assert judged(budgets=(gpu(0, free="2GiB"), gpu(1, total="48GiB")), named="0").edge is Edge.FINAL


def test_display_of_a_few_megabytes_is_no_reason_to_start_a_task_again() -> None:
    assert judged(budgets=(unmanaged(200 * MIB),)).edge is Edge.FINAL


def test_memory_of_the_task_itself_is_nothing_else_when_its_use_was_read_after_its_end() -> None:
    assert judged(used={(1, 1): {}}).edge is Edge.FINAL


def test_task_that_ran_alone_had_the_whole_gpu_whatever_was_reserved() -> None:
    alone = replace(PLACEMENT, reservation={"GPU-0": 9 * GIB}, alone=True)
    assert judged(placement=alone).edge is Edge.FINAL
    assert judged(placement=alone, budgets=(gpu(0, free="2GiB"), gpu(1, total="48GiB"))).edge is Edge.NO


class TestLifecycle:
    def test_task_fails_at_its_first_final_out_of_memory(self) -> None:
        assert states(tell(brain(tasks(1)), run(1, "oom", edge=Edge.FINAL))) == {1: "oom"}

    def test_task_is_started_once_more_and_no_third_time(self) -> None:
        b = tell(brain(tasks(1)), run(1, "oom", edge=Edge.ONCE_MORE))
        assert states(b) == {1: "waiting"}
        assert states(tell(b, run(1, "oom", attempt=2, edge=Edge.ONCE_MORE))) == {1: "oom"}

    def test_attempts_that_had_less_than_a_device_do_not_count(self) -> None:
        b = tell(brain(tasks(1)), run(1, "oom"), run(1, "oom", attempt=2, edge=Edge.ONCE_MORE))
        assert states(tell(b, run(1, "oom", attempt=3))) == {1: "waiting"}
        assert states(tell(b, run(1, "oom", attempt=4))) == {1: "oom"}

    def test_task_that_fails_otherwise_after_it_is_retried_as_its_row_says(self) -> None:
        b = tell(brain(tasks(1, retries=1)), run(1, "oom", edge=Edge.ONCE_MORE), run(1, "failed", attempt=2))
        assert states(b) == {1: "waiting"}
        assert exited(1).edge is Edge.NO
