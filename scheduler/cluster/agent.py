"""The agent: on a node it takes leases, launches and watches attempts of one run, as the run's head orders.

It decides only one thing itself: with its machine's mutex held, whether the report by which the head decided is still
true.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from scheduler.cluster import forms
from scheduler.cluster.fence import NodeFence
from scheduler.cluster.frames import BadFrame, Channel, Message
from scheduler.cluster.mirror import MOST_UNSENT, FileSender, GivenFiles
from scheduler.core import leases as core_leases
from scheduler.core.attempts.launch_spec import TaskPaths
from scheduler.core.events import Exited, Started
from scheduler.core.leases import HeldLease, Lease, Trees, UnnamedShim
from scheduler.core.model import Outcome, Placement
from scheduler.core.ports import (
    Devices,
    Engine,
    Happening,
    Key,
    LeaseRegistry,
    LeaseTransaction,
    Sample,
    Watched,
    Watcher,
)
from scheduler.core.queue import quota
from scheduler.core.site_policy import Caps
from scheduler.errors import LeaseError, SchedulerError
from scheduler.runtime import shim
from scheduler.runtime.clock import since_boot
from scheduler.runtime.event_sources import EventSource, SystemWorld
from scheduler.values import dataclass, replace

LOOK = 0.1
"""Seconds between checks for changes that no descriptor reports."""
REPORT = 0.25
"""Seconds between two reports while no attempt ends."""
KEPT = 10.0
"""Seconds after which a reservation without a launch is given back."""
MISSING = 0.5
"""Seconds between checks that the leases exist."""
VIEWS = 64
"""The number of latest reports on which the head may base a reservation."""
_PATHS = ("SCHEDULER_TASK_DIR", "SCHEDULER_RESULT", "SCHEDULER_PROGRESS")
"""Variables of a task that name files of the run."""


class RunEngine(Engine, Protocol):
    """An engine with a descriptor that the agent can wait on."""

    def fileno(self) -> int:
        """Return the descriptor that is readable when `collect` has something to return."""


@dataclass(frozen=True, slots=True)
class NodeRun:
    """The parts of one run on this node."""

    devices: Devices
    engine: RunEngine
    leases: LeaseRegistry
    watcher: Watcher
    sources: Sequence[EventSource]
    """The samplers, which the agent also waits on."""
    places: TaskPaths
    root: str
    """The directory of the run on this node."""
    root_at_head: str
    close: Callable[[], None]
    remove: Callable[[], None]
    """A function that removes the files of a run that is over."""
    differences: Callable[[Mapping[str, Any]], list[str]]
    """A function that returns sentences about the things that tasks need and that this node lacks."""
    has_lines: Callable[[str], bool]
    """A function that tells whether a result consists of JSON lines."""
    fence: NodeFence | None = None
    """The fence, which ends the attempts on this node when nothing has been heard from the head for some time; None:
    the attempts continue."""


@dataclass(slots=True)
class _Held:
    """A reservation that waits for its launch."""

    placement: Placement
    lease: HeldLease
    until: float


class _Inbox:
    """The orders of the head, as a source of events."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self.orders: list[Message] = []

    def fileno(self) -> int:
        """Return the descriptor that is readable when there may be an order; -1 once no more orders can come."""
        return -1 if self._channel.ended else self._channel.fileno()

    def collect(self) -> Sequence[Happening]:
        """Read the orders that have arrived; return nothing, because orders are not events."""
        if not self._channel.ended:
            self.orders += self._channel.receive()
        return ()


class Agent:
    """The agent of one run on its node."""

    def __init__(self, channel: Channel, guest: NodeRun) -> None:
        self._channel, self._guest = channel, guest
        self._inbox = _Inbox(channel)
        self._world = SystemWorld([self._inbox, guest.engine, *guest.sources])
        self._files = FileSender(guest.places, guest.has_lines)
        self._given = GivenFiles(guest.root)
        self._held: dict[Key, _Held] = {}
        self._living: dict[Key, Placement] = {}
        self._shims: dict[Key, int] = {}
        self._over: dict[Key, Exited] = {}
        """Ends of attempts that are reported once the files of these attempts are copied."""
        self._of_earlier_boot: set[Key] = set()
        """Attempts that were started before this machine was restarted."""
        self._samples: list[Sample] = []
        """Samples that are sent after the next report, because the head must not combine newer samples with an older
        number of free bytes."""
        self._watched: dict[Key, Watched] = {}
        self._met: tuple[Trees, frozenset[UnnamedShim]] = ({}, frozenset())
        self._unlooked = True
        self._stale: dict[Key, Message] = {}
        """Orders to rewrite leases that were not carried out yet."""
        self._view = 0
        self._views: dict[int, tuple[dict[str, Lease], frozenset[str]]] = {}
        """The leases and the closed devices of the latest reports."""
        self._reported = self._checked = -1e9
        self._changes = forms.ReportChanges()
        self._missing: frozenset[Key] = frozenset()
        self._too_large: set[int] = set()
        """Tasks that by themselves exceed a quota of this machine."""
        self._finished = False
        self._orders: Mapping[str, Callable[[Any], None]] = {
            "take": self._take, "launch": self._launch, "stop": self._stop, "adopt": self._adopt,
            "forget": self._forget, "drop": self._drop, "released": self._released, "rewrite": self._rewrite,
            "watch": self._watch, "ticket": self._ticket, "leave": self._leave, "end": self._end,
            "echo": self._echo, "given": self._take_given, "compare": self._compare,
        }  # fmt: skip

    def run(self) -> bool:
        """Serve the head until its link ends; return whether the run is over."""
        self._report()
        try:
            while not self._channel.ended and not self._finished:
                self.serve()
        except BadFrame:
            pass  # the other end is not a head of this version: let go
        self._let_go()
        if self._finished:
            self._guest.remove()
        else:
            self._guest.close()
        return self._finished

    def serve(self) -> None:
        """Wait for at most LOOK seconds; then carry out the orders that have arrived, and report changes."""
        news = self._world.wait(LOOK)
        orders, self._inbox.orders = self._inbox.orders, []
        for order in orders:
            for name, said in order.items():
                self._obey(name, said)
        for happening in news:
            self._tell(happening)
        self._copy()
        self._look_after_leases()
        self._say_troubles()
        if time.monotonic() - self._reported >= REPORT or any(isinstance(one, Exited) for one in news):
            self._report()

    def _obey(self, name: str, said: Any) -> None:
        try:
            self._orders[name](said)
        except (SchedulerError, OSError) as exc:
            self._channel.send({"trouble": str(exc)})

    def _let_go(self) -> None:
        """Give back reservations without a launch, and forget the head."""
        for key in list(self._held):
            self._give_back(key)
        self._guest.leases.leave()
        self._guest.watcher.watch({}, {})

    # ---- news ----

    def _tell(self, happening: Happening) -> None:
        if isinstance(happening, Sample):
            self._samples.append(happening)
        elif isinstance(happening, Started):
            self._shims[happening.task, happening.attempt] = happening.shim
            self._channel.send({"event": forms.event_to_dict(happening)})
        elif isinstance(happening, Exited):
            key = (happening.task, happening.attempt)
            lost = happening.outcome is Outcome.LOST and key in self._of_earlier_boot
            self._over[key] = replace(happening, node_lost=True) if lost else happening
            self._of_earlier_boot.discard(key)
            self._living.pop(key, None)
            self._shims.pop(key, None)

    def _copy(self) -> None:
        """Send what the attempts have written, and report the end of each attempt whose files were sent completely."""
        if self._channel.unsent > MOST_UNSENT:
            return
        for key in list(self._over):
            for message in self._files.rest(key):
                self._channel.send(message)
                if self._channel.unsent > MOST_UNSENT:
                    return
            self._files.forget(key)
            self._send_samples([one for one in self._samples if (one.task, one.attempt) == key])
            self._channel.send({"event": forms.event_to_dict(self._over.pop(key))})
        if time.monotonic() - self._reported >= REPORT:
            for message in self._files.growth():
                self._channel.send(message)

    def _send_samples(self, some: Sequence[Sample]) -> None:
        for sample in some:
            self._channel.send({"sample": forms.SAMPLE.to_dict(sample)})
        self._samples = [one for one in self._samples if one not in some] if len(some) < len(self._samples) else []

    def _say_troubles(self) -> None:
        for port in (self._guest.watcher, self._guest.engine, self._guest.leases):
            for sentence in port.troubles():
                self._channel.send({"trouble": sentence})

    def _report(self) -> None:
        """Report the free memory and the leases of this node, or that its lease directory stays locked."""
        try:
            with self._guest.leases.deciding() as transaction:
                self._report_under_mutex(transaction, transaction.others())
        except LeaseError as exc:
            self._reported = time.monotonic()
            self._channel.send({"trouble": str(exc)})
            self._send_samples(self._samples)

    def _report_under_mutex(self, transaction: LeaseTransaction, others: Sequence[Lease]) -> None:
        self._meet(others)
        used_by, policy, waiters = self._guest.watcher.used_by, transaction.house(), transaction.waiters()
        leases = [replace(lease, used=used_by(lease.shim, lease.name)) for lease in others]
        budgets = self._guest.devices.snapshot()  # after the use of leases was read, as the loop does
        budgets = quota.capped(budgets, policy.caps, self._guest.leases.uid, leases)
        devices = [budget.device for budget in budgets]
        counted = quota.bounded(leases, self._guest.leases.uid, policy.quotas, devices)
        self._view += 1
        self._views[self._view] = ({lease.name: lease for lease in others}, frozenset(policy.closed))
        self._views.pop(self._view - VIEWS, None)
        self._reported = time.monotonic()
        self._channel.send({
            "report": {
                "view": self._view,
                "clock": since_boot(),
                **self._changes.of(
                    self._reported, budgets, closed=dict(policy.closed),
                    leases=[forms.LEASE.to_dict(lease) for lease in counted],
                    waiters=[forms.WAITER.to_dict(waiter) for waiter in waiters],
                ),
            }
        })  # fmt: skip
        self._send_samples(self._samples)

    # ---- reservations ----

    def _take(self, said: Mapping[str, Any]) -> None:
        """Take reservations; take none if another reservation was made on this node since the report that the head
        used, and none above a quota.
        """
        taken: list[list[Any]] = []
        try:
            with self._guest.leases.deciding() as transaction:
                why = self._take_under_mutex(transaction, said, taken)
        except LeaseError as exc:
            why = str(exc)
        self._channel.send({"took": {"number": said["number"], "leases": taken, "why": why}})

    def _take_under_mutex(self, transaction: LeaseTransaction, said: Mapping[str, Any], taken: list[list[Any]]) -> str:
        """Take reservations one by one; return why the rest was not taken. Raise LeaseError if a lease cannot be
        written.
        """
        others, policy = transaction.others(), transaction.house()
        why = self._changed(said["view"], others, policy.closed)
        for one in said["placements"]:
            placement = forms.event_from_dict(one)
            assert isinstance(placement, Placement)
            why = why or self._above_quota(policy.caps, others, placement)
            if why:
                self._report_under_mutex(transaction, others)
                return why
            taken.append(self._taken(transaction, placement))
        return ""

    def _above_quota(self, caps: Caps, others: Sequence[Lease], placement: Placement) -> str:
        """Return which quota is used up; empty if none is. Send one sentence about a task that exceeds a quota by
        itself, as a task with several GPUs may.
        """
        alone = quota.exceeded(caps, (), placement.reservation)
        if alone and placement.task not in self._too_large:
            self._too_large.add(placement.task)
            cure = "lower it, or leave this machine out of --on"
            self._channel.send({"trouble": f"task {placement.task} alone exceeds {alone}, so it never starts: {cure}"})
        what = quota.exceeded(caps, self._mine(others), placement.reservation)
        return what and f"{what} is used up"

    def _mine(self, others: Sequence[Lease]) -> list[Mapping[str, int]]:
        """Return all reservations of this user on this node."""
        uid = self._guest.leases.uid
        own = [*self._living.values(), *(held.placement for held in self._held.values())]
        return [*(one.reserved for one in others if one.uid == uid), *(one.reservation for one in own)]

    def _taken(self, transaction: LeaseTransaction, placement: Placement) -> list[Any]:
        key = (placement.task, placement.attempt)
        lease = transaction.take(placement)
        self._held[key] = _Held(placement, lease, time.monotonic() + KEPT)
        devices = self._guest.devices
        plain, numbered = (dict(devices.environment_for(placement, numbers=numbers)) for numbers in (False, True))
        return [*key, lease.path, lease.port, plain, numbered, [*devices.cuda_numbers(placement)]]

    def _changed(self, view: int, others: Sequence[Lease], closed: Mapping[str, str]) -> str:
        """Return a sentence about what was reserved or closed since a view was reported; empty if nothing was."""
        if view not in self._views:
            return "what it reported last is too old"
        leases, closed_then = self._views[view]
        for lease in others:
            before = leases.get(lease.name)
            if before is None or lease.alone != before.alone or lease.unreadable != before.unreadable:
                return "another scheduler has reserved something"
            if any(bytes_ > before.reserved.get(key, 0) for key, bytes_ in lease.reserved.items()):
                return "a reservation of another scheduler has grown"
        return "" if closed.keys() <= closed_then else "a device was closed"

    def _give_back(self, key: Key) -> None:
        held = self._held.pop(key)
        self._guest.leases.drop(*key)
        os.close(held.lease.fd)

    def _rewrite(self, said: Message) -> None:
        placement = forms.event_from_dict(said["placement"])
        assert isinstance(placement, Placement)
        key = (placement.task, placement.attempt)
        if key in self._living:
            self._living[key] = placement
        self._stale[key] = said

    def _look_after_leases(self) -> None:
        """Rewrite leases that changed, create those that were lost, and give back reservations that were not launched
        in time.
        """
        now = time.monotonic()
        for key in [key for key, held in self._held.items() if held.until < now]:
            self._give_back(key)
        while self._stale:
            key, said = next(iter(self._stale.items()))
            placement, offer = forms.event_from_dict(said["placement"]), forms.OFFER.from_dict(said["offer"])
            assert isinstance(placement, Placement)
            try:
                self._guest.leases.rewrite(placement, said["shim"], offer)
            except LeaseError as exc:
                self._channel.send({"trouble": str(exc)})
                return
            del self._stale[key]
        if now - self._checked >= MISSING:
            self._checked = now
            self._restore()

    def _restore(self) -> None:
        """Create lost leases of living attempts again; a lease counts as lost if two checks in a row do not find it."""
        missing = frozenset(self._guest.leases.missing())
        lost = missing if self._guest.leases.has_moved else missing & self._missing
        self._missing = missing
        living = [
            (self._living[key], self._shims.get(key, 0), "")
            for key in sorted(lost)
            if key in self._living and not self._guest.engine.has_ended(*key)
        ]
        try:
            sentence = self._guest.leases.restore(living) if living else ""
        except LeaseError as exc:
            sentence = str(exc)
        if sentence:
            self._channel.send({"trouble": sentence})

    def _ticket(self, said: Mapping[str, Any] | None) -> None:
        with self._guest.leases.deciding() as transaction:
            transaction.wait(None if said is None else forms.TICKET.from_dict(said))

    def _leave(self, _: object) -> None:
        self._guest.leases.leave()

    # ---- attempts ----

    def _launch(self, said: Mapping[str, Any]) -> None:
        order = forms.LAUNCH.from_dict(said)
        key = (order.task, order.attempt)
        held = self._held.get(key)
        if held is None:
            late = f"its reservation was given back, because no launch came for {KEPT:g} s"
            self._over[key] = Exited(*key, Outcome.UNSTARTED, reason=late)
            return
        if missing := self._given.missing(key, order.argv, self._guest.root_at_head):
            self._give_back(key)
            self._over[key] = Exited(*key, Outcome.UNSTARTED, reason=f"{missing}, its arguments, did not arrive there")
            return
        env = {name: self._here(text) if name in _PATHS and text else text for name, text in order.env.items()}
        del self._held[key]
        self._living[key] = held.placement
        self._files.follow(key)
        self._guest.engine.launch(
            replace(
                order, argv=tuple(map(self._here, order.argv)), env=env,
                lease=held.lease.path, lease_fd=held.lease.fd, kept_fd=-1,
                stdout=self._here(order.stdout), stderr=self._here(order.stderr),
                until=self._guest.fence.path if self._guest.fence is not None else "",
            )
        )  # fmt: skip

    def _take_given(self, said: tuple[str, int, int, str]) -> None:
        """Write a piece of the arguments of a call; reservations do not expire while launches wait for such pieces."""
        for held in self._held.values():
            held.until = time.monotonic() + KEPT
        self._given.write(*said)

    def _here(self, path: str) -> str:
        """Return the path on this node of a file in the run's directory at the head; any other path stays the same."""
        inside = path.startswith(f"{self._guest.root_at_head}/")
        return self._guest.root + path.removeprefix(self._guest.root_at_head) if inside else path

    def _stop(self, said: tuple[int, int, bool]) -> None:
        task, attempt, kill = said
        self._guest.engine.stop(task, attempt, kill=kill)

    def _adopt(self, said: Mapping[str, Any]) -> None:
        """Take over an attempt that an earlier agent of the run left on this node; prevent its start if it has not
        started.
        """
        placement = forms.event_from_dict(said["placement"])
        assert isinstance(placement, Placement)
        key = (placement.task, placement.attempt)
        self._living[key] = placement
        claim = shim.read_claim(shim.claim_path(self._guest.places.task(key[0]), key[1]))
        if claim is not None and not claim.fence and claim.boot_id != shim.boot_id():
            self._of_earlier_boot.add(key)
        self._files.follow(key, said["sizes"])
        self._guest.leases.adopt(*key)
        self._guest.engine.adopt(*key)

    def _forget(self, said: tuple[int, int]) -> None:
        self._given.forget((said[0], said[1]))
        self._guest.engine.forget(*said)

    def _drop(self, said: tuple[int, int]) -> None:
        key = (said[0], said[1])
        if key in self._held:
            self._give_back(key)
        else:
            self._guest.leases.drop(*key)
        self._stale.pop(key, None)

    def _released(self, said: tuple[int, int]) -> None:
        self._guest.leases.forget(*said)
        self._stale.pop((said[0], said[1]), None)

    def _compare(self, said: Mapping[str, Any]) -> None:
        """Send sentences about the things that new tasks need and that this node lacks."""
        self._channel.send({"lacks": self._guest.differences(said)})

    def _end(self, _: object) -> None:
        self._finished = True

    def _echo(self, clock: float) -> None:
        """Let the attempts continue, because the head has received the report that this node sent at the time
        `clock`.
        """
        if self._guest.fence is not None:
            self._guest.fence.extend(clock)

    # ---- what is sampled ----

    def _watch(self, said: Sequence[Sequence[Any]]) -> None:
        watched = {(task, attempt): forms.WATCHED.from_dict(one) for task, attempt, one in said}
        self._watched = {
            key: replace(one, files=(*map(self._here, one.files[:4]), *one.files[4:])) for key, one in watched.items()
        }
        self._look()

    def _meet(self, others: Sequence[Lease]) -> None:
        """Pass the processes of other leases to the samplers, if these processes have changed."""
        met = core_leases.trees(others), core_leases.unnamed_shims(others)
        if met != self._met:
            self._met = met
            self._look()

    def _look(self) -> None:
        self._guest.watcher.watch(self._watched, *self._met)
