"""Output that is followed while somebody else writes it: all of it, in order, and no longer than anybody reads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler.view.following import Follower
from tests.faults import fault
from tests.waiting import wait_until


@pytest.fixture
def lost() -> list[str]:
    return []


def follow(path: Path, out: int, lost: list[str]) -> Follower:
    return Follower({path: out}, lambda: lost.append("lost"))


def test_all_of_it_comes_in_order(tmp_path: Path, lost: list[str]) -> None:
    path, copy = tmp_path / "1.log", tmp_path / "copy"
    with open(copy, "wb") as out, open(path, "wb", buffering=0) as log:
        follower = follow(path, out.fileno(), lost)
        log.writelines(b"line %d\n" % number for number in range(2000))
        follower.finish()
    assert copy.read_bytes() == path.read_bytes()
    assert lost == []


def test_it_comes_while_it_is_written(tmp_path: Path, lost: list[str]) -> None:
    path, copy = tmp_path / "1.log", tmp_path / "copy"
    with open(copy, "wb") as out:
        follower = follow(path, out.fileno(), lost)
        path.write_bytes(b"early\n")
        wait_until(lambda: copy.read_bytes() == b"early\n", 30)
        follower.finish()


def test_a_file_that_never_was_is_an_empty_one(tmp_path: Path, lost: list[str]) -> None:
    with open(tmp_path / "copy", "wb") as out:
        follow(tmp_path / "1.log", out.fileno(), lost).finish()
    assert (tmp_path / "copy").read_bytes() == b""


def test_a_reader_that_goes_is_told_once(tmp_path: Path, lost: list[str]) -> None:
    read, write = os.pipe()
    os.close(read)
    path = tmp_path / "1.log"
    path.write_bytes(b"x" * 1000)
    follower = follow(path, write, lost)
    wait_until(lambda: lost, 30)
    path.write_bytes(b"y" * 2000)
    follower.finish()
    os.close(write)
    assert lost == ["lost"]


def test_a_file_that_was_cut_is_followed_from_its_new_end(tmp_path: Path, lost: list[str]) -> None:
    path, copy = tmp_path / "1.log", tmp_path / "copy"
    path.write_bytes(b"a" * 100)
    with open(copy, "wb") as out:
        follower = follow(path, out.fileno(), lost)
        wait_until(lambda: copy.stat().st_size == 100, 30)
        os.truncate(path, 50)
        follower._files[0].copy()
        with open(path, "ab") as log:
            log.write(b"more")
        follower.finish()
    assert copy.read_bytes().endswith(b"more")


@fault(65)
def test_what_is_no_plain_file_is_not_read(tmp_path: Path, lost: list[str]) -> None:
    os.mkfifo(tmp_path / "1.log")
    with open(tmp_path / "copy", "wb") as out:
        follow(tmp_path / "1.log", out.fileno(), lost).finish()
    assert (tmp_path / "copy").read_bytes() == b""
