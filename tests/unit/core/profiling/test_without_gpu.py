"""Tasks that compute without the GPU that they would get: what proves it, where they run then, what undoes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from scheduler.core.brain import Brain
from scheduler.core.events import Exited, Resized
from scheduler.core.model import HOST, EstimateSource, Outcome, Placement, Purpose
from scheduler.core.profiling.profile_index import Observation, ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.simulation.task_behaviour import TaskBehaviour, curve
from scheduler.units import GIB, MIB
from tests.support.builders import (
    Job,
    Simulation,
    brain,
    decide,
    gpu,
    host,
    reasons,
    simulate,
    slots,
    spec,
    started,
    tasks,
    tell,
)

RAM = host("64GiB", cores=8)
WITHOUT = Observation({"0": 0, HOST: GIB}, seconds=10.0, cpu_seconds=20.0)


def classed(b: Brain, *kinds: TaskClass) -> Brain:
    """Give the tasks from 1 on these classes."""
    for task, kind in enumerate(kinds, start=1):
        b.assign(task, kind)
    return b


def known(*observations: Observation, slots: tuple[tuple[str, str], ...] = ()) -> tuple[TaskClass, ProfileIndex]:
    """Return a class of which these attempts were observed."""
    kind, index = TaskClass("a", "a.py", probes=False, family="a.py", slots=slots, device="model"), ProfileIndex()
    number = index.number(kind)
    for one in observations:
        index.learn(number, one)
    return kind, index


def placement_of(*observations: Observation, terms: Mapping[str, Any] | None = None, **rules: Any) -> Placement:
    """Return the placement of a task of an observed class, by a run with these rules."""
    kind, index = known(*observations)
    b = classed(brain(tasks(1, **(terms or {})), knowledge=index, **{"profile": "live", **rules}), kind)
    (one,) = decide(b, gpu(0), gpu(1, free="20GiB"), RAM).placements
    return one


class TestKnownClass:
    def test_class_that_used_no_gpu_runs_on_the_host_and_sees_the_emptiest_gpu(self) -> None:
        one = placement_of(WITHOUT)
        assert (one.devices, one.gpus, one.visible, one.sees) == ((HOST,), (), ("GPU-0",), ("GPU-0",))
        assert one.reservation == {HOST: int(GIB * 1.1) + 256 * MIB}
        assert (one.source, one.cores, one.load) == (EstimateSource.PROFILE, 2.0, {HOST: 2.0})

    def test_tasks_of_such_a_class_start_while_every_gpu_is_taken(self) -> None:
        kind, index = known(WITHOUT)
        b = brain(tasks(1, "23GiB") + tasks(6), knowledge=index, profile="live")
        classed(b, TaskClass("b", "b.py", probes=False), *[kind] * 6)
        decision = decide(b, gpu(0), RAM)
        assert [one.devices for one in decision.placements] == [("GPU-0",), *[(HOST,)] * 4]
        assert {refusal.reason for refusal in decision.refusals} == {"load"}, "8 cores, 2 for each"

    @pytest.mark.parametrize(
        "terms", [{"gpus": 1}, {"memory": "1GiB"}, {"device": "1"}, {"exclusive": True}, {"thread_percentage": 50}]
    )
    def test_task_whose_row_asks_for_a_gpu_gets_one(self, terms: dict[str, Any]) -> None:
        one = placement_of(WITHOUT, terms=terms)
        assert (len(one.gpus), one.visible) == (1, ())

    def test_task_on_a_slot_has_the_gpus_of_the_slot(self) -> None:
        kind, index = known(WITHOUT)
        b = classed(brain(tasks(1), knowledge=index, profile="live"), kind)
        (one,) = decide(b, *slots("0"), gpu(0), RAM).placements
        assert (one.gpus, one.visible) == (("GPU-0",), ())

    @pytest.mark.parametrize("rules", [{"slots": 1}, {"policy": "one-per-gpu"}, {"profile": "off"}])
    def test_run_that_counts_gpus_gives_every_task_one(self, rules: dict[str, Any]) -> None:
        assert len(placement_of(WITHOUT, **rules).gpus) == 1

    def test_class_that_was_once_seen_on_a_gpu_stays_there(self) -> None:
        one = placement_of(WITHOUT, Observation({"0": GIB, HOST: GIB}), WITHOUT)
        assert one.gpus == ("GPU-0",)
        assert one.reservation["GPU-0"] == int(GIB * 1.1) + 256 * MIB

    @pytest.mark.parametrize("how", [{"broken": True}, {"probe": True}, {}])
    def test_nothing_but_a_whole_attempt_shows_that_a_class_needs_none(self, how: dict[str, bool]) -> None:
        one = placement_of(Observation({"0": 0, HOST: GIB}, whole=False, **how))
        assert (one.source, one.gpus) == (EstimateSource.MEASURED, ("GPU-0",))

    def test_ram_that_was_not_seen_is_no_measurement_of_none(self) -> None:
        assert not known(Observation({HOST: 0}))[1].profile(1).peaks

    def test_class_is_like_those_that_differ_in_an_argument_without_effect(self) -> None:
        index, kinds = ProfileIndex(), []
        for device, rate in (("cpu", "1"), ("cpu", "2"), ("cpu", "3"), ("cuda", "1"), ("cpu", "4"), ("cuda", "2")):
            slots = (("--device", device), ("--lr", rate))
            kinds.append(TaskClass(f"{device}{rate}", "a.py", probes=False, family="a.py", slots=slots, device="m"))
        for kind in kinds[:4]:
            peak = 5 * GIB if kind.slots[0][1] == "cuda" else 0
            index.learn(index.number(kind), Observation({"0": peak, HOST: GIB}))
        b = classed(brain(tasks(2), knowledge=index, profile="live"), *kinds[4:])
        on_host, on_gpu = decide(b, gpu(0), RAM).placements
        assert (on_host.devices, on_host.source) == ((HOST,), EstimateSource.SIMILAR)
        assert on_gpu.reservation["GPU-0"] == int(5 * GIB * 1.1) + 256 * MIB


class TestUseAfterAll:
    def visible(self) -> tuple[Brain, Placement]:
        """Return a Brain with one task that sees GPU 0 from the host."""
        kind, index = known(WITHOUT)
        b = classed(brain(tasks(2), knowledge=index, profile="live"), kind, kind)
        one = decide(b, gpu(0), RAM).placements[0]
        return tell(b, one, started(1)), one

    def test_use_of_the_visible_gpu_is_reserved_and_learned(self) -> None:
        b, _ = self.visible()
        tell(b, *b.watch(1, 1, {"GPU-0": 3 * GIB, HOST: GIB}))
        placement = b.tasks[1].placement
        assert placement is not None
        assert (placement.gpus, placement.visible) == (("GPU-0",), ())
        assert placement.reservation["GPU-0"] == int(3 * GIB * 1.1) + 256 * MIB
        tell(b, Exited(1, 1, Outcome.SUCCEEDED, peak={"GPU-0": 4 * GIB, HOST: GIB}, seconds=9.0))
        (next_,) = decide(b, gpu(0), RAM).placements
        assert next_.reservation["GPU-0"] == int(4 * GIB * 1.1) + 256 * MIB

    def test_out_of_memory_on_the_visible_gpu_raises_the_gpus_floor(self) -> None:
        b, _ = self.visible()
        tell(b, Exited(1, 1, Outcome.OOM, code=1, part="gpu", asked=2 * GIB, peak={HOST: GIB}))
        assert set(b.tasks[1].floors) == {"0"}
        again = next(one for one in decide(b, gpu(0), RAM).placements if one.task == 1)
        assert again.reservation["GPU-0"] > 2 * GIB

    def test_out_of_ram_raises_the_floor_of_the_ram(self) -> None:
        b, _ = self.visible()
        tell(b, Exited(1, 1, Outcome.OOM, signal=9, part="host", peak={HOST: GIB}))
        assert set(b.tasks[1].floors) == {HOST}
        again = next(one for one in decide(b, gpu(0), RAM).placements if one.task == 1)
        assert again.devices == (HOST,)

    def test_reservation_of_ram_grows_without_a_gpu(self) -> None:
        b, one = self.visible()
        (_, grown) = b.watch(1, 1, {HOST: 4 * GIB})
        assert isinstance(grown, Resized)
        assert grown.reservation.keys() == {HOST}
        assert grown.reservation[HOST] > one.reservation[HOST]


def without(number: int, seconds: float = 60.0, row: str = "cpu.py", **said: Any) -> list[Job]:
    """Make tasks that use 1 GiB of RAM and no GPU."""
    truth = TaskBehaviour(seconds, host_memory=curve(GIB, seconds), utilisation=0.0)
    return [Job(spec(row, row=n + 2, **said), truth) for n in range(number)]


def homes(run: Simulation) -> list[tuple[str, ...]]:
    """Return where each attempt ran, in the order of their placement."""
    return [one.devices for one in run.events if isinstance(one, Placement)]


class TestWholeRuns:
    def test_second_task_of_a_class_that_used_no_gpu_runs_on_the_host(self) -> None:
        run = simulate(without(9), gpu(0), host("64GiB", cores=4), profile="live", jobs=1)
        assert homes(run) == [("GPU-0",), *[(HOST,)] * 8]
        assert run.states == {"succeeded": 9}

    def test_failed_attempt_is_no_measurement(self) -> None:
        wrong = [Job(one.spec, TaskBehaviour(0.5, utilisation=0.0, code=1)) for one in without(3)]
        run = simulate(wrong, gpu(0), host("64GiB", cores=4), profile="live")
        assert homes(run) == [("GPU-0",)] * 3

    def test_tasks_on_gpus_start_beside_tasks_on_the_host(self) -> None:
        both = without(5) + without(4, row="gpu.py", memory="20GiB", gpus=1)
        run = simulate(both, gpu(0), host("64GiB", cores=4), profile="live")
        assert homes(run).count((HOST,)) == 4
        assert homes(run).count(("GPU-0",)) == 5
        assert all(one.purpose is Purpose.RUN for one in run.events if isinstance(one, Placement))


def test_waiting_task_of_such_a_class_names_the_cores_it_waits_for() -> None:
    kind, index = known(WITHOUT)
    b = classed(brain(tasks(5), knowledge=index, profile="live"), *[kind] * 5)
    assert reasons(b, gpu(0), RAM) == {5: "load"}
