"""The ETA of a run that is under way, compared with how the run goes on; both on a simulated machine."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler.core.causes import DependencyStep
from scheduler.core.events import Depended, Limited, Submitted
from scheduler.core.leases import Lease
from scheduler.core.model import EstimateSource, State
from scheduler.core.placement.request import MemoryRequest, ResourceRequest
from scheduler.core.reporting.eta import ALL_HELD, UNKNOWN, forecast, forecasts
from scheduler.core.reporting.forecast import Forecast
from scheduler.core.reporting.other_runs import waits_since
from scheduler.core.reporting.published_forecast import PublishedForecast, WaitingDemand
from scheduler.core.reporting.run_history import RunSummary
from scheduler.core.reporting.schedule import MachineSnapshot
from scheduler.units import GIB
from tests.support import builders as b


def under_way(run: b.Simulation, ended: int) -> MachineSnapshot:
    """Let a run go on until so many tasks have ended, and return the state of its machine then."""
    while sum(event.__class__.__name__ == "Exited" for event in run.events) < ended:
        run.loop.place()
        run.loop.digest(run.loop.ports.world.wait(1.0))
    run.loop.place()
    used = {key: dict(running.used) for key, running in run.machine.running.items()}
    return MachineSnapshot(run.loop.ports.devices.snapshot(), (), used)


def learning(given: list[b.Job], *budgets: b.Budget, **options: object) -> b.Simulation:
    return b.Simulation(given, *(budgets or (b.host(cores=2),)), profile="live", **options)


def estimated(run: b.Simulation, ended: int) -> tuple[float, Forecast]:
    snapshot = under_way(run, ended)
    return run.machine.now, forecast(run.brain, snapshot, run.machine.now)


def lease(**more: float) -> Lease:
    return b.lease_of({"host": 10 * GIB}, {"host": 10 * GIB}, {"host": 0.0}, **more)


class TestEnd:
    def test_run_ends_within_the_expected_span(self) -> None:
        run = learning(b.jobs(40, seconds=60.0))
        now, found = estimated(run, 10)
        run.run()
        assert found.end is not None
        assert found.end.likely - now == pytest.approx(run.machine.now - now, rel=0.1)
        assert found.end.early <= run.machine.now <= found.end.late

    def test_run_on_gpus_ends_when_it_is_expected_to(self) -> None:
        run = learning(b.jobs(12, seconds=600.0, peak="10GiB", gpus=1, utilisation=0.4), b.gpu(0), b.gpu(1), b.host())
        now, found = estimated(run, 4)
        run.run()
        assert found.end is not None
        assert found.end.likely - now == pytest.approx(run.machine.now - now, rel=0.35)

    def test_hosts_of_all_nodes_take_part(self) -> None:
        nodes = (*b.node("a", b.host(cores=2)), *b.node("b", b.host(cores=2)))
        run = learning(b.jobs(40, seconds=60.0), *nodes)
        now, found = estimated(run, 8)
        run.run()
        assert found.end is not None
        assert found.end.likely - now == pytest.approx(run.machine.now - now, rel=0.1)

    def test_gpus_of_all_nodes_take_part(self) -> None:
        nodes = (*b.node("a", b.gpu(0), b.host()), *b.node("b", b.gpu(0), b.host()))
        run = learning(b.jobs(12, seconds=600.0, peak="10GiB", gpus=1, utilisation=0.4), *nodes)
        now, found = estimated(run, 4)
        run.run()
        assert found.end is not None
        assert found.end.likely - now == pytest.approx(run.machine.now - now, rel=0.35)
        assert {key for one in found.tasks.values() for key in one.devices} == {
            "GPU-a-0", "GPU-b-0", "host@a", "host@b",
        }  # fmt: skip

    def test_leases_of_others_take_the_ram_of_their_node_only(self) -> None:
        nodes = (*b.node("a", b.host("11GiB", cores=2)), *b.node("b", b.host("11GiB", cores=2)))
        run = learning(b.jobs(24, seconds=60.0, peak="4GiB", memory="4GiB"), *nodes)
        alone = under_way(run, 2)
        theirs = replace(lease(since=run.machine.now, expected=600.0), used={}, node="b")
        ends = [
            found.end.likely - run.machine.now
            for leases in ((), (theirs,))
            if (found := forecast(run.brain, replace(alone, leases=leases), run.machine.now)).end is not None
        ]
        assert len(ends) == 2
        assert ends[1] > 1.3 * ends[0]

    def test_end_is_unknown_before_any_task_has_ended(self) -> None:
        run = learning(b.jobs(20, seconds=60.0))
        assert estimated(run, 0)[1] == Forecast(run.machine.now, None, UNKNOWN)

    def test_progress_of_a_living_attempt_makes_the_end_known(self) -> None:
        run = learning(b.jobs(10, seconds=100.0, epochs=10), b.host(cores=1))
        under_way(run, 0)
        (task,) = run.brain.living()
        snapshot = MachineSnapshot(run.loop.ports.devices.snapshot(), (), {}, {(task.id, 1): (2.0, 10.0)})
        found = forecast(run.brain, snapshot, run.machine.now)
        assert found.end is not None
        assert found.end.likely - run.machine.now == pytest.approx(80.0 + 9 * 100.0, rel=0.1)

    def test_end_of_a_long_queue_follows_from_its_first_tasks(self) -> None:
        run = learning(b.jobs(3000, seconds=60.0), b.host(cores=2), num=1000)
        snapshot = under_way(run, 5)
        found = forecast(run.brain, snapshot, run.machine.now, most_tasks=40)
        assert sum(one.start is not None for one in found.tasks.values()) == 40
        assert found.end is not None
        assert found.end.likely - run.machine.now == pytest.approx(2995 / 2 * 60.0, rel=0.15)

    def test_run_of_many_different_tasks_is_estimated_within_a_bounded_time(self) -> None:
        jobs = [job for i in range(1500) for job in b.jobs(1, seconds=60.0 + i % 97, filename=f"t{i}.py")]
        run = learning(jobs, b.host(cores=4), num=1500)
        snapshot = under_way(run, 5)
        spent = []
        for _ in range(5):
            began = time.process_time()
            forecast(run.brain, snapshot, run.machine.now)
            spent.append(time.process_time() - began)
        assert min(spent) < 0.1  # 10 ms on a quiet machine; all tasks one by one take 10 times as long

    def test_run_that_is_drained_ends_with_its_living_attempts(self) -> None:
        run = learning(b.jobs(20, seconds=60.0))
        snapshot = under_way(run, 4)
        run.brain.apply(b.asked("drain"))
        found = forecast(run.brain, snapshot, run.machine.now)
        assert found.end is not None
        assert found.end.likely - run.machine.now <= 70.0

    def test_run_that_is_over_has_no_end(self) -> None:
        run = learning(b.jobs(2, seconds=60.0)).run()
        assert forecast(run.brain, MachineSnapshot(()), run.machine.now).is_idle

    def test_run_whose_tasks_are_all_held_is_not_idle(self) -> None:
        run = learning(b.jobs(2, seconds=60.0))
        run.brain.apply(b.asked("hold", 1, 2))
        assert forecast(run.brain, MachineSnapshot(()), run.machine.now).why == ALL_HELD

    def test_held_tasks_are_left_out_and_counted_apart(self) -> None:
        run = learning(b.jobs(20, seconds=60.0))
        snapshot, now = under_way(run, 4), run.machine.now
        everything = forecast(run.brain, snapshot, now)
        run.brain.apply(b.asked("hold", *range(11, 21)))
        found = forecast(run.brain, snapshot, now)
        assert (everything.held, found.held) == (0, 10)
        assert everything.end is not None
        assert found.end is not None
        assert found.end.likely - now < 0.6 * (everything.end.likely - now)

    def test_jobs_limit_bounds_the_tasks_at_a_time(self) -> None:
        run = learning(b.jobs(20, seconds=60.0), b.host(cores=8), jobs=1)
        now, found = estimated(run, 2)
        assert found.end is not None
        assert found.end.likely - now == pytest.approx(18 * 60.0, rel=0.1)


class TestTasks:
    def test_each_task_starts_and_ends_when_it_is_expected_to(self) -> None:
        run = learning(b.jobs(20, seconds=60.0))
        now, found = estimated(run, 8)
        run.run()
        ends = {task: history.attempts[-1].ended for task, history in run.history.tasks.items()}
        assert {task for task, expected in found.tasks.items() if expected.start is None} == {9, 10}
        assert sorted(found.tasks) == list(range(9, 21))
        for task, expected in found.tasks.items():
            assert expected.end.likely - now == pytest.approx((ends[task] or 0.0) - now, rel=0.1, abs=2.0)

    def test_task_that_was_bypassed_too_often_starts_before_later_ones(self) -> None:
        seconds = [60.0 + 37.0 * (number % 3) for number in range(40)]
        small = [job for s in seconds for job in b.jobs(1, filename=f"s{s}.py", seconds=s, memory="6GiB")]
        big = b.jobs(1, filename="big.py", seconds=60.0, memory="20GiB")
        run = learning([*small[:8], *big, *small[8:]], b.host(cores=4), num=100, bypass_limit=12)
        now, found = estimated(run, 5)
        run.run()
        started = run.history.tasks[9].attempts[-1].started or 0.0
        start = found.tasks[9].start
        assert start is not None
        assert start.likely - now == pytest.approx(started - now, rel=0.2)

    def test_tasks_that_never_fit_leave_the_end_unknown(self) -> None:
        jobs = [*b.jobs(6, seconds=60.0), *b.jobs(1, filename="big.py", memory="20GiB")]
        run = learning(jobs, b.host(cores=2), others=[lease()])
        snapshot = under_way(run, 3)
        snapshot = MachineSnapshot(snapshot.budgets, [lease()], snapshot.used)
        found = forecast(run.brain, snapshot, run.machine.now)
        assert (found.end, found.why) == (None, "unknown: 1 waiting task cannot start beside what is in use now")

    def test_task_starts_when_the_lease_of_another_scheduler_is_expected_to_end(self) -> None:
        jobs = [*b.jobs(6, seconds=60.0), *b.jobs(1, filename="big.py", memory="20GiB")]
        run = learning(jobs, b.host(cores=2), others=[lease()])
        snapshot = under_way(run, 3)
        theirs = lease(since=run.machine.now, expected=1000.0)
        found = forecast(run.brain, MachineSnapshot(snapshot.budgets, [theirs], snapshot.used), run.machine.now)
        assert found.end is not None
        assert found.end.likely - run.machine.now == pytest.approx(1060.0, rel=0.1)


class TestEstimate:
    def test_estimate_leaves_the_brain_as_it_was(self) -> None:
        run = learning(b.jobs(20, seconds=60.0))
        snapshot = under_way(run, 5)
        before = b.picture(run.brain)
        forecast(run.brain, snapshot, run.machine.now)
        assert b.picture(run.brain) == before

    def test_two_estimates_of_one_moment_are_equal(self) -> None:
        run = learning(b.jobs(12, seconds=60.0))
        snapshot, now = under_way(run, 4), run.machine.now
        assert forecast(run.brain, snapshot, now) == forecast(run.brain, snapshot, now)

    def test_less_certain_durations_give_a_wider_span(self) -> None:
        alike, scattered = ([60.0] * 20, [20.0 + 40.0 * (i % 5) for i in range(20)])
        spans = []
        for seconds in (alike, scattered):
            jobs = [job for i, s in enumerate(seconds) for job in b.jobs(1, seconds=s, filename=f"t.py --n {i}")]
            now, found = estimated(learning(jobs, b.host(cores=1)), 5)
            assert found.end is not None
            spans.append((found.end.late - found.end.early) / (found.end.likely - now))
        assert spans[0] < spans[1]

    def test_forecast_is_read_as_it_was_written(self) -> None:
        found = estimated(learning(b.jobs(12, seconds=60.0)), 4)[1]
        assert Forecast.from_dict(json.loads(json.dumps(found.to_dict()))) == found


class TestDependencies:
    def test_no_task_is_expected_to_start_before_its_time(self) -> None:
        run = learning([*b.jobs(3, 100, memory="1GiB"), *b.jobs(1, 100, memory="1GiB", begin=1e9 + 5000)])
        found = estimated(run, 2)[1]
        assert run.brain.state(4) == "blocked"
        start = found.tasks[4].start
        assert start is not None
        assert start.likely == 1e9 + 5000
        assert found.end is not None
        assert found.end.likely > 1e9 + 5000

    def test_nothing_is_expected_to_start_before_the_end_of_a_pause(self) -> None:
        run = learning(b.jobs(8, 100, memory="1GiB"))
        now, _ = estimated(run, 2)
        snapshot = under_way(run, 2)
        b.tell(run.brain, Limited(paused=True, until=now + 5000))
        found = forecast(run.brain, snapshot, now)
        starts = [one.start.likely for one in found.tasks.values() if one.start is not None]
        assert starts
        assert min(starts) == now + 5000

    def test_the_end_of_a_run_that_is_paused_without_an_end_is_unknown(self) -> None:
        run = learning(b.jobs(8, 100, memory="1GiB"))
        now, _ = estimated(run, 2)
        snapshot = under_way(run, 2)
        b.tell(run.brain, Limited(paused=True))
        assert forecast(run.brain, snapshot, now).why == "unknown: the run is paused"

    def test_the_end_of_a_run_without_jobs_is_unknown_because_it_is_paused(self) -> None:
        run = learning(b.jobs(8, 100, memory="1GiB"))
        now, _ = estimated(run, 2)
        snapshot = under_way(run, 2)
        b.tell(run.brain, Limited(jobs=0))
        assert forecast(run.brain, snapshot, now).why == "unknown: the run is paused"

    def test_a_blocked_task_is_expected_to_start_when_its_parents_end(self) -> None:
        run = learning(b.jobs(4, 100, memory="1GiB"))
        for task in (2, 3, 4):
            b.tell(run.brain, Depended(DependencyStep.BLOCK, (task,), after=tuple(range(1, task))))
        _, found = estimated(run, 1)
        second, third, fourth = (found.tasks[task] for task in (2, 3, 4))
        assert third.start is not None
        assert fourth.start is not None
        assert (third.start.likely, fourth.start.likely) == (second.end.likely, third.end.likely)
        assert found.end is not None
        assert found.end.likely == fourth.end.likely

    def test_a_task_that_begins_at_a_time_is_expected_then_and_not_before(self) -> None:
        run = learning(b.jobs(3, 100, memory="1GiB"))
        now = run.machine.now + 86400.0
        run.brain.dependencies.begin((2,), now)
        b.tell(run.brain, Depended(DependencyStep.BLOCK, (2,)))
        _, found = estimated(run, 1)
        one = found.of_task(2, State.BLOCKED)
        assert one is not None
        assert one.start is not None
        assert (one.start.early, one.start.likely, one.start.late) == pytest.approx((now, now, now), abs=1.0)
        assert found.end is not None
        assert now <= found.end.early <= found.end.likely <= found.end.late < now + 300.0


def demand(tasks: int, seconds: float | None, memory: int = GIB, cores: float = 1.0) -> WaitingDemand:
    need = ResourceRequest(MemoryRequest(memory, memory), cores, EstimateSource.DECLARED)
    return WaitingDemand(tasks, seconds, need)


class TestOtherRuns:
    """A machine with one core, on which two runs of one user or of two have one task at a time."""

    USER, OTHER = 1000, 2000

    def estimated(self, left: int, *others: PublishedForecast, theirs: Sequence[Lease] = ()) -> tuple[float, Forecast]:
        """Return the time and the forecast of a run with waiting tasks of 60 s, beside other runs."""
        run = learning(b.jobs(left + 3, seconds=60.0, memory="1GiB"), b.host(cores=1))
        snapshot = under_way(run, 2)
        now = run.machine.now
        snapshot = replace(snapshot, uid=self.USER, others=others, leases=theirs, since=now)
        return now, forecast(run.brain, snapshot, now)

    def starts(self, now: float, found: Forecast) -> list[float]:
        return [round(one.start.likely - now) for _, one in sorted(found.tasks.items()) if one.start is not None]

    def test_runs_of_one_user_start_tasks_in_turn(self) -> None:
        now, found = self.estimated(3, PublishedForecast(self.USER, "9-z", 0.0, waiting=(demand(2, 100.0),)))
        assert self.starts(now, found) == [160, 320, 380], "after 60 s theirs is next, then one of each in turn"

    def test_a_user_with_less_is_next(self) -> None:
        lease = b.lease_of({"host": 8 * GIB}, uid=self.USER, run="8-y", task=1, attempt=1)
        theirs = PublishedForecast(self.OTHER, "9-z", 0.0, waiting=(demand(3, 100.0),))
        now, found = self.estimated(1, theirs, theirs=[lease])
        assert self.starts(now, found) == [360], "this user holds memory elsewhere all the time"

    def test_the_end_of_a_lease_is_known_from_its_scheduler(self) -> None:
        lease = b.lease_of({"host": 22 * GIB}, uid=self.OTHER, run="9-z", task=4, attempt=1)
        run = learning(b.jobs(6, seconds=60.0, memory="3GiB"), b.host(cores=1))
        snapshot = under_way(run, 2)
        now = run.machine.now
        snapshot = replace(snapshot, leases=[lease])
        assert forecast(run.brain, snapshot, now).end is None, "nothing is known about the lease"
        known = PublishedForecast(self.OTHER, "9-z", ends={(4, 1): now + 500})
        assert self.starts(now, forecast(run.brain, replace(snapshot, others=[known]), now))[0] == 500

    def test_a_lease_that_is_late_takes_a_quarter_longer(self) -> None:
        run = learning(b.jobs(6, seconds=60.0, memory="3GiB"), b.host(cores=1))
        snapshot = under_way(run, 2)
        now = run.machine.now
        lease = b.lease_of({"host": 22 * GIB}, uid=self.OTHER, run="9-z", since=now - 400, expected=100.0)
        assert self.starts(now, forecast(run.brain, replace(snapshot, leases=[lease]), now))[0] == 100

    def test_tasks_of_unknown_duration_are_assumed_to_last_as_long_as_those_of_this_run(self) -> None:
        now, found = self.estimated(1, PublishedForecast(self.USER, "9-z", 0.0, waiting=(demand(1, None),)))
        assert self.starts(now, found) == [120]

    def test_a_run_with_a_limit_of_tasks_starts_no_more(self) -> None:
        run = learning(b.jobs(32, seconds=60.0, memory="1GiB"), b.host(cores=4))
        snapshot, now = under_way(run, 4), run.machine.now
        for_all = PublishedForecast(self.OTHER, "9-z", 0.0, waiting=(demand(100, 60.0),))
        ends = [
            forecast(run.brain, replace(snapshot, uid=self.USER, others=[one]), now).end
            for one in (for_all, replace(for_all, jobs=1))
        ]
        assert ends[0] is not None
        assert ends[1] is not None
        assert ends[1].likely < ends[0].likely

    def test_a_run_waits_since_its_last_start_although_that_task_has_ended(self) -> None:
        made, history = b.brain(b.tasks(2, "1GiB")), RunSummary()
        assert waits_since(made, history, 50.0) == 50.0
        for event, at in ((b.placed(1), 70.0), (b.started(1), 70.0), (b.exited(1), 80.0)):
            made.apply(event, at)
            history.take(event, at)
        assert waits_since(made, history, 50.0) == 70.0
        assert waits_since(made, history, 100.0) == 100.0, "it was resumed"

    def test_a_queue_that_was_idle_waits_since_its_next_task_came(self) -> None:
        made, history = b.brain(b.tasks(1, "1GiB")), RunSummary()
        for event, at in ((b.placed(1), 70.0), (b.started(1), 70.0), (b.exited(1), 80.0), (Submitted(2, 2, [0]), 90.0)):
            made.apply(event, at)
            history.take(event, at)
        assert waits_since(made, history, 50.0) == 90.0

    def test_a_run_publishes_what_others_need(self) -> None:
        jobs = [*b.jobs(6, seconds=60.0, memory="1GiB"), *b.jobs(3, filename="big.py", memory="20GiB")]
        run = learning(jobs, b.host(cores=2), num=20, jobs=3)
        snapshot = under_way(run, 2)
        now = run.machine.now
        snapshot = replace(snapshot, uid=self.USER, since=now)
        said = forecasts(run.brain, snapshot, now)[1]
        assert said is not None
        assert (said.uid, said.since, said.jobs, said.devices) == (self.USER, now, 3, ("host",))
        assert {key: end - now for key, end in said.ends.items()} == pytest.approx(
            {(3, 1): 60.0, (4, 1): 60.0}, rel=0.1
        )
        assert [one.tasks for one in said.waiting] == [2, 3]
        assert [one.need.host.bytes for one in said.waiting] == [GIB, 20 * GIB]
        assert said.waiting[0].seconds == pytest.approx(60.0, rel=0.1)

    def test_a_run_publishes_its_waiting_tasks_before_any_duration_is_known(self) -> None:
        run = learning(b.jobs(20, seconds=60.0))
        found, said = forecasts(run.brain, under_way(run, 0), run.machine.now)
        assert found.why == UNKNOWN
        assert said is not None
        assert said.ends == {}
        assert [(one.tasks, one.seconds) for one in said.waiting] == [(18, None)]

    def test_a_paused_run_publishes_no_waiting_tasks(self) -> None:
        run = learning(b.jobs(8, 100, memory="1GiB"))
        snapshot = under_way(run, 2)
        b.tell(run.brain, Limited(paused=True))
        said = forecasts(run.brain, snapshot, run.machine.now)[1]
        assert said is not None
        assert said.waiting == ()
        assert said.ends

    def test_a_run_with_nothing_to_do_publishes_nothing(self) -> None:
        run = learning(b.jobs(2, seconds=60.0)).run()
        assert forecasts(run.brain, MachineSnapshot(()), run.machine.now)[1] is None
