"""Who lives, for those who look on: whom the samplers look at, what everybody can read in a lease."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.brain import Brain
from scheduler.core.events import Resized, Started
from scheduler.core.orders import Orders
from scheduler.core.ports import Key, Ledger, Watched, Watcher

NAMING = 0.1
"""Least seconds between moments at which shims are named in leases."""


class Tending:
    """The attempts of one run, as samplers and other schedulers are told of them."""

    def __init__(self, brain: Brain, orders: Orders, watcher: Watcher, ledger: Ledger) -> None:
        self._brain, self._orders, self._watcher, self._ledger = brain, orders, watcher, ledger
        self._shims: dict[Key, int] = {}
        self._strangers: frozenset[int] = frozenset()
        self._watched: dict[Key, Watched] = {}
        self._moved: set[int] = set()
        """Tasks that are to be looked at in another way than the samplers know."""
        self._unlooked = True
        """Whether the samplers know less than is known here."""
        self._stale: set[int] = set()
        """Tasks whose lease says less than is known of them."""
        self._unnamed: set[int] = set()
        self._named_at = 0.0
        """Those whose lease only lacks the pid of its shim, and when that was last written anywhere."""

    def started(self, event: Started) -> None:
        """An attempt has a shim now."""
        self._shims[event.task, event.attempt] = event.shim
        self._unnamed.add(event.task)
        self._moved.add(event.task)

    def resized(self, event: Resized) -> None:
        """An attempt is promised something else."""
        self._stale.add(event.task)
        self._moved.add(event.task)

    def ended(self, key: Key) -> None:
        """An attempt is over."""
        self._unlooked |= self._watched.pop(key, None) is not None
        self._shims.pop(key, None)

    def meet(self, shims: Iterable[int]) -> None:
        """These are the shims of other schedulers' leases."""
        strangers = frozenset(shims)
        if strangers != self._strangers:
            self._strangers = strangers
            self._unlooked = True

    def look(self) -> None:
        """Tell the samplers whom to look at, where that has changed."""
        for number in self._moved:
            task = self._brain.task(number)
            if task is not None and task.placement is not None:
                key = (number, task.attempts)
                if shim := self._shims.get(key):
                    self._watched[key] = self._orders.watched(task, shim)
                    self._unlooked = True
        self._moved.clear()
        if self._unlooked:
            self._unlooked = False
            self._watcher.watch(self._watched, self._strangers)

    def rewrite(self, now: float) -> None:
        """Bring stale leases up to date; raises LeaseError where somebody keeps the directory locked: call it again.

        Most tasks of a busy moment are over before anybody could ask for their shims.
        """
        if self._unnamed and abs(now - self._named_at) >= NAMING:
            self._named_at = now
            self._stale |= self._unnamed
            self._unnamed.clear()
        while self._stale:
            number = next(iter(self._stale))
            task = self._brain.task(number)
            if task is not None and task.placement is not None:
                self._ledger.rewrite(task.placement, self._shims.get((number, task.attempts), 0))
            self._stale.discard(number)
