"""The judgement of an attempt's end by what was measured while it lived."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.core.attempts.attempt_tracker import FULL, GO_ON, AttemptTracker
from scheduler.core.events import Edge, Strayed
from scheduler.core.model import DeviceBudget, Machine, Outcome
from scheduler.core.ports import Sample
from scheduler.simulation.devices import SimulatedDevices
from scheduler.units import GIB
from tests.support.builders import Simulation, exited, gpu, jobs


class Seen(SimulatedDevices):
    """Devices that report a given least amount that was free on them."""

    least: int | None = None
    age = 0.0
    closed = ""

    def snapshot(self) -> tuple[DeviceBudget, ...]:
        return tuple(
            replace(budget, least=self.least, age=self.age, closed=self.closed) for budget in super().snapshot()
        )


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


def test_a_gpu_has_more_left_for_others_once_a_sample_shows_that_a_reservation_is_used() -> None:
    seen = observed()
    budgets = seen._devices.snapshot()

    def left_after(use: int) -> int:
        seen.sampled(Sample(1, 1, {"GPU-0": use}, {"GPU-0": use}))
        return seen._brain.capacity.look(Machine(0.0, budgets, (), seen.used)).rooms["GPU-0"].bytes

    first = left_after(GIB)
    assert [left_after(use) - first for use in (GIB, 2 * GIB, 2 * GIB, GIB)] == [0, GIB, GIB, 0]


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


def test_a_task_on_a_gpu_that_does_not_answer_is_lost_and_not_to_blame() -> None:
    seen = observed(0)
    seen._devices.closed = "it does not answer"  # type: ignore[attr-defined]
    judged = seen.completed(exited(1, "failed", code=1, part="gpu", reason="exit 1"))
    assert (judged.task, judged.outcome, judged.reason) == (1, Outcome.LOST, "GPU-0: it does not answer")


def test_an_out_of_memory_of_a_task_that_had_a_whole_gpu_is_final() -> None:
    run = Simulation(jobs(1, memory="23GiB"), gpu(0))
    run.loop.place()
    ports = run.loop.ports
    seen = AttemptTracker(run.brain, ports.world, run.book, Seen(run.machine), None, "python")
    judged = seen.completed(exited(1, "oom", code=1, part="gpu", reason="out of GPU memory"))
    assert judged.edge is Edge.FINAL
    assert judged.reason.startswith("out of GPU memory: 23.0GiB of the 24.0GiB of GPU-0 were reserved for it")
    assert seen.completed(exited(1, "failed", code=1, part="gpu")).edge is Edge.NO


@pytest.mark.parametrize(
    ("turns", "seconds", "reason"),
    [
        (0, 1.0, "exit 75: it goes on in its next turn"),
        (9, 1.0, "exit 75 10 times in a row within 5 s of its start, so it makes no progress"),
        (9, 60.0, "exit 75: it goes on in its next turn"),
    ],
)
def test_a_task_that_asks_to_go_on_soon_after_each_start_makes_no_progress(
    turns: int, seconds: float, reason: str
) -> None:
    run = Simulation(jobs(1, memory="4GiB", resumable=True), gpu(0))
    run.loop.place()
    rules = run.brain.rules
    run.brain.tasks[1].short_turns = min(turns, rules.max_short_turns - 1)
    ports = run.loop.ports
    seen = AttemptTracker(run.brain, ports.world, run.book, Seen(run.machine), None, "python")
    judged = seen.completed(exited(1, "failed", code=GO_ON, seconds=seconds))
    said = reason.replace("10 times", f"{rules.max_short_turns} times").replace("5 s", f"{rules.short_turn:g} s")
    assert (judged.outcome, judged.reason) == (Outcome.AGAIN, said)


def test_an_attempt_lasts_as_long_as_its_own_epochs_say() -> None:
    run = Simulation(jobs(1, memory="4GiB", epochs=10), gpu(0))
    run.loop.place()
    task = run.brain.tasks[1]
    ports = run.loop.ports
    seen = AttemptTracker(run.brain, ports.world, run.book, Seen(run.machine), None, "python")
    task.started_at = run.machine.now or 1.0
    seen._pace[1, 1] = SimpleNamespace(seconds=7.0)  # type: ignore[assignment]  # of it what is used
    assert seen.lasts(task) == pytest.approx(70.0 - (seen._now() - task.started_at))
    task.started_at = 0.0
    assert seen.lasts(task) is None


def test_memory_on_a_gpu_that_was_not_given_is_recorded_once_until_it_grows() -> None:
    seen = observed()

    def strayed(gib: float) -> list[Any]:
        found = seen.sampled(Sample(1, 1, {"GPU-0": 0}, {}, strayed={"GPU-1": int(gib * GIB)}))
        return [event.held for event in found if isinstance(event, Strayed)]

    assert [strayed(gib) for gib in (1, 1, 1.001, 3, 2)] == [[{"GPU-1": GIB}], [], [], [{"GPU-1": 3 * GIB}], []]
