"""What every ledger promises: the machine's directory of leases and the one in memory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.model import HOST, Device, KnownBy, Placement, Purpose, Ticket, Waiter
from scheduler.core.ports import Ledger
from scheduler.core.promises import Taken
from scheduler.core.simulation import SimulatedMachine
from scheduler.errors import LeaseError
from scheduler.store import leases
from scheduler.store.memory import MemoryLedger
from scheduler.units import GIB

MINE, OTHER = "1-aa", "2-bb"


class RealPlace:
    """A directory, as several schedulers share it."""

    def __init__(self, root: Path) -> None:
        self._root = root / "leases"
        self._made: list[leases.Ledger] = []
        self._held: list[int] = []

    def ledger(self, run: str) -> Ledger:
        self._made.append(leases.Ledger(self._root, run, "this boot"))
        return self._made[-1]

    def keep(self, taken: Taken) -> Taken:
        self._held.append(taken.fd)
        return taken

    def end(self, taken: Taken) -> None:
        """Whoever held it is dead."""
        self._held.remove(taken.fd)
        os.close(taken.fd)

    def close(self) -> None:
        for fd in self._held:
            os.close(fd)
        for ledger in self._made:
            ledger.close()


class MemoryPlace:
    """A machine that is not there."""

    def __init__(self) -> None:
        self._machine = SimulatedMachine([Device(HOST, HOST, 24 * GIB, 4.0)])

    def ledger(self, run: str) -> Ledger:
        return MemoryLedger(self._machine, run)

    def keep(self, taken: Taken) -> Taken:
        return taken

    def end(self, taken: Taken) -> None:
        del self._machine.leases[taken.path]

    def close(self) -> None:
        """Nothing is open."""


Place = RealPlace | MemoryPlace


@pytest.fixture(params=["directory", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """Where runs meet."""
    monkeypatch.setattr(leases, "PATIENCE", 0.02)
    made: Place = RealPlace(tmp_path) if request.param == "directory" else MemoryPlace()
    yield made
    made.close()


@pytest.fixture
def ledger(place: Place) -> Ledger:
    return place.ledger(MINE)


@pytest.fixture
def other(place: Place) -> Ledger:
    """Another run's."""
    return place.ledger(OTHER)


@pytest.fixture
def take(place: Place, ledger: Ledger) -> Callable[..., Taken]:
    """Takes a lease for this run."""

    def taken(wanted: Placement) -> Taken:
        with ledger.deciding() as desk:
            return place.keep(desk.take(wanted))

    return taken


Take = Callable[..., Taken]


def placement(task: int = 7, attempt: int = 1, bytes_: int = GIB, cores: float = 1.5) -> Placement:
    return Placement(task, attempt, Purpose.RUN, {HOST: bytes_}, cores, KnownBy.DECLARED)


def others(ledger: Ledger) -> list[tuple[int, int, int]]:
    """(task, attempt, bytes) of everybody else's leases."""
    with ledger.deciding() as desk:
        return sorted((lease.task, lease.attempt, lease.promised[HOST]) for lease in desk.others())


class TestLeases:
    def test_nobody_is_there_at_first(self, ledger: Ledger) -> None:
        assert others(ledger) == []

    def test_others_see_a_lease_as_it_was_taken(self, take: Take, other: Ledger) -> None:
        take(placement())
        with other.deciding() as desk:
            (lease,) = desk.others()
        assert (lease.run, lease.task, lease.attempt, lease.shim, lease.unreadable) == (MINE, 7, 1, 0, "")
        assert (dict(lease.promised), dict(lease.load)) == ({HOST: GIB}, {HOST: 1.5})

    def test_ones_own_are_not_others(self, take: Take, ledger: Ledger) -> None:
        take(placement())
        assert others(ledger) == []

    def test_many_at_once(self, take: Take, other: Ledger) -> None:
        for task in (1, 2, 3):
            take(placement(task, bytes_=task * GIB))
        take(placement(3, attempt=2))
        assert others(other) == [(1, 1, GIB), (2, 1, 2 * GIB), (3, 1, 3 * GIB), (3, 2, GIB)]

    def test_one_goes_with_its_holder(self, place: Place, take: Take, other: Ledger) -> None:
        first, _ = take(placement(1)), take(placement(2))
        place.end(first)
        assert others(other) == [(2, 1, GIB)]

    def test_what_nobody_holds_can_be_taken_again(self, place: Place, take: Take, other: Ledger) -> None:
        """A decision that could not be recorded is made anew."""
        place.end(take(placement()))
        take(placement(bytes_=2 * GIB))
        assert others(other) == [(7, 1, 2 * GIB)]

    def test_a_path_names_each_of_them(self, take: Take) -> None:
        assert len({take(placement(task)).path for task in (1, 2)}) == 2


class TestRewriting:
    def test_others_see_the_new_promise_and_the_shim(self, take: Take, ledger: Ledger, other: Ledger) -> None:
        take(placement())
        assert ledger.rewrite(placement(bytes_=3 * GIB), shim=os.getpid())
        with other.deciding() as desk:
            (lease,) = desk.others()
        assert (lease.promised[HOST], lease.shim) == (3 * GIB, os.getpid())

    def test_more_than_once(self, take: Take, ledger: Ledger, other: Ledger) -> None:
        take(placement())
        for bytes_ in (5 * GIB, GIB, 123456789):
            assert ledger.rewrite(placement(bytes_=bytes_), shim=5)
            assert others(other) == [(7, 1, bytes_)]

    def test_one_that_was_never_taken(self, ledger: Ledger, other: Ledger) -> None:
        assert ledger.rewrite(placement(), shim=5) is False
        assert others(other) == []

    def test_another_attempts_stays_as_it_is(self, take: Take, ledger: Ledger, other: Ledger) -> None:
        take(placement())
        assert ledger.rewrite(replace(placement(), attempt=2), shim=5) is False
        assert others(other) == [(7, 1, GIB)]


class TestDropping:
    def test_what_a_lost_attempt_left(self, place: Place, take: Take, ledger: Ledger, other: Ledger) -> None:
        take(placement(1))
        take(placement(2))
        ledger.drop(1, 1)
        assert others(other) == [(2, 1, GIB)]

    def test_what_is_not_there(self, ledger: Ledger) -> None:
        ledger.drop(1, 1)

    def test_nobody_drops_anothers(self, take: Take, other: Ledger, place: Place) -> None:
        take(placement())
        other.drop(7, 1)
        assert others(place.ledger("3-cc")) == [(7, 1, GIB)]


class TestDeciding:
    def test_nobody_else_decides_meanwhile(self, ledger: Ledger, other: Ledger) -> None:
        with (
            ledger.deciding(),
            pytest.raises(LeaseError, match="nothing is started before that ends"),
            other.deciding(),
        ):
            pass

    def test_but_afterwards(self, ledger: Ledger, other: Ledger) -> None:
        with ledger.deciding():
            pass
        with other.deciding():
            pass

    def test_and_after_a_mishap(self, ledger: Ledger, other: Ledger) -> None:
        with pytest.raises(ZeroDivisionError), ledger.deciding():
            _ = 1 / 0
        with other.deciding():
            pass

    def test_who_is_refused_leaves_it_to_who_has_it(self, ledger: Ledger, other: Ledger, place: Place) -> None:
        with ledger.deciding() as desk:
            with pytest.raises(LeaseError), other.deciding():
                pass
            place.keep(desk.take(placement()))
        assert others(other) == [(7, 1, GIB)]


def ticket(task: int = 3, waited: float = 2.0, **said: Any) -> Ticket:
    return Ticket(task, ("GPU-a", "GPU-b"), (GIB, None), 2 * GIB, 1.5, 0.5, waited=waited, **said)


def show(ledger: Ledger, shown: Ticket | None) -> None:
    with ledger.deciding() as desk:
        desk.wait(shown)


def waiters(ledger: Ledger) -> list[Waiter]:
    with ledger.deciding() as desk:
        return desk.waiters()


class TestTickets:
    def test_nobody_waits_at_first(self, ledger: Ledger) -> None:
        assert waiters(ledger) == []

    def test_others_see_what_a_run_waits_for(self, ledger: Ledger, other: Ledger) -> None:
        show(ledger, ticket(alone=True, closed=True))
        (seen,) = waiters(other)
        assert (seen.uid, seen.run, seen.passed_up) == (ledger.uid, MINE, False)
        assert replace(seen.ticket, waited=2.0) == ticket(alone=True, closed=True)
        assert 2.0 <= seen.ticket.waited < 60.0
        assert 0.0 <= seen.idle < 60.0

    def test_ones_own_is_not_anothers(self, ledger: Ledger) -> None:
        show(ledger, ticket())
        assert waiters(ledger) == []

    def test_the_newest_counts(self, ledger: Ledger, other: Ledger) -> None:
        show(ledger, ticket(3))
        show(ledger, ticket(4))
        assert [waiter.ticket.task for waiter in waiters(other)] == [4]

    def test_who_waits_for_nothing_has_none(self, ledger: Ledger, other: Ledger) -> None:
        show(ledger, ticket())
        show(ledger, None)
        assert waiters(other) == []

    def test_who_leaves_has_none(self, ledger: Ledger, other: Ledger) -> None:
        show(ledger, ticket())
        ledger.leave()
        ledger.leave()
        assert waiters(other) == []

    def test_nothing_is_closed_or_capped_at_first(self, ledger: Ledger) -> None:
        with ledger.deciding() as desk:
            house = desk.house()
        assert (dict(house.closed), house.caps.some) == ({}, False)
