"""Joins a run that goes on here with what is expected of it: worked out in copies of this process, now and then."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler import clocks
from scheduler.core.forecast import Forecast
from scheduler.core.model import State
from scheduler.core.pace import Pace
from scheduler.core.ports import Happening, Key, Sample
from scheduler.processes import spent_aside, start_aside, wait_for
from scheduler.store.leases import find_directory, living
from scheduler.wiring.foreseeing import UNKNOWN, Sight, forecast

if TYPE_CHECKING:
    from scheduler.loop import Ports
    from scheduler.wiring.running import Session

FIRST = 2.0
"""Seconds after a run's begin: what is over sooner needs no forecast."""
REST, LONGEST_REST = 5.0, 120.0
SHARE = 0.02
"""Forecasts take so much of a core's time at most."""
LONGEST = 60.0
"""Seconds after which one that does not come to an end is given up."""
CPU = 10
"""Seconds of processor time after which one is given up."""


class Outlook:
    """Has a run's end foreseen, again and again; whoever wants to know finds it in `forecast`, and in its file."""

    def __init__(self, session: Session, ports: Ports) -> None:
        self.forecast: Forecast | None = None
        self._session, self._ports = session, ports
        self._used: dict[Key, Mapping[str, int]] = {}
        self._paces: dict[Key, tuple[float, Pace]] = {}
        self._due = time.monotonic() + FIRST
        self._pid, self._fd = 0, -1
        self._said = bytearray()
        self._spent = self._since = 0.0
        self._lacked = -1
        """What was known when nothing could be foreseen."""

    # ---- what it is told ----

    def see(self, sample: Sample) -> None:
        """What a living attempt holds, and how far it is."""
        key = (sample.task, sample.attempt)
        self._used[key] = {**self._used.get(key, {}), **sample.used}
        if sample.progress is not None:
            pace = self._paces[key][1] if key in self._paces else Pace()
            pace.see(sample.progress, clocks.now())
            self._paces[key] = (sample.progress, pace)

    def draw(self) -> float:
        """Begin another one, where that is due; in how many seconds that may be."""
        now = time.monotonic()
        if self._pid:
            if now - self._since > LONGEST:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, signal.SIGKILL)  # a thread of whoever started us may have held a lock
            return REST
        if now >= self._due:
            self._due = now + REST
            if self._known() != self._lacked:
                self._begin()
        return self._due - now

    def _known(self) -> int:
        """Grows with what a time can be foreseen by."""
        return self._session.brain.roll.counts[State.SUCCEEDED] + sum(
            p.seconds is not None for _, p in self._paces.values()
        )

    def _begin(self) -> None:
        brain, sight = self._session.brain, self._sight()
        self._lacked = self._known()
        self._spent, self._since = spent_aside(), time.monotonic()
        with contextlib.suppress(OSError):  # where no process can be started there is no forecast
            now = self._ports.world.now()
            self._pid, self._fd = start_aside(lambda: json.dumps(forecast(brain, sight, now).pack()).encode(), CPU)
            os.set_blocking(self._fd, False)

    def _sight(self) -> Sight:
        """What is seen now; of attempts that are over nothing is kept."""
        keys = {(task.id, task.attempts) for task in self._session.brain.living()}
        self._used = {key: used for key, used in self._used.items() if key in keys}
        self._paces = {key: pace for key, pace in self._paces.items() if key in keys}
        progress = {key: (done, pace.seconds) for key, (done, pace) in self._paces.items() if pace.seconds is not None}
        leases = living(find_directory(self._session.settings.leases or None))
        own = (self._ports.ledger.uid, self._session.meta["token"])
        used_by = self._ports.watcher.used_by
        others = [(one, used_by(one.shim, one.name)) for one in leases if (one.uid, one.run) != own]
        fold = self._session.fold
        overhead = (fold.kept - fold.spent) / fold.ended if fold.ended else 0.0
        return Sight(self._session.devices.snapshot(), others, self._used, progress, overhead)

    # ---- what comes of it ----

    def fileno(self) -> int:
        """Readable once there is one."""
        return self._fd

    def collect(self) -> Sequence[Happening]:
        """Take it in; nothing ever happens to the run because of it."""
        with contextlib.suppress(BlockingIOError):
            while self._fd >= 0:
                said = os.read(self._fd, 1 << 16)
                self._said += said
                if not said:
                    self._finish()
        return ()

    def _finish(self) -> None:
        said = bytes(self._said)
        self._reap()
        rest = (spent_aside() - self._spent) / SHARE
        self._due = time.monotonic() + min(LONGEST_REST, max(REST, rest))
        if said:
            self.forecast = Forecast.unpack(json.loads(said))
            self._keep(said)
            if self.forecast.why != UNKNOWN:
                self._lacked = -1

    def _keep(self, said: bytes) -> None:
        """For whoever looks from elsewhere; it is only a view, so that it may be lost."""
        path = self._session.places.forecast
        part = path.with_suffix(".part")
        with contextlib.suppress(OSError):
            part.write_bytes(said)
            part.replace(path)

    def _reap(self) -> None:
        os.close(self._fd)
        wait_for(self._pid)
        self._pid, self._fd = 0, -1
        self._said.clear()

    def close(self) -> None:
        """The run is over here."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._reap()
        with contextlib.suppress(OSError):
            self._session.places.forecast.unlink()
