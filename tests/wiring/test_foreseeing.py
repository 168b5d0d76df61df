"""What is expected of a run that is under way, beside what becomes of it: both on a simulated machine."""

from __future__ import annotations

import pytest

from scheduler.core.forecast import Forecast
from scheduler.core.promises import Lease
from scheduler.processes import ask_aside
from scheduler.units import GIB
from scheduler.wiring.foreseeing import UNKNOWN, Foresight, Sight, forecast
from tests import builders as b


def under_way(run: b.Simulation, ended: int) -> Sight:
    """Let a run go on until so many tasks have ended; what is seen of it then."""
    while sum(event.__class__.__name__ == "Exited" for event in run.events) < ended:
        run.loop.place()
        run.loop.digest(run.loop.ports.world.wait(1.0))
    run.loop.place()
    used = {key: dict(running.used) for key, running in run.machine.running.items()}
    return Sight(run.loop.ports.devices.snapshot(), (), used)


def learning(jobs: list[b.Job], *budgets: b.Budget, **said: object) -> b.Simulation:
    return b.Simulation(jobs, *(budgets or (b.host(cores=2),)), profile="live", **said)


def told(run: b.Simulation, ended: int) -> tuple[float, Forecast]:
    sight = under_way(run, ended)
    return run.machine.now, forecast(run.brain, sight, run.machine.now)


class TestARun:
    def test_it_ends_when_it_was_expected_to(self) -> None:
        run = learning(b.jobs(40, seconds=60.0))
        now, said = told(run, 10)
        run.run()
        assert said.end is not None
        assert said.end.likely - now == pytest.approx(run.machine.now - now, rel=0.1)
        assert said.end.early <= run.machine.now <= said.end.late

    def test_each_task_starts_and_ends_when_it_was_expected_to(self) -> None:
        run = learning(b.jobs(20, seconds=60.0))
        now, said = told(run, 8)
        run.run()
        ends = {task: story.attempts[-1].ended for task, story in run.fold.stories.items()}
        assert {task for task, one in said.tasks.items() if one.start is None} == {9, 10}
        assert sorted(said.tasks) == list(range(9, 21))
        for task, one in said.tasks.items():
            assert one.end.likely - now == pytest.approx((ends[task] or 0.0) - now, rel=0.1, abs=2.0)

    def test_the_run_is_as_it_was_before_it_was_foreseen(self) -> None:
        run = learning(b.jobs(20, seconds=60.0))
        sight = under_way(run, 5)
        before = b.picture(run.brain)
        forecast(run.brain, sight, run.machine.now)
        assert b.picture(run.brain) == before

    def test_nothing_is_told_before_anything_has_ended(self) -> None:
        run = learning(b.jobs(20, seconds=60.0))
        assert told(run, 0)[1] == Forecast(run.machine.now, None, UNKNOWN)

    def test_how_far_one_is_tells_before_anything_has_ended(self) -> None:
        run = learning(b.jobs(10, seconds=100.0, epochs=10), b.host(cores=1))
        under_way(run, 0)
        (task,) = run.brain.living()
        sight = Sight(run.loop.ports.devices.snapshot(), (), {}, {(task.id, 1): (2.0, 10.0)})
        found = forecast(run.brain, sight, run.machine.now)
        assert found.end is not None
        assert found.end.likely - run.machine.now == pytest.approx(80.0 + 9 * 100.0, rel=0.1)

    def test_of_a_long_queue_only_its_beginning_is_simulated(self) -> None:
        run = learning(b.jobs(3000, seconds=60.0), b.host(cores=2), num=1000)
        sight = under_way(run, 5)
        found = forecast(run.brain, sight, run.machine.now, most=40)
        assert len(found.tasks) == 40
        assert found.end is not None
        assert found.end.likely - run.machine.now == pytest.approx(2995 / 2 * 60.0, rel=0.15)

    def test_what_finds_no_room_leaves_the_end_open(self) -> None:
        jobs = [*b.jobs(6, seconds=60.0), *b.jobs(1, filename="big.py", memory="20GiB")]
        run = learning(jobs, b.host(cores=2), others=[(lease(), {"host": 10 * GIB})])
        sight = under_way(run, 3)
        sight = Sight(sight.budgets, [(lease(), {"host": 10 * GIB})], sight.used)
        found = forecast(run.brain, sight, run.machine.now)
        assert (found.end, found.why) == (None, "1 of its tasks find no room, as things stand")

    def test_others_leave_when_their_leases_say(self) -> None:
        jobs = [*b.jobs(6, seconds=60.0), *b.jobs(1, filename="big.py", memory="20GiB")]
        run = learning(jobs, b.host(cores=2), others=[(lease(), {"host": 10 * GIB})])
        sight = under_way(run, 3)
        theirs = lease(since=run.machine.now, expected=1000.0)
        found = forecast(run.brain, Sight(sight.budgets, [(theirs, {"host": 10 * GIB})], sight.used), run.machine.now)
        assert found.end is not None
        assert found.end.likely - run.machine.now == pytest.approx(1060.0, rel=0.1)

    def test_a_run_that_starts_nothing_more_ends_with_what_runs(self) -> None:
        run = learning(b.jobs(20, seconds=60.0))
        sight = under_way(run, 4)
        run.brain.apply(b.asked("drain"))
        found = forecast(run.brain, sight, run.machine.now)
        assert found.end is not None
        assert found.end.likely - run.machine.now <= 70.0

    def test_one_that_is_over_has_no_end_ahead(self) -> None:
        run = learning(b.jobs(2, seconds=60.0)).run()
        assert forecast(run.brain, Sight(()), run.machine.now).why == "nothing of it waits or runs"


def lease(**said: float) -> Lease:
    return Lease("other", 1, "9", 1, 1, shim=5, promised={"host": 10 * GIB}, load={"host": 0.0}, **said)


def test_it_runs_on_gpus_too() -> None:
    run = learning(b.jobs(12, seconds=600.0, peak="10GiB", gpus=1, utilisation=0.4), b.gpu(0), b.gpu(1), b.host())
    now, said = told(run, 4)
    run.run()
    assert said.end is not None
    assert said.end.likely - now == pytest.approx(run.machine.now - now, rel=0.35)


def test_a_go_that_fails_is_no_forecast() -> None:
    assert ask_aside(lambda: 1 // 0, 1) is None


def test_the_same_go_comes_to_the_same() -> None:
    run = learning(b.jobs(12, seconds=60.0))
    sight, now = under_way(run, 4), run.machine.now
    goes = [ask_aside(lambda: Foresight(run.brain, sight, now, seed=3).run(), 5) for _ in range(2)]
    assert goes[0] == goes[1]
    assert goes[0] is not None
