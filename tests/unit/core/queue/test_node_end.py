"""Nodes that end at a known time: which tasks still start there, what others wait for, how the run ends."""

from __future__ import annotations

from dataclasses import replace

from scheduler.core.control import why
from scheduler.core.control.messages import waiting, waits
from scheduler.core.model import DeviceBudget, Placement
from scheduler.core.reporting.eta import forecast
from scheduler.core.reporting.schedule import MachineSnapshot
from tests.support import builders as b

BEGIN = 1e9
"""The time at which simulated runs begin."""


def node(name: str, ends: float) -> list[DeviceBudget]:
    """Make a node with one GPU, which ends so many seconds after the begin of the run; 0: never."""
    made = b.node(name, b.gpu(), b.host())
    return [replace(one, device=replace(one.device, node_ends=ends and BEGIN + ends)) for one in made]


def exclusive(number: int, seconds: float) -> list[b.Job]:
    """Make jobs of which a GPU holds one."""
    return b.jobs(number, seconds=seconds, peak="20GiB", gpus=1, filename="train.py")


def test_a_known_task_that_cannot_end_before_its_nodes_waits_and_the_run_ends() -> None:
    run = b.simulate(exclusive(6, 60), *node("n1", 200), profile="live")
    assert run.states == {"succeeded": 3, "waiting": 3}
    assert run.brain.draining
    (said,) = (sentence for sentence in run.view.sentences if "allocation" in sentence)
    assert said.startswith("3 tasks wait for a longer allocation (task 4 takes about 1m0")
    assert said.endswith("scheduler resume in the next one continues the run")
    assert run.makespan < 200


def test_tasks_of_unknown_time_start_however_soon_their_nodes_end() -> None:
    assert b.simulate(exclusive(1, 60), *node("n1", 30), profile="live").states == {"succeeded": 1}


def test_a_task_of_unknown_time_with_a_limit_beyond_the_end_of_its_nodes_waits() -> None:
    run = b.simulate(b.jobs(2, seconds=5, timeout=40.0), *node("n1", 30), profile="live")
    assert run.states == {"waiting": 2}
    assert "may take 40s (Timeout), and the nodes end in 30s" in run.view.sentences[-1]


def test_a_task_that_is_shorter_than_its_limit_was_learned_to_be_starts() -> None:
    given = [*exclusive(1, 20), *b.jobs(1, seconds=20, peak="20GiB", gpus=1, filename="train.py", timeout=4000.0)]
    assert b.simulate(given, *node("n1", 50), profile="live").states == {"succeeded": 2}


def test_a_task_that_cannot_end_on_one_node_starts_on_another() -> None:
    run = b.simulate(exclusive(8, 60), *node("n1", 130), *node("n2", 0), profile="live")
    assert run.states == {"succeeded": 8}
    placed = [(one.node, at - BEGIN) for one, at in run.book.recorded if isinstance(one, Placement)]
    assert {node for node, at in placed if at + 60 > 130} == {"n2"}
    assert {node for node, _ in placed} == {"n1", "n2"}


def test_shorter_tasks_start_while_longer_ones_wait_for_the_next_allocation() -> None:
    given = [*exclusive(2, 80), *b.jobs(5, seconds=10, peak="20GiB", gpus=1, filename="short.py")]
    run = b.simulate(given, *node("n1", 150), profile="live")
    assert run.states == {"succeeded": 6, "waiting": 1}


def test_why_and_the_forecast_say_which_tasks_wait_for_a_longer_allocation() -> None:
    run = b.Simulation(exclusive(5, 60), *node("n1", 130), profile="live")
    run.loop.place()
    while not run.brain.profiles.expected(run.brain.kind_of(5), None):
        run.loop.digest(run.loop.ports.world.wait(1.0))
        run.loop.place()
    budgets, now = run.loop.ports.devices.snapshot(), run.machine.now
    machine = b.machine(*budgets, now=now + 11)
    found = why.of_task(run.brain, machine, 5, {})
    assert waits(found).startswith("waits for a longer allocation: it takes about 1m0")
    assert waiting(why.of_run(run.brain, machine)) == "3 for a longer allocation"
    made = forecast(run.brain, MachineSnapshot(budgets), now + 11)
    assert made.too_long == 3
    assert made.end is not None
