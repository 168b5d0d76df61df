"""A check at the end of every test: the Brains that it made are consistent."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import settings

from scheduler.core.brain import Brain
from scheduler.core.lifecycle import MOVES, TaskState
from scheduler.core.model import LIVING, UNFINISHED, State
from scheduler.core.placement.device_capacity import capacities
from tests.support import builders

settings.register_profile("core", max_examples=40, deadline=None)
settings.load_profile("core")

_MOVE = re.compile(r"(\w+) -> (\w+): ")


@pytest.fixture(autouse=True)
def sound_brains() -> Iterator[None]:
    """Check every Brain that a test made when the test is over."""
    builders.made.clear()
    yield
    for brain in builders.made:
        check(brain)


def check(brain: Brain) -> None:
    """Check all invariants of a Brain."""
    check_states(brain)
    check_line(brain)
    check_reservations(brain)
    for task in brain.tasks.values():
        check_task(brain, task)


def check_states(brain: Brain) -> None:
    """Check that the counts are the states counted, and that ids are unique."""
    ids = list(brain.task_table)
    assert len(ids) == len(set(ids)) == len(brain.task_table)
    assert Counter(brain.state(task) for task in ids) == +brain.state_counts
    assert all(number >= 0 for number in brain.state_counts.values())


def check_line(brain: Brain) -> None:
    """Check that the queue holds the waiting ids, each once, by rank, and that no bypass count is negative."""
    line = builders.ordered(brain)
    assert sorted(line) == sorted(brain.task_table.in_state(State.WAITING)), "the line is not what waits"
    assert brain.waiting == len(line)
    assert [brain.wait_queue.rank(task) for task in line] == sorted(brain.wait_queue.rank(task) for task in line)
    assert all(brain.wait_queue.bypassed(task) >= 0 for task in line)


def check_reservations(brain: Brain) -> None:
    """Check that living tasks and no others have one reservation each, and that free bytes lack exactly their sum."""
    placements = brain.placements()
    living = [placement.task for placement in placements]
    assert len(living) == len(set(living)), "a task is in two places"
    assert sorted(living) == sorted(brain.task_table.in_state(*LIVING)) == sorted(task.id for task in brain.living())
    assert brain.placements_exist() == bool(placements)
    nodes = {key: placement.node for placement in placements for key in placement.by_device}
    budgets = [builders.budget(key, "1024GiB", None, 1000, None) for key in sorted(nodes)]
    budgets = [replace(one, device=replace(one.device, node=nodes[one.device.key])) for one in budgets]
    rooms = capacities(builders.machine(*budgets), placements, brain.rules) if budgets else {}
    for key, room in rooms.items():
        reserved = sum(placement.by_device.get(key, 0) for placement in placements)
        assert room.bytes == builders.size("1024GiB") - reserved - brain.rules.buffer
        assert room.ours == sum(key in placement.by_device for placement in placements)


def check_task(brain: Brain, task: TaskState) -> None:
    """Check that a task's details fit its state, and that its history follows the table of moves."""
    assert task.state is brain.state(task.id)
    assert task.state in UNFINISHED, f"task {task.id} is over and not forgotten"
    assert 0 <= task.failures + task.ooms + task.faults <= task.attempts
    if task.placement is None:
        assert not task.asked
    else:
        assert task.placement.attempt == task.attempts
    moves = [(State(match[1]), State(match[2])) for line in task.history if (match := _MOVE.match(line))]
    assert all(to in MOVES[before] for before, to in moves)
    assert all(to is before for (_, to), (before, _) in pairwise(moves)), "its history has a gap"
    assert not moves or moves[-1][1] is task.state
