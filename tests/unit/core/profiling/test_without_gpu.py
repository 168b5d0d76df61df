"""Tasks that compute without the GPU that they would get: what proves it, where they run then, what undoes it."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.brain import Brain
from scheduler.core.causes import ResizeCause
from scheduler.core.events import Event, Exited, Resized, Submitted
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, EstimateSource, Outcome, Placement, Purpose
from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.profiling.task_class import TaskClass
from scheduler.core.profiling.without_gpu import Signs
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
    replay,
    rules,
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

    def test_task_of_such_a_class_is_an_mps_client_without_a_memory_limit_on_the_gpu_that_it_sees(self) -> None:
        one = placement_of(WITHOUT, mps=True)
        assert (one.gpus, one.sees, one.percentage, one.fence) == ((), ("GPU-0",), 100, 0)

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

    def test_use_of_the_visible_gpu_reserves_what_is_left_there_and_is_learned(self) -> None:
        b, _ = self.visible()
        tell(b, *b.watch(1, 1, {"GPU-0": 3 * GIB, HOST: GIB}))
        placement = b.tasks[1].placement
        assert placement is not None
        assert (placement.gpus, placement.visible) == (("GPU-0",), ())
        assert placement.reservation["GPU-0"] == 24 * GIB - 512 * MIB
        assert decide(b, gpu(0, free="21GiB"), RAM, used={(1, 1): {"GPU-0": "3GiB"}}).placements == ()
        tell(b, Exited(1, 1, Outcome.SUCCEEDED, peak={"GPU-0": 4 * GIB, HOST: GIB}, seconds=9.0))
        (next_,) = decide(b, gpu(0), RAM).placements
        assert next_.reservation["GPU-0"] == int(4 * GIB * 1.1) + 256 * MIB

    def test_use_of_a_gpu_that_others_have_reserved_takes_nothing_of_theirs(self) -> None:
        kind, index = known(WITHOUT)
        b = brain(tasks(1, "20GiB") + tasks(1), knowledge=index, profile="live")
        classed(b, TaskClass("b", "b.py", probes=False), kind)
        tell(b, *decide(b, gpu(0), RAM).placements, started(1), started(2))
        decide(b, gpu(0, free="23GiB"), RAM, used={(2, 1): {"GPU-0": "1GiB"}})
        tell(b, *b.watch(2, 1, {"GPU-0": GIB, HOST: GIB}))
        reserved = {one.task: one.reservation["GPU-0"] for one in b.placements()}
        assert reserved == {1: 20 * GIB, 2: 24 * GIB - 512 * MIB - 20 * GIB}
        tell(b, *b.watch(2, 1, {"GPU-0": 5 * GIB, HOST: GIB}))
        assert b.tasks[2].placement is not None
        assert b.tasks[2].placement.reservation["GPU-0"] > 5 * GIB, "what is used is reserved, whatever is left"

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
        _, grown = b.watch(1, 1, {HOST: 4 * GIB})
        assert isinstance(grown, Resized)
        assert grown.reservation.keys() == {HOST}
        assert grown.reservation[HOST] > one.reservation[HOST]


def signs(absent: tuple[str, ...] = ("GPU-0",), **said: Any) -> Signs:
    return Signs(absent, **said)


class TestEvidence:
    PLACEMENT = Placement(1, 1, Purpose.RUN, {"GPU-0": GIB, HOST: GIB}, 0.0, EstimateSource.MEASURED)

    @pytest.mark.parametrize(
        ("seen", "seconds", "shows"),
        [
            (signs(cpu_seconds=5.0), 5.0, ResizeCause.WITHOUT),
            (signs(cpu_seconds=4.9), 60.0, None),
            (signs(cpu_seconds=64.0), 2.0, None),
            (signs(epoch=True), 1.0, ResizeCause.WITHOUT),
            (signs(rested=0.3), 0.5, ResizeCause.RESTING),
            (signs(rested=0.2), 60.0, None),
            (signs((), cpu_seconds=60.0, epoch=True, rested=9.0), 60.0, None),
            (signs(("GPU-1",), epoch=True), 60.0, None),
        ],
    )
    def test_work_or_rest_with_nothing_on_its_gpu_shows_that_it_needs_none(
        self, seen: Signs, seconds: float, shows: str
    ) -> None:
        assert seen.evidence(self.PLACEMENT, seconds, rules()) == shows

    def test_samples_of_gpus_and_of_processes_are_kept_together(self) -> None:
        seen = Signs()
        seen.see(("GPU-0",), None, 0.0)
        seen.see(None, 9.0, 0.1)
        assert (seen.absent, seen.cpu_seconds, seen.rested) == (("GPU-0",), 9.0, 0.1)
        seen.see((), None, 0.0)
        assert (seen.absent, seen.cpu_seconds) == ((), 9.0)


class TestLeavingTheGpu:
    A, B = TaskClass("a", "a.py", probes=False, device="m"), TaskClass("b", "b.py", probes=False, device="m")

    def running(self, *kinds: TaskClass, terms: Mapping[str, Any] | None = None, **said: Any) -> Brain:
        """Return a Brain with tasks of these classes, of which the first has started on GPU 0."""
        b = classed(brain(tasks(len(kinds), **(terms or {})), **{"profile": "live", **said}), *kinds)
        return tell(b, decide(b, gpu(0), RAM).placements[0], started(1))

    def shows(self, b: Brain, evidence: ResizeCause | None, task: int = 1, now: float = 1.0, **used: int) -> Resized:
        events = b.watch(task, 1, used, now, evidence=evidence)
        for event in events:
            b.apply(event, now)
        (resized,) = [one for one in events if isinstance(one, Resized)]
        return resized

    def on_host(self, b: Brain) -> list[int]:
        """Return the tasks that would start on the host now."""
        return [one.task for one in decide(b, gpu(0), RAM).placements if one.devices == (HOST,)]

    def test_attempt_counts_as_a_task_of_the_host_and_a_quarter_of_its_gpu_is_kept(self) -> None:
        b = self.running(self.A)
        event = self.shows(b, ResizeCause.WITHOUT)
        assert event.reservation == {"GPU-0": 6 * GIB, HOST: event.reservation[HOST]}
        one = b.tasks[1].placement
        assert one is not None
        assert (one.devices, one.gpus, one.visible, one.busy, one.cores) == ((HOST,), (), ("GPU-0",), 0.0, 1.0)

    def test_another_unknown_task_gets_the_rest_of_the_gpu(self) -> None:
        b = self.running(self.A, self.B)
        assert decide(b, gpu(0), RAM).placements == ()
        self.shows(b, ResizeCause.RESTING)
        (other,) = decide(b, gpu(0), RAM).placements
        assert (other.task, other.reservation["GPU-0"]) == (2, 24 * GIB - 512 * MIB - 6 * GIB)

    def test_two_attempts_that_leave_one_gpu_keep_a_quarter_together(self) -> None:
        b = self.running(self.A, self.B)
        self.shows(b, ResizeCause.WITHOUT)
        tell(b, *decide(b, gpu(0), RAM).placements, started(2))
        assert "GPU-0" not in self.shows(b, ResizeCause.WITHOUT, task=2).reservation

    def test_quarter_is_given_back_after_the_settle_time_of_gpus(self) -> None:
        b = self.running(self.A)
        self.shows(b, ResizeCause.WITHOUT, now=10.0)
        assert b.watch(1, 1, {}, 69.0, evidence=ResizeCause.WITHOUT) == []
        assert "GPU-0" not in self.shows(b, None, now=70.0).reservation
        assert b.watch(1, 1, {}, 200.0, evidence=ResizeCause.WITHOUT) == []

    def test_one_more_task_of_the_class_starts_after_rest_and_more_after_work_or_an_end(self) -> None:
        b = self.running(*[self.A] * 9)
        self.shows(b, ResizeCause.RESTING)
        assert self.on_host(b) == [2]
        tell(b, *decide(b, gpu(0), RAM).placements, started(2))
        assert self.on_host(b) == []
        assert set(reasons(b, gpu(0), RAM).values()) == {"watched"}
        self.shows(b, ResizeCause.WITHOUT)
        assert self.on_host(b) == [3]
        tell(b, Exited(1, 1, Outcome.SUCCEEDED, peak={"GPU-0": 0, HOST: GIB}, seconds=9.0))
        assert len(self.on_host(b)) == 7, "8 cores, one of them taken"

    @pytest.mark.parametrize("outcome", ["failed", "interrupted", "timeout"])
    def test_class_is_unknown_again_when_the_attempt_ends_in_another_way_than_by_success(self, outcome: str) -> None:
        b = self.running(*[self.A] * 2)
        self.shows(b, ResizeCause.WITHOUT)
        tell(b, Exited(1, 1, Outcome(outcome), peak={"GPU-0": 0, HOST: GIB}, seconds=60.0))
        (other,) = decide(b, gpu(0), RAM).placements
        assert (other.task, other.gpus) == (2, ("GPU-0",))

    def test_class_is_sure_once_two_attempts_have_worked_without_a_gpu(self) -> None:
        b = self.running(*[self.A] * 5)
        self.shows(b, ResizeCause.WITHOUT)
        tell(b, *decide(b, gpu(0), RAM).placements[:1], started(2))
        self.shows(b, ResizeCause.WITHOUT, task=2)
        assert self.on_host(b) == [3, 4, 5]

    @pytest.mark.parametrize("terms", [{"gpus": 1}, {"memory": "23GiB"}, {"device": "0"}, {"exclusive": True}])
    def test_attempt_whose_row_asks_for_a_gpu_keeps_it(self, terms: dict[str, Any]) -> None:
        b = self.running(self.A, terms=terms)
        assert b.watch(1, 1, {}, 60.0, evidence=ResizeCause.WITHOUT) == []

    def test_attempt_on_a_gpu_for_one_process_at_a_time_keeps_it(self) -> None:
        b = classed(brain(tasks(1), profile="live"), self.A)
        single = replace(gpu(0), device=replace(gpu(0).device, single=True))
        tell(b, *decide(b, single, RAM).placements, started(1))
        assert b.watch(1, 1, {}, 60.0, evidence=ResizeCause.WITHOUT) == []

    def test_ram_of_the_attempt_settles_as_that_of_a_task_of_the_host(self) -> None:
        b = self.running(self.A)
        (peaked,) = b.watch(1, 1, {HOST: GIB}, 1.0)
        b.apply(peaked, 1.0)
        self.shows(b, ResizeCause.WITHOUT, now=2.0)
        assert b.watch(1, 1, {HOST: GIB}, 5.9) == []
        settled = self.shows(b, None, now=6.0, **{HOST: GIB})
        assert (settled.cause, settled.reservation[HOST]) == ("settled", int(GIB * 1.1) + 256 * MIB)

    def test_unknown_task_waits_while_more_run_on_the_host_than_it_has_cores(self) -> None:
        ram = host("64GiB", cores=1)
        kinds = [TaskClass(name, f"{name}.py", probes=False, device="m") for name in "abc"]
        b = classed(brain(tasks(3), profile="live"), *kinds)
        for task in (1, 2):
            (one,) = decide(b, gpu(0), ram).placements
            tell(b, one, started(task))
            self.shows(b, ResizeCause.WITHOUT, task=task)
        assert reasons(b, gpu(0), ram) == {3: "load"}

    def test_class_of_an_attempt_that_uses_its_gpu_after_all_is_unknown_again(self) -> None:
        b = self.running(*[self.A] * 3)
        self.shows(b, ResizeCause.WITHOUT)
        tell(b, *decide(b, gpu(0), RAM).placements[:1], started(2))
        back = self.shows(b, None, **{"GPU-0": GIB, HOST: GIB})
        assert (back.cause, back.reservation["GPU-0"]) == (ResizeCause.TOUCHED, 24 * GIB - 512 * MIB)
        assert b.tasks[1].placement is not None
        assert (b.tasks[1].placement.gpus, b.tasks[1].placement.source) == (("GPU-0",), EstimateSource.MEASURED)
        assert self.on_host(b) == []

    def test_relatives_that_have_only_run_so_far_prove_nothing_more_then(self) -> None:
        slots = [(("--lr", str(n)),) for n in range(5)]
        kinds = [
            TaskClass(f"a{n}", "a.py", probes=False, family="f", slots=one, device="m") for n, one in enumerate(slots)
        ]
        b = classed(brain(tasks(5), profile="live"), *kinds)
        for task in (1, 2, 3):
            tell(b, next(one for one in decide(b, gpu(0), RAM).placements if one.task == task), started(task))
            self.shows(b, ResizeCause.WITHOUT, task=task)
        assert self.on_host(b) == [4, 5], "the rate does not matter"
        self.shows(b, None, task=2, **{"GPU-0": GIB})
        assert self.on_host(b) == []

    def test_attempt_that_came_back_settles_and_its_class_is_known(self) -> None:
        b = self.running(self.A, self.A)
        self.shows(b, ResizeCause.WITHOUT, now=5.0)
        self.shows(b, None, now=9.0, **{"GPU-0": 4 * GIB, HOST: GIB})
        settled = self.shows(b, None, now=9.0 + 180.0, **{"GPU-0": 4 * GIB, HOST: GIB})
        assert (settled.cause, settled.reservation["GPU-0"]) == ("settled", int(4 * GIB * 1.1) + 256 * MIB)
        (other,) = decide(b, gpu(0, free="20GiB"), RAM, used={(1, 1): {"GPU-0": "4GiB"}}).placements
        assert (other.source, other.gpus) == (EstimateSource.PROFILE, ("GPU-0",))


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

    def test_first_tasks_share_the_host_as_soon_as_they_are_seen_to_work_there(self) -> None:
        run = simulate(without(8), gpu(0), host("64GiB", cores=4), profile="live")
        alone = simulate(without(8), host("64GiB", cores=4), profile="live")
        assert homes(run) == [("GPU-0",), *[(HOST,)] * 7]
        assert run.makespan <= alone.makespan + 20

    def test_task_that_uses_its_gpu_late_takes_nothing_of_its_neighbours(self) -> None:
        late = TaskBehaviour(300.0, (((120.0, 5 * GIB),),), curve(GIB, 300.0), utilisation=0.2)
        soon = TaskBehaviour(300.0, (curve(15 * GIB, 300.0),), curve(GIB, 300.0), utilisation=0.2)
        run = simulate(
            [Job(spec("late.py"), late), Job(spec("soon.py", row=3), soon)],
            gpu(0), host("64GiB", cores=4), profile="live",
        )  # fmt: skip
        causes = [(one.task, one.cause) for one in run.events if isinstance(one, Resized)]
        assert [cause for cause in causes if cause[0] == 1 and cause[1] in ("without", "touched")] == [
            (1, "without"), (1, "touched"),
        ]  # fmt: skip
        assert run.states == {"succeeded": 2}
        assert run.history.ooms == 0
        assert run.makespan < 400, "the second one did not wait for the end of the first"

    @pytest.mark.parametrize("cause", ["without", "touched", "settled"])
    def test_replay_up_to_a_move_gives_the_same_placement(self, cause: str) -> None:
        late = TaskBehaviour(400.0, (((30.0, 5 * GIB),),), curve(GIB, 400.0), utilisation=0.2)
        run = Simulation([Job(spec("late.py"), late)], gpu(0), host("64GiB", cores=4), profile="live")
        lived: list[tuple[TaskState, int]] = []
        apply = run.brain.apply

        def noted(event: Event, at: float = 0.0) -> None:
            apply(event, at)
            if isinstance(event, Resized) and event.cause == cause:
                lived.append((deepcopy(run.brain.tasks[1]), len(run.book.recorded)))

        run.brain.apply = noted  # type: ignore[method-assign]
        run.run()
        for task, number in lived:
            again = replay(run.brain, [Submitted(1, 1, [0])], run.book.recorded[:number])
            assert again.tasks[1] == task
        assert lived

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
