"""Wait tickets: the files that show waiting tasks; only living and valid ones count."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.leases import RoomCall
from scheduler.core.model import HOST, WaitTicket
from scheduler.runtime.shim import pack_block
from scheduler.store.machine import wait_tickets
from scheduler.store.machine.lease_directory import make_directory
from scheduler.store.machine.leases import FileLeaseRegistry
from scheduler.store.machine.records import RecordDirectory
from tests.support.faults import fault

TICKET = WaitTicket(3, (HOST,), (), 1 << 30, waited=1.0)
BOOT = "a boot"


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    return make_directory(str(tmp_path / "leases"))


def said(**what: Any) -> bytes:
    """Return a ticket's record with some fields replaced, as an attacker would."""
    plain = {**asdict(TICKET), "version": 2, "since": 0.0, "looked": 0.0}
    return pack_block({**plain, **what})


def show(registry: FileLeaseRegistry, ticket: WaitTicket | None = TICKET) -> None:
    with registry.deciding() as transaction:
        transaction.wait(ticket)


def seen(leases: Path) -> list[int]:
    return [waiter.ticket.task for waiter in wait_tickets.waiters(leases)]


class TestTickets:
    def test_a_ticket_is_removed_with_its_scheduler(self, leases: Path) -> None:
        registry = FileLeaseRegistry(leases, "1-a", BOOT)
        show(registry)
        assert seen(leases) == [3]
        registry.close()
        assert list(leases.iterdir()) == []

    def test_the_ticket_of_a_killed_scheduler_is_removed_by_another(self, leases: Path) -> None:
        registry, other = FileLeaseRegistry(leases, "1-a", BOOT), FileLeaseRegistry(leases, "2-b", BOOT)
        show(registry)
        os.close(registry._tickets._fd)
        registry._tickets._fd = -1
        assert seen(leases) == []
        with other.deciding() as transaction:
            assert transaction.waiters() == []
        assert list(leases.iterdir()) == []

    def test_the_ticket_of_a_killed_scheduler_is_removed_by_the_next_of_its_run(self, leases: Path) -> None:
        """It is removed even if that scheduler has nothing to decide any more."""
        (leases / f"ticket.{os.getuid()}.1-a.{'0' * 16}").touch()
        FileLeaseRegistry(leases, "1-a", BOOT).close()
        assert list(leases.iterdir()) == []

    def test_tickets_of_killed_schedulers_of_a_run_are_removed_by_its_next_decision(self, leases: Path) -> None:
        for number in range(3):
            (leases / f"ticket.{os.getuid()}.1-a.{number:016x}").touch()
        registry = FileLeaseRegistry(leases, "1-a", BOOT)
        with registry.deciding() as transaction:
            assert transaction.waiters() == []
            transaction.wait(TICKET)
        with registry.deciding() as transaction:
            assert transaction.waiters() == []
        assert len(list(leases.iterdir())) == 1
        assert seen(leases) == [3]
        registry.close()

    def test_tickets_are_sorted_by_the_start_of_their_wait(self, leases: Path) -> None:
        registries = [FileLeaseRegistry(leases, f"{number}-a", BOOT) for number in (1, 2, 3)]
        for registry, (task, waited) in zip(registries, ((1, 5.0), (2, 9.0), (3, 7.0)), strict=True):
            show(registry, WaitTicket(task, (HOST,), (), None, waited=waited))
        assert seen(leases) == [2, 3, 1]
        for registry in registries:
            registry.close()

    @pytest.mark.parametrize(
        "block",
        [
            b"", b"nonsense", pack_block({"version": 2}), pack_block({"version": 99}), said(since=-math.inf),
            said(since=math.nan), said(since=-1e300), said(last=math.nan),
            said(cores=math.inf), said(host=10**400), said(gpus=[1 << 61]),
        ],
    )  # fmt: skip
    def test_an_invalid_ticket_does_not_count(self, leases: Path, block: bytes) -> None:
        registry = FileLeaseRegistry(leases, "1-a", BOOT)
        show(registry)
        os.ftruncate(registry._tickets._fd, 0)
        os.pwrite(registry._tickets._fd, block, 0)
        assert seen(leases) == []
        registry.close()

    @fault(130)
    def test_ticket_of_another_user_has_waited_no_longer_than_it_was_seen(
        self, leases: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        reader = wait_tickets.Tickets(os.getuid() + 1, "1-a")
        registries = [FileLeaseRegistry(leases, f"{number}-a", BOOT) for number in (2, 3)]
        boot, records = wait_tickets.since_boot(), RecordDirectory(os.open(leases, os.O_RDONLY))
        monkeypatch.setattr(wait_tickets, "since_boot", lambda: boot)

        def waited() -> list[float]:
            found = reader.others(records)
            return [waiter.ticket.waited for waiter in sorted(found, key=lambda waiter: waiter.run)]

        show(registries[0], replace(TICKET, waited=1e9))
        assert waited() == [pytest.approx(1e9)], "it was there before this scheduler looked"
        boot += 5
        show(registries[1], replace(TICKET, waited=1e9))
        assert waited()[1] == 5.0
        boot += 7
        assert waited()[1] == 12.0
        show(registries[1], None)
        waited()
        boot += 1
        show(registries[1], replace(TICKET, waited=1e9))
        assert waited()[1] == 1.0, "it was shown again"
        show(registries[1], replace(TICKET, waited=0.5))
        assert waited()[1] == 0.5
        for registry in registries:
            registry.close()

    def test_requests_of_another_user_to_make_room_are_not_read(self, leases: Path) -> None:
        registries = [FileLeaseRegistry(leases, f"{number}-a", BOOT) for number in (1, 2)]
        call = RoomCall(3, -5, (("2-a", 7, 1),))
        show(registries[0], replace(TICKET, urgent=True, call=call))
        assert registries[1].calls() == [call]
        registries[1]._tickets = wait_tickets.Tickets(os.getuid() + 1, "2-a")
        assert registries[1].calls() == []
        for registry in registries:
            registry.close()

    def test_a_ticket_under_the_name_of_another_user_does_not_count(self, leases: Path) -> None:
        registry = FileLeaseRegistry(leases, "1-a", BOOT)
        show(registry)
        (mine,) = leases.iterdir()
        mine.rename(leases / mine.name.replace(f"ticket.{os.getuid()}", f"ticket.{os.getuid() + 1}"))
        assert seen(leases) == []
        registry.close()

    @fault(51, 52)
    @pytest.mark.parametrize("plant", ["link", "pipe", "folder"])
    def test_planted_files_with_ticket_names_are_ignored(self, leases: Path, tmp_path: Path, plant: str) -> None:
        path = leases / f"ticket.{os.getuid()}.9-f.{'0' * 16}"
        match plant:
            case "link":
                path.symlink_to(tmp_path / "elsewhere")
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
        assert seen(leases) == []
