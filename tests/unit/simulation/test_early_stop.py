"""Simulated trials that their metrics stop early."""

from __future__ import annotations

import math

from scheduler.core.metrics.stop_rules import keep_best, stop_rules
from scheduler.simulation.task_behaviour import TaskBehaviour, curve
from scheduler.units import GIB
from tests.support.builders import Job, Simulation, gpu, simulate, specs


def trials(*losses: float, epochs: int = 10) -> list[Job]:
    """Return trials of a minute an epoch, each with one loss in all epochs, one after the other on a GPU."""
    seconds = 60.0 * epochs
    return [
        Job(one, TaskBehaviour(seconds, (curve(8 * GIB, seconds),), epochs=epochs, metrics=(loss,) * epochs))
        for one, loss in zip(specs(len(losses), memory="20GiB", epochs=epochs), losses, strict=True)
    ]


def seconds(run: Simulation) -> list[float]:
    """Return how long each trial ran, by task."""
    return [told.attempts[-1].seconds for _, told in sorted(run.history.tasks.items())]


def test_a_simulated_trial_is_stopped_soon_after_the_step_at_which_its_metric_meets_a_condition() -> None:
    run = simulate(trials(0.5, 3.0, math.nan), gpu(), stop_when=stop_rules("val_loss > 2 after 3, val_loss is nan"))
    assert run.states == {"succeeded": 1, "pruned": 2}
    whole, high, none = seconds(run)
    assert whole == 600
    assert 180 <= high <= 200
    assert 60 <= none <= 80


def test_only_the_best_simulated_trials_go_on() -> None:
    run = simulate(trials(0.5, 0.6, 0.7, 0.4), gpu(), keep_best=keep_best("1/3 by val_loss at 2"))
    assert run.states == {"succeeded": 2, "pruned": 2}
    assert [round(one / 60) for one in seconds(run)] == [10, 2, 2, 10]
