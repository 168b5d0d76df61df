"""The files by which waiting schedulers speak: only living, honest ones are heard."""

from __future__ import annotations

import math
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.model import HOST, Ticket
from scheduler.shim import pack_block
from scheduler.store import tickets
from scheduler.store.leases import Ledger, make_directory
from tests.faults import fault

TICKET = Ticket(3, (HOST,), (), 1 << 30, waited=1.0)
BOOT = "a boot"


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    return make_directory(str(tmp_path / "leases"))


def said(**what: Any) -> bytes:
    """A ticket's words, with some that only somebody wrote who wanted to confuse others."""
    plain = {**asdict(TICKET), "version": 1, "since": 0.0, "looked": 0.0}
    return pack_block({**plain, **what})


def show(ledger: Ledger, ticket: Ticket | None = TICKET) -> None:
    with ledger.deciding() as desk:
        desk.wait(ticket)


def seen(leases: Path) -> list[int]:
    return [waiter.ticket.task for waiter in tickets.waiters(leases)]


class TestTickets:
    def test_one_goes_with_its_holder(self, leases: Path) -> None:
        ledger = Ledger(leases, "1-a", BOOT)
        show(ledger)
        assert seen(leases) == [3]
        ledger.close()
        assert list(leases.iterdir()) == []

    def test_what_a_killed_one_left_is_dead_and_taken_away_by_the_next(self, leases: Path) -> None:
        ledger, other = Ledger(leases, "1-a", BOOT), Ledger(leases, "2-b", BOOT)
        show(ledger)
        os.close(ledger._tickets._fd)
        ledger._tickets._fd = -1
        assert seen(leases) == []
        with other.deciding() as desk:
            assert desk.waiters() == []
        assert list(leases.iterdir()) == []

    def test_what_a_killed_one_left_goes_with_its_next_scheduler_too(self, leases: Path) -> None:
        """Even if that has nothing to decide any more."""
        (leases / f"ticket.{os.getuid()}.1-a").touch()
        Ledger(leases, "1-a", BOOT).close()
        assert list(leases.iterdir()) == []

    def test_who_began_to_wait_first_comes_first(self, leases: Path) -> None:
        ledgers = [Ledger(leases, f"{number}-a", BOOT) for number in (1, 2, 3)]
        for ledger, (task, waited) in zip(ledgers, ((1, 5.0), (2, 9.0), (3, 7.0)), strict=True):
            show(ledger, Ticket(task, (HOST,), (), None, waited=waited))
        assert seen(leases) == [2, 3, 1]
        for ledger in ledgers:
            ledger.close()

    @pytest.mark.parametrize(
        "block",
        [
            b"", b"nonsense", pack_block({"version": 1}), pack_block({"version": 99}), said(since=-math.inf),
            said(since=math.nan), said(since=-1e300), said(cores=math.inf), said(host=10**400), said(gpus=[1 << 61]),
        ],
    )  # fmt: skip
    def test_nonsense_is_nobody(self, leases: Path, block: bytes) -> None:
        ledger = Ledger(leases, "1-a", BOOT)
        show(ledger)
        os.ftruncate(ledger._tickets._fd, 0)
        os.pwrite(ledger._tickets._fd, block, 0)
        assert seen(leases) == []
        ledger.close()

    def test_nobody_speaks_for_another_user(self, leases: Path) -> None:
        ledger = Ledger(leases, "1-a", BOOT)
        show(ledger)
        (leases / f"ticket.{os.getuid()}.1-a").rename(leases / f"ticket.{os.getuid() + 1}.1-a")
        assert seen(leases) == []
        ledger.close()

    @fault(51, 52)
    @pytest.mark.parametrize("plant", ["link", "pipe", "folder"])
    def test_what_is_planted_is_passed_by(self, leases: Path, tmp_path: Path, plant: str) -> None:
        path = leases / f"ticket.{os.getuid()}.9-f"
        match plant:
            case "link":
                path.symlink_to(tmp_path / "elsewhere")
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
        assert seen(leases) == []
