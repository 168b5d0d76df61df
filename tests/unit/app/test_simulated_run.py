"""Whole simulated runs: the numbers by which policies are compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from scheduler.app.simulate.simulated_run import Scene, measured
from scheduler.core.config import SchedulingConfig
from scheduler.core.model import HOST, Device, Profiling, Spec, Terms
from scheduler.core.placement.policies import names
from scheduler.core.queue.wait_queue import WaitQueue
from scheduler.simulation.generators import WORKLOADS
from scheduler.simulation.interference import MODELS
from scheduler.simulation.machine_spec import parse_machine
from scheduler.simulation.metrics import RunMetrics
from scheduler.simulation.workload import InitialKnowledge, TraceRow, arriving_over, workload
from scheduler.units import GIB


def gpus(number: int, total: int = 24) -> list[Device]:
    return [Device(f"GPU-{n}", f"GPU {n}", total * GIB, 1.0, n) for n in range(number)]


def row(config: str = "a.py", seconds: float = 600.0, peak: int = 4 * GIB, **said: Any) -> TraceRow:
    terms = {name: said.pop(name) for name in ("priority", "gpus", "epochs") if name in said}
    return TraceRow(Spec(2, "", "-1", config, "", (), (), Terms(**{"gpus": 1, **terms})), seconds, peak, **said)


def ran(
    rows: Sequence[TraceRow],
    devices: Sequence[Device],
    policy: str = "packed",
    known: InitialKnowledge = InitialKnowledge(peaks=True),  # noqa: B008  # frozen
    interference: str = "none",
    deviation: bool = False,
    **said: Any,
) -> RunMetrics:
    largest = max(device.total for device in devices)
    given = workload(rows, known, deviation=deviation, largest=largest)
    rules = SchedulingConfig(**{"profile": Profiling.LIVE, "max_gpu_load": 99.0, **said})
    return measured(Scene(given, devices, MODELS[interference], rules), policy)[0]


class TestNumbers:
    def test_metrics_tell_makespan_and_completions(self) -> None:
        one = ran([row(seconds=100.0), row(seconds=300.0)], gpus(1))
        assert (one.makespan, one.mean_completion, one.p95_completion, one.ratio) == (300.0, 200.0, 300.0, 1.0)

    def test_metrics_tell_the_waits_of_each_priority(self) -> None:
        one = ran([row(peak=20 * GIB, priority=1), row(peak=20 * GIB, priority=5)], gpus(1))
        assert {priority: (w.tasks, w.mean, w.most) for priority, w in one.waits.items()} == {
            1: (1, 0.0, 0.0),
            5: (1, 600.0, 600.0),
        }

    def test_metrics_tell_memory_and_load_of_the_devices(self) -> None:
        one = ran([row(peak=12 * GIB, busy=0.5), row("b.py", peak=6 * GIB, busy=0.25)], gpus(1))
        assert (one.memory_use, one.load_use) == (pytest.approx(0.75), pytest.approx(0.75))

    def test_packed_tasks_save_idle_power_and_need_the_same_energy_for_their_work(self) -> None:
        rows = [row(peak=8 * GIB, busy=0.5), row("b.py", peak=8 * GIB, busy=0.25)]  # of 600 s each
        packed, single = ran(rows, gpus(1)), ran(rows, gpus(1), policy="one-per-gpu")
        work = 600 * 0.75 * 210 / 3600
        assert packed.energy == pytest.approx(600 * 90 / 3600 + work)
        assert single.energy == pytest.approx(1200 * 90 / 3600 + work)
        beside = ran(rows, gpus(2), policy="one-per-gpu")
        assert beside.energy == pytest.approx(2 * 600 * 90 / 3600 + work)

    def test_task_that_fits_nowhere_counts_in_the_states_and_not_in_the_bound(self) -> None:
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


def test_wait_of_the_best_priority_alone_is_measured() -> None:
    rows = [row(peak=20 * GIB, priority=priority) for priority in (1, 2, 1)]
    devices = gpus(1)
    scene = Scene(workload(rows, InitialKnowledge(), deviation=False), devices, MODELS["none"], SchedulingConfig())
    one, _ = measured(scene, "packed", alone=True)
    assert one.alone is not None
    assert (one.waits[1].mean, one.alone.mean) == (300.0, 300.0)


class TestInterference:
    @pytest.mark.parametrize(("model", "makespan"), [("none", 600.0), ("prop", 1200.0), ("fit", 600 * 1.451)])
    def test_two_tasks_on_one_gpu_slow_down_by_the_model(self, model: str, makespan: float) -> None:
        assert ran([row(), row()], gpus(1), interference=model).makespan == pytest.approx(makespan, rel=1e-3)

    def test_task_alone_is_not_slowed_down(self) -> None:
        assert ran([row(busy=1.0)], gpus(1), interference="fit").makespan == 600.0

    def test_overloaded_cores_are_shared_under_every_model(self) -> None:
        host = Device(HOST, HOST, 64 * GIB, 2.0)
        one = ran([row(cores=2.0, gpus=0)] * 2, [host], max_load=99.0)
        assert (one.makespan, one.bound.makespan) == (1200.0, 1200.0)


class TestArrivals:
    def test_row_does_not_start_before_it_arrives(self) -> None:
        one = ran([row(), row(arrives=100.0), row(arrives=5000.0)], gpus(1))
        assert (one.makespan, one.mean_completion) == (5600.0, 600.0)

    def test_first_row_may_arrive_late(self) -> None:
        assert ran([row(arrives=1000.0)], gpus(1)).makespan == 600.0

    def test_arrivals_count_in_the_bound(self) -> None:
        one = ran([row(peak=20 * GIB, arrives=at) for at in (0.0, 0.0, 9000.0)], gpus(1))
        assert (one.makespan, one.bound.makespan) == (9600.0, 9600.0)

    def test_row_that_arrives_beside_running_tasks_starts_at_once(self) -> None:
        one = ran([row(seconds=5000.0), row(priority=2, arrives=50.0)], gpus(1))
        assert one.waits[2].most == 0.0


WORK = {name: list(make(60, 5)) for name, (make, _) in WORKLOADS.items()}


@pytest.mark.parametrize("policy", names())
@pytest.mark.parametrize("work", WORK)
class TestPolicies:
    def test_all_tasks_succeed_and_no_policy_beats_the_bound(self, work: str, policy: str) -> None:
        one = ran(WORK[work], gpus(4, 40), policy, interference="fit", max_gpu_load=2.0)
        assert {str(state) for state in one.states} == {"succeeded"}
        assert one.ratio >= 1.0
        assert one.mean_completion >= one.bound.mean_completion
        assert one.p95_completion >= one.bound.p95_completion

    def test_no_policy_beats_the_bound_with_unknown_and_deviating_peaks(self, work: str, policy: str) -> None:
        one = ran(
            WORK[work], gpus(4, 40), policy, InitialKnowledge(), interference="fit", deviation=True, max_gpu_load=2.0
        )
        assert {str(state) for state in one.states} == {"succeeded"}

    def test_two_simulations_of_one_scene_are_equal(self, work: str, policy: str) -> None:
        rows = arriving_over(WORK[work], 20_000.0, 1)
        first, again = (ran(rows, gpus(2, 40), policy, InitialKnowledge(), deviation=True) for _ in range(2))
        assert first == again


def test_longest_tasks_start_first_where_times_are_known() -> None:
    rows = [*[row("short.py", seconds=100.0, peak=20 * GIB)] * 4, row("long.py", seconds=400.0, peak=20 * GIB)]
    blind, told = (ran(rows, gpus(2), known=InitialKnowledge(times, peaks=True)) for times in (False, True))
    assert (blind.makespan, told.makespan) == (600.0, 400.0)


def test_oracle_never_runs_out_of_memory() -> None:
    one = ran(WORK["heavy"], gpus(4, 40), known=InitialKnowledge(own=True), deviation=True)
    assert (one.ooms, {str(state) for state in one.states}) == (0, {"succeeded"})


@pytest.mark.parametrize(("num", "policy", "rows"), [(None, "packed", 50), (None, "batches", 20), (7, "batches", 7)])
def test_policy_determines_the_rows_in_a_batch(num: int | None, policy: str, rows: int) -> None:
    scene = Scene(workload([row()] * 50, InitialKnowledge()), gpus(1), MODELS["none"], SchedulingConfig(), num)
    assert scene.rows_in_batch(policy) == rows


class Counted(WaitQueue):
    """A queue that counts for each waiting task the later-ranked tasks that start before it."""

    def remove(self, task: int, *, started: bool) -> None:
        passed: Counter[int] = self.__dict__.setdefault("passed", Counter())
        if started:
            worst[0] = max(worst[0], passed.pop(task, 0))
            mine = self.rank(task)
            waiting = [other for group in self.groups() for other in group.waiting(len(group))]
            passed.update(other for other in waiting if self.rank(other) < mine)
        super().remove(task, started=started)


worst = [0]


@pytest.mark.parametrize("work", sorted(WORKLOADS.keys() - {"distinct"}))  # there all tasks request the same
@pytest.mark.parametrize("bound", [1, 5])
def test_no_task_is_bypassed_more_often_than_the_limit(work: str, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scheduler.core.run_state.WaitQueue", Counted)
    worst[0] = 0
    rows = list(WORKLOADS[work][0](80, 3))
    said = ran(rows, gpus(4, 40), "packed", InitialKnowledge(times=True), "fit", max_gpu_load=2.0, bypass_limit=bound)
    assert worst[0] <= bound
    assert (worst[0] > 0) == (work != "distinct"), "scripts that all differ are unknown, so they start in their order"
    assert said.bypassed <= bound


class TestNodes:
    def test_tasks_on_one_gpu_end_as_early_on_nodes_as_on_one_machine(self) -> None:
        rows = [row(f"{n % 7}.py", 100.0 + 13 * (n % 5), (2 + n % 7) * GIB) for n in range(40)]
        ends = [ran(rows, parse_machine(said, 1.0)).makespan for said in ("4x24GiB", "4x(24GiB)", "2x(2x24GiB)")]
        assert ends[0] == ends[1] == ends[2]

    def test_task_on_two_gpus_gets_those_of_one_node(self) -> None:
        narrow = [row(f"{n}.py", seconds, 20 * GIB) for n, seconds in enumerate((100.0, 300.0, 100.0, 300.0))]
        rows = [*narrow, row("wide.py", 100.0, 20 * GIB, gpus=2)]
        assert ran(rows, parse_machine("4x24GiB", 1.0)).makespan == 300.0
        assert ran(rows, parse_machine("2x(2x24GiB)", 1.0)).makespan == 400.0

    def test_ram_of_one_node_runs_out_without_the_other(self) -> None:
        rows = [row(f"{n}.py", 100.0, 6 * GIB, gpus=0, cores=0.1) for n in range(4)]
        assert ran(rows, parse_machine("2x(host:8GiB)", 4.0)).makespan == 200.0

    def test_unknown_tasks_are_learned_once_for_all_nodes(self) -> None:
        rows = [row("same.py", 600.0, 8 * GIB) for _ in range(24)]
        said = ("6x24GiB,host:192GiB", "3x(2x24GiB,host:64GiB)")
        flat, nodes = (ran(rows, parse_machine(one, 24.0), known=InitialKnowledge()) for one in said)
        assert (nodes.ooms, nodes.makespan) == (0, flat.makespan)
