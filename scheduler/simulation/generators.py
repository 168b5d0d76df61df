"""Generated workloads for comparing policies: sweeps, searches, heavy mixes, gangs; a seed determines each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from math import exp, log

from scheduler.core.model import Spec, Terms
from scheduler.simulation.task_behaviour import chance
from scheduler.simulation.workload import TraceRow
from scheduler.units import GIB, MIB
from scheduler.values import replace

Maker = Callable[[int, int], Iterator[TraceRow]]
"""A function that generates a number of rows from a seed."""


class SeededRandom:
    """Random values for one item of a workload: the seed, the item and the name of a value determine the value."""

    def __init__(self, seed: int, *what: object) -> None:
        self._seed = seed
        self._what = what

    def between(self, name: str, least: float, most: float) -> float:
        """Return a number between two others, uniformly distributed."""
        return least + (most - least) * chance(self._seed, *self._what, name)

    def scale(self, name: str, least: float, most: float) -> float:
        """Return a number between two others, uniformly distributed on a logarithmic scale."""
        return exp(self.between(name, log(least), log(most)))

    def pick(self, name: str, *choices: int) -> int:
        """Choose one of the options."""
        return choices[int(self.between(name, 0, len(choices)))]


def sweep(tasks: int, seed: int) -> Iterator[TraceRow]:
    """Generate small models of one script: width and batch size determine the memory, rate and dropout only the
    result.
    """
    for number in range(tasks):
        dice = SeededRandom(seed, "sweep", number)
        width, batch = dice.pick("width", 64, 128, 256, 512, 1024), dice.pick("batch", 16, 32, 64, 128)
        rate, dropout = dice.pick("rate", 1, 3, 10, 30, 100), dice.pick("dropout", 0, 1, 2, 3, 5)
        config = f"sweep.py --width {width} --bs {batch} --lr 0.{rate:04d} --dropout 0.{dropout}"
        peak = 600 * MIB + width * 2 * MIB + width * batch * MIB // 100
        seconds = dice.between("seconds", 0.7, 1.3) * (120 + width * 0.6)
        busy = dice.between("busy", 0.9, 1.1) * (0.1 + width / 4000)
        terms = Terms(priority=dice.pick("priority", 1, 1, 2, 2, 2, 3), epochs=20, gpus=1)
        yield _row(number, config, terms, seconds, peak, busy)


def heavy(tasks: int, seed: int) -> Iterator[TraceRow]:
    """Generate models that nearly fill a GPU's time, each several times, of 2 to 24 GiB."""
    yield from _models("heavy", tasks, seed, (2, 24), (0.65, 1.0))


def tight(tasks: int, seed: int) -> Iterator[TraceRow]:
    """Generate large models, each several times, of 4 to 36 GiB: memory is full before a 40 GiB card is busy."""
    yield from _models("tight", tasks, seed, (4, 36), (0.5, 1.0))


def _models(name: str, tasks: int, seed: int, peaks: tuple[int, int], loads: tuple[float, float]) -> Iterator[TraceRow]:
    """Generate tasks, each with a random one of several models; on average, six tasks have the same model."""
    for number in range(tasks):
        dice = SeededRandom(seed, "heavy", number)
        kind = dice.pick("kind", *range(max(1, tasks // 6)))
        of_kind = SeededRandom(seed, "heavy kind", kind)
        peak = round(of_kind.scale("peak", *peaks) * GIB)
        seconds = of_kind.scale("seconds", 1200, 20_000) * dice.between("seconds", 0.8, 1.2)
        busy = of_kind.between("busy", *loads)
        terms = Terms(priority=dice.pick("priority", 1, 2, 2, 3, 3, 3), epochs=40, gpus=1)
        yield _row(number, f"{name}_{kind}.py", terms, seconds, peak, busy)


def gangs(tasks: int, seed: int) -> Iterator[TraceRow]:
    """Generate tasks of 1 to 12 GiB per GPU; on average, seven of ten need one GPU, two need two GPUs, and one needs
    four.
    """
    yield from _gangs("gangs", tasks, seed, (1, 12))


def wide(tasks: int, seed: int) -> Iterator[TraceRow]:
    """Generate gangs of up to 20 GiB on each GPU: memory is full before a 24 GiB card is busy."""
    yield from _gangs("wide", tasks, seed, (1, 20))


def _gangs(name: str, tasks: int, seed: int, peaks: tuple[int, int]) -> Iterator[TraceRow]:
    for number in range(tasks):
        dice = SeededRandom(seed, "gangs", number)
        kind = dice.pick("kind", *range(max(1, tasks // 8)))
        of_kind = SeededRandom(seed, "gangs kind", kind)
        gpus = of_kind.pick("gpus", 1, 1, 1, 1, 1, 1, 1, 2, 2, 4)
        peak = round(of_kind.scale("peak", *peaks) * GIB)
        seconds = of_kind.scale("seconds", 300, 6000) * dice.between("seconds", 0.8, 1.2)
        busy = of_kind.between("busy", 0.3, 1.0)
        terms = Terms(priority=dice.pick("priority", 1, 2, 3), epochs=30, gpus=gpus)
        yield _row(number, f"{name}_{kind}.py", terms, seconds, peak, busy)


def distinct(tasks: int, seed: int) -> Iterator[TraceRow]:
    """Generate jobs of 2 to 5 minutes that all differ, as from users who try the scheduler for the first time."""
    yield from unlike(tasks, seed, (120, 300))


def unlike(tasks: int, seed: int, seconds: tuple[float, float]) -> Iterator[TraceRow]:
    """Generate jobs of 2 to 10 GiB, each with a script of its own; `seconds` is the least and the greatest duration."""
    for number in range(tasks):
        dice = SeededRandom(seed, "distinct", number)
        peak, busy = round(dice.between("peak", 2, 10) * GIB), dice.between("busy", 0.3, 0.9)
        terms = Terms(priority=1, epochs=20, gpus=1)
        yield _row(number, f"job_{number}.py", terms, dice.between("seconds", *seconds), peak, busy)


def search(tasks: int, seed: int) -> Iterator[TraceRow]:
    """Generate a random search in which no two trials are equal; of six arguments, batch size, width and depth
    determine the memory.
    """
    for number in range(tasks):
        dice = SeededRandom(seed, "search", number)
        batch, width = dice.pick("batch", 16, 32, 64, 128, 256), round(dice.scale("width", 256, 2048))
        depth, optimiser = round(dice.between("depth", 2, 12)), ("adam", "sgd", "rmsprop")[dice.pick("opt", 0, 1, 2)]
        config = (
            f"train.py --lr {dice.scale('rate', 1e-4, 1e-1):.3g} --bs {batch} --width {width} --depth {depth} "
            f"--dropout {dice.between('dropout', 0, 0.6):.2f} --opt {optimiser}"
        )
        peak = 800 * MIB + depth * width * (64 * width + 4096 * batch)
        seconds = dice.between("seconds", 0.8, 1.2) * (150 + 0.05 * depth * width)
        busy = dice.between("busy", 0.9, 1.1) * (0.25 + width / 6000)
        yield _row(number, config, Terms(priority=1, epochs=20, gpus=1), seconds, peak, busy)


def small(tasks: int, seed: int) -> Iterator[TraceRow]:
    """Generate a random search over small networks with ten arguments, of which four determine the memory."""
    for number in range(tasks):
        dice = SeededRandom(seed, "small", number)
        batch, width = dice.pick("batch", 32, 64, 128, 256, 512, 1024), round(dice.scale("width", 32, 4096))
        depth, features = round(dice.between("depth", 1, 8)), dice.pick("features", 64, 256, 1024)
        config = (
            f"mlp.py --batch-size {batch} --hidden {width} --layers {depth} --features {features} "
            f"--lr {dice.scale('rate', 1e-5, 1e-1):.4g} --wd {dice.scale('decay', 1e-6, 1e-2):.4g} "
            f"--dropout {dice.between('dropout', 0, 0.5):.3f} --momentum {dice.between('momentum', 0.5, 0.99):.3f} "
            f"--act {('relu', 'gelu', 'tanh')[dice.pick('act', 0, 1, 2)]} --seed {number}"
        )
        peak = 600 * MIB + 64 * (depth * width * width + features * width) + 64 * batch * (features + depth * width)
        seconds = dice.between("seconds", 0.7, 1.3) * (60 + 0.05 * width)
        busy = dice.between("busy", 0.8, 1.2) * (0.08 + width / 12_000)
        yield _row(number, config, Terms(priority=1, epochs=20, gpus=1), seconds, peak, busy)


def opaque(rows: Iterable[TraceRow]) -> Iterator[TraceRow]:
    """Yield the rows under names that reveal nothing about their arguments."""
    for number, row in enumerate(rows):
        yield replace(row, spec=replace(row.spec, command=f"trial_{number}.py"))


def _row(number: int, config: str, terms: Terms, seconds: float, peak: int, busy: float) -> TraceRow:
    job = f"{config.split('.')[0]}-{number}"
    spec = Spec(number + 2, "", "-1", config, job, (), (), terms)
    return TraceRow(spec, round(seconds, 3), round(peak / MIB) * MIB, busy=round(min(1.0, busy), 2), job=job)


WORKLOADS: dict[str, tuple[Maker, int]] = {
    "sweep": (sweep, 600),
    "heavy": (heavy, 270),
    "gangs": (gangs, 600),
    "tight": (tight, 270),
    "wide": (wide, 600),
    "distinct": (distinct, 40),
    "search": (search, 200),
    "small": (small, 600),
}
"""The function that generates each workload, and its default number of rows."""
