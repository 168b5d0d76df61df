"""An experiment: one list run in several ways (arms), each an ordinary or a simulated run, and a folder of results."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from scheduler.app.run.options import RunOptions
from scheduler.core.reporting import experiment as core
from scheduler.core.reporting.experiment import Arm, ExperimentContext, Reading, Summary
from scheduler.errors import StateError, UsageError
from scheduler.runtime.paths import ExperimentPaths, tilde
from scheduler.runtime.settings import Settings
from scheduler.store.machine.locked_files import open_directory, take_lock
from scheduler.ui.terminal.sink import hint
from scheduler.ui.verbs import experiment as view
from scheduler.units import count
from scheduler.values import dataclass

NO_LOAD_LIMIT = 1000.0
"""The load limit of arms that try a number of tasks per device: no load keeps any of them out."""
VERSION = 2
"""Format of readings.json."""


@dataclass(frozen=True, slots=True)
class Experiment:
    """The definition of an experiment."""

    kind: str
    """`mps` or `priority`."""
    path: str
    arms: Sequence[Arm]
    repeats: int
    devices: str = "auto"
    append: str = "both"

    @property
    def of_priority(self) -> bool:
        """True if the experiment compares batch sizes and ranks."""
        return self.kind == "priority"

    @property
    def title(self) -> str:
        """The heading of the report."""
        return f"{'Batches and priorities' if self.of_priority else 'NVIDIA MPS'}: {Path(self.path).name}"

    def options_of(self, arm: Arm) -> RunOptions:
        """Return the options of an arm's run."""
        mps, name = "on" if arm.mps else "off", f"experiment {self.kind}: {arm.name}"
        return RunOptions(devices=self.devices, max_per_device=arm.per_device, name=name, mps=mps)


class ArmRunner(Protocol):
    """The place where arms run: this machine, or a simulated one."""

    @property
    def context(self) -> ExperimentContext:
        """The circumstances that must be known to judge the numbers."""

    def learn(self) -> None:
        """Measure what the tasks need, so that no measured arm has to; raises ExperimentInterrupted."""

    def measure(self, arm: Arm, repeat: int, begun: Callable[[int], None]) -> tuple[Reading, Mapping[str, Any]]:
        """Run one arm to its end, and return its numbers and the state of the machine meanwhile.

        `begun` is told the number of the run once it is accepted. Raises ExperimentInterrupted.
        """

    def remove(self, number: int) -> None:
        """Cancel what is left of an interrupted run."""

    def machine(self) -> Mapping[str, Any]:
        """Return what the machine is."""


class ExperimentInterrupted(Exception):
    """The user has interrupted the experiment with this signal."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


def settings_of(arm: Arm, settings: Settings) -> Settings:
    """Return the settings of an arm's run."""
    counted = arm.per_device is not None and arm.per_device > 1
    return replace(
        settings,
        num=arm.num or settings.num,
        order=arm.order or ("batch" if arm.num else settings.order),
        max_gpu_load=NO_LOAD_LIMIT if counted else settings.max_gpu_load,
    )


class ExperimentFolder:
    """The folder of one experiment; it is locked while it is open, so that one process at a time measures in it."""

    def __init__(self, places: ExperimentPaths, terms: Mapping[str, Any]) -> None:
        """Make or open the folder of an experiment with these terms.

        Raises UsageError for a folder that holds another experiment, StateError for one that is in use.
        """
        self.places = places
        self.terms = dict(terms)
        self.readings: list[Reading] = []
        self.machine_states: list[Mapping[str, Any]] = []
        """The state of the machine at each reading."""
        self.begun: dict[str, int] = {}
        """Runs that began and were not measured, by `arm, repeat N`."""
        self.learned = False
        self._is_new = not places.root.exists()
        where = tilde(places.root)
        try:
            places.root.mkdir(parents=True, exist_ok=True)
            self._fd = open_directory(places.root)
        except OSError as exc:
            why = (exc.strerror or str(exc)).lower()
            raise UsageError(f"-o {where}: no folder can be made there: {why}") from exc
        try:
            take_lock(self._fd)
            if places.kept.exists():
                self._read(where)
        except BlockingIOError as exc:
            os.close(self._fd)
            raise StateError(f"an experiment is being measured in {where} now: name another folder with -o") from exc
        except BaseException:
            os.close(self._fd)
            raise

    def _read(self, where: str) -> None:
        try:
            data = json.loads(self.places.kept.read_text(encoding="utf-8"))
            known = data["terms"] if data["format"] == VERSION else {}
        except (ValueError, KeyError, TypeError) as exc:
            path = tilde(self.places.kept)
            raise StateError(f"{path} is not a list of readings: name another folder with -o") from exc
        for name, value in self.terms.items():
            if known.get(name) != value:
                raise UsageError(
                    f"{where} holds an experiment with other terms ({name} was {known.get(name)}, is {value} now): "
                    "name another folder with -o, or remove that one"
                )
        self.learned, self.begun = data["learned"], data["begun"]
        self.readings = [Reading.from_dict(reading) for reading in data["readings"]]
        self.machine_states = data["machine_states"]

    def has(self, arm: Arm, repeat: int) -> bool:
        """Tell whether a repeat of an arm is measured."""
        return any((reading.arm, reading.repeat) == (arm.name, repeat) for reading in self.readings)

    def save(self) -> None:
        """Replace the file of readings; it is on the disk when this returns."""
        data = {
            "format": VERSION,
            "terms": self.terms,
            "learned": self.learned,
            "begun": self.begun,
            "readings": [reading.to_dict() for reading in self.readings],
            "machine_states": self.machine_states,
        }
        self.write(self.places.kept, json.dumps(data, indent=1))

    def write(self, path: Path, text: str) -> None:
        """Replace a file of the folder as a whole."""
        part = path.with_name(f"{path.name}.part")
        try:
            with open(part, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as exc:
            why = (exc.strerror or str(exc)).lower()
            raise StateError(f"{tilde(path)} cannot be written: {why}") from exc

    def close(self) -> None:
        """Unlock the folder; remove one that was made in vain."""
        if self._is_new and not (self.readings or self.begun or self.learned):
            self.places.copies.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                self.places.root.rmdir()
        os.close(self._fd)


def conduct(experiment: Experiment, runner: ArmRunner, folder: ExperimentFolder) -> int:
    """Measure what is not measured yet, write the report, and return the signal that interrupted it, or 0."""
    turns = core.turns(experiment.arms, experiment.repeats)
    signal = 0
    try:
        if not folder.learned:
            runner.learn()
            folder.learned = True
            folder.save()
        _measure(experiment, runner, folder, turns)
    except (ExperimentInterrupted, KeyboardInterrupt) as exc:
        signal = exc.signal if isinstance(exc, ExperimentInterrupted) else 2
        done = f"{len(folder.readings)} of {count(len(turns), 'arm')} measured"
        hint(f"interrupted: {done}; the same command continues with the others")
    write_report(experiment, runner, folder)
    return signal


def _measure(
    experiment: Experiment, runner: ArmRunner, folder: ExperimentFolder, turns: Sequence[tuple[int, Arm]]
) -> None:
    left = [(repeat, arm) for repeat, arm in turns if not folder.has(arm, repeat)]
    if len(left) < len(turns):
        hint(f"{len(turns) - len(left)} of {count(len(turns), 'arm')} were measured before: they are kept")
    began = time.monotonic()
    for number, (repeat, arm) in enumerate(left, 1):
        reading = _measure_one(arm, repeat, runner, folder)
        each = (time.monotonic() - began) / number
        done = len(turns) - len(left) + number
        _print_progress(view.progress(done, len(turns), arm, reading, each * (len(left) - number)))
        if reading.run:
            write_report(experiment, runner, folder)


def _measure_one(arm: Arm, repeat: int, runner: ArmRunner, folder: ExperimentFolder) -> Reading:
    name = f"{arm.name}, repeat {repeat}"

    def begun(number: int) -> None:
        folder.begun[name] = number
        folder.save()
        _print_progress(f"{name}: run {number} has started (scheduler top {number})")

    if name in folder.begun:
        runner.remove(folder.begun[name])
    reading, machine_state = runner.measure(arm, repeat, begun)
    if not reading.succeeded:
        where = f"scheduler results {reading.run} says why" if reading.run else "give it other devices"
        raise StateError(
            f"none of the {count(reading.tasks, 'task')} of {arm.name} succeeded: {where}; then start it again"
        )
    folder.begun.pop(name, None)
    folder.readings.append(reading)
    folder.machine_states.append(machine_state)
    folder.save()
    return reading


def _print_progress(line: str) -> None:
    """Write a line to standard error, where no data go; the experiment goes on if nothing reads it."""
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def summed_up(
    experiment: Experiment, folder: ExperimentFolder, context: ExperimentContext
) -> tuple[list[Summary], str]:
    """Return the summaries of all arms, and the result in one sentence."""
    found = core.summaries(experiment.arms, folder.readings)
    if not found:
        return [], "nothing is measured yet"
    return found, (core.compare_orders if experiment.of_priority else core.compare_mps)(found, context)


def write_report(experiment: Experiment, runner: ArmRunner, folder: ExperimentFolder) -> None:
    """Write table, page, picture and machine again from the readings."""
    found, sentence = summed_up(experiment, folder, runner.context)
    if not found:
        return
    places, machine = folder.places, {**runner.machine(), "arms": folder.machine_states}
    report = view.Report(experiment.title, sentence, found, runner.context, of_priority=experiment.of_priority)
    folder.write(places.table, view.csv_text(view.rows(found, runner.context)))
    if experiment.of_priority:
        folder.write(places.batches, view.csv_text(view.batch_rows(found)))
    folder.write(places.machine, json.dumps(machine, indent=1) + "\n")
    folder.write(places.page, report.page(machine))
    folder.write(places.picture, report.picture())
