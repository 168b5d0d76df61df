"""Experiments on one list: their arms, what is read off each of them, and what that says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from math import gcd

from scheduler.core.model import Outcome, State
from scheduler.core.mps import CLIENT
from scheduler.core.results import Attempt, Fold
from scheduler.units import duration
from scheduler.values import dataclass

FEWEST = 2
"""Repeats that say how far they spread."""
APART = 0.02
"""What differs by less is taken for the same, however little the repeats spread."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of running the list."""

    name: str
    mps: bool = False
    percentage: str = ""
    """Of a GPU's threads for each task under MPS, or `auto`."""
    per_device: int | None = None
    """At most so many tasks on one device."""
    num: int | None = None
    """Rows in a batch."""
    order: str = ""
    base: bool = False
    """What the others are compared with."""


@dataclass(frozen=True, slots=True)
class About:
    """What has to be known of a task beside its events."""

    priority: int
    batch: int
    epochs: int


@dataclass(frozen=True, slots=True)
class Wait:
    """How long the tasks of one priority in one batch waited for their start."""

    batch: int
    priority: int
    tasks: int
    mean: float
    most: float


@dataclass(frozen=True, slots=True)
class Reading:
    """One run of one arm in numbers; times are seconds."""

    arm: str
    repeat: int
    run: int | None
    """Its number, where it was a real one."""
    tasks: int
    succeeded: int
    epochs: int
    """Those of the tasks that succeeded."""
    makespan: float
    task_mean: float
    ooms: int
    residents: int
    """Most tasks that were on one device at one moment."""
    shared: int
    """Attempts under MPS."""
    clients: int
    """Those of them that were seen to be clients of its daemon."""
    waits: Sequence[Wait] = ()
    energy: float | None = None
    """Joules of all its GPUs, where they tell."""

    @property
    def tasks_per_hour(self) -> float:
        """Tasks that succeeded, over the makespan."""
        return self.succeeded * 3600 / self.makespan if self.makespan else 0.0

    @property
    def epochs_per_hour(self) -> float:
        """Their epochs over the makespan."""
        return self.epochs * 3600 / self.makespan if self.makespan else 0.0

    def waited(self) -> dict[int, float]:
        """What the tasks of each priority waited for their start on average, over all batches."""
        sums: dict[int, tuple[float, int]] = {}
        for one in self.waits:
            seconds, tasks = sums.get(one.priority, (0.0, 0))
            sums[one.priority] = seconds + one.mean * one.tasks, tasks + one.tasks
        return {priority: seconds / tasks for priority, (seconds, tasks) in sorted(sums.items())}


@dataclass(frozen=True, slots=True)
class Spread:
    """The same number of several repeats."""

    mean: float
    least: float
    most: float

    def exceeds(self, other: Spread) -> bool:
        """Whether it is more than chance makes: the repeats do not overlap, and 2 % lie between."""
        return self.least > other.most and self.mean > other.mean * (1 + APART)


@dataclass(frozen=True, slots=True)
class Summary:
    """All repeats of one arm."""

    arm: Arm
    readings: Sequence[Reading]

    def spread(self, of: Callable[[Reading], float]) -> Spread:
        """One number over the repeats."""
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
        """What one priority waited on average."""
        return self.spread(lambda reading: reading.waited().get(priority, 0.0))


@dataclass(frozen=True, slots=True)
class Setting:
    """What stands beside every number: where it was measured."""

    simulated: bool = False
    mps_speed: float | None = None
    """How many times faster tasks that slow each other down are taken to get on under MPS; None: MPS is not tried."""
    notes: Sequence[str] = field(default_factory=tuple)

    @property
    def words(self) -> str:
        """In which world, for every row of a table."""
        if not self.simulated:
            return "real"
        if self.mps_speed is None:
            return "simulated"
        if self.mps_speed == 1:
            return "simulated, MPS changes no time"
        return f"simulated, --mps-speed {self.mps_speed:g} taken for granted"


def mps_arms(percentages: Sequence[str], copies: Sequence[int]) -> list[Arm]:
    """One task per GPU, packed without MPS, packed with it; or so many copies at a time, without and with it."""
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
    """Each size of batches in rank by batch, and in rank by priority alone, where sizes mean next to nothing."""
    arms = [Arm(f"--num {num}", num=num, base=num == nums[0]) for num in nums] if "batch" in orders else []
    if "global" in orders:
        arms.append(Arm("--order global", num=nums[0], order="global", base=not arms))
    return arms


def copies_needed(copies: Sequence[int], gpus: int) -> int:
    """So many tasks that each number of them at a time comes out even on every GPU, and all arms do the same."""
    whole = 1
    for number in copies:
        whole = whole * number // gcd(whole, number)
    return whole * gpus


def turns(arms: Sequence[Arm], repeats: int) -> list[tuple[int, Arm]]:
    """Who is measured when: every repeat begins with another arm, so that what drifts does not favour one of them."""
    found = []
    for repeat in range(repeats):
        first = repeat % len(arms)
        found += [(repeat + 1, arm) for arm in [*arms[first:], *arms[:first]]]
    return found


def read(
    arm: Arm,
    repeat: int,
    run: int | None,
    fold: Fold,
    states: Mapping[State, int],
    about: Mapping[int, About],
    accepted: float,
) -> Reading:
    """What a run came to; `accepted` is when its list was."""
    attempts = [attempt for story in fold.stories.values() for attempt in story.attempts]
    good = {
        task: story.last
        for task, story in fold.stories.items()
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
        (fold.last or 0.0) - (fold.first or 0.0),
        sum(attempt.seconds for attempt in good.values()) / len(good) if good else 0.0,
        sum(attempt.outcome is Outcome.OOM for attempt in attempts),
        max((attempt.neighbours + 1 for attempt in attempts), default=0),
        len(shared),
        sum(attempt.mps == CLIENT for attempt in shared),
        _waits({task: story.last for task, story in fold.stories.items() if story.last}, about, accepted),
    )


def _waits(last: Mapping[int, Attempt], about: Mapping[int, About], accepted: float) -> tuple[Wait, ...]:
    found: dict[tuple[int, int], list[float]] = {}
    for task, attempt in last.items():
        waited = (attempt.started or attempt.placed) - accepted
        found.setdefault((about[task].batch, about[task].priority), []).append(waited)
    return tuple(
        Wait(batch, priority, len(waits), sum(waits) / len(waits), max(waits))
        for (batch, priority), waits in sorted(found.items())
    )


def summaries(arms: Sequence[Arm], readings: Sequence[Reading]) -> list[Summary]:
    """Every arm that was measured at least once."""
    mine = {arm.name: [reading for reading in readings if reading.arm == arm.name] for arm in arms}
    return [Summary(arm, mine[arm.name]) for arm in arms if mine[arm.name]]


def what_pays(all_: Sequence[Summary], setting: Setting) -> str:
    """One sentence on what MPS and packing bring here."""
    said = f"in simulation {_what_pays(all_, setting)}" if setting.simulated else _what_pays(all_, setting)
    return said[0].upper() + said[1:]


def _what_pays(all_: Sequence[Summary], setting: Setting) -> str:
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
    if min(len(plain.readings), len(shared.readings)) < FEWEST:
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


def what_orders(all_: Sequence[Summary], setting: Setting) -> str:
    """One sentence on what sizes of batches do to the makespan and to those with the best priority."""
    said = f"in simulation {_what_orders(all_)}" if setting.simulated else _what_orders(all_)
    return said[0].upper() + said[1:]


def _what_orders(all_: Sequence[Summary]) -> str:
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
