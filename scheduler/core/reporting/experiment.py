"""Experiments on one list: their arms, the numbers of each run, and the result in a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import lcm
from typing import Any

from scheduler.core.attempts.mps_policy import CLIENT
from scheduler.core.model import Outcome, State
from scheduler.core.reporting.run_history import AttemptHistory, RunHistory
from scheduler.units import duration
from scheduler.values import dataclass

FEWEST_REPEATS = 2
"""Fewer repeats show no spread."""
LEAST_DIFFERENCE = 0.02
"""Means that differ by a smaller share count as equal, however little the repeats spread."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of running the list."""

    name: str
    mps: bool = False
    percentage: str = ""
    """Percentage of a GPU's threads for each task under MPS, or `auto`."""
    per_device: int | None = None
    """The most tasks on one device."""
    num: int | None = None
    """Rows in a batch."""
    order: str = ""
    base: bool = False
    """True if the other arms are compared with it."""


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """The facts about a task that its events do not tell."""

    priority: int
    batch: int
    epochs: int


READING_FIELDS = (
    "arm", "repeat", "run", "tasks", "succeeded", "epochs", "makespan", "task_mean", "ooms", "residents", "shared",
    "clients", "energy",
)  # fmt: skip
"""The numbers of a reading as its JSON names them; its waits come on top."""


@dataclass(frozen=True, slots=True)
class BatchWait:
    """The waits of the tasks of one priority in one batch, in seconds from the acceptance of the list."""

    batch: int
    priority: int
    tasks: int
    mean: float
    most: float

    def to_dict(self) -> dict[str, float]:
        """Return the waits as JSON values."""
        return {
            "batch": self.batch, "priority": self.priority, "tasks": self.tasks, "mean": self.mean, "most": self.most,
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reading:
    """The numbers of one run of one arm; times are seconds."""

    arm: str
    repeat: int
    run: int | None
    """Number of the run; None: it was simulated."""
    tasks: int
    succeeded: int
    epochs: int
    """Epochs of the tasks that succeeded."""
    makespan: float
    task_mean: float
    ooms: int
    residents: int
    """The most tasks on one device at one moment."""
    shared: int
    """Attempts under MPS."""
    clients: int
    """Attempts that were seen as clients of the MPS daemon."""
    waits: Sequence[BatchWait] = ()
    energy: float | None = None
    """Joules that its GPUs used; None: unknown."""

    @property
    def tasks_per_hour(self) -> float:
        """Tasks that succeeded, divided by the makespan."""
        return self.succeeded * 3600 / self.makespan if self.makespan else 0.0

    @property
    def epochs_per_hour(self) -> float:
        """Epochs of tasks that succeeded, divided by the makespan."""
        return self.epochs * 3600 / self.makespan if self.makespan else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the reading as JSON values."""
        return {
            **{name: getattr(self, name) for name in READING_FIELDS},
            "waits": [wait.to_dict() for wait in self.waits],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Reading:
        """Return the reading that `to_dict` wrote."""
        waits = tuple(BatchWait(**wait) for wait in data["waits"])
        return cls(**{name: data[name] for name in READING_FIELDS}, waits=waits)

    def waited(self) -> dict[int, float]:
        """Return the mean wait of each priority over all batches."""
        sums: dict[int, tuple[float, int]] = {}
        for one in self.waits:
            seconds, tasks = sums.get(one.priority, (0.0, 0))
            sums[one.priority] = seconds + one.mean * one.tasks, tasks + one.tasks
        return {priority: seconds / tasks for priority, (seconds, tasks) in sorted(sums.items())}


@dataclass(frozen=True, slots=True)
class Spread:
    """A number of several repeats: its mean, its least and its most."""

    mean: float
    least: float
    most: float

    def exceeds(self, other: Spread) -> bool:
        """Tell whether it is greater beyond chance: the repeats do not overlap, and the means differ by 2 %."""
        return self.least > other.most and self.mean > other.mean * (1 + LEAST_DIFFERENCE)


@dataclass(frozen=True, slots=True)
class Summary:
    """All repeats of one arm."""

    arm: Arm
    readings: Sequence[Reading]

    def spread(self, of: Callable[[Reading], float]) -> Spread:
        """Return one number over the repeats."""
        values = [of(reading) for reading in self.readings]
        return Spread(sum(values) / len(values), min(values), max(values))

    @property
    def rate(self) -> Spread:
        """Tasks per hour."""
        return self.spread(lambda reading: reading.tasks_per_hour)

    @property
    def makespan(self) -> Spread:
        """From the first start to the last end."""
        return self.spread(lambda reading: reading.makespan)

    def waited(self, priority: int) -> Spread:
        """Return the mean wait of one priority."""
        return self.spread(lambda reading: reading.waited().get(priority, 0.0))


@dataclass(frozen=True, slots=True)
class ExperimentContext:
    """The circumstances of all numbers of an experiment."""

    simulated: bool = False
    mps_speed: float | None = None
    """Assumed speed-up under MPS of tasks that slow each other down; None: MPS is not tried."""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def words(self) -> str:
        """The circumstances in words, for each row of a table."""
        if not self.simulated:
            return "real"
        if self.mps_speed is None:
            return "simulated"
        if self.mps_speed == 1:
            return "simulated, MPS changes no time"
        return f"simulated, --mps-speed {self.mps_speed:g} assumed"

    def to_dict(self) -> dict[str, Any]:
        """Return the circumstances as JSON values."""
        return {"simulated": self.simulated, "mps_speed": self.mps_speed, "notes": list(self.notes)}


def mps_arms(percentages: Sequence[str], copies: Sequence[int]) -> list[Arm]:
    """Return the arms: one task per GPU, packed without and with MPS; or each number of copies, without and with it."""
    if not copies:
        shared = [Arm(f"packed, {_mps(one)}", mps=True, percentage=one) for one in percentages]
        return [Arm("one per GPU", per_device=1, base=True), Arm("packed"), *shared]
    arms = []
    for number in copies:
        said = f"{number} at a time"
        arms.append(Arm(said, per_device=number, base=number == min(copies)))
        if number > 1:
            arms += [Arm(f"{said}, {_mps(one)}", True, one, number) for one in percentages]
    return arms


def _mps(percentage: str) -> str:
    return f"MPS {percentage}%" if percentage.isdecimal() else f"MPS {percentage}"


def priority_arms(nums: Sequence[int], orders: Sequence[str]) -> list[Arm]:
    """Return the arms: each batch size ranked by batch, and one arm ranked by priority alone."""
    arms = [Arm(f"--num {num}", num=num, base=num == nums[0]) for num in nums] if "batch" in orders else []
    if "global" in orders:
        arms.append(Arm("--order global", num=nums[0], order="global", base=not arms))
    return arms


def copies_needed(copies: Sequence[int], gpus: int) -> int:
    """Return the number of tasks that every number of copies divides evenly on every GPU."""
    return lcm(*copies) * gpus


def turns(arms: Sequence[Arm], repeats: int) -> list[tuple[int, Arm]]:
    """Return the repeats and arms in turn; each repeat begins with another arm, so that drift favours none."""
    found = []
    for repeat in range(repeats):
        first = repeat % len(arms)
        found += [(repeat + 1, arm) for arm in [*arms[first:], *arms[:first]]]
    return found


def read(
    arm: Arm,
    repeat: int,
    run: int | None,
    history: RunHistory,
    states: Mapping[State, int],
    about: Mapping[int, TaskFacts],
    accepted: float,
) -> Reading:
    """Return the numbers of a run; `accepted` is the time at which its list was accepted."""
    attempts = [attempt for story in history.tasks.values() for attempt in story.attempts]
    good = {
        task: story.last
        for task, story in history.tasks.items()
        if story.last is not None and story.last.outcome is Outcome.SUCCEEDED
    }
    shared = [attempt for attempt in attempts if attempt.percentage]
    return Reading(
        arm.name,
        repeat,
        run,
        sum(states.values()),
        len(good),
        sum(about[task].epochs for task in good),
        (history.last or 0.0) - (history.first or 0.0),
        sum(attempt.seconds for attempt in good.values()) / len(good) if good else 0.0,
        sum(attempt.outcome is Outcome.OOM for attempt in attempts),
        max((attempt.neighbours + 1 for attempt in attempts), default=0),
        len(shared),
        sum(attempt.mps == CLIENT for attempt in shared),
        _waits({task: story.last for task, story in history.tasks.items() if story.last}, about, accepted),
    )


def _waits(
    last: Mapping[int, AttemptHistory], about: Mapping[int, TaskFacts], accepted: float
) -> tuple[BatchWait, ...]:
    found: dict[tuple[int, int], list[float]] = {}
    for task, attempt in last.items():
        waited = (attempt.started or attempt.placed) - accepted
        found.setdefault((about[task].batch, about[task].priority), []).append(waited)
    return tuple(
        BatchWait(batch, priority, len(waits), sum(waits) / len(waits), max(waits))
        for (batch, priority), waits in sorted(found.items())
    )


def summaries(arms: Sequence[Arm], readings: Sequence[Reading]) -> list[Summary]:
    """Return the summaries of the arms that were measured at least once."""
    mine = {arm.name: [reading for reading in readings if reading.arm == arm.name] for arm in arms}
    return [Summary(arm, mine[arm.name]) for arm in arms if mine[arm.name]]


def compare_mps(all_: Sequence[Summary], setting: ExperimentContext) -> str:
    """Return the gain of MPS and of packing in one sentence."""
    said = f"in simulation {_compare_mps(all_, setting)}" if setting.simulated else _compare_mps(all_, setting)
    return said[0].upper() + said[1:]


def _compare_mps(all_: Sequence[Summary], setting: ExperimentContext) -> str:
    base = next((one for one in all_ if one.arm.base), None)
    plain = _best([one for one in all_ if not one.arm.mps])
    shared = _best([one for one in all_ if one.arm.mps])
    if base is None or plain is None or not base.rate.mean:
        return "nothing can be compared yet"
    if plain is base or not plain.rate.exceeds(base.rate):
        plain, said = base, f"{base.arm.name} does {_rate(base)}, and more of them at a time no more than that"
    else:
        said = f"{plain.arm.name} does {_rate(plain)}, {plain.rate.mean / base.rate.mean:.2f} times {base.arm.name}"
    if shared is None:
        return said
    if setting.simulated and setting.mps_speed == 1:
        return f"{said}; what MPS brings only real GPUs can tell"
    return f"{said}; {_with_mps(plain, shared)}"


def _with_mps(plain: Summary, shared: Summary) -> str:
    gain = shared.rate.mean / plain.rate.mean - 1
    best = f"{shared.arm.name} does {_rate(shared)}"
    if min(len(plain.readings), len(shared.readings)) < FEWEST_REPEATS:
        return f"{best}, {gain:+.1%} by a single repeat, which tells no spread: repeat it"
    if shared.rate.exceeds(plain.rate):
        return f"{best}, {gain:.1%} more: use MPS"
    if plain.rate.exceeds(shared.rate):
        return f"{best}, {-gain:.1%} less: leave MPS off"
    return f"{best}, no difference that the repeats show: leave MPS off"


def _best(all_: Sequence[Summary]) -> Summary | None:
    return max(all_, key=lambda one: one.rate.mean, default=None)


def _rate(one: Summary) -> str:
    return f"{one.rate.mean:,.1f} tasks/h"


def compare_orders(all_: Sequence[Summary], setting: ExperimentContext) -> str:
    """Return the effect of batch sizes on the makespan and on the best priority in one sentence."""
    said = f"in simulation {_compare_orders(all_)}" if setting.simulated else _compare_orders(all_)
    return said[0].upper() + said[1:]


def _compare_orders(all_: Sequence[Summary]) -> str:
    if not all_:
        return "nothing can be compared yet"
    shortest = min(all_, key=lambda one: one.makespan.mean)
    longest = max(all_, key=lambda one: one.makespan.mean)
    best = min(priority for one in all_ for reading in one.readings for priority in reading.waited())
    quick = min(all_, key=lambda one: one.waited(best).mean)
    slow = max(all_, key=lambda one: one.waited(best).mean)
    waits = (
        f"priority {best} waits {duration(quick.waited(best).mean)} with {quick.arm.name} and "
        f"{duration(slow.waited(best).mean)} with {slow.arm.name}"
    )
    if not longest.makespan.exceeds(shortest.makespan):
        return f"the makespan is the same whatever the order, about {duration(shortest.makespan.mean)}; {waits}"
    return (
        f"the makespan is least with {shortest.arm.name} ({duration(shortest.makespan.mean)}) and most with "
        f"{longest.arm.name} ({duration(longest.makespan.mean)}); {waits}"
    )
