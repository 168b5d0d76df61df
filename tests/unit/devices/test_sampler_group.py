"""Which GPUs a child asks how they are divided, after one of them hung or crashed a child while it was asked that."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any, cast

import pytest

from scheduler.devices.gpu.child_faults import SamplerLimits
from scheduler.devices.gpu.inventory import InstalledGpu
from scheduler.devices.gpu.sampler_group import SamplerGroup
from scheduler.devices.sampler_child import LibraryCall, SamplerChild

GPUS = [InstalledGpu(index, f"GPU-{index}", "A100", f"0:{index}", 1 << 30) for index in range(3)]
DIVISIONS = [(gpu.index, [gpu.uuid]) for gpu in GPUS]


class Child:
    """A child that does nothing by itself."""

    bug = ""

    class _process:  # noqa: N801 - as `bury` names it
        @staticmethod
        def wait(_patience: float) -> None: ...

    def __init__(self) -> None:
        self._pipe = os.pipe()
        self.ordered: Mapping[str, Any] = {}
        self.ended = False
        self.died: int | None = None
        self.asks: LibraryCall | None = None
        self.says: list[dict[str, Any]] = []

    def fileno(self) -> int:
        return self._pipe[0]

    def order(self, order: Mapping[str, Any]) -> None:
        self.ordered = order

    def push(self) -> None: ...

    def answers(self, _now: float) -> list[dict[str, Any]]:
        said, self.says = self.says, []
        return said

    def call(self) -> LibraryCall | None:
        return self.asks

    def code(self) -> int | None:
        return self.died

    def is_stopped(self) -> bool:
        return False

    def silence(self, _now: float) -> float:
        return 0.0

    def end(self) -> None:
        self.ended = True

    def close(self) -> None:
        for end in self._pipe:
            os.close(end)

    def asks_for(self, where: str, seconds: float) -> None:
        since = time.monotonic() - seconds
        self.asks = LibraryCall(where, "nvmlDeviceGetMigMode", since, since)

    def compared(self) -> list[int]:
        return [index for index, _ in self.ordered["divided"]]

    def sampled(self) -> list[str]:
        return [uuid for uuid, *_ in self.ordered["gpus"]]


@pytest.fixture
def children() -> Iterator[list[Child]]:
    made: list[Child] = []
    yield made
    for child in made:
        child.close()


@pytest.fixture
def group(children: list[Child]) -> Iterator[SamplerGroup]:
    def start(_begin: Mapping[str, Any]) -> SamplerChild:
        children.append(Child())
        return cast("SamplerChild", children[-1])

    made = SamplerGroup(start, SamplerLimits())
    made.adopt(start({}), GPUS)
    made.compare(DIVISIONS)
    yield made
    made.close()


@pytest.mark.parametrize("hangs", [True, False], ids=["hang", "crash"])
def test_gpu_that_is_faulty_while_its_division_is_read_is_closed_and_not_asked_again(
    group: SamplerGroup, children: list[Child], hangs: bool
) -> None:
    first = children[0]
    assert first.compared() == [0, 1, 2]
    first.says = [{"ready": 1}]
    first.asks_for("1", 4.0)
    first.ended, first.died = not hangs, None if hangs else -11
    group.gather()
    assert ("hung for 3 s" if hangs else "SIGSEGV") in group.why_away("GPU-1")
    assert [group.why_away("GPU-0"), group.why_away("GPU-2")] == ["", ""]
    second = children[1]
    assert (second.sampled(), second.compared()) == (["GPU-0", "GPU-2"], [0, 2])


def test_gpu_that_delays_the_reading_of_divisions_delays_the_others_only_for_a_moment(
    group: SamplerGroup, children: list[Child]
) -> None:
    children[0].asks_for("1", 0.5)
    group.gather()
    slow, others = children
    assert (slow.sampled(), slow.compared()) == (["GPU-1"], [])
    assert (others.sampled(), others.compared()) == (["GPU-0", "GPU-2"], [0, 2])
    look = {"total": 1 << 30, "free": 1 << 30, "held": 0, "exact": True, "at": 0.0, "cost": 0.01, "processes": None}
    seldom: dict[str, Any] = {"busy": None, "celsius": None, "watts": None, "peaks": {}}
    slow.asks = None
    slow.says = [{"looks": {"GPU-1": {**look, **seldom}}, "pids": {}, "clients": []}] * 3
    group.gather()
    assert others.ended
    assert (slow.sampled(), slow.compared()) == (["GPU-0", "GPU-1", "GPU-2"], [0, 1, 2])


def test_gpu_without_instances_that_crashes_a_child_is_not_asked_again(
    group: SamplerGroup, children: list[Child]
) -> None:
    group.compare([*DIVISIONS, (3, [])])
    first = children[0]
    first.asks_for("3", 0.0)
    first.ended, first.died = True, -11
    group.gather()
    second = children[1]
    assert (second.sampled(), second.compared()) == (["GPU-0", "GPU-1", "GPU-2"], [0, 1, 2])
    assert not any(group.why_away(gpu.uuid) for gpu in GPUS)
