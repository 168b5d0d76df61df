"""The cost of knowing nothing: `python scripts/bench/first_contact.py [LIST ...] [--gpus 1,2,4] [--quick]`.

Lists of jobs that all differ and random searches are simulated by the real Brain and loop, with peaks that deviate and
come late: once with nothing known, once with all peaks known, once with one task per GPU. Printed for each are the
makespan over the lower bound; over the same with peaks known; how many times faster it is than one task per GPU; the
mean completion over that with peaks known; the out-of-memories, and the age of the oldest task that one has ended; each
as the mean over the seeds beside what it is to be, and the verdict. Searches are simulated once more with peaks that do
not deviate, and under names that hide their arguments: knowing more must not be slower. Every list is simulated again
with tasks that load their data for a tenth of their time before they keep a GPU busy. Then the parts of the policy are
switched off one by one. `--quick` takes one seed of the small lists and switches nothing off: half a minute; all of it
takes hours, and may be interrupted: with `--keep FILE` each figure is kept there and not simulated again. `--markdown`
prints the rows of a table. The exit code is 1 where a bound is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil
from pathlib import Path
from statistics import mean
from unittest.mock import patch

from scheduler.app.simulate.simulated_run import Scene, measured
from scheduler.core.config import SchedulingConfig
from scheduler.core.model import Outcome, Profiling
from scheduler.core.profiling.family.computed_peaks import ComputedPeaks
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
NOT_SLOWER = 1.01
"""The most that the makespan may be over that under names that tell nothing: of equally good schedules one ends a
little later."""

WITHOUT: dict[str, SchedulingConfig] = {
    "expectation": replace(RULES, expect_from=None),
    "risk": replace(RULES, enough_share=RULES.expect_share),
    "evidence": replace(RULES, by_evidence=False),
}
"""The parts of the policy that can be switched off, each with the rules without it ..."""
FUNCTION = "function"
"""... and the peak as a function of the arguments, for lists that have arguments."""


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
    quick: bool = False
    """True if it is short enough for `--quick`."""

    @property
    def has_arguments(self) -> bool:
        """True if names could hide what its tasks have in common."""
        return self.make in (search, small)


def _unlike(least: float, most: float) -> Maker:
    return partial(unlike, seconds=(least * 60, most * 60))


LISTS = {
    one.name: one
    for one in (
        List("12", _unlike(2, 5), 12, (1, 2, 4), quick=True),
        List("40", _unlike(2, 5), 40, (1, 2, 4), quick=True),
        List("100", _unlike(1, 3), 100, (1, 2, 4), quick=True),
        List("12long", _unlike(30, 120), 12, (1, 2, 4), quick=True),
        List("search60", search, 60, (1, 4, 8), unknown=50, quick=True),
        List("search200", search, 200, (1, 4, 8), known=1.05, unknown=50),
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


@dataclass(frozen=True, slots=True)
class Way:
    """A way to simulate a list."""

    name: str = ""
    """Empty for the list as it is."""
    rules: SchedulingConfig = RULES
    hidden: bool = False
    """True if its names hide the arguments."""
    deviation: bool = True
    loading: float = 0.0
    without: Callable[[], AbstractContextManager[object]] = nullcontext
    """Switches a part off that no setting switches off."""


USUAL, STEADY, HIDDEN = Way(), Way("peaks do not deviate", deviation=False), Way("opaque names", hidden=True)
SEARCHES = (USUAL, STEADY, HIDDEN)
LOADING = Way("data is loaded first", loading=0.1)


def without_function() -> AbstractContextManager[object]:
    """Switch off that peaks are computed from arguments."""
    return patch.object(ComputedPeaks, "peaks", lambda *_: None)


def ways(one: List, parts: Sequence[str]) -> Iterator[Way]:
    """Yield each way to simulate a list: as it is, with less to deviate or to know, without each part."""
    yield from SEARCHES if one.has_arguments else (USUAL,)
    yield LOADING
    for part in parts:
        if part != FUNCTION:
            yield Way(f"without {part}", WITHOUT[part])
        elif one.has_arguments:
            yield Way(f"without {part}", without=without_function)


def simulated(
    rows: Sequence[TraceRow], gpus: int, known: InitialKnowledge, seed: int, way: Way = USUAL, policy: str = "packed"
) -> tuple[RunMetrics, SimulatedResult]:
    """Simulate rows on so many GPUs."""
    devices = parse_machine(f"{gpus}x{MEMORY}", 1.0)
    largest = max(device.total for device in devices)
    given = workload(rows, known, seed=seed, deviation=way.deviation, largest=largest, loading=way.loading)
    return measured(Scene(given, devices, MODELS["fit"], way.rules, None), policy)


def found(rows: Sequence[TraceRow], gpus: int, seed: int, way: Way, beside: Beside) -> Found:
    """Return the figures of rows on so many GPUs."""
    with way.without():
        metrics, run = simulated(list(opaque(rows)) if way.hidden else rows, gpus, NOTHING, seed, way)
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


def beside(rows: Sequence[TraceRow], gpus: int, seed: int, *, deviation: bool, loading: float) -> Beside:
    """Simulate rows with their peaks known, and one per GPU."""
    way = Way(deviation=deviation, loading=loading)
    known, _ = simulated(rows, gpus, PEAKS, seed, way)
    single, _ = simulated(rows, gpus, NOTHING, seed, way, "one-per-gpu")
    return Beside(known, single)


class Kept:
    """The figures that earlier calls have kept in a file, and a place for new ones."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._figures: dict[str, Found] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else ():
            name, figures = json.loads(line)
            self._figures[name] = Found(**figures)

    def find(self, name: str) -> Found | None:
        """Return the figures of this name, if they are known."""
        return self._figures.get(name)

    def keep(self, name: str, figures: Found) -> Found:
        """Keep new figures and return them."""
        self._figures[name] = figures
        if self._path is not None:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps([name, asdict(figures)]) + "\n")
        return figures


def measure(one: List, gpus: int, seeds: Sequence[int], parts: Sequence[str], kept: Kept) -> dict[Way, list[Found]]:
    """Return the figures of a list on a machine, in each way, by each seed."""
    lines: dict[Way, list[Found]] = {way: [] for way in ways(one, parts)}
    for seed in seeds:
        rows = list(one.make(one.tasks, seed))
        compared: dict[tuple[bool, float], Beside] = {}
        for way, its in lines.items():
            name, kind = f"{one.name} {gpus} {seed} {way.name}".rstrip(), (way.deviation, way.loading)
            if (known := kept.find(name)) is not None:
                its.append(known)
                continue
            if kind not in compared:
                compared[kind] = beside(rows, gpus, seed, deviation=way.deviation, loading=way.loading)
            its.append(kept.keep(name, found(rows, gpus, seed, way, compared[kind])))
    return lines


def table(one: List, gpus: int, lines: dict[Way, list[Found]], *, markdown: bool) -> bool:
    """Print the figures of a list on a machine; tell whether its bounds are kept."""
    kept = True
    for way, its in lines.items():
        judged = way in (USUAL, STEADY, LOADING)
        missed = _missed(one, its, lines.get(HIDDEN, ()) if way == USUAL else ()) if judged else []
        kept = kept and not missed
        verdict = ("MISSED: " + ", ".join(missed) if missed else "holds") if judged else ""
        where = one.name, f"{gpus} GPU{'s' * (gpus > 1)}", way.name
        print(_row(where, its, verdict) if markdown else _shown(where, one, its, verdict), flush=True)
    return kept


def usual(its: Sequence[Found], pick: Callable[[Found], float]) -> float:
    """Return the mean of one figure over the seeds."""
    return mean(map(pick, its))


def _shown(where: tuple[str, str, str], one: List, its: Sequence[Found], verdict: str) -> str:
    name, gpus, way = where
    return (
        f"  {name:9} {gpus:6}  {way:20} over known {usual(its, lambda one: one.known):.3f} ({one.known:.2f})  "
        f"faster {usual(its, lambda one: one.faster):.2f} ({FASTER:.1f})  "
        f"OOM {sum(one.ooms for one in its)} ({_most_ooms(one, its)}), oldest {max(one.oldest for one in its):.0f} s  "
        f"completion {usual(its, lambda one: one.completion):.2f} "
        f"({usual(its, lambda one: one.mean_completion):.0f} s)  "
        f"bound {usual(its, lambda one: one.bound):.2f} "
        f"(known {usual(its, lambda one: one.known_bound):.2f})  {verdict}"
    ).rstrip()


def _row(where: tuple[str, str, str], its: Sequence[Found], verdict: str) -> str:
    name, gpus, way = where
    figures = (
        f"{usual(its, lambda one: one.known):.3f}",
        f"{usual(its, lambda one: one.faster):.2f}",
        f"{usual(its, lambda one: one.completion):.2f}",
        f"{sum(one.ooms for one in its)}",
    )
    return f"| {name} | {gpus} | {way} | {' | '.join(figures)} | {verdict} |"


def _most_ooms(one: List, its: Sequence[Found]) -> int:
    """Return the most out-of-memories over all seeds."""
    return ceil(one.tasks * len(its) / one.unknown)


def _missed(one: List, its: Sequence[Found], hidden: Sequence[Found]) -> list[str]:
    """Return the bounds that are missed."""
    known = usual(its, lambda one: one.known)
    wrong = [
        (known > one.known, "over known"),
        (usual(its, lambda one: one.faster) < FASTER, "faster"),
        (sum(one.ooms for one in its) > _most_ooms(one, its), "OOM"),
        (bool(hidden) and known > usual(hidden, lambda one: one.known) * NOT_SLOWER, "slower than with opaque names"),
    ]
    return [what for is_wrong, what in wrong if is_wrong]


def main() -> int:
    """Print every list; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lists", nargs="*", metavar="LIST", help=f"of {', '.join(LISTS)} (default all)")
    parser.add_argument("--gpus", default="", metavar="1,4", help="numbers of GPUs (default those of each list)")
    parser.add_argument("--seeds", default="", metavar="1,2", help="of the lists and peaks (default 1 to 5, quick 1)")
    every = [*WITHOUT, FUNCTION]
    parser.add_argument("--without", metavar="PART,PART", help=f"parts to switch off (default {','.join(every)})")
    parser.add_argument("--quick", action="store_true", help="one seed of the small lists, nothing switched off")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="keep each figure there, and take it from there")
    parser.add_argument("--markdown", action="store_true", help="print the rows of a table")
    args = parser.parse_args()
    quick = [one.name for one in LISTS.values() if one.quick or not args.quick]
    parts = ([] if args.quick else every) if args.without is None else list(filter(None, args.without.split(",")))
    for word, known in (*((name, list(LISTS)) for name in args.lists), *((part, every) for part in parts)):
        if word not in known:
            parser.error(f"{word}: there are {', '.join(known)}")
    seeds, gpus = ([int(number) for number in text.split(",") if number] for text in (args.seeds, args.gpus))
    seeds = seeds or ([1] if args.quick else [1, 2, 3, 4, 5])
    began, kept, figures = time.perf_counter(), [], Kept(args.keep)
    for name in args.lists or quick:
        one = LISTS[name]
        kept += [
            table(one, number, measure(one, number, seeds, parts, figures), markdown=args.markdown)
            for number in gpus or one.gpus
        ]
    print(f"\n{kept.count(False)} of {len(kept)} missed, {time.perf_counter() - began:.0f} s")
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
