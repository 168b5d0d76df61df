"""The arms of an experiment as ordinary runs on this machine."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from scheduler.app.control.run_requests import ask
from scheduler.app.control.targets import Target
from scheduler.app.observe.run_reader import RunReader, find_run
from scheduler.app.run import resume, run_loop, start
from scheduler.app.run.devices import find_devices
from scheduler.app.run.mps_setup import why_not
from scheduler.app.run.options import ResumeOptions, RunOptions, this_python
from scheduler.app.run.session import RunSession
from scheduler.app.run.task_list import TaskList, csv_listing
from scheduler.app.simulate.experiment import Experiment, ExperimentInterrupted, settings_of
from scheduler.core.model import UNFINISHED, EstimateSource
from scheduler.core.placement.request import gpus_of
from scheduler.core.reporting.experiment import Arm, ExperimentContext, Reading, TaskFacts, read
from scheduler.devices.gpu.telemetry import joules, look_at_cards
from scheduler.errors import NoSuchRun, StateError, StillRunning, UsageError
from scheduler.runtime.settings import Settings
from scheduler.ui.terminal.sink import hint
from scheduler.units import count


class RealRunner:
    """Ordinary runs of the same list, on the devices of this machine."""

    context = ExperimentContext()

    def __init__(self, experiment: Experiment, settings: Settings) -> None:
        self._experiment = experiment
        self._settings = settings
        self._python = this_python(settings)

    def learn(self) -> None:
        """Probe the tasks; run the whole list once if some cannot be probed. Raises ExperimentInterrupted."""
        arm = Arm("learn")
        options = self._experiment.options_of(arm)
        with self._session(replace(options, learn_only=True), replace(self._settings, profile="probe"), arm) as session:
            self._run(session)
            unknown = _count_unknown(session)
        if unknown:
            hint(f"{count(unknown, 'task')} cannot be probed: one run of the whole list measures what they need")
            with self._session(options, self._settings, arm) as session:
                self._run(session)

    def measure(self, arm: Arm, repeat: int, begun: Callable[[int], None]) -> tuple[Reading, Mapping[str, Any]]:
        """Run one arm to its end, between two readings of the GPUs' telemetry."""
        before = look_at_cards()
        options, settings = self._experiment.options_of(arm), settings_of(arm, self._settings)
        with self._session(options, settings, arm) as session:
            begun(session.number)
            percentages = session.devices.mps.percentages() if session.devices.mps is not None else {}
            self._run(session)
            reading = _read(arm, repeat, session)
            uuids = [device.key for device in session.devices.discover() if device.is_gpu]
        after = look_at_cards()
        machine_state = {
            "arm": arm.name,
            "repeat": repeat,
            "run": reading.run,
            "gpus_before": [card for card in before if card["uuid"] in uuids],
            "gpus_after": [card for card in after if card["uuid"] in uuids],
            "thread_percentage": arm.percentage or None,
            "percentages_read_back": percentages,
            "clients_verified": f"{reading.clients} of {reading.shared}" if arm.mps else None,
        }
        return replace(reading, energy=joules(before, after, uuids)), machine_state

    @contextlib.contextmanager
    def _session(self, options: RunOptions, settings: Settings, arm: Arm) -> Iterator[RunSession]:
        """Begin one run of the list; remove what is left of it when it is interrupted, except by Ctrl-\\."""
        session = start.begin(self._task_list(arm), options, settings, self._python)
        if session is None:
            raise StateError(f"{self._experiment.path} has a header and no rows: nothing to measure")
        try:
            with contextlib.closing(session):
                yield session
        except ExperimentInterrupted as exc:
            if exc.signal != signal.SIGQUIT:
                self.remove(session.number)
            raise

    def _task_list(self, arm: Arm) -> TaskList:
        """Return the rows without their file: the list runs again on purpose, and no appended row joins a run."""
        task_list = csv_listing(
            self._experiment.path,
            header=0,
            defaults={"ThreadPercentage": arm.percentage} if arm.mps else {},
            append=self._experiment.append,
            python=self._python,
        )
        return replace(task_list, file=None, path="")

    def _run(self, session: RunSession) -> None:
        """Run it to its end, with its lines in its log; raises ExperimentInterrupted."""
        result = run_loop.run_to_end(session, None)
        if result.signal:
            raise ExperimentInterrupted(result.signal)

    def remove(self, number: int) -> None:
        """Cancel the tasks of an interrupted run, and end its processes; raises StillRunning."""
        try:
            info = find_run(self._settings, str(number))
        except NoSuchRun:
            return
        if info.alive:
            raise StillRunning(f"run {number} of this experiment still runs: scheduler stop {number} --now")
        reader = RunReader(info, only_states=True)
        tasks = tuple(task for task in reader.brain.task_table if reader.brain.state(task) in UNFINISHED)
        reader.close()
        if not tasks:
            return
        ask(Target(info, tasks), "cancel")
        found = find_run(self._settings, str(number))
        with contextlib.closing(resume.take_over(found, self._settings, ResumeOptions(mps="off"))) as session:
            run_loop.run_to_end(session, None)

    def machine(self) -> Mapping[str, Any]:
        """Return what NVML and the system tell of this machine."""
        uname = os.uname()
        pool = find_devices(self._experiment.devices, self._settings)
        try:
            devices = [{"label": d.label, "key": d.key, "model": d.model, "total": d.total} for d in pool.discover()]
            driver = pool.gpus.node() if pool.gpus is not None else None
        finally:
            pool.close()
        return {
            "simulated": False,
            "host": uname.nodename,
            "kernel": uname.release,
            "cores": os.cpu_count(),
            "python": self._python,
            "driver": driver.driver if driver else None,
            "cuda": driver.cuda if driver else None,
            "devices": devices,
        }


def check(experiment: Experiment, settings: Settings) -> int:
    """Return the number of GPUs; raises UsageError where the experiment cannot run on this machine."""
    pool = find_devices(experiment.devices, settings)
    try:
        gpus = sum(device.is_gpu for device in pool.discover())
        if experiment.of_priority:
            return gpus
        otherwise = f"simulate it (scheduler experiment mps {experiment.path} --simulate 4x24GiB)"
        if not gpus:
            raise UsageError(f"MPS needs a GPU, and this machine has none: {otherwise}")
        why = why_not(pool, settings, otherwise)
        if why:
            raise UsageError(why)
        return gpus
    finally:
        pool.close()


def _count_unknown(session: RunSession) -> int:
    """Return the number of tasks whose need no probe has shown."""
    brain = session.brain
    some = any(device.is_gpu for device in session.devices.discover())
    needs = (brain.need(task, gpus_of(brain.terms_of(task), some)) for task in brain.task_table)
    return sum(need.source is EstimateSource.MEASURED for need in needs)


def _read(arm: Arm, repeat: int, session: RunSession) -> Reading:
    brain = session.brain
    about = {}
    for task in brain.task_table:
        terms = brain.terms_of(task)
        about[task] = TaskFacts(terms.priority, brain.batch_of(task), terms.epochs or 0)
    accepted = float(session.meta["accepted"])
    history = RunReader(session.info, session.store.journal).fold
    return read(arm, repeat, session.number, history, dict(brain.state_counts), about, accepted)
