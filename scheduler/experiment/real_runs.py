"""The arms of an experiment as ordinary runs, on this machine or on the machines of `--on`."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from scheduler.app.control.run_requests import ask
from scheduler.app.control.targets import Target
from scheduler.app.observe.run_facts import find_run
from scheduler.app.observe.run_reader import RunReader
from scheduler.app.run import resume, run_loop, start
from scheduler.app.run.devices import find_devices, find_run_devices
from scheduler.app.run.mps_setup import why_not
from scheduler.app.run.options import ResumeOptions, RunOptions, this_python
from scheduler.app.run.session import RunSession
from scheduler.app.run.task_list import csv_listing
from scheduler.core.model import UNFINISHED, EstimateSource
from scheduler.core.placement.request import gpus_of
from scheduler.devices.gpu.telemetry import joules, look_at_cards
from scheduler.devices.pool import DevicePool
from scheduler.errors import NoSuchRun, StateError, StillRunning, UsageError
from scheduler.experiment.arms import Arm, Experiment
from scheduler.experiment.measure import ArmRunner, ExperimentInterrupted
from scheduler.experiment.readings import Reading, read
from scheduler.runtime.settings import Settings
from scheduler.ui.terminal.sink import hint
from scheduler.units import count
from scheduler.values import replace


class RealRunner(ArmRunner):
    """Ordinary runs of the list, on the devices of this machine."""

    def __init__(self, experiment: Experiment, settings: Settings) -> None:
        self._experiment = experiment
        self._settings = settings
        self._python = this_python(settings)

    def learn(self) -> None:
        """Probe the tasks; if some tasks cannot be probed, run the whole list once. Raise ExperimentInterrupted if the
        user interrupts.
        """
        arm = Arm("learn")
        options = self._experiment.options(arm)
        with self._session(arm, replace(options, learn_only=True), replace(self._settings, profile="probe")) as session:
            _run(session)
            unknown = _count_unknown(session)
        if unknown:
            hint(f"{count(unknown, 'task')} cannot be probed: one run of the whole list measures the memory they need")
            with self._session(arm, options, self._settings) as session:
                _run(session)

    def measure(self, arm: Arm, repeat: int, begun: Callable[[int], None]) -> Reading:
        """Run one arm to its end, and read the GPUs' telemetry before and after the run."""
        before = look_at_cards()
        with self._session(arm, self._experiment.options(arm), arm.settings(self._settings)) as session:
            begun(session.number)
            percentages = session.devices.mps.percentages() if session.devices.mps is not None else {}
            _run(session)
            history = RunReader(session.info, session.store.journal).history
            reading = read(arm, repeat, session.number, session.brain, history, float(session.meta["accepted"]))
            uuids = [device.key for device in session.devices.discover() if device.is_gpu]
        after = look_at_cards()
        machine_state = {
            "gpus_before": [card for card in before if card["uuid"] in uuids],
            "gpus_after": [card for card in after if card["uuid"] in uuids],
            "percentages_read_back": dict(percentages),
        }
        return replace(reading, energy_j=joules(before, after, uuids), machine_state=machine_state)

    @contextlib.contextmanager
    def _session(self, arm: Arm, options: RunOptions, settings: Settings) -> Iterator[RunSession]:
        r"""Start one run of the list for the block; clean up if it is interrupted, except by Ctrl-\."""
        task_list = csv_listing(
            self._experiment.path,
            header=0,
            defaults=self._experiment.defaults(arm),
            append=self._experiment.append,
            python=self._python,
            mine=settings.my_columns,
        )
        # Without their file: the list runs again on purpose, and no appended row joins a run.
        session = start.begin(replace(task_list, source=None, path=""), options, settings)
        if session is None:
            raise StateError(f"{self._experiment.path} has a header and no rows: nothing to measure")
        try:
            with contextlib.closing(session):
                yield session
        except ExperimentInterrupted as exc:
            if exc.signal != signal.SIGQUIT:
                self.remove(session.number)
            raise

    def remove(self, number: int) -> None:
        """Cancel the tasks of an interrupted run, and end its processes; raise StillRunning if its scheduler is still
        running.
        """
        try:
            info = find_run(self._settings, f"r{number}")
        except NoSuchRun:
            return
        if info.alive:
            raise StillRunning(f"run {number} of this experiment still runs: scheduler stop r{number} --now")
        with contextlib.closing(RunReader(info, only_states=True)) as reader:
            tasks = tuple(task for task in reader.brain.task_table if reader.brain.state(task) in UNFINISHED)
        if tasks:
            ask(Target(info, tasks), "cancel")
            found = find_run(self._settings, f"r{number}")
            with contextlib.closing(resume.take_over(found, self._settings, ResumeOptions(mps="off"))) as session:
                run_loop.run_to_end(session)

    def machine(self) -> Mapping[str, Any]:
        """Return the facts that NVML and the system report about the machine."""
        uname = os.uname()
        with contextlib.closing(find_run_devices(RunOptions(self._experiment.devices), self._settings)) as pool:
            devices = [{"label": d.label, "key": d.key, "model": d.model, "total": d.total} for d in pool.discover()]
            inventory = pool.gpus.node() if isinstance(pool, DevicePool) and pool.gpus is not None else None
        return {
            "simulated": False,
            "on": self._settings.on,
            "host": uname.nodename,
            "kernel": uname.release,
            "cores": os.cpu_count(),
            "python": self._python,
            "driver": inventory.driver if inventory else None,
            "cuda": inventory.cuda if inventory else None,
            "devices": devices,
        }


def count_gpus(experiment: Experiment, settings: Settings) -> int:
    """Return the number of GPUs; raise UsageError if the experiment cannot run on this machine, or on the given
    nodes.
    """
    if settings.on and not experiment.of_priority:
        raise UsageError(
            f"on {settings.on}: experiment mps needs MPS, whose daemons are not started on nodes yet: leave `on` "
            "out, or compare rankings there with experiment priority"
        )
    if settings.on:
        return 0
    with contextlib.closing(find_devices(experiment.devices, settings)) as pool:
        gpus = sum(device.is_gpu for device in pool.discover())
        if experiment.of_priority:
            return gpus
        otherwise = f"simulate it (scheduler experiment mps {experiment.path} --simulate 4x24GiB)"
        why = why_not(pool, settings, otherwise) if gpus else f"MPS needs a GPU, and this machine has none: {otherwise}"
        if why:
            raise UsageError(why)
        return gpus


def _run(session: RunSession) -> None:
    """Run a session to its end; its output lines go to its log. Raise ExperimentInterrupted if the user interrupts."""
    result = run_loop.run_to_end(session)
    if result.signal:
        raise ExperimentInterrupted(result.signal)


def _count_unknown(session: RunSession) -> int:
    """Return the number of tasks whose memory is still unknown after the probes."""
    brain = session.brain
    some = any(device.is_gpu for device in session.devices.discover())
    needs = (brain.need(task, gpus_of(brain.terms_of(task), some)) for task in brain.task_table)
    return sum(need.source is EstimateSource.MEASURED for need in needs)
