"""Devices that are closed to others: files of those who may say so, and of nobody else."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from scheduler import machinefile
from scheduler.errors import LeaseError
from scheduler.shim import pack_block
from scheduler.store import closures
from scheduler.store.closures import Closure
from scheduler.store.leases import make_directory
from tests.faults import fault

ME = os.getuid()
OTHER = ME + 1
HOUR = 3600.0


@pytest.fixture
def leases(tmp_path: Path) -> Path:
    return make_directory(str(tmp_path / "leases"))


def anybody(uid: int, what: str) -> bool:
    return True


def nobody(uid: int, what: str) -> bool:
    return False


def reservation(device: str = "GPU-a", until: float = HOUR, why: str = "") -> Closure:
    return Closure(device, ME, ME, time.time() + until, why)


def name(uid: int) -> str:
    return {ME: "ann", OTHER: "ben"}[uid]


def closed_to(leases: Path, uid: int) -> dict[str, str]:
    return dict(closures.for_others(closures.look(leases, anybody), uid, name))


class TestReserving:
    def test_others_start_nothing_there_and_its_user_does(self, leases: Path) -> None:
        closures.close(leases, [reservation(why="a deadline")])
        sentence = closed_to(leases, OTHER)["GPU-a"]
        assert sentence.startswith("it is reserved for ann until ")
        assert sentence.endswith("(a deadline)")
        assert closed_to(leases, ME) == {}

    def test_until_its_time_is_over(self, leases: Path) -> None:
        closures.close(leases, [reservation(until=-0.1), reservation("GPU-b")])
        assert list(closed_to(leases, OTHER)) == ["GPU-b"]

    def test_or_until_it_is_ended(self, leases: Path) -> None:
        closures.close(leases, [reservation(), reservation("GPU-b")])
        found = [one for one in closures.look(leases, anybody) if one.device == "GPU-a"]
        assert [one.device for one in closures.end(leases, found)] == ["GPU-a"]
        assert list(closed_to(leases, OTHER)) == ["GPU-b"]

    def test_what_is_over_is_taken_away_by_the_next(self, leases: Path) -> None:
        closures.close(leases, [reservation(until=-0.1)])
        closures.close(leases, [reservation()])
        assert len(list(leases.iterdir())) == 1

    def test_everybody_can_read_it_whatever_the_umask(self, leases: Path) -> None:
        before = os.umask(0o077)
        try:
            closures.close(leases, [reservation()])
        finally:
            os.umask(before)
        assert [stat.S_IMODE(path.stat().st_mode) for path in leases.iterdir()] == [0o644]

    def test_a_very_long_reason_is_cut(self, leases: Path) -> None:
        closures.close(leases, [reservation(why="\N{CAT}" * 5000)])
        (found,) = closures.look(leases, anybody)
        assert len(found.why) == closures.MOST_WORDS


class TestDisabling:
    def test_nobody_starts_there(self, leases: Path) -> None:
        closures.close(leases, [Closure("GPU-a", ME, why="a fan is broken")])
        assert closed_to(leases, ME) == closed_to(leases, OTHER) == {"GPU-a": "it is disabled by ann (a fan is broken)"}

    def test_a_directory_that_takes_nothing_is_named(self, leases: Path) -> None:
        leases.rmdir()
        leases.touch()
        with pytest.raises(LeaseError, match="cannot be written"):
            closures.close(leases, [Closure("GPU-a", ME)])


class TestWhatCountsForNothing:
    def test_what_somebody_says_who_may_not(self, leases: Path) -> None:
        closures.close(leases, [reservation(), Closure("GPU-b", ME)])
        assert closures.look(leases, nobody) == []
        reserves = closures.look(leases, lambda uid, what: what == "reserve")
        assert [one.device for one in reserves] == ["GPU-a"]

    @fault(51)
    def test_a_link_to_somebody_elses_words(self, leases: Path, tmp_path: Path) -> None:
        closures.close(leases, [reservation()])
        (made,) = leases.iterdir()
        made.rename(tmp_path / "elsewhere")
        (leases / made.name).symlink_to(tmp_path / "elsewhere")
        assert closures.look(leases, anybody) == []

    @fault(52)
    @pytest.mark.parametrize("plant", ["pipe", "folder", "nonsense", "for ever", "deep", "another's"])
    def test_what_is_planted(self, leases: Path, plant: str, monkeypatch: pytest.MonkeyPatch) -> None:
        path = leases / f"closed.{ME}.0123abcd"
        match plant:
            case "pipe":
                os.mkfifo(path)
            case "folder":
                path.mkdir()
            case "nonsense":
                path.write_bytes(pack_block({"version": 1, "device": 3, "user": "x", "until": [], "why": {}}))
            case "for ever":
                said = {"version": 1, "device": "GPU-a", "user": ME, "until": float("inf"), "why": ""}
                path.write_bytes(pack_block(said))
            case "deep":
                path.write_bytes(b"%08x %s\n" % (__import__("binascii").crc32(b"[" * 3000), b"[" * 3000))
            case "another's":
                path = leases / f"closed.{OTHER}.0123abcd"
                closures.close(leases, [reservation()])
                next(leases.iterdir()).rename(path)
        assert closed_to(leases, OTHER) == {}

    def test_only_root_keeps_devices_for_others(self, leases: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        closures.close(leases, [Closure("GPU-a", ME, OTHER, time.time() + HOUR)])
        for root, counts in ((ME, True), (ME + 7, False)):
            monkeypatch.setattr(machinefile, "ROOT", root)
            assert bool(closures.look(leases, anybody)) is counts


def test_a_directory_that_is_not_there_closes_nothing(tmp_path: Path) -> None:
    assert closures.look(tmp_path / "nowhere", anybody) == []
