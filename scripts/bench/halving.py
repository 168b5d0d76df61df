"""The gain and the loss of stopping trials early, in simulation: a random search of 243 trials of 81 epochs.

    python scripts/bench/halving.py [--trials 243] [--epochs 81] [--gpus 4] [--seeds 5] [--crossing 0]

Each trial has a validation loss that falls towards a limit of its own, at a pace of its own, with noise. With
--crossing, slow trials reach better limits, so that the trials that are ahead after three epochs are not the best ones
at the end. Some diverge. For each way to stop trials early, a line tells the hours of GPU time and how long the search
took, both in shares of training all to their end, how many trials were trained to their end, and which place the best
of these has among all trials, with its loss beside the best one's.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence

from measuring import ROOT

sys.path.insert(0, str(ROOT))

from scheduler.app.simulate.simulated_run import Scene, play  # found through the line above
from scheduler.core.config import SchedulingConfig
from scheduler.core.metrics.stop_rules import keep_best, stop_rules
from scheduler.core.model import RankOrder, Spec, State, Terms
from scheduler.simulation.generators import SeededRandom
from scheduler.simulation.interference import MODELS
from scheduler.simulation.machine_spec import parse_machine
from scheduler.simulation.task_behaviour import TaskBehaviour, curve
from scheduler.simulation.workload import GivenTask, Workload
from scheduler.units import GIB
from scheduler.values import dataclass

EPOCH = 60.0
WORST = 2.3
"""The loss before the first epoch."""
WAYS = {
    "all": ("", ""),
    "is nan": ("val_loss is nan", ""),
    "> 1.5 after 9": ("val_loss > 1.5 after 9, val_loss is nan", ""),
    "1/2 at 3,9,27": ("", "1/2 by val_loss at 3,9,27"),
    "1/3 at 3,9,27": ("", "1/3 by val_loss at 3,9,27"),
    "1/4 at 3,9,27": ("", "1/4 by val_loss at 3,9,27"),
    "1/3 at 9,27": ("", "1/3 by val_loss at 9,27"),
}
"""The ways to stop trials early: --stop-when and --keep-best."""


@dataclass(frozen=True, slots=True)
class Result:
    """One search."""

    hours: float
    """The hours of GPU time."""
    makespan: float
    ended: int
    """The number of trials that were trained to their end."""
    place: int
    """The place of the best of them among all trials, by the lowest loss that each could have reached."""
    loss: float
    """The lowest loss of these trials over that of all trials."""


def main() -> None:
    """Simulate each way for each seed, and print the means."""
    args = _arguments()
    base: list[Result] = []
    for name, (stop_when, keep) in ((name, WAYS[name]) for name in args.ways):
        found = [simulate(args, seed, stop_when, keep) for seed in range(1, args.seeds + 1)]
        base = base or found
        hours = [one.hours / whole.hours for one, whole in zip(found, base, strict=True)]
        makespans = [one.makespan / whole.makespan for one, whole in zip(found, base, strict=True)]
        ended = statistics.mean(one.ended for one in found)
        places, losses = (
            ", ".join(words) for words in ([str(r.place) for r in found], [f"{r.loss:.3f}" for r in found])
        )
        print(
            f"{name:14} {statistics.mean(one.hours for one in found):6.1f} GPU hours ({statistics.mean(hours):4.0%}), "
            f"makespan {statistics.mean(makespans):4.0%}, {ended:5.1f} to the end; best: places {places}; loss times "
            f"{losses}",
            flush=True,
        )


def _arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--trials", type=int, default=243)
    made.add_argument("--epochs", type=int, default=81)
    made.add_argument("--gpus", type=int, default=4)
    made.add_argument("--seeds", type=int, default=5)
    made.add_argument("--slowest", type=float, default=30.0, help="the pace of the slowest trials, in epochs")
    crossing = "from 0 to 1: how much slow trials are better at the end, so that curves cross"
    made.add_argument("--crossing", type=float, default=0.0, help=crossing)
    made.add_argument("--ways", nargs="+", default=[*WAYS], choices=[*WAYS], help="how trials are stopped")
    made.add_argument("--diverge", type=float, default=0.05, help="the share of trials whose loss becomes nan")
    return made.parse_args()


def simulate(args: argparse.Namespace, seed: int, stop_when: str, keep: str) -> Result:
    """Simulate the search to its end."""
    given = [_trial(args, seed, number) for number in range(args.trials)]
    rules = SchedulingConfig(order=RankOrder.GLOBAL, stop_when=stop_rules(stop_when), keep_best=keep_best(keep))
    devices = parse_machine(f"{args.gpus}x24GiB,host:256GiB", 64.0)
    run, history = play(Scene(Workload(given), devices, MODELS["none"], rules, num=None))
    lowest = {task: _lowest(run.given(task).truth.metrics) for task in run.brain.task_table}
    ended = [task for task in run.brain.task_table if run.brain.state(task) is State.SUCCEEDED]
    best = min(lowest[task] for task in ended)
    makespan = (history.last or 0.0) - (history.first or 0.0)
    place = 1 + sum(loss < best for loss in lowest.values())
    return Result(history.spent / 3600, makespan, len(ended), place, best / min(lowest.values()))


def _lowest(losses: Sequence[float]) -> float:
    return min((loss for loss in losses if math.isfinite(loss)), default=math.inf)


def _trial(args: argparse.Namespace, seed: int, number: int) -> GivenTask:
    dice = SeededRandom(seed, "trial", number)
    pace = dice.scale("pace", 2, args.slowest)
    early = 1 - math.log(pace / 2) / math.log(args.slowest / 2)
    limit = 0.2 + 1.3 * ((1 - args.crossing) * dice.between("limit", 0, 1) + args.crossing * early) ** 0.7
    losses = []
    for epoch in range(1, args.epochs + 1):
        noise = sum(dice.between(f"noise {epoch} {part}", -0.02, 0.02) for part in range(3))
        losses.append(limit + (WORST - limit) * math.exp(-epoch / pace) + noise)
    if dice.between("diverges", 0, 1) < args.diverge:
        begin = int(dice.between("begin", 1, args.epochs))
        losses[begin:] = [math.nan] * (args.epochs - begin)
    seconds = args.epochs * EPOCH * dice.between("seconds", 0.7, 1.3)
    terms = Terms(memory=10 * GIB, host_memory=GIB, cpus=1.0, epochs=args.epochs)
    truth = TaskBehaviour(
        seconds, (curve(8 * GIB, seconds),), cores=0.1, epochs=args.epochs, metrics=tuple(losses), stops_in=5.0,
        utilisation=0.5,
    )  # fmt: skip
    spec = Spec(2, "", "", f"train --trial {number}", f"trial {number}", (), (), terms)
    return GivenTask(spec, truth)


if __name__ == "__main__":
    main()
