"""The contract of every LeaseRegistry, for the machine's directory of leases and the one in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.leases import NO_OFFER, HeldLease, RoomCall, RoomOffer
from scheduler.core.model import HOST, Device, EstimateSource, Placement, Purpose, Waiter, WaitTicket
from scheduler.core.ports import LeaseRegistry
from scheduler.errors import LeaseError
from scheduler.simulation.machine import SimulatedMachine
from scheduler.simulation.memory_store import MemoryLeaseRegistry
from scheduler.store.machine import leases
from scheduler.units import GIB

MINE, OTHER = "1-aa", "2-bb"


class RealPlace:
    """A directory that several schedulers share."""

    def __init__(self, root: Path) -> None:
        self._root = root / "leases"
        self._made: list[leases.FileLeaseRegistry] = []
        self._held: list[int] = []

    def registry(self, run: str) -> LeaseRegistry:
        self._made.append(leases.FileLeaseRegistry(self._root, run, "this boot"))
        return self._made[-1]

    def keep(self, taken: HeldLease) -> HeldLease:
        self._held.append(taken.fd)
        return taken

    def end(self, taken: HeldLease) -> None:
        """Kill the holder of a lease."""
        self._held.remove(taken.fd)
        os.close(taken.fd)

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)
        for registry in self._made:
            registry.close()


class MemoryPlace:
    """The leases of a simulated machine."""

    def __init__(self) -> None:
        self._machine = SimulatedMachine([Device(HOST, HOST, 24 * GIB, 4.0)])

    def registry(self, run: str) -> LeaseRegistry:
        return MemoryLeaseRegistry(self._machine, run)

    def keep(self, taken: HeldLease) -> HeldLease:
        return taken

    def end(self, taken: HeldLease) -> None:
        del self._machine.leases[taken.path]

    def close(self) -> None:
        """Do nothing: nothing is open."""


Place = RealPlace | MemoryPlace


@pytest.fixture(params=["directory", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Return the place where runs meet."""
    monkeypatch.setattr(leases, "PATIENCE", 0.02)
    made: Place = RealPlace(tmp_path) if request.param == "directory" else MemoryPlace()
    yield made
    made.close()


@pytest.fixture
def registry(place: Place) -> LeaseRegistry:
    return place.registry(MINE)


@pytest.fixture
def other(place: Place) -> LeaseRegistry:
    """Return the registry of another run."""
    return place.registry(OTHER)


@pytest.fixture
def take(place: Place, registry: LeaseRegistry) -> Callable[..., HeldLease]:
    """Return a function that takes a lease for this run."""

    def taken(wanted: Placement) -> HeldLease:
        with registry.deciding() as transaction:
            return place.keep(transaction.take(wanted))

    return taken


Take = Callable[..., HeldLease]


def placement(task: int = 7, attempt: int = 1, bytes_: int = GIB, cores: float = 1.5) -> Placement:
    return Placement(task, attempt, Purpose.RUN, {HOST: bytes_}, cores, EstimateSource.DECLARED)


def others(registry: LeaseRegistry) -> list[tuple[int, int, int]]:
    """Return (task, attempt, bytes) of the leases of other runs."""
    with registry.deciding() as transaction:
        return sorted((lease.task, lease.attempt, lease.reserved[HOST]) for lease in transaction.others())


class TestLeases:
    def test_there_are_no_other_leases_at_first(self, registry: LeaseRegistry) -> None:
        assert others(registry) == []

    def test_others_see_a_lease_as_it_was_taken(self, take: Take, other: LeaseRegistry) -> None:
        take(placement())
        with other.deciding() as transaction:
            (lease,) = transaction.others()
        assert (lease.run, lease.task, lease.attempt, lease.shim, lease.unreadable) == (MINE, 7, 1, 0, "")
        assert (dict(lease.reserved), dict(lease.load)) == ({HOST: GIB}, {HOST: 1.5})

    def test_a_runs_own_leases_are_not_among_the_others(self, take: Take, registry: LeaseRegistry) -> None:
        take(placement())
        assert others(registry) == []

    def test_many_leases_are_taken_at_once(self, take: Take, other: LeaseRegistry) -> None:
        for task in (1, 2, 3):
            take(placement(task, bytes_=task * GIB))
        take(placement(3, attempt=2))
        assert others(other) == [(1, 1, GIB), (2, 1, 2 * GIB), (3, 1, 3 * GIB), (3, 2, GIB)]

    def test_a_lease_ends_with_its_holder(self, place: Place, take: Take, other: LeaseRegistry) -> None:
        first, _ = take(placement(1)), take(placement(2))
        place.end(first)
        assert others(other) == [(2, 1, GIB)]

    def test_a_lease_without_a_holder_can_be_taken_again(self, place: Place, take: Take, other: LeaseRegistry) -> None:
        """A decision that could not be recorded is made again."""
        place.end(take(placement()))
        take(placement(bytes_=2 * GIB))
        assert others(other) == [(7, 1, 2 * GIB)]

    def test_each_lease_has_a_path_of_its_own(self, take: Take) -> None:
        assert len({take(placement(task)).path for task in (1, 2)}) == 2


class TestRewriting:
    def test_others_see_a_rewritten_reservation_and_its_shim(
        self, take: Take, registry: LeaseRegistry, other: LeaseRegistry
    ) -> None:
        take(placement())
        assert registry.rewrite(placement(bytes_=3 * GIB), shim=os.getpid())
        with other.deciding() as transaction:
            (lease,) = transaction.others()
        assert (lease.reserved[HOST], lease.shim) == (3 * GIB, os.getpid())

    def test_a_lease_can_be_rewritten_again(self, take: Take, registry: LeaseRegistry, other: LeaseRegistry) -> None:
        take(placement())
        for bytes_ in (5 * GIB, GIB, 123456789):
            assert registry.rewrite(placement(bytes_=bytes_), shim=5)
            assert others(other) == [(7, 1, bytes_)]

    def test_rewriting_a_lease_that_was_never_taken_fails(self, registry: LeaseRegistry, other: LeaseRegistry) -> None:
        assert registry.rewrite(placement(), shim=5) is False
        assert others(other) == []

    def test_rewriting_leaves_the_lease_of_another_attempt_as_it_is(
        self, take: Take, registry: LeaseRegistry, other: LeaseRegistry
    ) -> None:
        take(placement())
        assert registry.rewrite(replace(placement(), attempt=2), shim=5) is False
        assert others(other) == [(7, 1, GIB)]


class TestDropping:
    def test_the_lease_of_a_lost_attempt_is_dropped(
        self, place: Place, take: Take, registry: LeaseRegistry, other: LeaseRegistry
    ) -> None:
        take(placement(1))
        take(placement(2))
        registry.drop(1, 1)
        assert others(other) == [(2, 1, GIB)]

    def test_dropping_a_missing_lease_does_nothing(self, registry: LeaseRegistry) -> None:
        registry.drop(1, 1)

    def test_a_run_cannot_drop_the_lease_of_another(self, take: Take, other: LeaseRegistry, place: Place) -> None:
        take(placement())
        other.drop(7, 1)
        assert others(place.registry("3-cc")) == [(7, 1, GIB)]


class TestDeciding:
    def test_no_other_scheduler_decides_while_the_mutex_is_held(
        self, registry: LeaseRegistry, other: LeaseRegistry
    ) -> None:
        with (
            registry.deciding(),
            pytest.raises(LeaseError, match="nothing is started before that ends"),
            other.deciding(),
        ):
            pass

    def test_another_scheduler_decides_after_the_mutex_is_released(
        self, registry: LeaseRegistry, other: LeaseRegistry
    ) -> None:
        with registry.deciding():
            pass
        with other.deciding():
            pass

    def test_the_mutex_is_released_after_an_error(self, registry: LeaseRegistry, other: LeaseRegistry) -> None:
        with pytest.raises(ZeroDivisionError), registry.deciding():
            _ = 1 / 0
        with other.deciding():
            pass

    def test_a_refused_scheduler_leaves_the_mutex_to_its_holder(
        self, registry: LeaseRegistry, other: LeaseRegistry, place: Place
    ) -> None:
        with registry.deciding() as transaction:
            with pytest.raises(LeaseError), other.deciding():
                pass
            place.keep(transaction.take(placement()))
        assert others(other) == [(7, 1, GIB)]


def ticket(task: int = 3, waited: float = 2.0, **said: Any) -> WaitTicket:
    return WaitTicket(task, ("GPU-a", "GPU-b"), (GIB, None), 2 * GIB, 1.5, 0.5, waited=waited, **said)


def show(registry: LeaseRegistry, shown: WaitTicket | None) -> None:
    with registry.deciding() as transaction:
        transaction.wait(shown)


def waiters(registry: LeaseRegistry) -> list[Waiter]:
    with registry.deciding() as transaction:
        return transaction.waiters()


class TestRoom:
    def test_others_see_whether_an_attempt_may_make_room_and_for_which_task_it_does(
        self, take: Take, registry: LeaseRegistry, other: LeaseRegistry
    ) -> None:
        take(placement())
        for offer in (NO_OFFER, RoomOffer(priority=-3), RoomOffer(asked_by=12)):
            assert registry.rewrite(placement(), os.getpid(), offer)
            with other.deciding() as transaction:
                (lease,) = transaction.others()
            assert lease.offer == offer

    def test_other_runs_of_the_user_hear_a_call_until_it_is_withdrawn(
        self, registry: LeaseRegistry, other: LeaseRegistry
    ) -> None:
        call = RoomCall(3, -5, ((OTHER, 7, 1), ("9-cc", 8, 2)))
        show(registry, ticket(urgent=True, call=call))
        assert (list(other.calls()), list(registry.calls())) == ([call], [])
        assert waiters(other)[0].ticket.urgent
        show(registry, ticket())
        assert list(other.calls()) == []


class TestTickets:
    def test_there_are_no_waiters_at_first(self, registry: LeaseRegistry) -> None:
        assert waiters(registry) == []

    def test_others_see_what_a_run_waits_for(self, registry: LeaseRegistry, other: LeaseRegistry) -> None:
        show(registry, ticket(alone=True, closed=True))
        (seen,) = waiters(other)
        assert (seen.uid, seen.run, seen.passed_up) == (registry.uid, MINE, False)
        assert replace(seen.ticket, waited=2.0) == ticket(alone=True, closed=True)
        assert 2.0 <= seen.ticket.waited < 60.0
        assert 0.0 <= seen.idle < 60.0

    def test_a_runs_own_ticket_is_not_among_the_waiters(self, registry: LeaseRegistry) -> None:
        show(registry, ticket())
        assert waiters(registry) == []

    def test_the_newest_ticket_counts(self, registry: LeaseRegistry, other: LeaseRegistry) -> None:
        show(registry, ticket(3))
        show(registry, ticket(4))
        assert [waiter.ticket.task for waiter in waiters(other)] == [4]

    def test_a_run_that_waits_for_nothing_has_no_ticket(self, registry: LeaseRegistry, other: LeaseRegistry) -> None:
        show(registry, ticket())
        show(registry, None)
        assert waiters(other) == []

    def test_a_run_that_leaves_has_no_ticket(self, registry: LeaseRegistry, other: LeaseRegistry) -> None:
        show(registry, ticket())
        registry.leave()
        registry.leave()
        assert waiters(other) == []

    def test_no_device_is_closed_and_nothing_limited_at_first(self, registry: LeaseRegistry) -> None:
        with registry.deciding() as transaction:
            house = transaction.house()
        assert (dict(house.closed), house.caps.some) == ({}, False)
