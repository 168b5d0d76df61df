"""The sources of events in the real world: descriptors, signals of this process, and a clock that does not jump."""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from types import FrameType
from typing import Protocol

from scheduler.core.control.request_kinds import RunRequest
from scheduler.core.events import Started
from scheduler.core.ports import Happening, Request, Sample, World
from scheduler.runtime import clock

GATHER = 0.02
"""Seconds for which reports of started attempts are held back while nothing else happens."""


ASK_ALL = 0.1
"""Seconds after which all sources are asked, even if their descriptor is not readable."""


Handler = Callable[[int, FrameType | None], object] | int | None


NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)
"""The signals that are requests to a run."""


class EventSource(Protocol):
    """A source of events that can be waited on."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when `collect` has something; -1 if there is none at the moment."""

    def collect(self) -> Sequence[Happening]:
        """Return what has happened since the last call; never block."""


class RequestSource(Protocol):
    """A source of messages, each of which is the name of a request that a user sent by signals."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is a message."""

    def collect(self) -> Sequence[str]:
        """Return the messages that have arrived since the last call."""


class Asking:
    """The messages of a request source as requests."""

    def __init__(self, waker: RequestSource) -> None:
        self._waker = waker

    def fileno(self) -> int:
        """Return a descriptor that is readable when there is a request."""
        return self._waker.fileno()

    def collect(self) -> list[Request]:
        """Return the requests that have arrived since the last call."""
        return [Request(word) for word in self._waker.collect()]


class SignalReader:
    """The reader of signals: one INT drains the run, two stop it, three kill its tasks; TERM stops it; QUIT leaves its
    tasks to their shims; HUP reports that the terminal has gone.

    Each signal that the kernel delivers counts, however soon it follows another: the interpreter records it at once,
    while handlers in Python may see several signals as one. Two signals count as one only if the second is sent before
    the first has been delivered. Off the main thread this class does nothing, and leaves the caller's handlers
    unchanged.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._old: dict[int, Handler] = {}
        self._old_wakeup = -1
        self._ints = 0
        self.last = 0
        """The signal that ends the run, from which the exit code follows."""
        self.asked = ""
        """The last request."""
        if threading.current_thread() is threading.main_thread():
            self._old_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in NUMBERS:
                self._old[number] = signal.signal(number, _take_note)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a signal came."""
        return self._read

    def collect(self) -> list[RunRequest]:
        """Return what the signals since the last call request: drain, stop, kill, leave, hangup."""
        try:
            numbers = os.read(self._read, 64)
        except BlockingIOError:
            return []
        words = [self._meaning(number) for number in numbers if number in NUMBERS]
        self.asked = words[-1] if words else self.asked
        return words

    def _meaning(self, number: int) -> RunRequest:
        if number == signal.SIGHUP:
            return RunRequest.HANGUP
        self.last = number
        if number == signal.SIGQUIT:
            return RunRequest.LEAVE
        self._ints += 1 if number == signal.SIGINT or self._ints >= 2 else 2
        return {1: RunRequest.DRAIN, 2: RunRequest.STOP}.get(self._ints, RunRequest.KILL)

    def close(self) -> None:
        """Restore the caller's handlers; the second call does nothing."""
        if self._read < 0:
            return
        if self._old:
            signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._old.clear()
        os.close(self._read)
        os.close(self._write)
        self._read = self._write = -1


def _take_note(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. The handler exists so that the interpreter records the signal instead of ending the process."""


class PeriodicCheck:
    """A check that runs periodically during a run; it reports nothing, and ends the run by raising an error."""

    def __init__(self, check: Callable[[], object], every: float) -> None:
        """Run `check` at most once in `every` seconds."""
        self._check = check
        self._every = every
        self._due = 0.0

    def fileno(self) -> int:
        """Return -1: nothing becomes readable."""
        return -1

    def collect(self) -> Sequence[Happening]:
        """Run the check if it is due."""
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self._every
            self._check()
        return ()


class SystemWorld:
    """The real world: waits on the descriptors of all its sources at once."""

    def __init__(self, sources: Sequence[EventSource]) -> None:
        self._sources = list(sources)
        self._asked_all = 0.0
        """The time at which all sources were last asked, readable or not."""

    def add(self, source: EventSource) -> None:
        """Wait for one more source."""
        self._sources.append(source)

    def now(self) -> float:
        """Return the wall clock at the start of this process plus the time since."""
        return clock.now()

    def wall(self) -> float:
        """Return the wall clock as it is set now."""
        return clock.wall()

    def wait(self, timeout: float, until: float = inf) -> list[Happening]:
        """Return what has happened as soon as any source reports something; return an empty list after `timeout`
        seconds, or at the time `until` of the wall clock.

        The start of an attempt frees no capacity, so its event waits a moment for other events: the start and the end
        of a short task then form one durable record.
        """
        news = self._wait(min(timeout, until - clock.wall()))
        if news and all(isinstance(happening, Started) for happening in news):
            until = time.monotonic() + GATHER
            while all(isinstance(happening, Started) for happening in news) and (left := until - time.monotonic()) > 0:
                news += self._wait(left)
        return news

    def _wait(self, timeout: float) -> list[Happening]:
        poll = select.poll()  # rebuilt for each wait, because the descriptors of sources change
        fds = [source.fileno() for source in self._sources]
        for fd in fds:
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        ready = {fd for fd, _ in poll.poll(max(0.0, timeout) * 1000)}
        now = time.monotonic()
        if now - self._asked_all >= ASK_ALL:
            self._asked_all, ready = now, set(fds)
        return [
            happening
            for fd, source in zip(fds, self._sources, strict=True)
            if fd in ready or fd < 0
            for happening in source.collect()
        ]


class Observer(Protocol):
    """A view of a run that sees every sample, and may draw before each wait."""

    def see(self, sample: Sample) -> None:
        """Note what a living attempt uses now."""

    def draw(self) -> float:
        """Show the state of the run if that is due; return the seconds until it is due again. Never block or raise."""


class ObservedWorld:
    """A world with observers, each of which sees every sample."""

    def __init__(self, world: World, observers: Sequence[Observer]) -> None:
        self._world = world
        self._observers = observers
        self.now, self.wall = world.now, world.wall

    def wait(self, timeout: float, until: float = inf) -> list[Happening]:
        """Let the observers draw, then wait for events and return them, at the latest when one of the observers is due
        again.
        """
        due = min((max(0.0, observer.draw()) for observer in self._observers), default=timeout)
        happenings = self._world.wait(min(timeout, due), until)
        for happening in happenings:
            if isinstance(happening, Sample):
                for observer in self._observers:
                    observer.see(happening)
        return happenings
