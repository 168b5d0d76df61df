"""The gain and the cost of `--preempt`, in simulation: long resumable tasks, and now and then an urgent one.

    python scripts/bench/preemption.py [--tasks 40] [--hours 1] [--every 2] [--gpus 4] [--save 20] [--after 5]

The urgent tasks take ten minutes each. The last lines tell, without and with preemption, how long the urgent tasks
waited (mean, longest), when the last long task ended, and how often one was asked to save. A long task loses what it
computes while it saves (`--save` seconds) and its startup, which is part of its work again.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from dataclasses import replace

from measuring import ROOT

sys.path.insert(0, str(ROOT))

from scheduler.app.simulate.simulated_run import Scene, play  # found through the line above
from scheduler.core.config import SchedulingConfig
from scheduler.core.model import Outcome, RankOrder, Spec, State, Terms
from scheduler.simulation.interference import MODELS
from scheduler.simulation.machine_spec import parse_machine
from scheduler.simulation.task_behaviour import TaskBehaviour, curve
from scheduler.simulation.workload import GivenTask, Workload
from scheduler.units import GIB, duration
from scheduler.values import dataclass

HOUR, MINUTE = 3600.0, 60.0
URGENT = 10 * MINUTE
PEAK = 20 * GIB


@dataclass(frozen=True, slots=True)
class Result:
    """The waits and the losses of one simulation."""

    waits: list[float]
    """The seconds that each urgent task waited."""
    last: float
    """When the last long task ended, in seconds."""
    lost: float
    """The seconds of GPU time that the long tasks took beyond their work."""
    saves: int
    """How often a long task was asked to save."""


def main() -> None:
    """Simulate the list without and with preemption, and print both."""
    args = _arguments()
    for name, preempt in (("without", False), ("with", True)):
        found = simulate(args, preempt=preempt)
        mean, longest = statistics.mean(found.waits), max(found.waits)
        print(
            f"{name:8} {len(found.waits)} urgent tasks waited {duration(mean)} on average, {duration(longest)} at most;"
            f" the long ones ended after {duration(found.last)}, {found.saves} times one saved, and lost "
            f"{duration(found.lost)} of GPU time"
        )


def _arguments() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--tasks", type=int, default=40)
    made.add_argument("--hours", type=float, default=1.0, help="the time that a long task takes")
    made.add_argument("--every", type=float, default=2.0, help="hours between two urgent tasks")
    made.add_argument("--gpus", type=int, default=4)
    made.add_argument("--save", type=float, default=20.0, help="seconds from the stop signal to the end")
    made.add_argument("--after", type=float, default=5.0, help="minutes that an urgent task waits first")
    return made.parse_args()


def simulate(args: argparse.Namespace, *, preempt: bool) -> Result:
    """Simulate the list to its end."""
    length = args.tasks * args.hours / args.gpus
    urgent = [_urgent(number, preempt=preempt) for number in range(max(1, int(length / args.every)))]
    # half an hour off the ends of the long tasks, which all begin together
    arriving = [
        replace(one, arrives=(number * args.every + args.hours / 2) * HOUR) for number, one in enumerate(urgent)
    ]
    given = [_long(number, args.hours * HOUR, args.save) for number in range(args.tasks)] + arriving
    rules = SchedulingConfig(order=RankOrder.GLOBAL, preempt_after=args.after * MINUTE)
    devices = parse_machine(f"{args.gpus}x24GiB,host:256GiB", 64.0)
    run, history = play(Scene(Workload(given), devices, MODELS["none"], rules, num=None))
    assert run.brain.state_counts[State.SUCCEEDED] == len(given), run.brain.state_counts
    waits, last, spent, saves = [], 0.0, 0.0, 0
    for task, told in history.tasks.items():
        ended = told.attempts[-1].ended or 0.0
        if run.given(task).spec.terms.priority < 0:
            waits.append((told.attempts[0].started or 0.0) - run.began - run.given(task).arrives)
        else:
            last = max(last, ended - run.began)
            spent += sum(one.seconds for one in told.attempts)
            saves += sum(one.outcome is Outcome.AGAIN for one in told.attempts)
    return Result(waits, last, spent - args.tasks * args.hours * HOUR, saves)


def _long(number: int, seconds: float, save: float) -> GivenTask:
    terms = Terms(memory=PEAK, host_memory=GIB, cpus=1.0, resumable=True, grace=60.0)
    truth = TaskBehaviour(seconds, (curve(PEAK, seconds),), cores=0.1, resumes=True, stops_in=save)
    return GivenTask(_spec(f"long {number}", terms), truth)


def _urgent(number: int, *, preempt: bool) -> GivenTask:
    terms = Terms(priority=-1, memory=PEAK, host_memory=GIB, cpus=1.0, preempt=preempt)
    return GivenTask(_spec(f"urgent {number}", terms), TaskBehaviour(URGENT, (curve(PEAK, URGENT),), cores=0.1))


def _spec(name: str, terms: Terms) -> Spec:
    return Spec(2, "", "", f"train {name}", name, (), (), terms)


if __name__ == "__main__":
    main()
