"""One run in this process: its store, Brain, devices and settings. `run_loop` runs it to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.app.run.options import RunOptions
from scheduler.app.run.shell_context import ShellContext
from scheduler.core.brain import Brain
from scheduler.core.ports import Key
from scheduler.core.reporting.run_history import RunSummary
from scheduler.runtime.event_sources import SignalReader
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import RunInfo
from scheduler.store.run.run_store import SqliteRunStore

if TYPE_CHECKING:
    from scheduler.app.run.devices import RunDevices
    from scheduler.store.disks import DiskGuard


class RunSession:
    """One accepted run, from its acceptance or takeover to its end in this process."""

    def __init__(
        self,
        store: SqliteRunStore,
        brain: Brain,
        devices: RunDevices,
        options: RunOptions,
        settings: Settings,
        meta: Mapping[str, str],
        shell: ShellContext,
    ) -> None:
        """Store the parts of a run, and begin to handle signals, because an accepted run must not end with its
        terminal.
        """
        self.store = store
        self.brain = brain
        self.devices = devices
        self.options = options
        self.settings = settings
        self.meta = meta
        self.shell = shell
        """The environment, the Python and the directory with which the run's tasks start."""
        self.places = store.places
        self.history = RunSummary()
        """The summary of the run's events so far; after a takeover, of all events of the journal."""
        self.notes_on_earlier: list[str] = []
        """Sentences about earlier runs of this list."""
        self.just_ended: list[Key] = []
        """The attempts whose ends were recorded last; after a takeover, files of these attempts may still exist."""
        self.resumed = False
        """True if the run was taken over."""
        self.inherits = False
        """True if tasks write to this process's standard streams instead of their logs."""
        self.detached = False
        """True if the run has no terminal."""
        self.signals = SignalReader()

    @property
    def number(self) -> int:
        """The number of the run."""
        return self.places.number

    @property
    def facts(self) -> dict[str, str]:
        """The facts of the run's journal with its number and directory, for the first lines."""
        detached = "yes" if self.detached else ""
        return {**self.meta, "number": str(self.number), "root": str(self.places.root), "detached": detached}

    @property
    def info(self) -> RunInfo:
        """The run in the form in which a reader of runs finds it."""
        return RunInfo(self.number, self.places, self.meta, alive=True)

    @property
    def notes(self) -> Sequence[str]:
        """Sentences about variables that tasks have lost since the run's first start; empty if no task will start."""
        return self.shell.notes if self.brain.waiting or self.brain.living() else ()

    def disks(self) -> DiskGuard:
        """Return the guard that checks whether the disks have space for a launch."""
        from scheduler.store.disks import DiskGuard

        return DiskGuard([self.places.root, self.places.tasks], *self.settings.disk_min)

    def close(self) -> None:
        """Release the signals, the devices and the store."""
        self.signals.close()
        self.devices.close()
        self.store.close()
