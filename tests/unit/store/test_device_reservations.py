"""Device reservations: files of users who have the right, and of no others."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from scheduler.errors import LeaseError
from scheduler.runtime import site_file
from scheduler.runtime.shim import pack_block
from scheduler.store.machine import device_reservations
from scheduler.store.machine.device_reservations import DeviceReservation
from scheduler.store.machine.lease_directory import make_directory
from tests.support.faults import fault

ME = os.getuid()
OTHER = ME + 1
HOUR = 3600.0


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    return make_directory(str(tmp_path / "leases"))


def all_users(uid: int, what: str) -> bool:
    return True


def no_users(uid: int, what: str) -> bool:
    return False


def reservation(device: str = "GPU-a", until: float = HOUR, why: str = "") -> DeviceReservation:
    return DeviceReservation(device, ME, ME, time.time() + until, why)


def name(uid: int) -> str:
    return {ME: "ann", OTHER: "ben"}[uid]


def closed_to(leases: Path, uid: int) -> dict[str, str]:
    return dict(device_reservations.for_others(device_reservations.look(leases, all_users), uid, name))


class TestReserving:
    def test_a_reserved_device_is_closed_to_other_users_only(self, leases: Path) -> None:
        device_reservations.close(leases, [reservation(why="a deadline")])
        sentence = closed_to(leases, OTHER)["GPU-a"]
        assert sentence.startswith("it is reserved for ann until ")
        assert sentence.endswith("(a deadline)")
        assert closed_to(leases, ME) == {}

    def test_a_reservation_ends_at_its_time(self, leases: Path) -> None:
        device_reservations.close(leases, [reservation(until=-0.1), reservation("GPU-b")])
        assert list(closed_to(leases, OTHER)) == ["GPU-b"]

    def test_a_reservation_can_be_ended_before_its_time(self, leases: Path) -> None:
        device_reservations.close(leases, [reservation(), reservation("GPU-b")])
        found = [one for one in device_reservations.look(leases, all_users) if one.device == "GPU-a"]
        assert [one.device for one in device_reservations.end(leases, found)] == ["GPU-a"]
        assert list(closed_to(leases, OTHER)) == ["GPU-b"]

    def test_an_ended_reservation_is_removed_by_the_next_one(self, leases: Path) -> None:
        device_reservations.close(leases, [reservation(until=-0.1)])
        device_reservations.close(leases, [reservation()])
        assert len(list(leases.iterdir())) == 1

    def test_a_reservation_can_be_read_by_all_users_with_any_umask(self, leases: Path) -> None:
        before = os.umask(0o077)
        try:
            device_reservations.close(leases, [reservation()])
        finally:
            os.umask(before)
        assert [stat.S_IMODE(path.stat().st_mode) for path in leases.iterdir()] == [0o644]

    def test_a_very_long_reason_is_cut(self, leases: Path) -> None:
        device_reservations.close(leases, [reservation(why="\N{CAT}" * 5000)])
        (found,) = device_reservations.look(leases, all_users)
        assert len(found.why) == device_reservations.MOST_WORDS


class TestDisabling:
    def test_a_disabled_device_is_closed_to_all_users(self, leases: Path) -> None:
        device_reservations.close(leases, [DeviceReservation("GPU-a", ME, why="a fan is broken")])
        assert closed_to(leases, ME) == closed_to(leases, OTHER) == {"GPU-a": "it is disabled by ann (a fan is broken)"}

    def test_a_directory_that_cannot_be_written_is_named(self, leases: Path) -> None:
        leases.rmdir()
        leases.touch()
        with pytest.raises(LeaseError, match="cannot be written"):
            device_reservations.close(leases, [DeviceReservation("GPU-a", ME)])


class TestIgnoredFiles:
    def test_a_reservation_of_a_user_without_the_right_is_ignored(self, leases: Path) -> None:
        device_reservations.close(leases, [reservation(), DeviceReservation("GPU-b", ME)])
        assert device_reservations.look(leases, no_users) == []
        reserves = device_reservations.look(leases, lambda uid, what: what == "reserve")
        assert [one.device for one in reserves] == ["GPU-a"]

    @fault(51)
    def test_a_link_to_a_reservation_of_another_user_is_ignored(self, leases: Path, tmp_path: Path) -> None:
        device_reservations.close(leases, [reservation()])
        (made,) = leases.iterdir()
        made.rename(tmp_path / "elsewhere")
        (leases / made.name).symlink_to(tmp_path / "elsewhere")
        assert device_reservations.look(leases, all_users) == []

    @fault(52)
    @pytest.mark.parametrize("plant", ["pipe", "folder", "nonsense", "endless", "deep", "another's"])
    def test_planted_files_are_ignored(self, leases: Path, plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
        path = leases / f"closed.{ME}.0123abcd"
        match plant:
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case "nonsense":
                path.write_bytes(pack_block({"version": 1, "device": 3, "user": "x", "until": [], "why": {}}))
            case "endless":
                said = {"version": 1, "device": "GPU-a", "user": ME, "until": float("inf"), "why": ""}
                path.write_bytes(pack_block(said))
            case "deep":
                path.write_bytes(b"%08x %s\n" % (__import__("binascii").crc32(b"[" * 3000), b"[" * 3000))
            case "another's":
                path = leases / f"closed.{OTHER}.0123abcd"
                device_reservations.close(leases, [reservation()])
                next(leases.iterdir()).rename(path)
        assert closed_to(leases, OTHER) == {}

    def test_only_root_keeps_devices_for_others(self, leases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        device_reservations.close(leases, [DeviceReservation("GPU-a", ME, OTHER, time.time() + HOUR)])
        for root, counts in ((ME, True), (ME + 7, False)):
            monkeypatch.setattr(site_file, "ROOT", root)
            assert bool(device_reservations.look(leases, all_users)) is counts


def test_a_missing_directory_closes_no_device(tmp_path: Path) -> None:
    assert device_reservations.look(tmp_path / "nowhere", all_users) == []
