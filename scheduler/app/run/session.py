"""One run in this process: its store, Brain, devices and settings. `run_loop` runs it to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.app.run.options import RunOptions
from scheduler.app.run.shell_context import ShellContext
from scheduler.core.brain import Brain
from scheduler.core.ports import Key
from scheduler.core.reporting.run_history import RunSummary
from scheduler.runtime.settings import Settings
from scheduler.runtime.signals import SignalReader
from scheduler.store.run.catalog import RunInfo
from scheduler.store.run.run_store import SqliteRunStore

if TYPE_CHECKING:
    from scheduler.devices.pool import DevicePool
    from scheduler.store.disks import DiskGuard


class RunSession:
    """One accepted run, from its acceptance or takeover to its end in this process."""

    def __init__(
        self,
        store: SqliteRunStore,
        brain: Brain,
        devices: DevicePool,
        options: RunOptions,
        settings: Settings,
        meta: Mapping[str, str],
        shell: ShellContext,
    ) -> None:
        """Hold the parts of a run. From now on signals are read, since an accepted run must not end with a terminal."""
        self.store = store
        self.brain = brain
        self.devices = devices
        self.options = options
        self.settings = settings
        self.meta = meta
        self.shell = shell
        """Environment, Python and directory that its tasks start from."""
        self.places = store.places
        self.history = RunSummary()
        """The summary of its events so far; after a takeover, of all events of its journal."""
        self.notes_on_earlier: list[str] = []
        """Sentences about earlier runs of the same list."""
        self.just_ended: list[Key] = []
        """The attempts whose ends were recorded last; their files may still exist after a takeover."""
        self.inherits = False
        """True if its tasks write to this process's standard streams instead of their logs."""
        self.detached = False
        """True if it runs without a terminal."""
        self.signals = SignalReader()

    @property
    def number(self) -> int:
        """The number of the run."""
        return self.places.number

    @property
    def facts(self) -> dict[str, str]:
        """The facts of its journal with its number and directory, for the first lines."""
        detached = "yes" if self.detached else ""
        return {**self.meta, "number": str(self.number), "root": str(self.places.root), "detached": detached}

    @property
    def info(self) -> RunInfo:
        """The run as readers of runs find it."""
        return RunInfo(self.number, self.places, self.meta, alive=True)

    @property
    def notes(self) -> Sequence[str]:
        """Sentences on what the environment of its tasks has lost since the first start, if any task will start."""
        return self.shell.notes if self.brain.waiting or self.brain.living() else ()

    def disks(self) -> DiskGuard:
        """Return the guard that tells whether the disks have room for a launch."""
        from scheduler.store.disks import DiskGuard

        return DiskGuard([self.places.root, self.places.tasks], *self.settings.disk_min)

    def close(self) -> None:
        """Release the signals, the devices and the store."""
        self.signals.close()
        self.devices.close()
        self.store.close()
