"""The contract of every policy: it never overcommits, starves no task, and is deterministic."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from scheduler.core.events import Exited, Resized
from scheduler.core.model import Device, DeviceBudget, Placement
from scheduler.core.placement import policies
from scheduler.errors import UsageError
from scheduler.units import GIB, MIB
from tests.support.builders import Job, Simulation, gpu, host, jobs, machine

SEEDS = range(12)
SIZES = (8 * GIB, 16 * GIB, 24 * GIB)


@pytest.fixture(params=policies.names())
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestNames:
    def test_the_policies_have_these_names(self) -> None:
        assert {"packed", "one-per-gpu", "batches"} <= set(policies.names())

    def test_an_unknown_name_is_answered_with_all_names(self) -> None:
        with pytest.raises(UsageError, match="no policy 'best'; there are: batches, one-per-gpu, packed"):
            policies.named("best")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_policy_never_overcommits(policy: str, seed: int) -> None:
    """A started task fits at its start; use above its reservation that is seen later is a fact, not a decision."""
    run = drawn(policy, seed).run()
    totals = {device.key: device.total for device in run.machine.devices}
    reserved: dict[int, Mapping[str, int]] = {}
    for event, at in run.book.recorded:
        if isinstance(event, Placement | Resized):
            reserved[event.task] = event.reservation
        elif isinstance(event, Exited):
            del reserved[event.task]
        for key in event.reservation if isinstance(event, Placement) else ():
            there = sum(by.get(key, 0) for by in reserved.values())
            assert there <= totals[key], f"seed {seed}: {key} at {at}"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_task_that_can_run_ends(policy: str, seed: int) -> None:
    run = drawn(policy, seed)
    total = run.brain.waiting
    assert run.run().states == {"succeeded": total}, f"seed {seed}"


@pytest.mark.parametrize("by_rank", sorted(set(policies.names()) - {"batches"}))
@pytest.mark.parametrize("seed", SEEDS)
def test_no_task_is_bypassed_more_often_than_the_limit(by_rank: str, seed: int) -> None:
    """The batch-by-batch policy goes through a batch in an order of its own, and waits at its end for all."""
    assert drawn(by_rank, seed, bypass_limit=3).run().brain.wait_queue.most_bypassed <= 3, f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_equal_states_give_equal_decisions(policy: str, seed: int) -> None:
    assert drawn(policy, seed).run().book.recorded == drawn(policy, seed).run().book.recorded


def test_a_decision_changes_nothing(policy: str) -> None:
    run = drawn(policy, seed=1)
    now = machine(*budgets(random.Random(1)))
    assert run.brain.decide(now) == run.brain.decide(now)
    assert run.brain.living() == []


def test_a_policy_keeps_to_the_number_of_jobs(policy: str) -> None:
    small = jobs(9, peak="1GiB", memory="1GiB", epochs=3)
    run = Simulation(small, gpu(0), gpu(1), gpu(2), policy=policy, jobs=2).run()
    living = most = 0
    for event, _ in run.book.recorded:
        living += isinstance(event, Placement) - isinstance(event, Exited)
        most = max(most, living)
    assert most == 2, "it uses what it may, and no more"


def test_a_task_that_no_device_can_hold_keeps_no_other_waiting(policy: str) -> None:
    given = jobs(1, peak="2GiB", memory="2GiB", priority=-1, epochs=3) + jobs(5, peak="1GiB", memory="1GiB", epochs=3)
    too_big = jobs(1, peak="30GiB", memory="30GiB", priority=-2, epochs=3)
    run = Simulation([*too_big, *given], gpu(0), policy=policy, profile="live").run()
    assert run.states in ({"succeeded": 6, "refused": 1}, {"succeeded": 6, "oom": 1})


# ---- random lists and machines ----


def drawn(policy: str, seed: int, **said: Any) -> Simulation:
    """Draw a list whose tasks its machine's devices could hold one after another."""
    dice = random.Random(seed)
    there = budgets(dice)
    said = {"profile": dice.choice(["live", "auto", "off"]), "order": dice.choice(["batch", "global"]), **said}
    return Simulation(given(dice, there), *there, policy=policy, num=dice.choice([4, 20]), **said)


def budgets(dice: random.Random) -> list[DeviceBudget]:
    """Draw GPUs of some sizes with the host's RAM beside them, or the host alone."""
    ram = host("64GiB", cores=16)
    return [*(gpu(number, dice.choice(SIZES)) for number in range(dice.choice([0, 1, 2, 4]))), ram]


def given(dice: random.Random, there: list[DeviceBudget]) -> list[Job]:
    """Draw tasks of a few configurations, some of which declare their need."""
    gpus: list[Device] = [b.device for b in there if b.device.is_gpu]
    made: list[Job] = []
    for number in range(dice.randrange(3, 8)):
        wide = dice.choice([1, 1, 1, 2]) if len(gpus) > 1 else len(gpus)
        smallest = min((device.total for device in gpus), default=24 * GIB)
        peak = dice.randrange(64 * MIB, smallest - GIB)
        said: dict[str, Any] = {"memory": peak} if dice.random() < 0.5 else {}
        made += jobs(
            dice.randrange(1, 8),
            seconds=dice.uniform(5, 2000),
            peak=peak,
            epochs=dice.choice([3, 20, 300]),
            priority=dice.randrange(3),
            gpus=wide,
            filename=f"train.py --config {number}",
            **said,
        )
    dice.shuffle(made)
    return made
