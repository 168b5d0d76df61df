"""The arms of an experiment on a simulated machine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from scheduler.app.run.options import rules
from scheduler.app.simulate.experiment import Experiment, settings_of
from scheduler.app.simulate.scenario import USUAL_EPOCH, USUAL_PEAK, USUAL_TIME, ScenarioSource, rows
from scheduler.app.simulate.simulated_run import Scene, play
from scheduler.core.model import Device
from scheduler.core.reporting.experiment import Arm, ExperimentContext, Reading, TaskFacts, read
from scheduler.runtime.settings import Settings
from scheduler.simulation.interference import MODELS
from scheduler.simulation.workload import InitialKnowledge, MeasuredTask, TraceRow, workload
from scheduler.units import count, duration, size
from scheduler.values import dataclass

MODEL = "fit"
"""How tasks that share a GPU slow each other down: as pairs of training jobs were measured."""


@dataclass(frozen=True, slots=True)
class SimulatedScene:
    """The list, the simulated machine, and what is assumed."""

    path: str
    devices: Sequence[Device]
    assumed: MeasuredTask
    mps_speed: float = 1.0
    seed: int = 1


class SimulatedRunner:
    """Simulated runs of the same list by the decisions of a real run; each repeat draws its own deviations."""

    def __init__(self, what: SimulatedScene, settings: Settings, experiment: Experiment) -> None:
        self._what = what
        self._settings = settings
        self._experiment = experiment
        source = ScenarioSource(what.path, what.assumed, all_at_once=True, guess=True)
        self._rows: list[TraceRow] = rows(source, what.devices, settings)

    @property
    def context(self) -> ExperimentContext:
        """The simulated machine and the assumptions, which must be known to judge the numbers."""
        if self._experiment.of_priority:
            return ExperimentContext(True, None, self._guesses())
        made_up = ", and no gain of MPS is made up (--mps-speed FACTOR)" if self._what.mps_speed == 1 else ""
        notes = (f"thread percentages change nothing in a simulation{made_up}",)
        return ExperimentContext(True, self._what.mps_speed, self._guesses() + notes)

    def _guesses(self) -> tuple[str, ...]:
        """Return what was assumed of the rows."""
        guessed, assumed = sum(row.guessed for row in self._rows), self._what.assumed
        if not guessed:
            return ("what is not known of a row was said with --assume",) if assumed != MeasuredTask() else ()
        usual = f"{duration(USUAL_EPOCH)} an epoch, or {duration(USUAL_TIME)} without epochs"
        taken = duration(assumed.seconds) if assumed.seconds else usual
        said = (
            f"too little is known of {guessed} of {count(len(self._rows), 'row')}: each is taken to need "
            f"{size(assumed.peak or USUAL_PEAK)} and {taken}; --assume 10min,4GiB says otherwise"
        )
        return (said,)

    def learn(self) -> None:
        """Do nothing: the needs of all task classes are known, as after earlier runs."""

    def measure(self, arm: Arm, repeat: int, begun: Callable[[int], None]) -> tuple[Reading, Mapping[str, Any]]:
        """Simulate one arm to its end."""
        run, fold = play(self._scene(arm, repeat))
        brain = run.brain
        about = {
            task: TaskFacts(
                brain.terms_of(task).priority,
                brain.batch_of(task),
                brain.terms_of(task).epochs or 0,
            )
            for task in brain.task_table
        }
        return read(arm, repeat, None, fold, dict(brain.state_counts), about, run.began), {}

    def _scene(self, arm: Arm, repeat: int) -> Scene:
        largest = max(device.total for device in self._what.devices)
        given = workload(self._rows, InitialKnowledge(peaks=True), seed=self._what.seed + repeat - 1, largest=largest)
        settings = settings_of(arm, self._settings)
        model, speed = MODELS[MODEL], self._what.mps_speed if arm.mps else 1.0
        faster = replace(model, slowdown=lambda load: max(1.0, model.slowdown(load) / speed))
        return Scene(given, self._what.devices, faster, rules(self._experiment.options_of(arm), settings), settings.num)

    def remove(self, number: int) -> None:
        """Do nothing: a simulated run leaves nothing behind."""

    def machine(self) -> Mapping[str, Any]:
        """Return what was simulated."""
        return {
            "simulated": True,
            "mps_speed": self._what.mps_speed,
            "interference": f"{MODEL}: {MODELS[MODEL].what}",
            "seed": self._what.seed,
            "devices": [{"label": device.label, "total": device.total} for device in self._what.devices],
        }
