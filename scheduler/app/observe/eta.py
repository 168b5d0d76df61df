"""The ETA of a run in this process, which is estimated every few seconds and written to a file of the run."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from scheduler.core.attempts.throughput import Throughput
from scheduler.core.model import State
from scheduler.core.ports import Key, Sample
from scheduler.core.reporting.eta import UNKNOWN, forecasts
from scheduler.core.reporting.forecast import Forecast
from scheduler.core.reporting.other_runs import waits_since
from scheduler.core.reporting.schedule import MachineSnapshot
from scheduler.runtime import clock
from scheduler.runtime.paths import replace_file
from scheduler.store.machine import published_forecasts
from scheduler.store.machine.lease_directory import find_directory
from scheduler.values import replace

if TYPE_CHECKING:
    from scheduler.app.run.session import RunSession
    from scheduler.runtime.loop import Ports

FIRST = 2.0
"""Seconds from the start of a run to its first estimate."""
REST, LONGEST_REST = 5.0, 120.0
"""The shortest and the longest time between two estimates, in seconds."""
SHARE = 0.005
"""Estimates take at most this share of the scheduler's time."""


class EtaUpdater:
    """The forecast of a run, kept up to date in `forecast` and, for other processes, in the run's file."""

    def __init__(self, session: RunSession, ports: Ports) -> None:
        self.forecast: Forecast | None = None
        self._session, self._ports = session, ports
        self._used: dict[Key, Mapping[str, int]] = {}
        self._progress: dict[Key, tuple[float, Throughput]] = {}
        self._due = time.monotonic() + FIRST
        self._began = clock.now()
        self._unknown_then: tuple[int, int] | None = None
        """The numbers of known durations and of changes at the last estimate, if that gave no ETA; otherwise None."""

    def see(self, sample: Sample) -> None:
        """Note the memory use and the progress of a living attempt."""
        key = (sample.task, sample.attempt)
        self._used[key] = {**self._used.get(key, {}), **sample.used}
        if sample.progress is not None:
            throughput = self._progress[key][1] if key in self._progress else Throughput()
            throughput.see(sample.progress, clock.now())
            self._progress[key] = (sample.progress, throughput)

    def draw(self) -> float:
        """If an estimate is due, make it, which takes about 20 ms; return the seconds until the next one is due."""
        began = time.monotonic()
        if began >= self._due:
            if self._unknown_then is None or self._count() != self._unknown_then:
                self._estimate()
            now = time.monotonic()
            self._due = now + min(LONGEST_REST, max(REST, (now - began) / SHARE))
        return self._due - began

    def _count(self) -> tuple[int, int]:
        """Return the number of durations that became known, and the number of changes of the run."""
        brain = self._session.brain
        measured = sum(throughput.seconds is not None for _, throughput in self._progress.values())
        return brain.task_table.counts[State.SUCCEEDED] + measured, brain.changes

    def _estimate(self) -> None:
        """Estimate the course of the run, and publish what the forecasts of other schedulers need."""
        self.forecast, published = forecasts(self._session.brain, self._snapshot(), self._ports.world.now())
        self._unknown_then = self._count() if self.forecast.why == UNKNOWN else None
        self._write(json.dumps(self.forecast.to_dict()))
        self._ports.leases.publish(published)

    def _snapshot(self) -> MachineSnapshot:
        """Return the state of the machine, and forget attempts that have ended."""
        keys = {(task.id, task.attempts) for task in self._session.brain.living()}
        self._used = {key: used for key, used in self._used.items() if key in keys}
        self._progress = {key: progress for key, progress in self._progress.items() if key in keys}
        progress = {
            key: (done, throughput.seconds)
            for key, (done, throughput) in self._progress.items()
            if throughput.seconds is not None
        }
        own = (self._ports.leases.uid, self._session.meta["token"])
        used_by = self._ports.watcher.used_by
        others = [replace(one, used=used_by(one.shim, one.name)) for one in self._ports.leases.seen()]
        settings = self._session.settings  # the directory contains only forecasts of this machine's runs
        beside = () if settings.on else published_forecasts.others(find_directory(settings.leases or None), *own)
        history = self._session.history
        overhead = (history.kept - history.spent) / history.ended if history.ended else 0.0
        since = waits_since(self._session.brain, history, self._began)
        return MachineSnapshot(
            self._session.devices.snapshot(), others, self._used, progress, overhead, own[0],
            beside, since,
        )  # fmt: skip

    def _write(self, text: str) -> None:
        """Replace the run's forecast file; ignore a failure, because only views read the file."""
        with contextlib.suppress(OSError):
            replace_file(self._session.places.forecast, text.encode("ascii"), durable=False)

    def close(self) -> None:
        """Remove the forecast file, because this run has no scheduler any more."""
        with contextlib.suppress(OSError):
            self._session.places.forecast.unlink()
