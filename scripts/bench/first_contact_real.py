"""First contact with real processes: `python scripts/bench/first_contact_real.py [--tasks 12] [--gpus 1,2] [--goes 3]`.

Jobs of 20 to 60 s that all differ run on the stand-in GPUs of the tests: packed with nothing known, one per GPU, and by
the batch-by-batch procedure (`--profile sequential`: two epochs of each task alone, then the batch by these peaks). The
three run at the same time, each on GPUs of its own. Printed are makespan, mean completion and the out-of-memories that
the stand-in counted, and the simulated makespan of the same jobs. The exit code is 1 where packing is less than 1.6
times faster than one per GPU, not faster than the procedure, or more than 10 % from its simulation.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from gpu_pack import Place, Report
from measuring import kept

from scheduler.app.simulate.simulated_run import Scene, measured
from scheduler.core.config import SchedulingConfig
from scheduler.core.model import Profiling
from scheduler.simulation.generators import unlike
from scheduler.simulation.interference import MODELS
from scheduler.simulation.machine_spec import parse_machine
from scheduler.simulation.workload import InitialKnowledge, TraceRow, workload
from scheduler.units import MIB
from tests.support.standin.box import TRAIN

SECONDS = (20.0, 60.0)
WAYS = {"packed": (), "one per GPU": ("--slots", "1"), "procedure": ("--profile", "sequential")}
FASTER, AGREES = 1.6, 0.10
EPOCHS = 10
LOADING = 0.1
"""The share of its time for which a job of the stand-in loads its data before it keeps its GPU busy."""
JOB = """
import os, sys
epochs = int(os.environ.get("SCHEDULER_EPOCHS") or {epochs})
os.execv(sys.executable, [sys.executable, "-S", "-E", {train!r}, "--peak", "{peak}MiB", "--epochs", str(epochs),
    "--seconds", str({seconds} * epochs / {epochs}), "--busy", "{busy}"])
"""
"""Each job is a script of its own; a profile run of two epochs takes a fifth of its time."""


@dataclass(frozen=True)
class Go:
    """One list, run in each way, and simulated."""

    ways: dict[str, Report]
    simulated: float

    @property
    def agreement(self) -> float:
        """The real makespan over the simulated one."""
        return self.ways["packed"].seconds / self.simulated


def write(place: Place, rows: Sequence[TraceRow]) -> None:
    """Write the list, and one script for each job."""
    for number, row in enumerate(rows):
        job = JOB.format(epochs=EPOCHS, train=str(TRAIN), peak=row.peak // MIB, seconds=row.seconds, busy=row.busy)
        (place.folder / f"j{number}.py").write_text(job, encoding="utf-8")
    listed = [[place.folder, sys.executable, f"j{number}.py", EPOCHS, 1] for number in range(len(rows))]
    place.write(["Directory", "Executable", "Filename", "Epochs", "Priority"], listed)


def simulated(rows: Sequence[TraceRow], gpus: int) -> float:
    """Return the simulated makespan of jobs whose memory does not deviate."""
    rules = SchedulingConfig(profile=Profiling.AUTO)
    given = workload(rows, InitialKnowledge(), deviation=False, loading=LOADING)
    return measured(Scene(given, parse_machine(f"{gpus}x24GiB", 1.0), MODELS["fit"], rules, None), "packed")[0].makespan


def go(folder: Path, tasks: int, gpus: int, seed: int) -> Go:
    """Run one list in each way at the same time."""
    rows = list(unlike(tasks, seed, SECONDS))

    def run(way: str) -> Report:
        place = Place(folder / f"{tasks}-{gpus}-{seed}-{way.replace(' ', '-')}", gpus)
        write(place, rows)
        return place.run(None, *WAYS[way])

    with ThreadPoolExecutor(len(WAYS)) as pool:
        found = dict(zip(WAYS, pool.map(run, WAYS), strict=True))
    return Go(found, simulated(rows, gpus))


def shown(tasks: int, gpus: int, goes: Sequence[Go]) -> bool:
    """Print the means of a list on a machine; tell whether its bounds are kept."""
    for way in WAYS:
        its = [one.ways[way] for one in goes]
        print(
            f"  {tasks} jobs on {gpus} GPU{'s' * (gpus > 1)}  {way:<12} {mean(one.seconds for one in its):7.1f} s  "
            f"mean completion {mean(one.completion for one in its):6.1f} s  "
            f"out of memory {[one.device_ooms for one in its]}  succeeded {[one.succeeded for one in its]}",
            flush=True,
        )
    seconds = {way: mean(one.ways[way].seconds for one in goes) for way in WAYS}
    agreement = [round(one.agreement, 3) for one in goes]
    print(f"  real over simulated {agreement}")
    return all(
        [
            kept("packed / one per GPU", seconds["packed"] / seconds["one per GPU"], 1 / FASTER),
            kept("packed / procedure", seconds["packed"] / seconds["procedure"], 1.0),
            kept("real and simulated differ by", abs(mean(agreement) - 1), AGREES),
            kept(
                "out of memory, of 25 jobs", mean(o.ways["packed"].device_ooms for o in goes) * 25 / tasks, 25 / tasks
            ),
        ]
    )


def main() -> int:
    """Run the lists that were asked for; 1 where a bound is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=12)
    parser.add_argument("--gpus", default="1,2")
    parser.add_argument("--goes", type=int, default=3, help="each with other jobs, one after the other (default 3)")
    args = parser.parse_args()
    good = []
    with tempfile.TemporaryDirectory(prefix="first-contact-") as folder:
        for gpus in map(int, args.gpus.split(",")):
            goes = [go(Path(folder), args.tasks, gpus, seed) for seed in range(1, args.goes + 1)]
            good.append(shown(args.tasks, gpus, goes))
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
