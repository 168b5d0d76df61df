"""Joins what runs an experiment's arms on a machine that is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scheduler.core.experiments import About, Arm, Reading, Setting, read
from scheduler.core.interference import MODELS
from scheduler.core.model import Device
from scheduler.core.workload import Known, Measured, TraceRow, workload
from scheduler.settings import Settings
from scheduler.units import count, duration, size
from scheduler.wiring.choices import rules
from scheduler.wiring.experiments import Bench, choices_of, settings_of
from scheduler.wiring.scenes import USUAL_EPOCH, USUAL_PEAK, USUAL_TIME, Source, rows
from scheduler.wiring.simulating import Scene, play

MODEL = "fit"
"""How tasks that share a GPU slow each other down: as pairs of training jobs were measured."""


@dataclass(frozen=True, slots=True)
class Imagined:
    """What is to be simulated."""

    path: str
    devices: Sequence[Device]
    assumed: Measured
    mps_speed: float = 1.0
    seed: int = 1


class SimulatedBench:
    """The same list again and again, by the decisions of a real run; each repeat draws its own deviations."""

    def __init__(self, what: Imagined, settings: Settings, bench: Bench) -> None:
        self._what = what
        self._settings = settings
        self._bench = bench
        source = Source(what.path, what.assumed, all_at_once=True, guess=True)
        self._rows: list[TraceRow] = rows(source, what.devices, settings)

    @property
    def setting(self) -> Setting:
        """That nothing of it is real, and what was guessed."""
        guessed = sum(row.guessed for row in self._rows)
        notes = []
        if guessed:
            notes.append(
                f"of {guessed} of {count(len(self._rows), 'row')} too little is known: each is taken to need "
                f"{size(self._what.assumed.peak or USUAL_PEAK)} and "
                + (
                    duration(self._what.assumed.seconds)
                    if self._what.assumed.seconds
                    else f"{duration(USUAL_EPOCH)} an epoch ({duration(USUAL_TIME)} without epochs)"
                )
                + "; --assume 10min,4GiB says otherwise"
            )
        if any(arm.mps for arm in self._bench.arms):
            notes.append(
                "thread percentages change nothing in a simulation"
                + (", and no gain of MPS is made up (--mps-speed)" if self._what.mps_speed == 1 else "")
            )
        return Setting(True, self._what.mps_speed, tuple(notes))

    def learn(self) -> None:
        """Nothing: what every kind needs is known, as after earlier runs."""

    def measure(self, arm: Arm, repeat: int) -> tuple[Reading, Mapping[str, Any]]:
        """One arm to its end."""
        run, fold = play(self._scene(arm, repeat))
        brain = run.brain
        about = {
            task: About(
                brain.terms[brain.roll.terms(task)].priority,
                brain.roll.batch(task),
                brain.terms[brain.roll.terms(task)].epochs or 0,
            )
            for task in brain.roll
        }
        return read(arm, repeat, None, fold, dict(brain.roll.counts), about, run.began), {}

    def _scene(self, arm: Arm, repeat: int) -> Scene:
        largest = max(device.total for device in self._what.devices)
        given = workload(self._rows, Known(peaks=True), seed=self._what.seed + repeat - 1, largest=largest)
        settings = settings_of(arm, self._settings)
        model, speed = MODELS[MODEL], self._what.mps_speed if arm.mps else 1.0
        faster = replace(model, slowdown=lambda load: max(1.0, model.slowdown(load) / speed))
        return Scene(given, self._what.devices, faster, rules(choices_of(arm, self._bench), settings), settings.num)

    def machine(self) -> Mapping[str, Any]:
        """What was imagined."""
        return {
            "simulated": True,
            "mps_speed": self._what.mps_speed,
            "interference": f"{MODEL}: {MODELS[MODEL].what}",
            "seed": self._what.seed,
            "devices": [
                {"label": d.label, "total": d.total, "load_capacity": d.load_capacity} for d in self._what.devices
            ],
        }

    def gpus(self) -> int:
        """How many there are."""
        return sum(device.is_gpu for device in self._what.devices)
