"""The cost of a decision, counted in steps: it does not grow with the queue."""

from __future__ import annotations

from collections import Counter

import pytest

from scheduler.core.brain import Brain
from scheduler.core.events import Submitted
from scheduler.core.placement import fit
from scheduler.core.queue.task_group import TaskGroup
from scheduler.core.queue.wait_queue import WaitQueue
from scheduler.units import MIB
from tests.support.builders import brain, decide, host, placed, tasks, tell

CLASSES = 50
MANY = 100_000


class Steps(Counter[str]):
    """The number of calls of each part of a decision."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self._count(monkeypatch, fit, "room_for")
        self._count(monkeypatch, WaitQueue, "rank")
        self._count(monkeypatch, TaskGroup, "peek")

    def _count(self, monkeypatch: pytest.MonkeyPatch, where: object, name: str) -> None:
        real = getattr(where, name)

        def counted(*args: object) -> object:
            self[name] += 1
            return real(*args)

        monkeypatch.setattr(where, name, counted)


@pytest.fixture
def waiting() -> Brain:
    """Return a hundred thousand tasks in fifty classes behind one that fills the machine."""
    b = brain(tasks(1, "20GiB", cpus=0.01))
    b.terms.extend(one for n in range(CLASSES) for one in tasks(1, (n + 1) * 100 * MIB, cpus=0.01))
    b.apply(Submitted(2, 2, [1 + n % CLASSES for n in range(MANY)]))
    return tell(b, placed(1, "20GiB"))


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    return Steps(monkeypatch)


def test_a_full_machine_is_recognised_at_once(waiting: Brain, steps: Steps) -> None:
    decision = decide(waiting, host(free="20.5GiB"))
    assert (decision.placements, len(decision.refusals)) == ((), 1)
    assert steps.total() <= 5


def test_every_class_is_asked_once_where_nothing_fits(waiting: Brain, steps: Steps) -> None:
    decision = decide(waiting, host(free="20.55GiB"))
    assert decision.placements == ()
    assert steps["room_for"] == CLASSES
    assert steps.total() <= 3 * CLASSES


@pytest.mark.parametrize(("free", "least"), [("22GiB", 5), ("24GiB", 10)])
def test_a_pass_takes_as_many_steps_as_starts_and_classes(waiting: Brain, steps: Steps, free: str, least: int) -> None:
    started = len(decide(waiting, host(free=free, cores=64)).placements)
    assert started >= least
    assert steps["room_for"] <= started + CLASSES
    assert steps.total() <= 3 * (started + CLASSES)


def test_an_event_costs_the_same_in_a_queue_of_any_length(waiting: Brain, steps: Steps) -> None:
    tell(waiting, placed(2, "100MiB"), placed(MANY, "100MiB"))
    assert steps.total() <= 12
