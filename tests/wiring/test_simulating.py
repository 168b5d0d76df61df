"""Whole simulated runs: what they come to, in the numbers that policies are compared by."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from scheduler.core.interference import MODELS
from scheduler.core.measures import Outcomes
from scheduler.core.model import HOST, Device, Profiling, Spec, Terms
from scheduler.core.ordering import Line
from scheduler.core.policies import names
from scheduler.core.rules import Rules
from scheduler.core.workload import Known, TraceRow, arriving_over, workload
from scheduler.core.workloads import WORKLOADS
from scheduler.units import GIB
from scheduler.wiring.simulating import Scene, measured


def gpus(number: int, total: int = 24) -> list[Device]:
    return [Device(f"GPU-{n}", f"GPU {n}", total * GIB, 1.0, n) for n in range(number)]


def row(config: str = "a.py", seconds: float = 600.0, peak: int = 4 * GIB, **said: Any) -> TraceRow:
    terms = {name: said.pop(name) for name in ("priority", "gpus", "epochs") if name in said}
    return TraceRow(Spec(2, "", "-1", config, "", "", (), (), Terms(**{"gpus": 1, **terms})), seconds, peak, **said)


def ran(
    rows: Sequence[TraceRow],
    devices: Sequence[Device],
    policy: str = "packed",
    known: Known = Known(peaks=True),  # noqa: B008  # frozen
    interference: str = "none",
    deviation: bool = False,
    **said: Any,
) -> Outcomes:
    largest = max(device.total for device in devices)
    given = workload(rows, known, deviation=deviation, largest=largest)
    rules = Rules(**{"profile": Profiling.LIVE, "max_gpu_load": 99.0, **said})
    return measured(Scene(given, devices, MODELS[interference], rules), policy)[0]


class TestNumbers:
    def test_makespan_and_completions(self) -> None:
        one = ran([row(seconds=100.0), row(seconds=300.0)], gpus(1))
        assert (one.makespan, one.mean_completion, one.p95_completion, one.ratio) == (300.0, 200.0, 300.0, 1.0)

    def test_waits_of_each_priority(self) -> None:
        one = ran([row(peak=20 * GIB, priority=1), row(peak=20 * GIB, priority=5)], gpus(1))
        assert {priority: (w.tasks, w.mean, w.most) for priority, w in one.waits.items()} == {
            1: (1, 0.0, 0.0),
            5: (1, 600.0, 600.0),
        }

    def test_how_full_and_how_busy_devices_were(self) -> None:
        one = ran([row(peak=12 * GIB, busy=0.5), row("b.py", peak=6 * GIB, busy=0.25)], gpus(1))
        assert (one.memory_use, one.load_use) == (pytest.approx(0.75), pytest.approx(0.75))

    def test_what_fits_nowhere_is_in_the_states_and_not_in_the_bound(self) -> None:
        one = ran([row(seconds=100.0), row("b.py", seconds=900.0, peak=30 * GIB)], gpus(1))
        assert ({str(state): n for state, n in one.states.items()}, one.bound.tasks) == (
            {"succeeded": 1, "refused": 1},
            1,
        )
        assert one.ratio == 1.0

    def test_stretched_tasks_are_counted(self) -> None:
        rows = [row(seconds=8000.0, epochs=40), *[row(seconds=2000.0, epochs=20)] * 3]
        assert ran(rows, gpus(1), interference="prop").stretched == 1
        assert ran(rows, gpus(1), interference="none").stretched == 0


def test_what_the_best_priority_would_wait_with_the_machine_to_itself() -> None:
    rows = [row(peak=20 * GIB, priority=priority) for priority in (1, 2, 1)]
    devices = gpus(1)
    scene = Scene(workload(rows, Known(), deviation=False), devices, MODELS["none"], Rules())
    one, _ = measured(scene, "packed", alone=True)
    assert one.alone is not None
    assert (one.waits[1].mean, one.alone.mean) == (300.0, 300.0)


class TestInterference:
    @pytest.mark.parametrize(("model", "makespan"), [("none", 600.0), ("prop", 1200.0), ("fit", 600 * 1.451)])
    def test_two_that_keep_a_gpu_busy(self, model: str, makespan: float) -> None:
        assert ran([row(), row()], gpus(1), interference=model).makespan == pytest.approx(makespan, rel=1e-3)

    def test_nobody_slows_himself_down(self) -> None:
        assert ran([row(busy=1.0)], gpus(1), interference="fit").makespan == 600.0

    def test_cores_are_always_shared(self) -> None:
        host = Device(HOST, HOST, 64 * GIB, 2.0)
        one = ran([row(cores=2.0, gpus=0)] * 2, [host], max_load=99.0)
        assert (one.makespan, one.bound.makespan) == (1200.0, 1200.0)


class TestArrivals:
    def test_a_row_is_not_there_before_it_comes(self) -> None:
        one = ran([row(), row(arrives=100.0), row(arrives=5000.0)], gpus(1))
        assert (one.makespan, one.mean_completion) == (5600.0, 600.0)

    def test_the_first_may_come_late(self) -> None:
        assert ran([row(arrives=1000.0)], gpus(1)).makespan == 600.0

    def test_they_count_in_the_bound(self) -> None:
        one = ran([row(peak=20 * GIB, arrives=at) for at in (0.0, 0.0, 9000.0)], gpus(1))
        assert (one.makespan, one.bound.makespan) == (9600.0, 9600.0)

    def test_one_that_comes_while_others_run_starts_at_once(self) -> None:
        one = ran([row(seconds=5000.0), row(priority=2, arrives=50.0)], gpus(1))
        assert one.waits[2].most == 0.0


WORK = {name: list(make(60, 5)) for name, (make, _) in WORKLOADS.items()}


@pytest.mark.parametrize("policy", names())
@pytest.mark.parametrize("work", WORK)
class TestPolicies:
    def test_all_come_through_and_none_beats_the_bound(self, work: str, policy: str) -> None:
        one = ran(WORK[work], gpus(4, 40), policy, interference="fit", max_gpu_load=2.0)
        assert {str(state) for state in one.states} == {"succeeded"}
        assert one.ratio >= 1.0
        assert one.mean_completion >= one.bound.mean_completion
        assert one.p95_completion >= one.bound.p95_completion

    def test_nor_with_nothing_known_and_peaks_that_deviate(self, work: str, policy: str) -> None:
        one = ran(WORK[work], gpus(4, 40), policy, Known(), interference="fit", deviation=True, max_gpu_load=2.0)
        assert {str(state) for state in one.states} == {"succeeded"}

    def test_the_same_is_the_same(self, work: str, policy: str) -> None:
        rows = arriving_over(WORK[work], 20_000.0, 1)
        first, again = (ran(rows, gpus(2, 40), policy, Known(), deviation=True) for _ in range(2))
        assert first == again


def test_times_that_are_known_start_the_longest_first() -> None:
    rows = [*[row("short.py", seconds=100.0, peak=20 * GIB)] * 4, row("long.py", seconds=400.0, peak=20 * GIB)]
    blind, told = (ran(rows, gpus(2), known=Known(times, peaks=True)) for times in (False, True))
    assert (blind.makespan, told.makespan) == (600.0, 400.0)


def test_an_oracle_runs_out_of_nothing() -> None:
    one = ran(WORK["heavy"], gpus(4, 40), known=Known(own=True), deviation=True)
    assert (one.ooms, {str(state) for state in one.states}) == (0, {"succeeded"})


@pytest.mark.parametrize(("num", "policy", "rows"), [(None, "packed", 50), (None, "batches", 20), (7, "batches", 7)])
def test_rows_in_a_batch(num: int | None, policy: str, rows: int) -> None:
    scene = Scene(workload([row()] * 50, Known()), gpus(1), MODELS["none"], Rules(), num)
    assert scene.rows_in_batch(policy) == rows


class Counted(Line):
    """A line that counts for every waiting task, one by one, who starts though ranked behind it."""

    def remove(self, task: int, *, started: bool) -> None:
        passed: Counter[int] = self.__dict__.setdefault("passed", Counter())
        if started:
            worst[0] = max(worst[0], passed.pop(task, 0))
            mine = self.rank(task)
            waiting = [other for group in self.groups() for other in group.waiting(len(group))]
            passed.update(other for other in waiting if self.rank(other) < mine)
        super().remove(task, started=started)


worst = [0]


@pytest.mark.parametrize("work", sorted(WORKLOADS))
@pytest.mark.parametrize("bound", [1, 5])
def test_nobody_is_overtaken_more_often_than_the_bound(work: str, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.core.brain.Line", Counted)
    worst[0] = 0
    rows = list(WORKLOADS[work][0](80, 3))
    said = ran(rows, gpus(4, 40), "packed", Known(times=True), "fit", max_gpu_load=2.0, overtakes=bound)
    assert 0 < worst[0] <= bound
    assert said.overtaken <= bound
