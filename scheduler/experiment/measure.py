"""The measurement of an experiment: every arm runs as often as requested, and its numbers are saved after each run."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from scheduler.errors import StateError
from scheduler.experiment.arms import Arm, Experiment
from scheduler.experiment.folder import ExperimentFolder
from scheduler.experiment.readings import Reading, summaries
from scheduler.experiment.report import Report, progress
from scheduler.experiment.verdict import ExperimentContext
from scheduler.ui.terminal.sink import hint
from scheduler.units import count


class ExperimentInterrupted(Exception):
    """The error that the user has interrupted the experiment with the given signal."""

    def __init__(self, signal: int) -> None:
        super().__init__(signal)
        self.signal = signal


class ArmRunner:
    """The place where arms run: this machine, or a simulated one. In a simulation there is nothing to learn or to
    remove.
    """

    context = ExperimentContext()
    """The circumstances that apply to all numbers of the experiment."""

    def learn(self) -> None:
        """Measure the memory that the tasks need before any arm runs; raise ExperimentInterrupted if the user
        interrupts.
        """

    def measure(self, arm: Arm, repeat: int, begun: Callable[[int], None]) -> Reading:
        """Run one arm to its end, and return its numbers; raise ExperimentInterrupted if the user interrupts it.

        `begun` is called with the number of the run once it is accepted.
        """
        raise NotImplementedError

    def remove(self, number: int) -> None:
        """Cancel the remaining tasks of an interrupted run."""

    def machine(self) -> Mapping[str, Any]:
        """Return a description of the machine."""
        raise NotImplementedError


class Measurement:
    """The measurement of an experiment in its folder, arm by arm."""

    def __init__(self, experiment: Experiment, runner: ArmRunner, folder: ExperimentFolder) -> None:
        self._experiment, self._runner, self._folder = experiment, runner, folder
        self._machine = runner.machine()

    @property
    def report(self) -> Report:
        """The report on the arms that have been measured so far."""
        found = summaries(self._experiment.arms, self._folder.readings)
        return Report(self._experiment, found, self._runner.context)

    def conduct(self) -> int:
        """Measure the arms and repeats that are missing, write the report, and return the number of the signal that
        interrupted the experiment, or 0.
        """
        turns, signal = self._experiment.in_turn(), 0
        left = [(repeat, arm) for repeat, arm in turns if not self._folder.has(arm, repeat)]
        try:
            if not self._folder.readings:
                self._runner.learn()
            if len(left) < len(turns):
                hint(f"{len(turns) - len(left)} of {count(len(turns), 'arm')} were measured before and are kept")
            began = time.monotonic()
            for number, (repeat, arm) in enumerate(left, 1):
                reading = self._measure(arm, repeat)
                each = (time.monotonic() - began) / number
                done = len(turns) - len(left) + number
                _print_progress(progress(done, len(turns), reading, each * (len(left) - number)))
        except (ExperimentInterrupted, KeyboardInterrupt) as exc:
            signal = exc.signal if isinstance(exc, ExperimentInterrupted) else 2
            done = len(self._folder.readings)
            hint(f"interrupted: {done} of {count(len(turns), 'arm')} measured; the same command measures the others")
        if self._folder.readings:
            self._write_reports()
        return signal

    def _measure(self, arm: Arm, repeat: int) -> Reading:
        name, folder = f"{arm.name}, repeat {repeat}", self._folder

        def begun(number: int) -> None:
            folder.unfinished = number
            self._write_results()
            _print_progress(f"{name}: run {number} has started (scheduler top r{number})")

        if folder.unfinished is not None:
            self._runner.remove(folder.unfinished)
        reading = self._runner.measure(arm, repeat, begun)
        if not reading.succeeded:
            cure = f"scheduler results r{reading.run} shows why" if reading.run else "choose other devices"
            raise StateError(
                f"none of the {count(reading.tasks, 'task')} of {name} succeeded: {cure}; then start the experiment "
                "again"
            )
        folder.unfinished = None
        folder.readings.append(reading)
        self._write_results()
        if reading.run:
            self._write_reports()
        return reading

    def as_json(self) -> str:
        """Return the results as JSON, in the form of results.json."""
        context = self._runner.context.to_dict()
        found = {"context": context, "machine": dict(self._machine), "verdict": self.report.verdict}
        return json.dumps(self._folder.to_dict(found), indent=1) + "\n"

    def _write_results(self) -> None:
        """Replace results.json; it is durable when this returns."""
        self._folder.write(self._folder.places.results, self.as_json())

    def _write_reports(self) -> None:
        """Generate the table, the page and the picture again from the readings."""
        report, places = self.report, self._folder.places
        self._folder.write(places.table, report.table_csv())
        if self._experiment.of_priority:
            self._folder.write(places.batches, report.batches_csv())
        self._folder.write(places.page, report.page(self._machine))
        self._folder.write(places.picture, report.picture())


def _print_progress(line: str) -> None:
    """Write a line to standard error, because standard output is for data; ignore it if standard error is closed."""
    with contextlib.suppress(OSError):
        sys.stderr.write(line + "\n")
        sys.stderr.flush()
