"""The arms of an experiment as simulated runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from scheduler.app.run.options import ranked, rules
from scheduler.app.simulate.scenario import USUAL_EPOCH, USUAL_PEAK, USUAL_TIME, ScenarioSource, rows
from scheduler.app.simulate.simulated_run import Scene, play
from scheduler.core.model import Device
from scheduler.experiment.arms import Arm, Experiment
from scheduler.experiment.measure import ArmRunner
from scheduler.experiment.readings import Reading, read
from scheduler.experiment.verdict import ExperimentContext
from scheduler.runtime.settings import Settings
from scheduler.simulation.interference import MODELS
from scheduler.simulation.workload import InitialKnowledge, MeasuredTask, workload
from scheduler.units import count, duration, size
from scheduler.values import dataclass, replace

MODEL = "fit"
"""The model of how much tasks that share a GPU slow each other down, fitted to measured pairs of training jobs."""


@dataclass(frozen=True, slots=True)
class SimulatedSetting:
    """The simulated machine, and the assumptions of the simulation."""

    devices: Sequence[Device]
    assumed: MeasuredTask
    mps_speed: float = 1.0
    seed: int = 1


class SimulatedRunner(ArmRunner):
    """Simulated runs of the list, with the decisions that a real run would make; each repeat draws new random
    deviations.
    """

    def __init__(self, experiment: Experiment, settings: Settings, setting: SimulatedSetting) -> None:
        self._experiment, self._settings, self._setting = experiment, settings, setting
        source = ScenarioSource(experiment.path, setting.assumed, all_at_once=True, guess=True)
        self._rows, self._columns = rows(source, setting.devices, settings)
        self.context = self._describe()

    def _describe(self) -> ExperimentContext:
        """Return the circumstances of the simulation, with its assumptions."""
        notes = self._assumptions()
        if self._experiment.of_priority:
            return ExperimentContext(True, None, notes)
        gain = "; no gain of MPS is assumed (--mps-speed FACTOR)" if self._setting.mps_speed == 1 else ""
        notes.append(f"thread percentages have no effect in a simulation{gain}")
        return ExperimentContext(True, self._setting.mps_speed, notes)

    def _assumptions(self) -> list[str]:
        """Return sentences about the assumptions for rows without a profile."""
        guessed, assumed = sum(row.guessed for row in self._rows), self._setting.assumed
        if not guessed:
            return ["rows without a profile have the time and peak of --assume"] if assumed != MeasuredTask() else []
        usual = f"{duration(USUAL_EPOCH)} per epoch, or {duration(USUAL_TIME)} without epochs"
        taken = duration(assumed.seconds) if assumed.seconds else usual
        rows_, peak = f"{guessed} of {count(len(self._rows), 'row')} have no profile", size(assumed.peak or USUAL_PEAK)
        return [f"{rows_}: {peak} and {taken} are assumed; --assume 10min,4GiB changes that"]

    def measure(self, arm: Arm, repeat: int, begun: Callable[[int], None]) -> Reading:
        """Simulate one run of an arm to its end."""
        run, history = play(self._scene(arm, repeat))
        return read(arm, repeat, None, run.brain, history, run.began)

    def _scene(self, arm: Arm, repeat: int) -> Scene:
        here = self._setting
        largest = max(device.total for device in here.devices)
        given = workload(self._rows, InitialKnowledge(peaks=True), seed=here.seed + repeat - 1, largest=largest)
        settings = ranked(arm.settings(self._settings), self._columns)
        model, speed = MODELS[MODEL], here.mps_speed if arm.mps else 1.0
        faster = replace(model, slowdown=lambda load: max(1.0, model.slowdown(load) / speed))
        return Scene(given, here.devices, faster, rules(self._experiment.options(arm), settings), settings.num)

    def machine(self) -> Mapping[str, Any]:
        """Return the description of the simulated machine."""
        return {
            "simulated": True,
            "mps_speed": self._setting.mps_speed,
            "interference": f"{MODEL}: {MODELS[MODEL].what}",
            "seed": self._setting.seed,
            "devices": [{"label": device.label, "total": device.total} for device in self._setting.devices],
        }
