"""The judgement of an attempt's end by what was measured while it lived."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduler.core.attempts.attempt_tracker import FULL, AttemptTracker
from scheduler.core.model import DeviceBudget, Outcome
from scheduler.simulation.devices import SimulatedDevices
from tests.support.builders import Simulation, exited, gpu, jobs


class Seen(SimulatedDevices):
    """Devices that report a given least amount that was free on them."""

    least: int | None = None

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        return tuple(replace(budget, least=self.least) for budget in super().snapshot())


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
def test_a_failure_on_a_gpu_that_was_full_is_an_out_of_memory(least: int | None, outcome: Outcome) -> None:
    judged = observed(least).completed(exited(1, "failed", code=1))
    assert judged.outcome is outcome
    assert judged.reason == ("exit 1 while GPU-0 was full" if outcome is Outcome.OOM else "")


def test_a_success_on_a_gpu_that_was_full_stays_a_success() -> None:
    assert observed(0).completed(exited(1)).outcome is Outcome.SUCCEEDED


@pytest.mark.parametrize(("adopted", "watched"), [(False, 1.0), (True, 0.5)])
def test_an_adopted_attempt_counts_as_watched_in_part(adopted: bool, watched: float) -> None:
    seen = observed()
    if adopted:
        seen.adopted.add((1, 1))
    assert seen.completed(exited(1)).watched == watched
