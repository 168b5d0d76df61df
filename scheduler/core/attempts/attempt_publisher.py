"""The publisher of living attempts: it tells samplers which processes to sample, and keeps leases up to date."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core import leases
from scheduler.core.attempts.launch_spec import LaunchBuilder
from scheduler.core.brain import Brain
from scheduler.core.events import Resized, Started
from scheduler.core.leases import NO_OFFER, Lease, RoomOffer, Trees, UnnamedShim
from scheduler.core.model import Placement
from scheduler.core.ports import Engine, Key, LeaseRegistry, Watched, Watcher
from scheduler.core.tasks.guest import pid_of

NAMING = 0.1
"""The shortest time, in seconds, between two updates of leases that only add the pids of shims."""
CHECKING = 0.4
"""The shortest time, in seconds, between two checks that the leases still exist."""


class AttemptPublisher:
    """The publisher of one run's living attempts: it reports them to the samplers and, through leases, to other
    schedulers.
    """

    def __init__(
        self, brain: Brain, orders: LaunchBuilder, watcher: Watcher, registry: LeaseRegistry, engine: Engine
    ) -> None:
        self._brain, self._orders, self._watcher, self._registry = brain, orders, watcher, registry
        self._engine = engine
        self._shims: dict[Key, int] = {}
        self._others: Trees = {}
        self._guests: frozenset[int] = frozenset()
        """The pids of the processes for which waiting tasks will hold devices (`scheduler lease`), as last reported to
        the samplers."""
        self._unnamed_others: frozenset[UnnamedShim] = frozenset()
        self._adopted: dict[Key, UnnamedShim] = {}
        """Attempts that an earlier scheduler of this run started, and whose shims are not known yet."""
        self._watched: dict[Key, Watched] = {}
        self._moved: set[int] = set()
        """Tasks for which the samplers do not know the newest shim or reservation."""
        self._unlooked = True
        """True if the list of attempts has changed since it was last sent to the samplers."""
        self._stale: set[int] = set()
        """Tasks whose lease is out of date."""
        self._unnamed: set[int] = set()
        """Tasks whose lease does not contain the pid of the shim yet."""
        self._named_at = 0.0
        """The last time at which pids of shims were added to leases."""
        self._offers: dict[Key, RoomOffer] = {}
        """For each attempt, the room offer in its lease; empty offers are left out."""
        self._missing: frozenset[Key] = frozenset()
        """Attempts that had no lease at the last check."""
        self._checked_at = 0.0
        """The time of the last check that the leases exist."""

    def started(self, event: Started) -> None:
        """Note the shim of an attempt that has started."""
        self._shims[event.task, event.attempt] = event.shim
        self._unlooked |= self._adopted.pop((event.task, event.attempt), None) is not None
        self._unnamed.add(event.task)
        self._moved.add(event.task)

    def resized(self, event: Resized) -> None:
        """Note the changed reservation of an attempt."""
        self._stale.add(event.task)
        self._moved.add(event.task)

    def ended(self, key: Key) -> None:
        """Note the end of an attempt."""
        self._unlooked |= self._watched.pop(key, None) is not None
        self._unlooked |= self._adopted.pop(key, None) is not None
        self._shims.pop(key, None)
        self._offers.pop(key, None)

    def adopt(self, key: Key, placement: Placement) -> None:
        """Note an attempt that an earlier scheduler started: its processes count as managed even before its shim is
        known.
        """
        self._adopted[key] = UnnamedShim(self._registry.uid, 0.0, frozenset(placement.sees))

    def meet(self, others: Sequence[Lease]) -> None:
        """Note the leases of other schedulers. If the leases have changed, tell the samplers at once, so that the next
        decision counts the processes of these leases as managed.
        """
        met = leases.trees(others), leases.unnamed_shims(others)
        if met != (self._others, self._unnamed_others):
            self._others, self._unnamed_others = met
            self._unlooked = True
        self.look()

    def look(self) -> None:
        """Tell the samplers which processes to sample, if the set of processes has changed."""
        for number in self._moved:
            task = self._brain.task(number)
            if task is not None and task.placement is not None:
                key = (number, task.attempts)
                if shim := self._shims.get(key):
                    self._watched[key] = self._orders.watched(task, shim, pid_of(self._brain.terms_of(number).guest))
                    self._unlooked = True
        self._moved.clear()
        if (guests := self._brain.waiting_guests()) != self._guests:
            self._guests, self._unlooked = guests, True
        if self._unlooked:
            self._unlooked = False
            waiting = dict.fromkeys(guests, 0)  # what guests already use must not keep their tasks waiting
            unnamed = self._unnamed_others | {*self._adopted.values()}
            self._watcher.watch(self._watched, {**waiting, **self._others}, unnamed)

    def rewrite(self, now: float) -> None:
        """Write the leases that are out of date. Raise LeaseError while another process keeps the directory locked; the
        caller then calls `rewrite` again later.

        New shims are added to leases only every `NAMING` seconds, because most short tasks end before another scheduler
        needs to know their shims.
        """
        if self._unnamed and abs(now - self._named_at) >= NAMING:
            self._named_at = now
            self._stale |= self._unnamed
            self._unnamed.clear()
        if self._brain.some_resumable:
            self._note_offers()
        while self._stale:
            number = next(iter(self._stale))
            task = self._brain.task(number)
            if task is not None and task.placement is not None:
                shim = self._shims.get((number, task.attempts), 0)
                self._registry.rewrite(task.placement, shim, self._brain.room_offer(task))
            self._stale.discard(number)

    def _note_offers(self) -> None:
        """Mark a lease as out of date if its attempt's room offer has changed."""
        for task in self._brain.living():
            key, offer = (task.id, task.attempts), self._brain.room_offer(task)
            if self._offers.get(key, NO_OFFER) != offer:
                self._offers[key] = offer
                self._stale.add(task.id)

    def restore(self, now: float) -> str:
        """Create lost leases of living attempts again; return a sentence about the lost leases, or an empty string if
        none was lost.

        A single lease counts as lost only when two checks in a row do not find it, because an attempt that ends removes
        its lease a moment before the scheduler learns of its end. The scheduler may learn of it much later, because a
        failure on a GPU waits for the next measurement of that GPU. No lease is created for an attempt that has ended,
        because other attempts may have reserved its memory by then. Raise LeaseError as `rewrite` does.
        """
        if abs(now - self._checked_at) < CHECKING:
            return ""
        self._checked_at = now
        missing = frozenset(self._registry.missing())
        lost = missing if self._registry.has_moved else missing & self._missing
        self._missing = missing
        living: list[tuple[Placement, int, str]] = []
        for number, attempt in sorted(lost):
            task = self._brain.task(number)
            if task is None or task.placement is None or task.attempts != attempt:
                self._registry.forget(number, attempt)
            elif not self._engine.has_ended(number, attempt):
                guest = self._brain.terms_of(number).guest
                living.append((task.placement, self._shims.get((number, attempt), 0), guest))
        return self._registry.restore(living) if living else ""
