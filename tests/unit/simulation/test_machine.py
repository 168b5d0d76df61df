"""The loop on simulated machines: times, ends, memory, devices and requests."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import pytest

from scheduler.core.brain import Brain
from scheduler.core.events import Event, Exited, Refused, Resized, Started
from scheduler.core.leases import Lease
from scheduler.core.model import HOST, Outcome, Placement
from scheduler.core.ports import Launch, Request, Sample
from scheduler.errors import SchedulerError
from scheduler.simulation import task_behaviour as truths
from scheduler.simulation.machine import fitted, shared
from scheduler.simulation.task_behaviour import TaskBehaviour, curve
from scheduler.units import GIB
from tests.support.builders import (
    Job,
    Simulation,
    gpu,
    host,
    jobs,
    picture,
    replay,
    simulate,
    size,
    spec,
)


def times(run: Simulation, kind: type[Event]) -> dict[int, float]:
    """Return the time of each task's last event of a kind, in seconds of the run."""
    return {event.task: at - 1e9 for event, at in run.book.recorded if isinstance(event, kind)}  # type: ignore[union-attr]


def ends(run: Simulation) -> list[tuple[int, str, float]]:
    """Return (task, outcome, seconds) of every attempt in the order of their ends."""
    return [(e.task, str(e.outcome), round(e.seconds, 3)) for e in run.events if isinstance(e, Exited)]


class TestTime:
    def test_run_takes_as_long_as_its_tasks(self) -> None:
        run = simulate(jobs(3, seconds=100, memory="1GiB"))
        assert (run.states, run.makespan) == ({"succeeded": 3}, 100.0)

    def test_measured_attempt_is_sampled_until_it_has_settled(self) -> None:
        run = simulate(jobs(1, seconds=300), gpu(0), profile="live")  # it holds its peak after 30 s, and settles in 15
        assert 45.0 <= times(run, Resized)[1] <= 55.0

    def test_memory_bounds_the_tasks_at_a_time(self) -> None:
        run = simulate(jobs(6, seconds=100, memory="10GiB", cpus=0.1, cores=0.1))
        assert run.makespan == 300.0

    def test_week_of_work_is_simulated_at_once(self) -> None:
        run = simulate(jobs(8, seconds=7 * 86_400.0, memory="4GiB"), host(cores=8))
        assert run.makespan == 2 * 7 * 86_400.0

    def test_two_tasks_share_overloaded_cores(self) -> None:
        run = simulate(jobs(2, seconds=100, memory="1GiB", cpus=1, cores=4), host(cores=4))
        assert run.makespan == 200.0

    def test_task_goes_on_at_full_speed_when_its_neighbour_has_ended(self) -> None:
        run = simulate(
            jobs(1, seconds=50, memory="1GiB", cpus=1, cores=4) + jobs(1, seconds=100, memory="1GiB", cpus=1, cores=4),
            host(cores=4),
        )
        assert [seconds for _, _, seconds in ends(run)] == [100.0, 150.0]

    def test_task_that_loads_its_data_neither_uses_its_gpu_nor_is_slowed_by_it(self) -> None:
        run = simulate(jobs(2, seconds=100, memory="1GiB", utilisation=1.0, loading=40.0), gpu(0), max_gpu_load=3.0)
        assert [seconds for _, _, seconds in ends(run)] == [160.0, 160.0]  # 60 seconds of a GPU's time each

    def test_overloaded_device_slows_its_tasks_down(self) -> None:
        assert [shared(load) for load in (0.5, 1.0, 3.0)] == [1.0, 1.0, 3.0]
        assert [round(fitted(load), 3) for load in (0.5, 0.95, 1.9, 2.0, 4.0)] == [1.0, 1.0, 1.414, 1.451, 2.902]

    def test_two_simulations_of_one_run_are_equal(self) -> None:
        first, again = (simulate(a_mixture(5), host("24GiB", cores=6)) for _ in range(2))
        assert first.book.recorded == again.book.recorded


class TestEnds:
    @pytest.mark.parametrize(
        ("said", "outcome", "state"),
        [
            ({"code": 0}, "succeeded", "succeeded"),
            ({"code": 3}, "failed", "failed"),
            ({"signal": 11}, "failed", "failed"),
            ({"timeout": 20.0}, "timeout", "timeout"),
        ],
    )
    def test_end_gives_the_state_of_the_task(self, said: dict[str, Any], outcome: str, state: str) -> None:
        run = simulate(jobs(1, seconds=100, memory="1GiB", **said))
        assert (run.states, [name for _, name, _ in ends(run)]) == ({state: 1}, [outcome])

    def test_timeout_ends_an_attempt_at_its_limit(self) -> None:
        run = simulate(jobs(1, seconds=100, memory="1GiB", timeout=20.0))
        assert ends(run) == [(1, "timeout", 20.0)]

    def test_attempt_that_ignores_the_stop_signal_is_killed_after_its_grace(self) -> None:
        run = simulate(jobs(1, seconds=100, memory="1GiB", timeout=20.0, grace=7.0, stops_in=60.0))
        assert ends(run) == [(1, "timeout", 27.0)]
        assert run.history.tasks[1].attempts[0].signal == 9

    def test_task_fails_after_three_lost_shims(self) -> None:
        run = simulate(jobs(1, seconds=10, memory="1GiB", lost=True))
        assert (run.states, len(ends(run))) == ({"failed": 1}, 3)

    @pytest.mark.parametrize(("lost", "waits"), [(True, False), (False, True)])
    def test_end_without_a_record_waits_for_the_disk(self, lost: bool, waits: bool) -> None:
        run, noted = Simulation(jobs(1, seconds=10, memory="1GiB", lost=lost)), []
        record = run.book.record

        def noting(events: Sequence[Event], at: float, *, later: bool = False) -> None:
            noted.extend((type(event), later) for event in events)
            record(events, at, later=later)

        run.book.record = noting  # type: ignore[method-assign]  # what it is told is the point
        run.run()
        assert {later for kind, later in noted if kind is Exited} == {waits}

    def test_task_is_tried_again_after_one_lost_shim(self) -> None:
        def first_is_lost(order: Launch, truth: TaskBehaviour) -> TaskBehaviour:
            return TaskBehaviour(5.0, lost=True) if order.attempt == 1 else truth

        run = simulate(jobs(1, seconds=10, memory="1GiB"), truth=first_is_lost)
        assert ends(run) == [(1, "lost", 5.0), (1, "succeeded", 10.0)]

    def test_failed_task_is_retried(self) -> None:
        run = simulate(jobs(1, seconds=10, memory="1GiB", code=1, retries=2))
        assert (run.states, len(ends(run))) == ({"failed": 1}, 3)

    def test_task_that_never_fits_is_refused_and_the_rest_runs(self) -> None:
        run = simulate(jobs(1, memory="30GiB") + jobs(1, memory="1GiB"))
        assert run.states == {"refused": 1, "succeeded": 1}

    def test_results_of_a_task_are_kept(self) -> None:
        run = Simulation(jobs(1, memory="1GiB"))
        run.book.results[1, 1] = {"loss": 0.5}
        run.run()
        assert run.history.tasks[1].attempts[0].result == {"loss": 0.5}


class TestMemory:
    def test_allocation_beyond_the_device_fails_its_own_task(self) -> None:
        run = simulate(jobs(1, seconds=100, peak="24GiB", memory="4GiB") + jobs(1, seconds=100, memory="4GiB"))
        first, *_ = [e for e in run.events if isinstance(e, Exited)]
        assert (first.task, first.outcome, first.seconds) == (1, Outcome.OOM, 10.0)
        assert first.reason == "out of memory on host: it wanted 23.5GiB more, 23.0GiB were free"
        assert run.states == {"succeeded": 2}

    def test_tasks_with_declared_memory_never_run_out_of_it(self) -> None:
        run = simulate(a_mixture(9), host("24GiB", cores=6), unmanaged={HOST: 3 * GIB})
        assert run.states == {"succeeded": 40}
        assert overcommitted(run) == []

    @pytest.mark.parametrize("seed", range(4))
    def test_tasks_with_declared_memory_never_run_out_of_it_beside_other_schedulers(self, seed: int) -> None:
        dice = random.Random(seed)
        others = [
            a_lease(number, reserved, round(reserved * dice.random()))
            for number, reserved in enumerate([2 * GIB, 4 * GIB, 3 * GIB])
        ]
        run = simulate(a_mixture(seed), host("40GiB", cores=9), others=others)
        assert run.states == {"succeeded": 40}
        assert overcommitted(run, sum(lease.reserved[HOST] for lease in others)) == []

    def test_reservation_of_a_task_above_its_declared_memory_grows(self) -> None:
        run = simulate(jobs(1, seconds=100, peak="6GiB", memory="4GiB"))
        (grown,) = [e for e in run.events if isinstance(e, Resized)]
        assert (grown.cause, grown.reservation) == ("grew", {HOST: int(6 * GIB * 1.1) + size("256MiB")})

    def test_task_that_ran_out_of_memory_is_reserved_more(self) -> None:
        """Two tasks need twice their declared memory: one runs out of it, and starts again when there is enough."""
        run = simulate(jobs(2, seconds=100, peak="14GiB", memory="7GiB"))
        assert run.states == {"succeeded": 2}
        assert {task for task, outcome, _ in ends(run) if outcome == "oom"} == {2}

    def test_task_that_needs_more_than_any_device_is_refused_once_that_is_known(self) -> None:
        run = simulate(jobs(1, seconds=100, peak="30GiB", memory="4GiB") + jobs(2, seconds=500, memory="1GiB"))
        (refused,) = [e for e in run.events if isinstance(e, Refused)]
        assert run.states == {"refused": 1, "succeeded": 2}
        assert refused.reason == "needs 30.0GiB; the largest device (host) has 24.0GiB"

    def test_tasks_of_unknown_memory_all_succeed(self) -> None:
        run = simulate(jobs(20, seconds=300, peak="5GiB"), host("24GiB", cores=8))
        assert run.states == {"succeeded": 20}

    def test_late_peak_is_seen(self) -> None:
        run = simulate(jobs(1, seconds=1000, peak="9GiB", late=True, epochs=10))
        assert run.history.tasks[1].attempts[0].peak == {HOST: 9 * GIB}


class TestDevices:
    def test_tasks_run_on_many_gpus(self) -> None:
        run = simulate(jobs(8, seconds=100, memory="20GiB"), *(gpu(number) for number in range(4)))
        assert (run.states, run.makespan) == ({"succeeded": 8}, 200.0)
        used = {one.attempts[0].devices for one in run.history.tasks.values()}
        assert used == {(f"GPU-{n}",) for n in range(4)}

    def test_task_runs_on_the_device_that_its_row_names(self) -> None:
        run = simulate(jobs(3, seconds=100, memory="20GiB", device="GPU-1"), gpu(0), gpu(1))
        assert (run.states, run.makespan) == ({"succeeded": 3}, 300.0)

    def test_task_on_one_gpu_uses_no_memory_of_another(self) -> None:
        run = simulate(jobs(2, seconds=100, peak="20GiB", memory="20GiB"), gpu(0), gpu(1))
        assert [a.peak for task_history in run.history.tasks.values() for a in task_history.attempts] == [
            {"GPU-0": 20 * GIB},
            {"GPU-1": 20 * GIB},
        ]

    def test_gpu_task_uses_host_memory(self) -> None:
        run = simulate(jobs(1, seconds=100, memory="2GiB", host_memory=curve(3 * GIB, 100.0)), gpu(0), host("8GiB"))
        assert run.states == {"succeeded": 1}

    def test_budget_bounds_the_memory_in_use(self) -> None:
        run = simulate(jobs(4, seconds=100, memory="3GiB", cpus=0.1), host("24GiB", cap="7GiB"))
        assert run.makespan == 200.0

    def test_simulation_without_free_memory_ends_with_an_error(self) -> None:
        with pytest.raises(SchedulerError, match=r"the simulation is stuck at .* nothing will happen any more"):
            simulate(jobs(1, memory="8GiB"), host("10GiB"), unmanaged={HOST: 9 * GIB})

    def test_machine_without_devices_is_refused(self) -> None:
        run = Simulation(jobs(1), host("1GiB"))
        run.machine.devices = ()
        with pytest.raises(SchedulerError, match="the simulated machine has no devices"):
            run.loop.ports.devices.discover()


class TestRequests:
    """Requests to a simulated run while it goes on."""

    def asked(self, *requests: tuple[float, str], **said: Any) -> Simulation:
        at = [(1e9 + seconds, Request(what)) for seconds, what in requests]
        return simulate(jobs(8, seconds=100, memory="5GiB", **said), host("24GiB", cores=8), requests=at)

    def test_drain_lets_running_tasks_end(self) -> None:
        run = self.asked((50, "drain"))
        assert (run.states, run.makespan) == ({"succeeded": 4, "waiting": 4}, 100.0)

    def test_stop_ends_running_tasks(self) -> None:
        run = self.asked((50, "stop"))
        assert (run.states, run.makespan) == ({"interrupted": 4, "waiting": 4}, 50.0)

    def test_stop_waits_for_the_grace_of_its_tasks(self) -> None:
        run = self.asked((50, "stop"), stops_in=20.0)
        assert (run.states, run.makespan) == ({"interrupted": 4, "waiting": 4}, 70.0)

    def test_kill_does_not_wait_for_the_grace_of_its_tasks(self) -> None:
        run = self.asked((50, "drain"), (51, "stop"), (60, "kill"), stops_in=20.0)
        assert (run.states, run.makespan) == ({"interrupted": 4, "waiting": 4}, 60.0)

    def test_hangup_changes_nothing(self) -> None:
        assert self.asked((50, "hangup")).states == {"succeeded": 8}

    @pytest.mark.parametrize("what", ["stop", "kill", "drain"])
    def test_request_at_the_moment_of_an_end_is_granted(self, what: str) -> None:
        """Ends are known before a request is answered, so a task that has ended is not stopped."""
        run = self.asked((100, what))
        assert run.states == {"succeeded": 4, "waiting": 4}

    def test_two_requests_at_once_are_granted(self) -> None:
        assert self.asked((50, "stop"), (50, "stop"), (50, "kill")).states == {"interrupted": 4, "waiting": 4}

    def test_sentences_tell_what_a_request_does(self) -> None:
        run = self.asked((50, "drain"), (51, "stop"), (52, "kill"), stops_in=20.0)
        assert run.view.sentences[0].startswith("nothing more is started; 4 running tasks end by themselves")
        assert [sentence.split(" ")[0] for sentence in run.view.sentences] == ["nothing", "stopping", "killing"]


class TestTogether:
    """Events that the loop takes in together."""

    def living(self) -> Simulation:
        run = Simulation(jobs(2, seconds=100, memory="1GiB"))
        run.loop.place()
        run.loop.digest(run.loop.ports.world.wait(1.0))
        return run

    def test_sample_beside_an_end_counts_as_taken_before_it(self) -> None:
        run = self.living()
        run.loop.digest([Exited(1, 1, Outcome.SUCCEEDED), Sample(1, 1, {HOST: GIB}, {HOST: 9 * GIB})])
        assert run.history.tasks[1].attempts[0].peak == {HOST: 9 * GIB}
        assert run.states == {"succeeded": 1, "running": 1}

    def test_sample_after_an_end_is_ignored(self) -> None:
        run = self.living()
        run.loop.digest([Exited(1, 1, Outcome.SUCCEEDED)])
        told = len(run.events)
        run.loop.digest([Sample(1, 1, {HOST: GIB}, {HOST: 9 * GIB})])
        assert len(run.events) == told

    def test_end_beside_a_request_is_recorded_first(self) -> None:
        run = Simulation(jobs(1, memory="1GiB"))
        run.loop.place()
        run.loop.digest([Exited(1, 1, Outcome.FAILED, code=2), Request("stop")])
        assert run.states == {"failed": 1}

    def test_stop_applies_to_the_tasks_that_are_left(self) -> None:
        run = self.living()
        run.loop.digest([Request("stop"), Exited(1, 1, Outcome.SUCCEEDED)])
        assert run.states == {"succeeded": 1, "running": 1}
        run.run()
        assert run.states == {"succeeded": 1, "interrupted": 1}


class TestTakingOver:
    """Another scheduler continues a run that was left or whose scheduler died."""

    def left(self, at: float) -> Simulation:
        run = Simulation(
            jobs(8, seconds=100, memory="5GiB"), host("24GiB", cores=8), requests=[(1e9 + at, Request("leave"))]
        )
        run.run()
        assert run.loop.left_early
        return run

    def go_on(self, run: Simulation) -> Simulation:
        run.requests = ()
        run.loop = run.scheduler()
        run.loop.adopt()
        return run.run()

    def test_living_attempts_are_adopted_by_the_next_scheduler(self) -> None:
        run = self.go_on(self.left(50))
        assert (run.states, run.makespan) == ({"succeeded": 8}, 200.0)
        assert [event.attempt for event in run.events if isinstance(event, Placement)] == [1] * 8

    def test_attempts_that_ended_meanwhile_are_found_by_the_next_scheduler(self) -> None:
        run = self.left(50)
        while run.machine.running:
            run.machine.advance()
        run.machine.now += 1000
        assert self.go_on(run).states == {"succeeded": 8}
        assert [event.attempt for event in run.events if isinstance(event, Placement)] == [1] * 8

    def test_attempt_that_never_started_is_fenced_and_started_again(self) -> None:
        run = Simulation(jobs(1, seconds=100, memory="5GiB"))
        run.loop.ports.engine.launch = lambda order: None  # type: ignore[method-assign]  # it dies before it can
        run.loop.place()
        run.loop = run.scheduler()
        run.loop.adopt()
        run.run()
        assert ends(run) == [(1, "lost", 0.0), (1, "succeeded", 100.0)]

    def test_journal_alone_restores_the_state(self) -> None:
        run = self.left(150)
        again = replay(run.brain, run.submitted, run.book.recorded)
        assert picture(again) == picture(run.brain)
        run.brain = again
        assert self.go_on(run).states == {"succeeded": 8}


class TestArrivals:
    def test_rows_that_arrive_during_a_run_join_it(self) -> None:
        run = Simulation(jobs(2, seconds=100, memory="1GiB"))
        run.append(jobs(3, seconds=50, memory="2GiB"))
        run.run()
        assert run.states == {"succeeded": 5}
        assert run.brain.task_table.batches == 2


class TestLearning:
    def test_class_that_ran_once_is_known(self) -> None:
        kind = [Job(spec("train.py", row=n), job.truth) for n, job in enumerate(jobs(12, seconds=100, peak="3GiB"))]
        run = simulate(kind, host("24GiB", cores=64), profile="live", jobs=1)
        known = [str(e.source) for e in run.events if isinstance(e, Placement)]
        assert run.states == {"succeeded": 12}
        assert known[0] == "measured"
        assert set(known[1:]) == {"profile"}

    def test_probe_comes_first_where_it_pays(self) -> None:
        run = simulate(jobs(1, seconds=1000, peak="3GiB", epochs=200), profile="auto")
        assert [(str(e.purpose), str(e.source)) for e in run.events if isinstance(e, Placement)] == [
            ("probe", "probe"),
            ("run", "probe"),
        ]
        assert ends(run) == [(1, "succeeded", 10.0), (1, "succeeded", 1000.0)]

    @pytest.mark.parametrize("profile", ["auto", "probe", "live", "off"])
    def test_all_tasks_succeed_under_every_profiling_mode(self, profile: str) -> None:
        given = [Job(spec("train.py", row=n, epochs=200), truths.draw(3, n, 3 * GIB, 1000.0, 200)) for n in range(25)]
        run = simulate(given, host("24GiB", cores=16), profile=profile)
        assert run.states == {"succeeded": 25}


def a_mixture(seed: int) -> list[Job]:
    """Return forty jobs of all sizes that declare what they need."""
    dice = random.Random(seed)
    made: Iterable[list[Job]] = (
        jobs(
            1,
            seconds=dice.uniform(5, 500),
            peak=(peak := dice.randrange(GIB // 8, 12 * GIB)),
            memory=peak + dice.randrange(0, GIB),
            late=dice.random() < 0.1,
            priority=dice.randrange(3),
            cpus=dice.choice([0.5, 1, 2]),
            cores=dice.choice([0.5, 1, 3]),
        )
        for _ in range(40)
    )
    return [one for some in made for one in some]


def a_lease(number: int, reserved: int, used: int = 0) -> Lease:
    return Lease(f"9.x.{number}.1", 9, "x", number, 1, 500 + number, {HOST: reserved}, {HOST: 1.0}, used={HOST: used})


def overcommitted(run: Simulation, others: int = 0) -> list[float]:
    """Return the moments at which more was reserved than the machine has."""
    total, unmanaged = run.machine.devices[0].total, run.machine.unmanaged.get(HOST, 0)
    reserved: dict[int, int] = {}
    moments = []
    for event, at in run.book.recorded:
        if isinstance(event, Placement | Resized):
            reserved[event.task] = event.reservation[HOST]
        elif isinstance(event, Exited):
            del reserved[event.task]
        if sum(reserved.values()) + others + unmanaged > total:
            moments.append(at)
    return moments


def test_every_start_is_shown_once() -> None:
    run = simulate(a_mixture(2), host("24GiB", cores=6))
    started = [(e.task, e.attempt) for e in run.events if isinstance(e, Started)]
    assert len(started) == len(set(started)) == 40
    assert isinstance(run.brain, Brain)
    assert times(run, Started).keys() == times(run, Exited).keys()


def started_within(run: Simulation) -> float:
    """Return the seconds from the first start to the last one."""
    starts = [attempt.placed for task_history in run.history.tasks.values() for attempt in task_history.attempts]
    return max(starts) - min(starts)


class TestUnknownRam:
    """Tasks that declare their GPU memory, and whose RAM has not been measured."""

    GPUS = tuple(gpu(number) for number in range(4))

    def run(self, number: int, ram: str, **said: Any) -> Simulation:
        """Run tasks that hold 3 GiB of RAM, and 3 GiB of one of four GPUs."""
        tasks = jobs(
            number, seconds=600, peak="2800MiB", memory="2900MiB", cores=0.1, utilisation=0.1,
            host_memory=curve(3 * GIB, 600.0),
        )  # fmt: skip
        return simulate(tasks, *self.GPUS, host(ram, cores=64), busy=0.1, num=100, profile="live", **said)

    def test_tasks_fill_the_gpus_within_seconds_where_ram_is_plentiful(self) -> None:
        run = self.run(32, "512GiB")
        assert run.states == {"succeeded": 32}
        assert started_within(run) <= 20.0

    def test_hardly_any_task_runs_out_of_ram_where_it_is_short(self) -> None:
        run = self.run(32, "48GiB")
        assert run.states == {"succeeded": 32}
        assert sum(len(task_history.attempts) for task_history in run.history.tasks.values()) <= 33
        assert run.makespan < 5 * 600.0
