"""Joins what runs an experiment's arms on a machine that is not there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler.core.experiments import About, Arm, Reading, Setting, read
from scheduler.core.interference import MODELS
from scheduler.core.model import Device
from scheduler.core.workload import Known, Measured, TraceRow, workload
from scheduler.settings import Settings
from scheduler.store.experiments import Readings
from scheduler.units import count, duration, size
from scheduler.values import dataclass
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
        if self._bench.of_priority:
            return Setting(True, None, self._guesses())
        made_up = ", and no gain of MPS is made up (--mps-speed FACTOR)" if self._what.mps_speed == 1 else ""
        notes = (f"thread percentages change nothing in a simulation{made_up}",)
        return Setting(True, self._what.mps_speed, self._guesses() + notes)

    def _guesses(self) -> tuple[str, ...]:
        """What is taken for known."""
        guessed, assumed = sum(row.guessed for row in self._rows), self._what.assumed
        if not guessed:
            return ("what is not known of a row was said with --assume",) if assumed != Measured() else ()
        usual = f"{duration(USUAL_EPOCH)} an epoch, or {duration(USUAL_TIME)} without epochs"
        taken = duration(assumed.seconds) if assumed.seconds else usual
        said = (
            f"too little is known of {guessed} of {count(len(self._rows), 'row')}: each is taken to need "
            f"{size(assumed.peak or USUAL_PEAK)} and {taken}; --assume 10min,4GiB says otherwise"
        )
        return (said,)

    def learn(self) -> None:
        """Nothing: what every kind needs is known, as after earlier runs."""

    def measure(self, arm: Arm, repeat: int, kept: Readings) -> tuple[Reading, Mapping[str, Any]]:
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
            "devices": [{"label": device.label, "total": device.total} for device in self._what.devices],
        }
