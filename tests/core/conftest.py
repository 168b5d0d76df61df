"""At the end of every test, whatever it did: the Brains it made still make sense."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import settings

from scheduler.core import packing
from scheduler.core.brain import Brain
from scheduler.core.lifecycle import MOVES, Task
from scheduler.core.model import LIVING, UNFINISHED, State
from tests import builders

settings.register_profile("core", max_examples=40, deadline=None)
settings.load_profile("core")

_MOVE = re.compile(r"(\w+) -> (\w+): ")


@pytest.fixture(autouse=True)
def sound_brains() -> Iterator[None]:
    """Every Brain that a test made is looked at when the test is over."""
    builders.made.clear()
    yield
    for brain in builders.made:
        check(brain)


def check(brain: Brain) -> None:
    """All that must be true of a Brain at any time."""
    check_states(brain)
    check_line(brain)
    check_promises(brain)
    for task in brain.tasks.values():
        check_task(brain, task)


def check_states(brain: Brain) -> None:
    """The counts are the states counted, and ids come once."""
    ids = list(brain.roll)
    assert len(ids) == len(set(ids)) == len(brain.roll)
    assert Counter(brain.state(task) for task in ids) == +brain.roll.counts
    assert all(number >= 0 for number in brain.roll.counts.values())


def check_line(brain: Brain) -> None:
    """The line holds the waiting ids, each once, by rank; nobody was overtaken by less than nothing."""
    line = builders.ordered(brain)
    assert sorted(line) == sorted(brain.roll.in_state(State.WAITING)), "the line is not what waits"
    assert brain.waiting == len(line)
    assert [brain.line.rank(task) for task in line] == sorted(brain.line.rank(task) for task in line)
    assert all(brain.line.overtaken(task) >= 0 for task in line)


def check_promises(brain: Brain) -> None:
    """Every living task has one promise, nobody else has any, and the rooms are short of exactly their sum."""
    placements = brain.placements()
    living = [placement.task for placement in placements]
    assert len(living) == len(set(living)), "a task is in two places"
    assert sorted(living) == sorted(brain.roll.in_state(*LIVING)) == sorted(task.id for task in brain.living())
    assert brain.placements_exist() == bool(placements)
    keys = {key for placement in placements for key in placement.promise}
    budgets = [builders.budget(key, "1024GiB", None, 1000, None) for key in sorted(keys)]
    rooms = packing.rooms(builders.machine(*budgets), placements, brain.rules) if budgets else {}
    for key, room in rooms.items():
        promised = sum(placement.promise.get(key, 0) for placement in placements)
        assert room.bytes == builders.size("1024GiB") - promised - brain.rules.buffer
        assert room.ours == sum(key in placement.promise for placement in placements)


def check_task(brain: Brain, task: Task) -> None:
    """Its details fit its state, and its story is one that the table of moves allows."""
    assert task.state is brain.state(task.id)
    assert task.state in UNFINISHED, f"task {task.id} is over and not forgotten"
    assert 0 <= task.failures + task.ooms + task.faults <= task.attempts
    if task.placement is None:
        assert not task.asked
    else:
        assert task.placement.attempt == task.attempts
    moves = [(State(match[1]), State(match[2])) for line in task.story if (match := _MOVE.match(line))]
    assert all(to in MOVES[before] for before, to in moves)
    assert all(to is before for (_, to), (before, _) in pairwise(moves)), "its story has a gap"
    assert not moves or moves[-1][1] is task.state
