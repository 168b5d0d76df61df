"""The real world: waits for whatever happens on descriptors, by a clock that nobody sets."""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import Protocol

from scheduler import clocks
from scheduler.core.events import Started
from scheduler.core.ports import Happening, Request, Sample, World

GATHER = 0.02
"""Seconds that starts alone are held back."""


ASK_ALL = 0.1
"""Seconds after which those are asked, too, that do not seem to have anything to tell."""


class Source(Protocol):
    """Something real to wait on."""

    def fileno(self) -> int:
        """A descriptor that is readable when `collect` has something; -1 for none at the moment."""

    def collect(self) -> Sequence[Happening]:
        """What happened; never blocks."""


class Waker(Protocol):
    """Something real whose news are words: what people ask for by signals."""

    def fileno(self) -> int:
        """A descriptor that is readable when there is a word."""

    def collect(self) -> Sequence[str]:
        """The words."""


class Asking:
    """A waker's words as requests."""

    def __init__(self, waker: Waker) -> None:
        self._waker = waker

    def fileno(self) -> int:
        """Readable when somebody asks."""
        return self._waker.fileno()

    def collect(self) -> list[Request]:
        """What was asked."""
        return [Request(word) for word in self._waker.collect()]


class RealWorld:
    """Waits on the descriptors of all its sources at once."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = list(sources)
        self._asked_all = 0.0
        """When all of them were asked last, whether they had anything to tell or not."""

    def add(self, source: Source) -> None:
        """Wait for one more."""
        self._sources.append(source)

    def now(self) -> float:
        """The wall clock as it was when this process began, and what has gone by since."""
        return clocks.now()

    def wait(self, timeout: float) -> list[Happening]:
        """Return when any source has something, or when the time is over.

        Starts alone free nothing for anybody, so for a moment they wait for more: with the end of a short task they
        are one durable record.
        """
        news = self._wait(timeout)
        if news and all(isinstance(happening, Started) for happening in news):
            until = time.monotonic() + GATHER
            while all(isinstance(happening, Started) for happening in news) and (left := until - time.monotonic()) > 0:
                news += self._wait(left)
        return news

    def _wait(self, timeout: float) -> list[Happening]:
        poll = select.poll()  # made anew: what sources wait on changes, and this is one call to the kernel
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


class Onlooker(Protocol):
    """Somebody who looks on: is shown every sample, and asked to draw before each wait."""

    def see(self, sample: Sample) -> None:
        """What a living attempt holds now."""

    def draw(self) -> float:
        """Show how things stand, if that is due; in how many seconds it is due again. Never blocks, never raises."""


class LookedAt:
    """A world with somebody who looks on."""

    def __init__(self, world: World, onlooker: Onlooker) -> None:
        self._world = world
        self._onlooker = onlooker
        self.now = world.now

    def wait(self, timeout: float) -> list[Happening]:
        """The world's happenings."""
        happenings = self._world.wait(min(timeout, max(0.0, self._onlooker.draw())))
        for happening in happenings:
            if isinstance(happening, Sample):
                self._onlooker.see(happening)
        return happenings
