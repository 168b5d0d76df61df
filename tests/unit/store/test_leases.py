"""Leases of other versions or with invalid content close their devices, and name their owner."""

from __future__ import annotations

import binascii
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from scheduler.core.leases import Lease
from scheduler.core.model import HOST, EstimateSource, Placement, Purpose
from scheduler.runtime.shim import pack_block, start_time, unpack_block
from scheduler.runtime.users import user_name
from scheduler.store.machine.lease_directory import make_directory
from scheduler.store.machine.lease_records import living
from scheduler.store.machine.leases import FileLeaseRegistry
from scheduler.store.machine.locked_files import make_locked
from tests.support.faults import fault

ME = f"{user_name(os.getuid())} (process {os.getpid()})"
NAMESPACE = os.stat("/proc/self/ns/pid").st_ino


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    return make_directory(str(tmp_path / "leases"))


@pytest.fixture
def held() -> Iterator[list[int]]:
    """Yield a list for descriptors whose locks keep leases alive."""
    fds: list[int] = []
    yield fds
    for fd in fds:
        os.close(fd)


def seen(leases: Path, held: list[int], block: bytes) -> Lease:
    """Make a living lease with this in it, and return it as all schedulers read it."""
    directory = os.open(leases, os.O_RDONLY | os.O_DIRECTORY)
    held += [directory, make_locked(directory, f"{os.getuid()}.9-f.1.1.0123456789abcdef", block)]
    (found,) = living(leases)
    return found


def record(**said: Any) -> bytes:
    return pack_block({"version": 1, "shim": 0, "boot": "b", "bytes": {"host": 5}, "load": {"host": 1.0}, **said})


def test_a_dead_lease_is_removed_at_the_next_look_of_its_user(leases: Path, held: list[int]) -> None:
    seen(leases, held, record())
    os.close(held.pop())
    registry = FileLeaseRegistry(leases, "8-e", "b")
    with registry.deciding() as transaction:
        assert transaction.others() == []
    registry.close()
    assert list(leases.iterdir()) == []


def test_a_changed_reservation_keeps_the_times_of_its_lease(leases: Path, held: list[int]) -> None:
    registry = FileLeaseRegistry(leases, "8-e", "b")
    placement = Placement(7, 1, Purpose.RUN, {HOST: 5}, 1.0, EstimateSource.DECLARED, expected=90.0)
    with registry.deciding() as transaction:
        held.append(transaction.take(placement).fd)
    (before,) = living(leases)
    assert registry.rewrite(replace(placement, reservation={HOST: 9}, expected=0.0), shim=5)
    registry.close()
    (after,) = living(leases)
    assert (after.since, after.expected, dict(after.reserved)) == (before.since, before.expected, {HOST: 9})
    assert (before.since > 0, before.expected) == (True, 90.0)


def port_for(registry: FileLeaseRegistry, held: list[int], task: int = 7) -> int:
    """Return the port of a new lease of a task."""
    with registry.deciding() as transaction:
        transaction.others()
        taken = transaction.take(Placement(task, 1, Purpose.RUN, {HOST: 5}, 1.0, EstimateSource.DECLARED))
    held.append(taken.fd)
    return taken.port


class TestPorts:
    """Every attempt gets a port that no other living attempt has, of whichever scheduler."""

    @pytest.fixture(autouse=True)
    def _one_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("scheduler.store.machine.leases.crc32", lambda text: 500)

    def test_two_runs_and_two_tasks_get_four_ports(self, leases: Path, held: list[int]) -> None:
        runs = [FileLeaseRegistry(leases, run, "b") for run in ("1-a", "2-b")]
        ports = {port_for(run, held, task) for run in runs for task in (7, 8)}
        assert len(ports) == 4
        assert 0 not in ports
        assert sorted(lease.port for lease in living(leases)) == sorted(ports)
        for run in runs:
            run.close()

    def test_the_port_of_a_lease_that_was_written_by_another_process_is_passed_over(
        self, leases: Path, held: list[int]
    ) -> None:
        registry = FileLeaseRegistry(leases, "1-a", "b")
        free = port_for(registry, held)
        registry.drop(7, 1)
        seen(leases, held, record(port=free))
        assert port_for(registry, held) not in (free, 0)
        registry.close()

    def test_the_port_of_a_dead_lease_is_free_again(self, leases: Path, held: list[int]) -> None:
        first, second = (FileLeaseRegistry(leases, run, "b") for run in ("1-a", "2-b"))
        port = port_for(first, held)
        os.close(held.pop())
        assert port_for(second, held) == port
        first.close()
        second.close()

    def test_a_restarted_scheduler_passes_over_the_ports_of_its_living_attempts(
        self, leases: Path, held: list[int]
    ) -> None:
        earlier = FileLeaseRegistry(leases, "1-a", "b")
        port = port_for(earlier, held)
        earlier.close()
        later = FileLeaseRegistry(leases, "1-a", "b")
        later.adopt(7, 1)
        assert port_for(later, held, 8) not in (port, 0)
        later.close()

    def test_a_lease_that_is_made_again_keeps_its_port(self, leases: Path, held: list[int]) -> None:
        registry = FileLeaseRegistry(leases, "1-a", "b")
        port = port_for(registry, held)
        placed = Placement(7, 1, Purpose.RUN, {HOST: 5}, 1.0, EstimateSource.DECLARED, port=port)
        for name in os.listdir(leases):
            if name[0].isdigit():
                (leases / name).unlink()
        registry.restore([(placed, os.getpid(), "")])
        assert [lease.port for lease in living(leases)] == [port]
        registry.close()


@fault(101)
def test_a_lease_whose_name_is_taken_gets_another_name(
    leases: Path, held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    names = iter([b"12345678", b"87654321"])
    monkeypatch.setattr(os, "urandom", lambda size: next(names))
    first = f"{os.getuid()}.8-e.7.1.{b'12345678'.hex()}"
    (leases / first).mkdir()
    registry = FileLeaseRegistry(leases, "8-e", "b")
    with registry.deciding() as transaction:
        held.append(transaction.take(Placement(7, 1, Purpose.RUN, {HOST: 5}, 1.0, EstimateSource.DECLARED)).fd)
    (lease,) = living(leases)
    assert lease.name == f"{os.getuid()}.8-e.7.1.{b'87654321'.hex()}"
    monkeypatch.undo()
    registry.close()


@fault(103)
def test_a_lease_rewritten_by_a_later_scheduler_names_the_process_that_locked_it(
    leases: Path, held: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, placement = (
        FileLeaseRegistry(leases, "8-e", "b"),
        Placement(7, 1, Purpose.RUN, {HOST: 5}, 1.0, EstimateSource.DECLARED),
    )
    with first.deciding() as transaction:
        held.append(transaction.take(placement).fd)
    first.close()
    later = FileLeaseRegistry(leases, "8-e", "b")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 1)
        assert later.rewrite(replace(placement, reservation={HOST: 9}), shim=0)
    later.close()
    (lease,) = living(leases)
    assert dict(lease.reserved) == {HOST: 9}
    assert (unpack_block((leases / lease.name).read_bytes()) or {})["locker"] == os.getpid()


def test_a_lease_of_this_version_is_read(leases: Path, held: list[int]) -> None:
    lease = seen(leases, held, record())
    assert (dict(lease.reserved), lease.unreadable) == ({"host": 5}, "")


def test_reservations_of_a_lease_of_a_newer_version_count(leases: Path, held: list[int]) -> None:
    lease = seen(leases, held, record(version=2, bytes={"GPU-a": 7, "host": 5}, news="something"))
    assert (dict(lease.reserved), lease.unreadable) == ({"GPU-a": 7, "host": 5}, ME)


@fault(52)
@pytest.mark.parametrize(
    "said",
    [
        {"bytes": None}, {"bytes": {"host": "much"}}, {"bytes": {"host": float("inf")}}, {"load": {"host": "x"}},
        {"load": {"host": float("nan")}}, {"shim": []}, {"version": 9, "bytes": 3}, {"since": {}},
        {"bytes": {"host": 10**400}}, {"bytes": {"host": 1 << 61}}, {"load": {"host": 1e300}}, {"since": 1e300},
        {"expected": 1e12},
    ],
)  # fmt: skip
def test_an_invalid_lease_with_a_right_checksum_is_unreadable(
    leases: Path, held: list[int], said: dict[str, Any]
) -> None:
    """Such a lease ended the schedulers of all other users with a traceback."""
    lease = seen(leases, held, record(**said))
    assert (dict(lease.reserved), lease.unreadable) == ({}, ME)


@fault(52)
def test_a_lease_with_deep_json_is_unreadable(leases: Path, held: list[int]) -> None:
    text = b"[" * 4000
    lease = seen(leases, held, b"%08x %s\n" % (binascii.crc32(text), text))
    assert (dict(lease.reserved), lease.unreadable) == ({}, ME)


def test_a_lease_identifies_its_shim_by_namespace_and_start_time(leases: Path, held: list[int]) -> None:
    registry, placement = (
        FileLeaseRegistry(leases, "8-e", "b"),
        Placement(7, 1, Purpose.RUN, {HOST: 5}, 1.0, EstimateSource.DECLARED),
    )
    with registry.deciding() as transaction:
        held.append(transaction.take(placement).fd)
    registry.rewrite(placement, shim=os.getpid())
    registry.close()
    (found,) = living(leases)
    namespace, start = found.shim_id.split(".")
    assert (found.shim, namespace, int(start)) == (os.getpid(), f"{NAMESPACE}", start_time(os.getpid()))


@pytest.mark.parametrize(
    ("said", "believed"),
    [
        ("", True),  # of an earlier version
        (f"{NAMESPACE}.{start_time(os.getpid())}", True),
        (f"{NAMESPACE}.{start_time(os.getpid()) + 1}", False),
        (f"{NAMESPACE + 1}.{start_time(os.getpid())}", False),
    ],
    ids=["unsaid", "the same", "earlier", "elsewhere"],
)
def test_another_process_of_the_owner_is_not_taken_for_the_shim(
    leases: Path, held: list[int], said: str, believed: bool
) -> None:
    """Memory of a process with that pid in another container counted as memory of the lease."""
    assert seen(leases, held, record(shim=os.getpid(), shim_id=said)).shim == (os.getpid() if believed else 0)


def test_negative_numbers_in_a_lease_count_as_zero(leases: Path, held: list[int]) -> None:
    lease = seen(leases, held, record(bytes={"host": -(1 << 40)}, load={"host": -8.0}))
    assert (dict(lease.reserved), dict(lease.load)) == ({"host": 0}, {"host": 0.0})
