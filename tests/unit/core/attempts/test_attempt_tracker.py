"""The judgement of an attempt's end by what was measured while it lived."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.attempts.attempt_tracker import FULL, AttemptTracker
from scheduler.core.model import DeviceBudget, Outcome
from scheduler.core.ports import Sample
from scheduler.simulation.devices import SimulatedDevices
from tests.support.builders import Simulation, exited, gpu, jobs


class Seen(SimulatedDevices):
    """Devices that report a given least amount that was free on them."""

    least: int | None = None
    age = 0.0

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        return tuple(replace(budget, least=self.least, age=self.age) for budget in super().snapshot())


def observed(least: int | None = None) -> AttemptTracker:
    """Return the tracker of one task on a GPU that reported this least amount of free memory."""
    run = Simulation(jobs(1, memory="4GiB"), gpu(0))
    run.loop.place()
    devices = Seen(run.machine)
    devices.least = least
    ports = run.loop.ports
    return AttemptTracker(run.brain, ports.world, run.book, devices, None, "python")


@pytest.mark.parametrize(
    ("least", "outcome"), [(FULL - 1, Outcome.OOM), (FULL, Outcome.FAILED), (None, Outcome.FAILED)]
)
@pytest.mark.parametrize(("how", "said"), [("exit 1", {"code": 1}), ("signal 11", {"code": None, "signal": 11})])
def test_a_failure_that_may_be_one_is_an_out_of_memory_if_the_gpu_was_full(
    least: int | None, outcome: Outcome, how: str, said: dict[str, Any]
) -> None:
    judged = observed(least).completed(exited(1, "failed", part="gpu", **said))
    assert (judged.outcome, judged.part) == (outcome, "gpu" if outcome is Outcome.OOM else "")
    assert judged.reason == (f"{how} while GPU-0 was full" if outcome is Outcome.OOM else "")


@pytest.mark.parametrize("said", [{"code": 1}, {"code": None, "signal": 6}])
def test_another_error_on_a_gpu_that_was_full_stays_a_failure(said: dict[str, Any]) -> None:
    assert observed(0).completed(exited(1, "failed", **said)).outcome is Outcome.FAILED


def test_a_success_on_a_gpu_that_was_full_stays_a_success() -> None:
    assert observed(0).completed(exited(1)).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(("adopted", "watched"), [(False, 1.0), (True, 0.5)])
def test_an_adopted_attempt_counts_as_watched_in_part(adopted: bool, watched: float) -> None:
    seen = observed()
    if adopted:
        seen.adopted.add((1, 1))
    assert seen.completed(exited(1)).watched == watched


@pytest.mark.parametrize("how", ["looked at", "not looked at", "adopted", "client of MPS", "seen before", "hangs"])
def test_gpu_that_an_attempt_never_used_is_recorded_as_such_where_that_was_seen_to_its_end(how: str) -> None:
    seen = observed()
    if how != "not looked at":
        seen.sampled(Sample(1, 1, {"GPU-0": 0}, {}, absent=("GPU-0",)))
    if how == "adopted":
        seen.adopted.add((1, 1))
    if how == "client of MPS":
        seen.sampled(Sample(1, 1, {}, {}, mps="client"))
    if how == "seen before":
        seen.sampled(Sample(1, 1, {"GPU-0": 5}, {"GPU-0": 5}, absent=()))
    if how == "hangs":
        seen._devices.age = 60.0  # type: ignore[attr-defined]
    peak = seen.completed(exited(1)).peak
    assert peak.get("GPU-0") == {"looked at": 0, "seen before": 5}.get(how)
