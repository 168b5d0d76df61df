"""Joins what an experiment is made of: its arms one after another, what they came to, its folder."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from scheduler.core import experiments as core
from scheduler.core.experiments import Arm, Reading, Setting, Summary
from scheduler.errors import StateError
from scheduler.paths import ExperimentPlaces, tilde
from scheduler.settings import Settings
from scheduler.store.experiments import Readings, write_bytes, write_whole
from scheduler.units import count
from scheduler.values import dataclass
from scheduler.view import experiments as view
from scheduler.view.sink import hint
from scheduler.wiring.choices import Choices

SHARED_LOAD = 1000.0
"""Where the number of residents is what is tried, no load keeps any of them out."""


@dataclass(frozen=True, slots=True)
class Bench:
    """What is measured, wherever that is."""

    kind: str
    """`mps` or `priority`."""
    path: str
    arms: Sequence[Arm]
    repeats: int
    devices: str = "auto"
    append: str = "both"

    @property
    def of_priority(self) -> bool:
        """Whether it is about who waits."""
        return self.kind == "priority"

    @property
    def title(self) -> str:
        """What stands above everything."""
        return f"{'Batches and priorities' if self.of_priority else 'NVIDIA MPS'}: {Path(self.path).name}"


class Rig(Protocol):
    """Where arms are run: on this machine, or on one that is not there."""

    @property
    def setting(self) -> Setting:
        """What stands beside every number."""

    def learn(self) -> None:
        """Find out what the tasks need, so that no measured arm has to; raises Interrupted."""

    def measure(self, arm: Arm, repeat: int, kept: Readings) -> tuple[Reading, Mapping[str, Any]]:
        """One arm to its end, and what the machine was like meanwhile; raises Interrupted."""

    def machine(self) -> Mapping[str, Any]:
        """What the machine is."""


class Interrupted(Exception):
    """Somebody wants no more of it, by this signal."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


def choices_of(arm: Arm, bench: Bench) -> Choices:
    """An arm as a run is asked for."""
    return Choices(
        devices=bench.devices,
        max_per_device=arm.per_device,
        name=f"experiment {bench.kind}: {arm.name}",
        mps="on" if arm.mps else "off",
    )


def settings_of(arm: Arm, settings: Settings) -> Settings:
    """The settings of an arm's run."""
    counted = arm.per_device is not None and arm.per_device > 1
    return replace(
        settings,
        num=arm.num or settings.num,
        order=arm.order or ("batch" if arm.num else settings.order),
        max_gpu_load=SHARED_LOAD if counted else settings.max_gpu_load,
    )


def conduct(bench: Bench, rig: Rig, kept: Readings) -> int:
    """Measure what is not measured yet, and write down what that says; the signal that ended it early, or 0."""
    try:
        if not kept.learned:
            rig.learn()
            kept.note_learned()
        _measure(bench, rig, kept)
    except (Interrupted, KeyboardInterrupt) as exc:
        signal = exc.signal if isinstance(exc, Interrupted) else 2
        write_down(bench, rig, kept)
        done, all_ = len(kept.readings), len(core.turns(bench.arms, bench.repeats))
        hint(f"interrupted: {done} of {count(all_, 'arm')} measured, the same command goes on with the others")
        return signal
    write_down(bench, rig, kept)
    return 0


def _measure(bench: Bench, rig: Rig, kept: Readings) -> None:
    turns = core.turns(bench.arms, bench.repeats)
    left = [(repeat, arm) for repeat, arm in turns if not kept.has(arm, repeat)]
    if len(left) < len(turns):
        hint(f"{len(turns) - len(left)} of {count(len(turns), 'arm')} were measured before: they are kept")
    began = time.monotonic()
    for number, (repeat, arm) in enumerate(left, 1):
        reading, around = rig.measure(arm, repeat, kept)
        if not reading.succeeded:
            raise StateError(_none_succeeded(arm, reading))
        kept.keep(reading, around)
        each = (time.monotonic() - began) / number
        done = len(turns) - len(left) + number
        _tell(view.progress(done, len(turns), arm, reading, each * (len(left) - number)))
        if reading.run:
            write_down(bench, rig, kept)


def _none_succeeded(arm: Arm, reading: Reading) -> str:
    where = f"scheduler results {reading.run} says why; cure that" if reading.run else "give it other devices"
    return f"none of the {count(reading.tasks, 'task')} of {arm.name} succeeded: {where}, and start it again"


def _tell(line: str) -> None:
    """Progress goes where no data go."""
    try:
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except OSError:  # nobody reads it any more; the experiment goes on
        return


def summed_up(bench: Bench, kept: Readings, setting: Setting) -> tuple[list[Summary], str]:
    """All that was measured, and what it says in a sentence."""
    all_ = core.summaries(bench.arms, kept.readings)
    if not all_:
        return [], "nothing is measured yet"
    return all_, (core.what_orders if bench.of_priority else core.what_pays)(all_, setting)


def write_down(bench: Bench, rig: Rig, kept: Readings) -> None:
    """Everything that people look at, made anew from the readings."""
    from scheduler.view.experiment_charts import mps_chart, priority_chart
    from scheduler.view.raster import png

    setting = rig.setting
    all_, sentence = summed_up(bench, kept, setting)
    if not all_:
        return
    places, machine = kept.places, {**rig.machine(), "arms": list(kept.around)}
    chart = (priority_chart if bench.of_priority else mps_chart)(all_, setting, bench.title)
    try:
        write_whole(places.table, lambda file: view.write_csv(view.rows(all_, setting), file))
        if bench.of_priority:
            write_whole(places.batches, lambda file: view.write_batches(all_, file))
        write_whole(places.machine, lambda file: view.write_object(machine, file))
        page = view.page(bench.title, sentence, all_, setting, chart, machine, of_priority=bench.of_priority)
        write_whole(places.page, lambda file: view.write_text(page, file))
        write_bytes(places.picture, png(chart))
    except OSError as exc:
        raise StateError(f"{tilde(places.root)} cannot be written: {(exc.strerror or str(exc)).lower()}") from exc


def usual_folder(bench_kind: str, path: str) -> ExperimentPlaces:
    """Where it is kept unless another place is named."""
    return ExperimentPlaces(Path(f"experiment-{bench_kind}-{Path(path).stem}"))
