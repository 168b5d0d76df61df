"""The cost of knowing nothing: `python scripts/bench/first_contact.py [LIST ...] [--gpus 1,2,4] [--seeds 1]`.

Lists of jobs that all differ and random searches are simulated by the real Brain and loop, with peaks that deviate and
come late: once with nothing known, once with all peaks known, once with one task per GPU. Printed for each are the
makespan over the lower bound; over the same with peaks known; how many times faster it is than one task per GPU; the
mean completion over that with peaks known; the out-of-memories, and the age of the oldest task that one has ended.
Searches are simulated once more under names that hide their arguments: knowing more must not be slower. `--without`
switches parts of the policy off one by one. The exit code is 1 where the mean over the seeds misses a bound.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from statistics import mean

from scheduler.app.simulate.simulated_run import Scene, measured
from scheduler.core.config import SchedulingConfig
from scheduler.core.model import Outcome, Profiling
from scheduler.simulation.generators import Maker, opaque, search, small, unlike
from scheduler.simulation.interference import MODELS
from scheduler.simulation.machine_spec import parse_machine
from scheduler.simulation.metrics import RunMetrics, SimulatedResult
from scheduler.simulation.workload import InitialKnowledge, TraceRow, workload

RULES = SchedulingConfig(profile=Profiling.AUTO)
NOTHING, PEAKS = InitialKnowledge(), InitialKnowledge(peaks=True)
MEMORY = "24GiB"
FASTER = 1.6
"""So many times faster than one task per GPU it is to be at least."""
KNOWN = 1.10
MINUTES = "jobs of {0:g} to {1:g} minutes"

WITHOUT: dict[str, Callable[[SchedulingConfig], SchedulingConfig]] = {
    "expectation": lambda rules: replace(rules, expect_from=None),
    "risk": lambda rules: replace(rules, enough_share=rules.expect_share),
    "evidence": lambda rules: replace(rules, by_evidence=False),
}
"""The parts of the policy that can be switched off, each with the rules without it."""


@dataclass(frozen=True, slots=True)
class List:
    """A list of tasks none of which has run before."""

    name: str
    make: Maker
    tasks: int
    gpus: tuple[int, ...]
    known: float = KNOWN
    """The most that its makespan may be over that with peaks known."""
    unknown: float = 25
    """The least number of tasks for each out-of-memory."""
    usual: bool = False
    """True if it is simulated unless lists are named."""

    @property
    def has_arguments(self) -> bool:
        """True if names could hide what its tasks have in common."""
        return self.make in (search, small)


def _unlike(least: float, most: float) -> Maker:
    return partial(unlike, seconds=(least * 60, most * 60))


LISTS = {
    one.name: one
    for one in (
        List("12", _unlike(2, 5), 12, (1, 2, 4), usual=True),
        List("40", _unlike(2, 5), 40, (1, 2, 4), usual=True),
        List("100", _unlike(1, 3), 100, (1, 2, 4), usual=True),
        List("12long", _unlike(30, 120), 12, (1, 2, 4), usual=True),
        List("search60", search, 60, (1, 4, 8), unknown=50, usual=True),
        List("search200", search, 200, (1, 4, 8), known=1.05, unknown=50, usual=True),
        List("search600", search, 600, (1, 4, 8), known=1.05, unknown=50),
        List("small600", small, 600, (1, 4, 8), known=1.05, unknown=50),
    )
}


@dataclass(frozen=True, slots=True)
class Found:
    """The figures of one list on one machine by one seed."""

    bound: float
    known: float
    faster: float
    completion: float
    """The mean completion over that with peaks known."""
    mean_completion: float
    ooms: int
    oldest: float
    """The age at its end of the oldest attempt that ran out of memory, in seconds."""
    known_bound: float
    """The makespan with peaks known over the lower bound."""


def simulated(
    rows: Sequence[TraceRow], gpus: int, known: InitialKnowledge, seed: int, rules: SchedulingConfig, policy: str
) -> tuple[RunMetrics, SimulatedResult]:
    """Simulate rows on so many GPUs."""
    devices = parse_machine(f"{gpus}x{MEMORY}", 1.0)
    given = workload(rows, known, seed=seed, deviation=True, largest=max(device.total for device in devices))
    return measured(Scene(given, devices, MODELS["fit"], rules, None), policy)


def found(rows: Sequence[TraceRow], gpus: int, seed: int, rules: SchedulingConfig, beside: Beside) -> Found:
    """Return the figures of rows on so many GPUs."""
    metrics, run = simulated(rows, gpus, NOTHING, seed, rules, "packed")
    attempts = [attempt for task_history in run.history.tasks.values() for attempt in task_history.attempts]
    ages = [attempt.seconds for attempt in attempts if attempt.outcome is Outcome.OOM]
    return Found(
        metrics.ratio,
        metrics.makespan / beside.known.makespan,
        beside.single.makespan / metrics.makespan,
        metrics.mean_completion / beside.known.mean_completion,
        metrics.mean_completion,
        metrics.ooms,
        max(ages, default=0.0),
        beside.known.ratio,
    )


@dataclass(frozen=True, slots=True)
class Beside:
    """The results that a list is compared with, on one machine by one seed."""

    known: RunMetrics
    single: RunMetrics


def beside(rows: Sequence[TraceRow], gpus: int, seed: int) -> Beside:
    """Simulate rows with their peaks known, and one per GPU."""
    known, _ = simulated(rows, gpus, PEAKS, seed, RULES, "packed")
    single, _ = simulated(rows, gpus, NOTHING, seed, RULES, "one-per-gpu")
    return Beside(known, single)


def variants(
    one: List, rows: Sequence[TraceRow], parts: Sequence[str]
) -> Iterator[tuple[str, Sequence[TraceRow], SchedulingConfig]]:
    """Yield each way to simulate a list: as it is, under names that tell nothing, without each part."""
    yield "", rows, RULES
    if one.has_arguments:
        yield "opaque names", list(opaque(rows)), RULES
    for part in parts:
        yield f"without {part}", rows, WITHOUT[part](RULES)


def table(one: List, gpus: int, seeds: Sequence[int], parts: Sequence[str]) -> bool:
    """Print the figures of a list on a machine; tell whether its bounds are kept."""
    lines: dict[str, list[Found]] = {}
    for seed in seeds:
        rows = list(one.make(one.tasks, seed))
        compared = beside(rows, gpus, seed)
        for name, named, rules in variants(one, rows, parts):
            lines.setdefault(name, []).append(found(named, gpus, seed, rules, compared))
    kept = True
    for name, its in lines.items():
        missed = "" if name else _missed(one, its, lines.get("opaque names"))
        kept = kept and not missed
        print(f"  {one.name:9} {gpus} GPU{'s' * (gpus > 1):1}  {_shown(its)}  {name}{missed}", flush=True)
    return kept


def _shown(its: Sequence[Found]) -> str:
    def usual(pick: Callable[[Found], float]) -> float:
        return mean(map(pick, its))

    return (
        f"bound {usual(lambda one: one.bound):.2f} (known {usual(lambda one: one.known_bound):.2f})  "
        f"over known {usual(lambda one: one.known):.3f}  faster {usual(lambda one: one.faster):.2f}  "
        f"completion {usual(lambda one: one.completion):.2f} ({usual(lambda one: one.mean_completion):.0f} s)  "
        f"OOM {usual(lambda one: one.ooms):.1f}, oldest {max(one.oldest for one in its):.0f} s"
    )


def _missed(one: List, its: Sequence[Found], hidden: Sequence[Found] | None) -> str:
    """Return the bounds that the means over the seeds miss."""
    known, faster = mean(each.known for each in its), mean(each.faster for each in its)
    ooms = mean(each.ooms for each in its)
    opaque_ = mean(each.known for each in hidden) if hidden else inf
    wrong = [
        (known > one.known, f"over known at most {one.known:.2f}"),
        (faster < FASTER, f"faster at least {FASTER:.1f}"),
        (ooms > max(1.0, one.tasks / one.unknown), f"OOM at most {one.tasks / one.unknown:.1f}"),
        (known > opaque_ * 1.01, "slower than with opaque names"),
    ]
    said = [what for is_wrong, what in wrong if is_wrong]
    return f"  <-- {', '.join(said)}" if said else ""


def main() -> int:
    """Print every list; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    usual = [one.name for one in LISTS.values() if one.usual]
    parser.add_argument("lists", nargs="*", metavar="LIST", help=f"of {', '.join(LISTS)} (default {', '.join(usual)})")
    parser.add_argument("--gpus", default="", metavar="1,4", help="numbers of GPUs (default: those of each list)")
    parser.add_argument("--seeds", default="1", metavar="1,2", help="seeds of the lists and of the peaks (default 1)")
    parser.add_argument("--without", default="", metavar="PART,PART", help=f"parts to switch off: {', '.join(WITHOUT)}")
    args = parser.parse_args()
    parts = [part for part in args.without.split(",") if part]
    for word, known in (*((name, LISTS) for name in args.lists), *((part, WITHOUT) for part in parts)):
        if word not in known:
            parser.error(f"{word}: there are {', '.join(known)}")
    seeds, gpus = ([int(number) for number in text.split(",") if number] for text in (args.seeds, args.gpus))
    began, kept = time.perf_counter(), []
    for name in args.lists or usual:
        kept += [table(LISTS[name], number, seeds, parts) for number in gpus or LISTS[name].gpus]
    print(f"\n{kept.count(False)} of {len(kept)} missed, {time.perf_counter() - began:.0f} s")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
