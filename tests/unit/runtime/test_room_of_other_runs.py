"""Room for an urgent task that tasks of other runs hold: real loops of several runs on a simulated machine."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.events import Changed, Exited, Preempted
from scheduler.core.model import Outcome, State
from scheduler.core.placement.preemption import PATIENCE
from scheduler.simulation.task_behaviour import TaskBehaviour, curve
from scheduler.units import GIB
from scheduler.values import replace
from tests.support.builders import gpu, host, spec
from tests.unit.runtime.test_turns import ANN, BEN, Run, Town, placed_at

PEAK = 20 * GIB
HOUR = 3600.0


def town(gpus: int = 2) -> Town:
    return Town((*(gpu(number) for number in range(gpus)), host("512GiB", cores=64)))


def long(made: Town, uid: int = ANN, number: int = 2, **said: Any) -> Run:
    """Start a run of tasks of an hour that save within 5 s, each of which needs a GPU of its own."""
    row = {"memory": "20GiB", "host_memory": "1GiB", "cpus": 0.1, "priority": 5, "resumable": True, **said}
    behaves = lambda: TaskBehaviour(HOUR, (curve(PEAK, HOUR),), cores=0.1, resumes=True, stops_in=5.0)  # noqa: E731 - one line
    return made.starts(uid, [spec("long.py", nth, **row) for nth in range(number)], behaves=behaves)


def urgent(made: Town, uid: int = ANN, number: int = 1, **said: Any) -> Run:
    """Start a run of tasks of a minute that ask for room after a minute."""
    row = {"memory": "20GiB", "host_memory": "1GiB", "cpus": 0.1, "preempt": True, "preempt_after": 60.0, **said}
    behaves = lambda: TaskBehaviour(60.0, (curve(PEAK, 60.0),), cores=0.1)  # noqa: E731 - one line
    return made.starts(uid, [spec("urgent.py", nth, **row) for nth in range(number)], behaves=behaves)


def let_run(made: Town, seconds: float) -> None:
    end = made.machine.now + seconds
    made.machine.wake_at(end)
    made.until(lambda: made.machine.now >= end)


def asked(run: Run) -> list[Preempted]:
    return [event for event, _ in run.events if isinstance(event, Preempted)]


def saved(*runs: Run) -> list[int]:
    """Return the tasks that saved, in order."""
    ends = [(at, event) for run in runs for event, at in run.events if isinstance(event, Exited)]
    return [event.task for _, event in sorted(ends, key=lambda end: end[0]) if event.outcome is Outcome.AGAIN]


def test_the_latest_started_task_of_another_run_makes_room_and_goes_on_afterwards() -> None:
    made = town()
    first = long(made, number=1)
    let_run(made, 100.0)
    second = long(made, number=1)
    let_run(made, 100.0)
    came = made.machine.now
    hurried = urgent(made)
    made.until(lambda: placed_at(hurried))
    assert 60.0 <= placed_at(hurried)[0] - came < 75.0
    assert (len(asked(hurried)), len(asked(second)), asked(first)) == (1, 1, [])
    made.until(lambda: made.ended(ANN) == 4)
    assert saved(first, second) == [asked(second)[0].tasks[0]]
    assert {run.brain.state_counts[State.SUCCEEDED] for run in made.runs} == {1}


def test_the_run_of_the_saved_task_does_not_take_the_room_back() -> None:
    made = town(1)
    before = long(made, number=3)
    let_run(made, 50.0)
    hurried = urgent(made)
    made.until(lambda: placed_at(hurried))
    assert len(placed_at(before)) == 1
    assert len(saved(before)) == 1


def test_one_of_two_runs_is_asked_where_one_task_is_enough() -> None:
    made = town()
    runs = [long(made, number=1), long(made, number=1)]
    let_run(made, 50.0)
    hurried = urgent(made)
    made.until(lambda: made.ended(ANN) == 4)
    assert len(saved(*runs)) == 1
    assert len(placed_at(hurried)) == 1


def test_two_runs_make_room_together_for_a_task_on_two_gpus() -> None:
    made = town()
    runs = [long(made, number=1), long(made, number=1)]
    let_run(made, 50.0)
    hurried = urgent(made, gpus=2)
    made.until(lambda: placed_at(hurried))
    assert len(saved(*runs)) == 2


@pytest.mark.parametrize(
    ("uid", "said"),
    [(BEN, {}), (ANN, {"priority": -1}), (ANN, {"resumable": False})],
    ids=["another user's", "as urgent", "not resumable"],
)
def test_other_tasks_go_on(uid: int, said: dict[str, Any]) -> None:
    made = town(1)
    before = long(made, uid, number=1, **said)
    let_run(made, 50.0)
    hurried = urgent(made)
    let_run(made, 300.0)
    assert (saved(before), placed_at(hurried)) == ([], [])


def test_a_priority_changed_while_a_task_of_another_run_runs_counts() -> None:
    made = town(1)
    before = long(made, number=1, priority=-1)
    let_run(made, 50.0)
    hurried = urgent(made, priority=-1)
    let_run(made, 100.0)
    assert placed_at(hurried) == []
    (task,) = before.brain.living()
    before.brain.terms.append(replace(before.brain.terms[task.terms], priority=7))
    before.loop._settle([Changed(len(before.brain.terms) - 1, (task.id,))])
    made.until(lambda: placed_at(hurried))
    assert len(saved(before)) == 1


def test_a_task_makes_room_three_times_in_a_row_for_other_runs_and_no_more() -> None:
    made = town(1)
    before = long(made, number=1)
    for number in range(1, 4):
        let_run(made, 200.0)
        hurried = urgent(made)
        made.until(lambda run=hurried: run.brain.over)  # type: ignore[misc]
        assert len(saved(before)) == number
    let_run(made, 200.0)
    last = urgent(made)
    let_run(made, 600.0)
    assert (len(saved(before)), placed_at(last)) == (3, [])


def test_a_run_that_does_not_answer_is_not_waited_for_for_long() -> None:
    made = town()
    hearing = long(made, number=1)
    let_run(made, 50.0)
    deaf = long(made, number=1)  # the latest started is asked first
    let_run(made, 50.0)
    made.runs.remove(deaf)
    hurried = urgent(made)
    came = made.machine.now
    made.until(lambda: placed_at(hurried))
    assert len(saved(hearing)) == 1
    assert placed_at(hurried)[0] - came < 60.0 + PATIENCE + 10.0
