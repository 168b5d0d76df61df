"""How good the packing is: `python scripts/bench/policy.py [--traces FOLDER] [--quick] [--seeds 1,2,3]`.

Simulated is what a run decides, by the real Brain and loop, on two measured traces (salus_99_batch.csv and
openb_1000_batch.csv in FOLDER; left out where they are not) and on workloads that are made up. Printed are: makespans
over the lower bound, by what is known beforehand; how long the first priority waits; what the bound on bypassing
costs; lists that arrive bit by bit; what learning costs over an oracle. Each beside what it is to be at most.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from measuring import Bench
from page import Bound, Section, bar_chart, table

from scheduler.app.simulate.simulated_run import Scene, measured
from scheduler.core.brain import Brain
from scheduler.core.config import SchedulingConfig
from scheduler.core.model import Decision, Machine, Profiling, State
from scheduler.core.profiling.estimator import with_margin
from scheduler.simulation.generators import WORKLOADS
from scheduler.simulation.interference import MODELS
from scheduler.simulation.machine_spec import parse_machine
from scheduler.simulation.metrics import RunMetrics
from scheduler.simulation.traces import read_trace
from scheduler.simulation.workload import GivenTask, InitialKnowledge, TraceRow, arriving_over, kind_of, workload

NOTHING, TIMES, BOTH = InitialKnowledge(), InitialKnowledge(times=True), InitialKnowledge(times=True, peaks=True)
LEVELS = (("nothing", NOTHING), ("times", TIMES), ("times and peaks", BOTH))
UNBOUNDED = 1 << 60
WITHOUT = {"one task per GPU": "one-per-gpu", "batch by batch": "batches"}
TRACES = ("salus_99_batch.csv", "openb_1000_batch.csv")
RULES = SchedulingConfig(profile=Profiling.AUTO)
ON_NODES = (
    ("sweep", "24GiB", 1800, 1.03),
    ("gangs", "24GiB", 1800, 1.08),
    ("heavy", "40GiB", 1080, 1.03),
    ("openb", "24GiB", 3000, 1.03),
)
"""Workloads for 8x4 GPUs: the size of a GPU, the number of tasks, the most that the makespan may be over that of 32
GPUs in one machine."""
ARRIVING = 0.8
"""Rows arrive over so much of what no schedule can beat where all are there at once."""


MADE_UP = (
    ("sweep", "4x24GiB", 1.12),
    ("heavy", "4x40GiB", 1.12),
    ("gangs", "8x24GiB", 1.12),
    ("tight", "4x40GiB", inf),
    ("wide", "8x24GiB", inf),
)
"""The last two are only shown: their memory is full before their GPUs are busy, and it is unknown how near to the
bound any schedule could come."""


@dataclass(frozen=True, slots=True)
class Case:
    """A workload on a machine, and how far from its lower bound it may end."""

    name: str
    machine: str
    rows: Callable[[int], list[TraceRow]]
    """The function that makes the rows, by seed."""
    most: tuple[float, float, float]
    """With nothing known beforehand, with times, with times and peaks."""
    learning: float = 1.02
    """The most that it may take over an oracle."""
    drawn: bool = True
    """True if another seed makes other rows."""
    loading: float = 0.0
    """The share of its time for which a task loads its data before it keeps a GPU busy."""

    @property
    def judged(self) -> bool:
        """True if it has a bound to keep."""
        return self.most[0] < inf

    @property
    def long(self) -> bool:
        """True if it takes more than a few seconds."""
        return self.name == "openb"


def cases(folder: Path) -> Iterator[Case]:
    """Traces that are there, and made-up workloads."""
    for name, file, machine, most, learning in (
        ("salus", TRACES[0], "1x24GiB", (1.06, 1.05, 1.04), 1.02),
        ("salus", TRACES[0], "2x24GiB", (1.06, 1.05, 1.04), 1.02),
        ("openb", TRACES[1], "8x24GiB", (1.22, 1.16, 1.11), 1.05),
    ):
        path = folder / file
        if path.exists():
            yield Case(name, machine, lambda seed, path=path: read_trace(str(path)), most, learning, drawn=False)
        else:
            print(f"left out: {name} on {machine}, there is no {path}")
    for name, machine, most in MADE_UP:
        make, tasks = WORKLOADS[name]
        yield Case(name, machine, lambda seed, make=make, tasks=tasks: list(make(tasks, seed)), (most, most, most))


@dataclass(frozen=True, slots=True)
class Trial:
    """One simulation."""

    case: Case
    seed: int = 1
    known: InitialKnowledge = NOTHING
    deviation: bool = False
    rules: SchedulingConfig = RULES
    over: float | None = None
    plain: bool = False
    """True without epochs, so that the length of a task is never known."""
    usual: bool = False
    """True if an oracle reserves with the usual margin."""

    def scene(self) -> Scene:
        """Return the simulation of this trial."""
        rows = [replace(row, arrives=0.0) for row in self.case.rows(self.seed)]
        if self.plain:
            rows = [_without_epochs(row) for row in rows]
        if self.over is not None:
            rows = arriving_over(rows, self.over, self.seed)
        devices = parse_machine(self.case.machine, 1.0)
        largest = max(device.total for device in devices)
        given = workload(
            rows,
            self.known,
            seed=self.seed,
            deviation=self.deviation,
            largest=largest,
            loading=self.case.loading,
        )
        if self.usual:
            given = replace(given, tasks=[_with_margin(one, largest) for one in given.tasks])
        return Scene(given, devices, MODELS["fit"], self.rules, None)

    def run(self, policy: str = "packed", *, alone: bool = False) -> RunMetrics:
        """Its numbers."""
        return measured(self.scene(), policy, alone=alone)[0]


def _without_epochs(row: TraceRow) -> TraceRow:
    return replace(row, spec=replace(row.spec, terms=replace(row.spec.terms, epochs=None)))


def _with_margin(given: GivenTask, largest: int) -> GivenTask:
    """A task that declares its own peak as what is known is reserved: cut where the device ends."""
    peak = given.spec.terms.memory or 0
    reserved = max(peak, min(with_margin(peak, RULES), largest - RULES.buffer))
    return replace(given, spec=replace(given.spec, terms=replace(given.spec.terms, memory=reserved)))


def _fail_if(beyond: bool) -> str:
    _MISSED.append(beyond)
    return "  <-- MISSED" if beyond else ""


_MISSED: list[bool] = []


def _said(case: Case, seed: int) -> str:
    return f"{case.name:6} {case.machine:8} seed {seed}"


def makespans(all_: Sequence[tuple[Case, int]]) -> None:
    """Print the makespans over the lower bound, and how often the most bypassed task was bypassed."""
    print("\nmakespan over the lower bound (at most), most bypassed (at most 50); nothing deviates")
    for case, seed in all_:
        for (what, known), most in zip(LEVELS, case.most, strict=True):
            found = Trial(case, seed, known).run()
            missed = (
                found.ratio > most or found.bypassed > RULES.bypass_limit or found.states.keys() != {State.SUCCEEDED}
            )
            print(
                f"  {_said(case, seed)}  {what:16} {found.ratio:.3f} ({most:.2f})  bypassed {found.bypassed:3}"
                f"  OOM {found.ooms}{_fail_if(missed)}",
                flush=True,
            )


def others(all_: Sequence[tuple[Case, int]]) -> None:
    """Print what simple ways without a packer reach, over the same bound."""
    print("\nmakespan over the lower bound: one task per GPU, and the batch-by-batch original (batches of 20, GPU 0)")
    for case, seed in all_:
        one = Trial(case, seed).run("one-per-gpu")
        original = Trial(case, seed).run("batches")
        print(f"  {_said(case, seed)}  {one.ratio:.2f}  {original.ratio:.2f}", flush=True)


def first_priority(all_: Sequence[tuple[Case, int]]) -> None:
    """How long it waits, beside what it would wait without the others, and in the original."""
    print(
        "\nmean wait of the first priority over what it waits alone (traces: at most 1.15),\n"
        "and of what the original lets it wait (salus: at most 5 %)"
    )
    for case, seed in all_:
        found = Trial(case, seed, TIMES).run(alone=True)
        best = min(found.waits)
        here, alone = found.waits[best].mean, found.alone.mean if found.alone else 0.0
        original = Trial(case, seed).run("batches").waits[best].mean
        times = here / alone if alone else 1.0
        missed = (not case.drawn and times > 1.15) or (case.name == "salus" and here > 0.05 * original)
        print(f"  {_said(case, seed)}  {times:.2f}  {here / original:.1%}{_fail_if(missed)}", flush=True)


def bypassing(all_: Sequence[tuple[Case, int]]) -> None:
    """The makespan with the bound over that without."""
    print("\nwhat the bound on bypassing costs of the makespan: longest first (at most 2 %), in plain order (5 %)")
    unbounded = replace(RULES, bypass_limit=UNBOUNDED)
    for case, seed in all_:
        said, missed = [], False
        for what, most, trial in (
            ("longest first", 0.02, Trial(case, seed, BOTH)),
            ("plain", 0.05, Trial(case, seed, InitialKnowledge(peaks=True), plain=True)),
        ):
            with_, without = trial.run(), replace(trial, rules=unbounded).run()
            cost = with_.makespan / without.makespan - 1
            missed = missed or (case.judged and cost > most)
            said.append(f"{what} {cost:+.1%} (bypassed {with_.bypassed} instead of {without.bypassed})")
        print(f"  {_said(case, seed)}  {', '.join(said)}{_fail_if(missed)}", flush=True)


def arrivals(all_: Sequence[tuple[Case, int]]) -> None:
    """Rows that come bit by bit."""
    print(
        f"\nrows that arrive at random over {ARRIVING:.0%} of the bound: makespan over their lower bound (at most 1.20)"
    )
    for case, seed in all_:
        over = ARRIVING * Trial(case, seed).run().bound.makespan
        said, missed = [], False
        for what, known in LEVELS:
            found = Trial(case, seed, known, over=over).run()
            said.append(f"{what} {found.ratio:.3f}")
            missed = missed or (case.judged and found.ratio > 1.20) or found.bypassed > RULES.bypass_limit
        print(f"  {_said(case, seed)}  {', '.join(said)}{_fail_if(missed)}", flush=True)


class Cost(NamedTuple):
    """The cost of learning in one simulation."""

    learning: float
    known: float
    """Out-of-memories per 1000 tasks that were known when they were placed."""
    unknown: float
    """The others, per 10 configurations."""


def learning(all_: Sequence[tuple[Case, int]]) -> None:
    """With peaks that deviate and come late: what not knowing them costs, and who runs out of memory."""
    print(
        "\nwith deviation: makespan over the lower bound, and over that of oracles that know every task's own peak:\n"
        "one reserves it with the usual margin (at most 1.02, openb 1.05), the other exactly; OOMs per 1000 known\n"
        "tasks, and per 10 configurations never seen (both at most 1); judged by the means over the seeds: of equally\n"
        "good schedules one ends up to 7 % before another"
    )
    costs: dict[Case, list[Cost]] = {}
    for case, seed in all_:
        trial = Trial(case, seed, deviation=True)
        found, exact = trial.run(), replace(trial, known=InitialKnowledge(own=True)).run()
        usual = replace(trial, known=InitialKnowledge(own=True), usual=True).run()
        kinds = len({kind_of(row.spec).key for row in case.rows(seed)})
        recovered = found.states.keys() == {State.SUCCEEDED}
        cost = Cost(
            found.makespan / usual.makespan,
            (found.ooms - found.unknown_ooms) * 1000 / found.tasks,
            found.unknown_ooms * 10 / kinds,
        )
        costs.setdefault(case, []).append(cost)
        print(
            f"  {_said(case, seed)}  {found.ratio:.3f}  {cost.learning:.3f} ({case.learning:.2f})  "
            f"{found.makespan / exact.makespan:.3f}  "
            f"OOM {found.ooms}: {cost.known:.1f} per 1000 known, {cost.unknown:.2f} per 10 of {kinds} configurations, "
            f"{'all' if recovered else 'NOT all'} recovered{_fail_if(not recovered)}",
            flush=True,
        )
    for case, its in costs.items():
        mean = Cost(*(sum(values) / len(its) for values in zip(*its, strict=True)))
        missed = case.judged and (mean.learning > case.learning or mean.known > 1 or mean.unknown > 1)
        print(
            f"  {case.name:6} {case.machine:8} mean    {mean.learning:.3f} ({case.learning:.2f})  "
            f"OOM {mean.known:.1f} per 1000 known, {mean.unknown:.2f} per 10 configurations{_fail_if(missed)}",
            flush=True,
        )


def measure(bench: Bench) -> dict[str, Any]:
    """Makespans over the lower bound: packed, by what is known, beside the two ways to do without packing."""
    found = []
    for case in cases(bench.traces):
        if bench.quick and (case.long or not case.judged):
            continue
        packed = {what: Trial(case, known=known).run() for what, known in LEVELS}
        plain = {what: Trial(case).run(policy) for what, policy in WITHOUT.items()}
        ratio = {what: round(one.ratio, 4) for what, one in {**packed, **plain}.items()}
        cost = _learning(case, (1, 2, 3) if case.drawn and not bench.quick else (1,))
        found.append(
            {
                "case": case.name, "machine": case.machine, "most": case.most[0] if case.judged else None,
                "ratio": ratio, "learning": round(cost, 4), "most_learning": case.learning,
                "bypassed": max(one.bypassed for one in packed.values()),
                "ooms": sum(one.ooms for one in packed.values()),
            }
        )  # fmt: skip
        print(f"   {case.name} on {case.machine}: {ratio}", flush=True)
    absent = [file for file in TRACES if not (bench.traces / file).exists()]
    return {"found": found, "absent": absent}


def _learning(case: Case, seeds: Sequence[int]) -> float:
    """Return the cost of not knowing peaks that deviate, as a share of the makespan on average over the seeds."""
    known = InitialKnowledge(own=True)
    trials = [(Trial(case, one, deviation=True), Trial(case, one, known, deviation=True, usual=True)) for one in seeds]
    return sum(found.run().makespan / oracle.run().makespan for found, oracle in trials) / len(seeds)


def section(found: dict[str, Any]) -> list[Section]:
    """A table and a chart for each of what was measured elsewhere."""
    made = Section("Packing: simulated, makespan over what no schedule can beat")
    made.text.append(
        "The real decisions of the real loop on simulated GPUs whose tasks slow each other down as pairs of training "
        "jobs were measured to do. Salus and openb are measured traces, the others made up. Last: with peaks that "
        "differ from run to run, what not knowing them costs over knowing each task's own."
    )
    rows = [
        [
            one["case"], one["machine"], *(f"{value:.3f}" for value in one["ratio"].values()),
            str(one["bypassed"]), str(one["ooms"]), f"{one['learning'] - 1:+.1%}",
        ]
        for one in found["found"]
    ]  # fmt: skip
    names = [what for what, _ in LEVELS]
    header = ["workload", "GPUs", *(f"packed, {name} known" for name in names), *WITHOUT]
    made.text.append(table((*header, "most bypassed", "OOMs", "learning costs"), rows))
    drawn = {
        f"{who}: {one['case']} on {one['machine']}": [one["ratio"][key]]
        for one in found["found"]
        for who, key in (("scheduler", "nothing"), *((what, what) for what in WITHOUT))
    }
    made.show(
        "packing", "Makespans over the lower bound", bar_chart("Makespan over the bound", "less is better", drawn)
    )
    made.text += [f"Not simulated: {name} (the trace is not here; `--traces FOLDER`)." for name in found["absent"]]
    made.bounds = [
        Bound(f"{one['case']} on {one['machine']}, nothing known, over the bound", one["most"], one["ratio"]["nothing"])
        for one in found["found"]
        if one["most"]
    ]
    made.bounds += [
        Bound(
            f"{one['case']} on {one['machine']}, over knowing each task's own peak",
            one["most_learning"],
            one["learning"],
        )
        for one in found["found"]
        if one["most"]
    ]
    return [made]


@contextmanager
def _timed() -> Iterator[list[float]]:
    """Yield a list to which the seconds of processor time of each decision are added."""
    seconds: list[float] = []
    decide = Brain.decide

    def timed(brain: Brain, machine: Machine) -> Decision:
        began = time.thread_time()
        try:
            return decide(brain, machine)
        finally:
            seconds.append(time.thread_time() - began)

    Brain.decide = timed  # type: ignore[method-assign]
    try:
        yield seconds
    finally:
        Brain.decide = decide  # type: ignore[method-assign]


def _on_nodes(name: str, folder: Path, size_: str, tasks: int, most: float, level: str) -> None:
    """Print a workload on eight nodes with four GPUs beside one machine with 32."""
    for what, known in [one for one in (LEVELS[0], LEVELS[2]) if level in ("", one[0])]:
        found, costs = [], []
        for machine in (f"32x{size_}", f"8x(4x{size_})"):
            case = Case(name, machine, partial(_rows_of, name, folder, tasks), (inf, inf, inf))
            with _timed() as seconds:
                found.append(Trial(case, 1, known).run())
            costs.append(sorted(seconds))
        flat, nodes = found
        times, longer = nodes.makespan / flat.makespan, sum(costs[1]) / len(costs[1]) * len(costs[0]) / sum(costs[0])
        slowest = [one[len(one) * 99 // 100] * 1000 for one in costs]
        missed = times > most or nodes.bypassed > RULES.bypass_limit or longer > 1.2
        print(
            f"  {name:6} {what:16} {times:.3f} ({most:.2f})  bypassed {nodes.bypassed:2} (flat {flat.bypassed})  "
            f"OOM {nodes.ooms} (flat {flat.ooms})  a decision {longer:.2f} times as long (1.20), "
            f"99 % in {slowest[1]:.2f} ms (flat {slowest[0]:.2f}){_fail_if(missed)}",
            flush=True,
        )


def _rows_of(name: str, folder: Path, tasks: int, seed: int) -> list[TraceRow]:
    """Return the rows of a made-up workload, or a measured trace several times over."""
    if name in WORKLOADS:
        return list(WORKLOADS[name][0](tasks, seed))
    return [row for _ in range(3) for row in read_trace(str(folder / TRACES[1]))]


def nodes(folder: Path, only: str, level: str) -> None:
    """Print what it costs that the devices of a task are of one node."""
    print("\n8 nodes with 4 GPUs over one machine with 32: makespan (at most), bypasses (at most 50), time to decide")
    for name, size_, tasks, most in ON_NODES:
        if only in name and (name in WORKLOADS or (folder / TRACES[1]).exists()):
            _on_nodes(name, folder, size_, tasks, most, level)


NODES = "nodes"
"""The part that is run only if it is named, since it takes several minutes."""
PARTS = {
    "makespans": makespans,
    "others": others,
    "first": first_priority,
    "bypassing": bypassing,
    "arrivals": arrivals,
    "learning": learning,
}


def main() -> int:
    """Print every table; 1 where anything is beyond what it is to be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"some of {', '.join(PARTS)}; or {NODES}")
    parser.add_argument("--traces", type=Path, default=Path("traces"), metavar="FOLDER", help="of the measured traces")
    parser.add_argument("--quick", action="store_true", help="without openb")
    parser.add_argument("--seeds", default="1,2,3", help="of the made-up workloads (default 1,2,3)")
    parser.add_argument("--loading", type=float, default=0.0, metavar="SHARE", help="as of simulate (default 0)")
    parser.add_argument("--only", default="", metavar="NAME", help="only this workload")
    parser.add_argument(
        "--known", default="", choices=["", LEVELS[0][0], LEVELS[2][0]], help=f"{NODES}: only what is known like this"
    )
    args = parser.parse_args()
    if unknown := [part for part in args.parts if part not in (*PARTS, NODES)]:
        parser.error(f"{', '.join(unknown)}: there are {', '.join(PARTS)}, and {NODES}")
    found = (replace(case, loading=args.loading) for case in cases(args.traces))
    chosen = [case for case in found if not (args.quick and case.long)]
    seeds = [int(seed) for seed in args.seeds.split(",")]
    all_ = [(case, seed) for case in chosen if args.only in case.name for seed in (seeds if case.drawn else seeds[:1])]
    began = time.perf_counter()
    for part in args.parts or PARTS:
        nodes(args.traces, args.only, args.known) if part == NODES else PARTS[part](all_)
    print(f"\n{sum(_MISSED)} of {len(_MISSED)} missed, {time.perf_counter() - began:.0f} s")
    return 1 if any(_MISSED) else 0


if __name__ == "__main__":
    sys.exit(main())
