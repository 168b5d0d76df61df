"""The machine for `top --all`: its devices and leases, and a monitor for each of the user's runs that go on."""

from __future__ import annotations

import contextlib
import os
import time

from scheduler.app.live.tasks import screen_of
from scheduler.app.observe.machine_status import MachineMonitor
from scheduler.app.observe.monitor import RunMonitor
from scheduler.app.observe.run_facts import places
from scheduler.errors import SchedulerError
from scheduler.runtime.settings import Settings
from scheduler.runtime.users import user_name
from scheduler.store.run.catalog import RunCatalog
from scheduler.ui.live.machine_screen import MachinePicture
from scheduler.ui.live.run_screen import RunScreen
from scheduler.ui.terminal.panels import Line

MOST_RUNS = 8
"""The number of latest runs whose tasks are shown."""
CLOCK = len("12:00:00")
REST = 2.0
"""Seconds between two checks of which runs go on."""


class MachineView:
    """The readers behind the machine's screen; all of them belong to one thread."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._machine = MachineMonitor(settings)
        self._runs: dict[int, RunMonitor] = {}
        self._user = user_name(os.getuid())
        self._due = 0.0

    def picture(self) -> MachinePicture:
        """Return a picture of the machine as it is now."""
        facts = self._machine.facts()
        now = time.monotonic()
        if now >= self._due:
            self._due = now + REST
            alive = [run["number"] for run in facts["runs"] if run.get("alive") and not run.get("elsewhere")]
            self._keep(alive[:MOST_RUNS])
        runs = self._runs.values()
        varies = tuple(dict.fromkeys(name for run in runs for name in run.reader.varies))
        return MachinePicture(facts, self._user, [run.picture() for run in runs], varies, self._recent)

    def _recent(self) -> list[str]:
        """Return the last lines of the logs of the user's runs, each with the number of its run if there are several
        runs.
        """
        if len(self._runs) == 1:
            return [*next(iter(self._runs.values())).recent()]
        lines = [(line, number) for number, run in self._runs.items() for line in run.recent()]
        return [f"{line[:CLOCK]} r{number}{line[CLOCK:]}" for line, number in sorted(lines)]

    def _keep(self, numbers: list[int]) -> None:
        """Open the monitors of these runs, and close all others."""
        for number in [number for number in self._runs if number not in numbers]:
            self._runs.pop(number).close()
        for number in numbers:
            if number not in self._runs:
                with contextlib.suppress(SchedulerError):
                    self._runs[number] = self._monitor(number)
        self._runs = {number: self._runs[number] for number in numbers if number in self._runs}

    def _monitor(self, number: int) -> RunMonitor:
        return RunMonitor(RunCatalog(places(self._settings)).info(number), self._settings)

    def open(self, number: int) -> OpenedRun:
        """Open the screen of a run."""
        return OpenedRun(self._monitor(number))

    def close(self) -> None:
        """Close the devices and the journals."""
        self._keep([])
        self._machine.close()


class OpenedRun:
    """One run that was opened from the machine's screen."""

    def __init__(self, monitor: RunMonitor) -> None:
        self._monitor = monitor
        self._opened = contextlib.ExitStack()
        self._opened.callback(monitor.close)
        self.screen: RunScreen = screen_of(monitor.info, monitor.reader.brain, monitor.reader.history, self._opened)

    def lines(self, width: int, height: int) -> list[Line]:
        """Return the lines of the run now."""
        return self.screen.lines(self._monitor.picture(), width, height, self._monitor.recent())

    def close(self) -> None:
        """Close the journal and the devices."""
        self._opened.close()
