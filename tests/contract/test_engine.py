"""The contract of every Engine: local processes and simulated attempts behave alike."""

from __future__ import annotations

import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

from scheduler.core.events import Exited, Started
from scheduler.core.leases import Lease
from scheduler.core.model import HOST, Device, Outcome, Purpose
from scheduler.core.ports import Key, Launch
from scheduler.simulation.engine import SimulatedEngine
from scheduler.simulation.machine import SimulatedMachine
from scheduler.simulation.task_behaviour import TaskBehaviour
from scheduler.units import GIB
from tests.e2e.conftest import Driver
from tests.support.killing import is_alive
from tests.support.waiting import wait_until

ENDS = ("true",)
LASTS = ("sleep", "60")
STUBBORN = ("sh", "-c", "trap '' TERM; echo up; sleep 60")
KILLED = ("sh", "-c", "kill -9 $$")


def exits(code: int) -> tuple[str, ...]:
    return ("sh", "-c", f"exit {code}")


def truth(order: Launch) -> TaskBehaviour:
    """Return how these commands behave on a simulated machine."""
    known = {
        ENDS: TaskBehaviour(0.0),
        LASTS: TaskBehaviour(60.0),
        STUBBORN: TaskBehaviour(60.0, stops_in=60.0),
        KILLED: TaskBehaviour(0.0, signal=9),
    }
    return known.get(order.argv) or TaskBehaviour(0.0, code=int(order.argv[-1].split()[-1]))


class Bench(Protocol):
    """An engine, with the events of its attempts."""

    engine: Any

    def launch(self, *argv: str, task: int = 0, **fields: Any) -> int: ...
    def started(self, task: int, attempt: int = 1) -> Started: ...
    def exited(self, task: int, attempt: int = 1) -> Exited: ...
    def told(self, task: int) -> list[Started | Exited]: ...
    def is_up(self, task: int) -> None: ...
    def end_without_scheduler(self, task: int) -> None: ...
    def lease(self) -> dict[str, Any]: ...
    def has_lease(self, path: str) -> bool: ...


class LocalBench(Driver):
    """An engine of real processes."""

    def told(self, task: int) -> list[Started | Exited]:
        return [event for event in self.collect() if event.task == task]

    def is_up(self, task: int) -> None:
        """Tell whether the attempt has come to where it ignores signals."""
        self.wait_for_line("up", task)

    def end_without_scheduler(self, task: int) -> None:
        """Close the engine while the attempt runs, and wait for the end of its shim."""
        shim = self.started(task).shim
        self.engine.close()
        wait_until(lambda: not is_alive(shim))

    def lease(self) -> dict[str, Any]:
        path = self.root / uuid.uuid4().hex
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        fcntl.flock(fd, fcntl.LOCK_EX)
        return {"lease": str(path), "lease_fd": fd}

    def has_lease(self, path: str) -> bool:
        return os.path.exists(path)


class SimulatedBench:
    """An engine on a simulated machine."""

    def __init__(self, machine: SimulatedMachine) -> None:
        self.machine = machine
        self.engine = SimulatedEngine(machine, truth)
        self.events: list[Started | Exited] = []
        self._next = 0

    def launch(self, *argv: str, task: int = 0, **fields: Any) -> int:
        self._next = task or self._next + 1
        order: dict[str, Any] = {"attempt": 1, "purpose": Purpose.RUN, "directory": "/", "env": {}, "grace": 5.0}
        self.engine.launch(Launch(task=self._next, argv=argv, **{**order, **fields}))
        return self._next

    def started(self, task: int, attempt: int = 1) -> Started:
        return self._wait(Started, (task, attempt))

    def exited(self, task: int, attempt: int = 1) -> Exited:
        return self._wait(Exited, (task, attempt))

    def _wait(self, kind: type[Any], key: Key) -> Any:
        while not (found := [e for e in self.told(key[0]) if isinstance(e, kind) and e.attempt == key[1]]):
            assert self.machine.advance(), f"attempt {key} will never tell {kind.kind}"
        return found[-1]

    def told(self, task: int) -> list[Started | Exited]:
        self.events += self.engine.collect()
        return [event for event in self.events if event.task == task]

    def is_up(self, task: int) -> None:
        """Return True: a simulated attempt ignores signals from the start."""

    def end_without_scheduler(self, task: int) -> None:
        """Advance the machine to the end of the attempt."""
        while any(key[0] == task for key in self.machine.running):
            self.machine.advance()

    def lease(self) -> dict[str, Any]:
        name = uuid.uuid4().hex
        self.machine.leases[name] = Lease(name, 0, "1", 1, 1, 0, {}, {})
        return {"lease": name}

    def has_lease(self, path: str) -> bool:
        return path in self.machine.leases


Benches = Callable[[], Bench]


@pytest.fixture(params=["local", "simulated"])
def benches(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Benches]:
    """Make engines over one machine and run, as schedulers that follow each other."""
    machine = SimulatedMachine([Device(HOST, HOST, GIB, 4.0)])
    prefix, made = uuid.uuid4().hex, []

    def make() -> Bench:
        bench = LocalBench(tmp_path, prefix) if request.param == "local" else SimulatedBench(machine)
        made.append(bench)
        return bench

    yield make
    for bench in made:
        if isinstance(bench, LocalBench) and not bench.engine._epoll.closed:
            bench.end()


@pytest.fixture
def bench(benches: Benches) -> Bench:
    return benches()


class TestEngine:
    def test_started_and_exited_are_each_returned_once(self, bench: Bench) -> None:
        task = bench.launch(*ENDS)
        bench.exited(task)
        assert [type(event) for event in bench.told(task)] == [Started, Exited]
        assert {(event.task, event.attempt) for event in bench.told(task)} == {(task, 1)}

    def test_started_names_process_and_shim(self, bench: Bench) -> None:
        first, second = bench.started(bench.launch(*LASTS)), bench.started(bench.launch(*LASTS))
        assert len({first.pid, first.shim, second.pid, second.shim}) == 4
        assert first.start > 0

    def test_a_successful_command_ends_succeeded(self, bench: Bench) -> None:
        ended = bench.exited(bench.launch(*ENDS))
        assert (ended.outcome, ended.code, ended.signal) == (Outcome.SUCCEEDED, 0, None)

    @pytest.mark.parametrize("code", [1, 3, 255])
    def test_exit_codes_are_returned(self, bench: Bench, code: int) -> None:
        ended = bench.exited(bench.launch(*exits(code)))
        assert (ended.outcome, ended.code) == (Outcome.FAILED, code)

    def test_a_death_by_signal_has_no_exit_code(self, bench: Bench) -> None:
        ended = bench.exited(bench.launch(*KILLED))
        assert (ended.outcome, ended.code, ended.signal) == (Outcome.FAILED, None, 9)

    def test_nothing_is_returned_while_an_attempt_runs(self, bench: Bench) -> None:
        task = bench.launch(*LASTS)
        bench.started(task)
        assert [type(event) for event in bench.told(task)] == [Started]

    def test_many_attempts_at_once_are_distinguished(self, bench: Bench) -> None:
        tasks = [bench.launch(*exits(n)) for n in range(20)]
        assert [bench.exited(task).code for task in tasks] == list(range(20))

    def test_attempts_of_one_task_are_distinguished(self, bench: Bench) -> None:
        task = bench.launch(*exits(1))
        bench.exited(task)
        bench.engine.forget(task, 1)
        bench.launch(*exits(2), task=task, attempt=2)
        assert bench.exited(task, 2).code == 2


class TestStopping:
    def test_a_stopped_attempt_is_interrupted(self, bench: Bench) -> None:
        task = bench.launch(*LASTS)
        bench.started(task)
        bench.engine.stop(task, 1)
        ended = bench.exited(task)
        assert (ended.outcome, ended.signal) == (Outcome.INTERRUPTED, 15)
        assert ended.seconds < 30

    def test_a_stop_before_the_start_was_returned_works(self, bench: Bench) -> None:
        task = bench.launch(*LASTS)
        bench.engine.stop(task, 1)
        assert bench.exited(task).outcome is Outcome.INTERRUPTED

    def test_a_stopped_attempt_is_killed_after_its_grace(self, bench: Bench) -> None:
        task = bench.launch(*STUBBORN, grace=0.1)
        bench.started(task)
        bench.is_up(task)
        bench.engine.stop(task, 1)
        ended = bench.exited(task)
        assert (ended.outcome, ended.signal) == (Outcome.INTERRUPTED, 9)

    def test_a_kill_skips_the_grace(self, bench: Bench) -> None:
        task = bench.launch(*STUBBORN, grace=50.0)
        bench.started(task)
        bench.is_up(task)
        bench.engine.stop(task, 1, kill=True)
        ended = bench.exited(task)
        assert (ended.outcome, ended.signal) == (Outcome.INTERRUPTED, 9)
        assert ended.seconds < 30

    def test_a_kill_during_the_grace_ends_at_once(self, bench: Bench) -> None:
        task = bench.launch(*STUBBORN, grace=50.0)
        bench.started(task)
        bench.is_up(task)
        bench.engine.stop(task, 1)
        bench.engine.stop(task, 1, kill=True)
        assert bench.exited(task).seconds < 30

    def test_an_attempt_ends_at_its_timeout(self, bench: Bench) -> None:
        task = bench.launch(*LASTS, timeout=0.1)
        assert bench.exited(task).outcome is Outcome.TIMEOUT

    def test_stopping_an_ended_or_unknown_attempt_does_nothing(self, bench: Bench) -> None:
        task = bench.launch(*ENDS)
        bench.exited(task)
        bench.engine.stop(task, 1)
        bench.engine.stop(task, 2)
        bench.engine.stop(99, 1, kill=True)
        assert [type(event) for event in bench.told(task)] == [Started, Exited]
        assert bench.told(99) == []


class TestAdopting:
    def test_a_living_attempt_is_adopted(self, benches: Benches) -> None:
        first = benches()
        started = first.started(first.launch(*LASTS))
        let_go(first)
        second = benches()
        second.engine.adopt(1, 1)
        assert second.started(1) == started
        second.engine.stop(1, 1)
        assert second.exited(1).outcome is Outcome.INTERRUPTED
        assert [type(event) for event in second.told(1)] == [Started, Exited]

    def test_an_attempt_that_ended_without_a_scheduler_is_adopted_with_its_end(self, benches: Benches) -> None:
        first = benches()
        task = first.launch("sh", "-c", "sleep 0.2; exit 3")
        first.end_without_scheduler(task)
        second = benches()
        second.engine.adopt(task, 1)
        assert second.exited(task).code == 3
        assert [type(event) for event in second.told(task)] == [Started, Exited]

    def test_an_attempt_that_never_started_is_lost(self, bench: Bench) -> None:
        bench.engine.adopt(7, 2)
        ended = bench.exited(7, 2)
        assert ended.outcome is Outcome.LOST
        assert ended.reason == "it had not started when its scheduler ended"
        assert [type(event) for event in bench.told(7)] == [Exited]

    def test_a_lost_attempt_never_starts_later(self, bench: Bench) -> None:
        bench.engine.adopt(7, 1)
        bench.exited(7)
        bench.engine.forget(7, 1)
        bench.launch(*LASTS, task=7)
        wait_until(lambda: len(bench.told(7)) == 2)
        assert [getattr(event, "outcome", None) for event in bench.told(7)] == [Outcome.LOST, Outcome.LOST]

    def test_another_attempt_of_a_lost_task_starts(self, bench: Bench) -> None:
        bench.engine.adopt(7, 1)
        bench.exited(7)
        bench.launch(*ENDS, task=7, attempt=2)
        assert bench.exited(7, 2).outcome is Outcome.SUCCEEDED


class TestForgetting:
    def test_a_forgotten_attempt_cannot_be_adopted_again(self, benches: Benches) -> None:
        first = benches()
        task = first.launch(*exits(3))
        first.exited(task)
        first.engine.forget(task, 1)
        let_go(first)
        second = benches()
        second.engine.adopt(task, 1)
        assert second.exited(task).outcome is Outcome.LOST

    def test_an_attempt_can_be_adopted_before_it_is_forgotten(self, benches: Benches) -> None:
        first = benches()
        task = first.launch(*exits(3))
        first.exited(task)
        let_go(first)
        second = benches()
        second.engine.adopt(task, 1)
        assert second.exited(task).code == 3

    def test_forgetting_an_unknown_attempt_does_nothing(self, bench: Bench) -> None:
        bench.engine.forget(99, 1)


class TestLeases:
    def test_a_lease_lasts_as_long_as_its_attempt(self, bench: Bench) -> None:
        lease = bench.lease()
        task = bench.launch(*LASTS, **lease)
        bench.started(task)
        assert bench.has_lease(lease["lease"])
        bench.engine.stop(task, 1)
        bench.exited(task)
        assert not bench.has_lease(lease["lease"])

    def test_the_engine_closes_its_own_copy_of_the_lease(self, bench: Bench) -> None:
        lease = bench.lease()
        bench.started(bench.launch(*LASTS, **lease))
        open_here = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
        assert lease["lease"] not in open_here
        assert bench.has_lease(lease["lease"])


def let_go(bench: Bench) -> None:
    """Release the shims: their scheduler is gone."""
    if isinstance(bench, LocalBench):
        bench.engine.close()
