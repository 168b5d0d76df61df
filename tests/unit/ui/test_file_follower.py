"""Output that is followed while another process writes it: complete, in order, and only while it has a reader."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from scheduler.ui.terminal.file_follower import FileFollower
from tests.support.faults import fault
from tests.support.waiting import wait_until


@pytest.fixture
def lost() -> list[str]:
    return []


def follow(path: Path, out: int, lost: list[str]) -> FileFollower:
    return FileFollower({path: out}, lambda: lost.append("lost"))


def test_follower_copies_everything_in_order(tmp_path: Path, lost: list[str]) -> None:
    path, copy = tmp_path / "1.log", tmp_path / "copy"
    with open(copy, "wb") as out, open(path, "wb", buffering=0) as log:
        follower = follow(path, out.fileno(), lost)
        log.writelines(b"line %d\n" % number for number in range(2000))
        follower.finish()
    assert copy.read_bytes() == path.read_bytes()
    assert lost == []


def test_follower_copies_while_the_file_is_written(tmp_path: Path, lost: list[str]) -> None:
    path, copy = tmp_path / "1.log", tmp_path / "copy"
    with open(copy, "wb") as out:
        follower = follow(path, out.fileno(), lost)
        path.write_bytes(b"early\n")
        wait_until(lambda: copy.read_bytes() == b"early\n", 30)
        follower.finish()


def test_follower_takes_a_missing_file_as_empty(tmp_path: Path, lost: list[str]) -> None:
    with open(tmp_path / "copy", "wb") as out:
        follow(tmp_path / "1.log", out.fileno(), lost).finish()
    assert (tmp_path / "copy").read_bytes() == b""


def test_follower_reports_a_lost_reader_once(tmp_path: Path, lost: list[str]) -> None:
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


def test_follower_continues_at_the_new_end_of_a_truncated_file(tmp_path: Path, lost: list[str]) -> None:
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
def test_follower_does_not_read_a_special_file(tmp_path: Path, lost: list[str]) -> None:
    os.mkfifo(tmp_path / "1.log")
    with open(tmp_path / "copy", "wb") as out:
        follow(tmp_path / "1.log", out.fileno(), lost).finish()
    assert (tmp_path / "copy").read_bytes() == b""
