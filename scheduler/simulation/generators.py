"""Generated workloads to compare policies on: a sweep over small models, a heavy mix, gangs; the same for a seed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import exp, log

from scheduler.core.model import Spec, Terms
from scheduler.simulation.task_behaviour import chance
from scheduler.simulation.workload import TraceRow
from scheduler.units import GIB, MIB

Maker = Callable[[int, int], Iterator[TraceRow]]
"""So many rows by this seed."""


class SeededRandom:
    """Random values for one thing of a workload, by its name and number."""

    def __init__(self, seed: int, *what: object) -> None:
        self._seed = seed
        self._what = what

    def between(self, name: str, least: float, most: float) -> float:
        """Return a number between two others, equally distributed."""
        return least + (most - least) * chance(self._seed, *self._what, name)

    def scale(self, name: str, least: float, most: float) -> float:
        """Return a number between two others, equally distributed on a logarithmic scale."""
        return exp(self.between(name, log(least), log(most)))

    def pick(self, name: str, *choices: int) -> int:
        """Choose one of these."""
        return choices[int(self.between(name, 0, len(choices)))]


def sweep(tasks: int, seed: int) -> Iterator[TraceRow]:
    """Generate small models of one script: width and batch size determine the memory, rate and dropout only the run."""
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
    """Generate models that nearly fill a GPU's time, each a few times, of 2 to 24 GiB."""
    yield from _models("heavy", tasks, seed, (2, 24), (0.65, 1.0))


def tight(tasks: int, seed: int) -> Iterator[TraceRow]:
    """Generate large models, each a few times, of 4 to 36 GiB: memory is full before a 40 GiB card is busy."""
    yield from _models("tight", tasks, seed, (4, 36), (0.5, 1.0))


def _models(name: str, tasks: int, seed: int, peaks: tuple[int, int], loads: tuple[float, float]) -> Iterator[TraceRow]:
    """Generate tasks of which every sixth is another model."""
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
    """Generate tasks of 1 to 12 GiB per GPU; of ten, seven need one GPU, two need two, and one needs four."""
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


def _row(number: int, config: str, terms: Terms, seconds: float, peak: int, busy: float) -> TraceRow:
    job = f"{config.split('.')[0]}-{number}"
    spec = Spec(number + 2, "", "-1", config, "", job, (), (), terms)
    return TraceRow(spec, round(seconds, 3), round(peak / MIB) * MIB, busy=round(min(1.0, busy), 2), job=job)


WORKLOADS: dict[str, tuple[Maker, int]] = {
    "sweep": (sweep, 600),
    "heavy": (heavy, 270),
    "gangs": (gangs, 600),
    "tight": (tight, 270),
    "wide": (wide, 600),
}
"""What makes each, and how many rows it has unless said otherwise."""
