"""The definition of an experiment: its list, its arms, and the order in which they are measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import lcm
from pathlib import Path
from typing import Any

from scheduler.app.run.options import RunOptions
from scheduler.runtime.settings import Settings
from scheduler.values import dataclass, replace

NO_LOAD_LIMIT = 1000.0
"""The load limit for arms that set the number of tasks per device; it is so high that it has no effect."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of running the list."""

    name: str
    mps: bool = False
    percentage: str = ""
    """The percentage of a GPU's threads that each task gets under MPS, or `auto`."""
    per_device: int | None = None
    """The most tasks on one device at a time; None: as many as fit."""
    num: int | None = None
    """The number of rows in a batch; None: the setting of the user."""
    order: str = ""
    base: bool = False
    """True for the baseline, the arm with which the other arms are compared."""

    def settings(self, settings: Settings) -> Settings:
        """Return the settings with which the arm's runs start."""
        counted = self.per_device is not None and self.per_device > 1
        chosen = {"order": "flag"} if self.num or self.order else {}
        return replace(
            settings,
            source={**settings.source, **chosen},
            num=self.num or settings.num,
            order=self.order or ("batch" if self.num else settings.order),
            max_gpu_load=NO_LOAD_LIMIT if counted else settings.max_gpu_load,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the properties in which arms differ, as columns of tables."""
        return {
            "arm": self.name,
            "mps": "yes" if self.mps else "no",
            "thread_percentage": self.percentage or None,
            "per_device": self.per_device,
            "num": self.num,
            "order": self.order or None,
        }


@dataclass(frozen=True, slots=True)
class Experiment:
    """The definition of an experiment: the list, the arms and the number of repeats."""

    kind: str
    """The kind of the experiment: `mps` or `priority`."""
    path: str
    arms: Sequence[Arm]
    repeats: int
    devices: str = "auto"
    append: str = "both"

    @property
    def of_priority(self) -> bool:
        """True if the experiment compares batch sizes and orders of tasks."""
        return self.kind == "priority"

    @property
    def title(self) -> str:
        """The heading of the report."""
        return f"{'Batches and priorities' if self.of_priority else 'NVIDIA MPS'}: {Path(self.path).name}"

    def options(self, arm: Arm) -> RunOptions:
        """Return the options with which an arm's run is started."""
        name = f"experiment {self.kind}: {arm.name}"
        mps = "on" if arm.mps else "off"
        return RunOptions(devices=self.devices, max_per_device=arm.per_device, name=name, mps=mps)

    def defaults(self, arm: Arm) -> Mapping[str, str]:
        """Return the task fields that an arm sets for rows without a value of their own."""
        return {"ThreadPercentage": arm.percentage} if arm.mps else {}

    def in_turn(self) -> list[tuple[int, Arm]]:
        """Return (repeat, arm) pairs in the order in which they are measured; each repeat begins with another arm, to
        average out drift.
        """
        found = []
        for repeat in range(self.repeats):
            first = repeat % len(self.arms)
            found += [(repeat + 1, arm) for arm in [*self.arms[first:], *self.arms[:first]]]
        return found


def mps_arms(percentages: Sequence[str], copies: Sequence[int]) -> list[Arm]:
    """Return the arms: one task per GPU, packed without MPS, and packed with MPS at each percentage. With `copies`,
    return instead, for each number of tasks on a GPU, an arm without MPS and, from two tasks on, an arm with MPS at
    each percentage.
    """
    if not copies:
        shared = [Arm(f"packed, {_mps(one)}", mps=True, percentage=one) for one in percentages]
        return [Arm("one per GPU", per_device=1, base=True), Arm("packed"), *shared]
    arms = []
    for number in copies:
        name = f"{number} at a time"
        arms.append(Arm(name, per_device=number, base=number == min(copies)))
        if number > 1:
            arms += [Arm(f"{name}, {_mps(one)}", True, one, number) for one in percentages]
    return arms


def _mps(percentage: str) -> str:
    return f"MPS {percentage}%" if percentage.isdecimal() else f"MPS {percentage}"


def priority_arms(nums: Sequence[int], orders: Sequence[str]) -> list[Arm]:
    """Return the arms: one for each batch size, in which tasks are ranked by batch first, and one in which they are
    ranked by priority regardless of batches.
    """
    arms = [Arm(f"--num {num}", num=num, base=num == nums[0]) for num in nums] if "batch" in orders else []
    if "global" in orders:
        arms.append(Arm("--order global", num=nums[0], order="global", base=not arms))
    return arms


def copies_needed(copies: Sequence[int], gpus: int) -> int:
    """Return a number of tasks that fills all GPUs evenly, whichever of these numbers of copies runs on each GPU."""
    return lcm(*copies) * gpus
