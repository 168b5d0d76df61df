"""What every policy promises: it never overcommits, starves nobody, and decides the same of the same."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import pytest

from scheduler.core import policies
from scheduler.core.events import Exited, Placed, Resized
from scheduler.core.model import Budget, Device
from scheduler.errors import UsageError
from scheduler.units import GIB, MIB
from tests.builders import Job, Simulation, gpu, host, jobs, machine

SEEDS = range(12)
SIZES = (8 * GIB, 16 * GIB, 24 * GIB)


@pytest.fixture(params=policies.names())
def policy(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestNames:
    def test_these_are_there(self) -> None:
        assert {"packed", "one-per-gpu", "batches"} <= set(policies.names())

    def test_another_is_told_what_there_is(self) -> None:
        with pytest.raises(UsageError, match="no policy 'best'; there are: batches, one-per-gpu, packed"):
            policies.named("best")


@pytest.mark.parametrize("seed", SEEDS)
def test_it_never_overcommits(policy: str, seed: int) -> None:
    """Whoever starts finds room for itself; what is seen above its promise later is the truth, and no decision."""
    run = drawn(policy, seed).run()
    totals = {device.key: device.total for device in run.machine.devices}
    promised: dict[int, Mapping[str, int]] = {}
    for event, at in run.book.recorded:
        if isinstance(event, Placed | Resized):
            promised[event.task] = event.promise
        elif isinstance(event, Exited):
            del promised[event.task]
        for key in event.promise if isinstance(event, Placed) else ():
            there = sum(by.get(key, 0) for by in promised.values())
            assert there <= totals[key], f"seed {seed}: {key} at {at}"


@pytest.mark.parametrize("seed", SEEDS)
def test_every_task_that_can_comes_to_its_end(policy: str, seed: int) -> None:
    run = drawn(policy, seed)
    total = run.brain.waiting
    assert run.run().states == {"succeeded": total}, f"seed {seed}"


@pytest.mark.parametrize("by_rank", sorted(set(policies.names()) - {"batches"}))
@pytest.mark.parametrize("seed", SEEDS)
def test_nobody_is_overtaken_more_often_than_the_bound(by_rank: str, seed: int) -> None:
    """The batch-by-batch original goes through a batch in an order of its own, and waits at its end for all."""
    assert drawn(by_rank, seed, overtakes=3).run().brain.line.most_overtaken <= 3, f"seed {seed}"


@pytest.mark.parametrize("seed", SEEDS)
def test_it_decides_the_same_of_the_same(policy: str, seed: int) -> None:
    assert drawn(policy, seed).run().book.recorded == drawn(policy, seed).run().book.recorded


def test_asking_it_changes_nothing(policy: str) -> None:
    run = drawn(policy, seed=1)
    now = machine(*budgets(random.Random(1)))
    assert run.brain.decide(now) == run.brain.decide(now)
    assert run.brain.living() == []


def test_it_keeps_to_the_number_of_jobs(policy: str) -> None:
    small = jobs(9, peak="1GiB", memory="1GiB", epochs=3)
    run = Simulation(small, gpu(0), gpu(1), gpu(2), policy=policy, jobs=2).run()
    living = most = 0
    for event, _ in run.book.recorded:
        living += isinstance(event, Placed) - isinstance(event, Exited)
        most = max(most, living)
    assert most == 2, "it uses what it may, and no more"


def test_what_no_device_can_hold_keeps_nobody_waiting(policy: str) -> None:
    given = jobs(1, peak="2GiB", memory="2GiB", priority=-1, epochs=3) + jobs(5, peak="1GiB", memory="1GiB", epochs=3)
    too_big = jobs(1, peak="30GiB", memory="30GiB", priority=-2, epochs=3)
    run = Simulation([*too_big, *given], gpu(0), policy=policy, profile="live").run()
    assert run.states in ({"succeeded": 6, "refused": 1}, {"succeeded": 6, "oom": 1})


# ---- random lists and machines ----


def drawn(policy: str, seed: int, **said: Any) -> Simulation:
    """A list that all of its machine's devices could hold, one task after another."""
    dice = random.Random(seed)
    there = budgets(dice)
    said = {"profile": dice.choice(["live", "auto", "off"]), "order": dice.choice(["batch", "global"]), **said}
    return Simulation(given(dice, there), *there, policy=policy, num=dice.choice([4, 20]), **said)


def budgets(dice: random.Random) -> list[Budget]:
    """GPUs of some sizes and the host's RAM beside them, or that alone."""
    ram = host("64GiB", cores=16)
    return [*(gpu(number, dice.choice(SIZES)) for number in range(dice.choice([0, 1, 2, 4]))), ram]


def given(dice: random.Random, there: list[Budget]) -> list[Job]:
    """Jobs of a few configurations, some of which say what they need."""
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
