"""Views of root on files that another user has put in the place of a journal."""

from __future__ import annotations

import os
import sqlite3
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.sharing.test_two_users import common  # noqa: F401 - the fixture
from tests.support.faults import fault
from tests.support.killing import Home

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may read the runs of other users"),
]
BOB = 61_002
MAGIC = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a rollback journal of SQLite that names a super-journal."""
PENDING_BYTE = 0x40000000


@pytest.fixture
def home(common: Path) -> Iterator[Home]:  # noqa: F811 - the fixture
    made = Home(common)
    made.commands("false")
    made.call("run", "jobs.csv", "--devices", "host", code=1)
    yield made
    made.end()


def doom(database: Path, victim: Path) -> None:
    """Leave files beside a database that make its reader roll back a transaction, and remove a file in the end."""
    beside = Path(f"{database}-journal")
    with sqlite3.connect(database, isolation_level=None) as connection:
        for statement in ("journal_mode=delete", "cache_size=2", "synchronous=full"):
            connection.execute(f"pragma {statement}")
        (page,) = connection.execute("pragma page_size").fetchone()
        connection.execute("begin")
        connection.execute("create table junk(x)")
        for _ in range(100):
            connection.execute("insert into junk values (?)", ("y" * 3000,))
        half, journal = database.read_bytes(), beside.read_bytes()
        connection.execute("rollback")
    connection.close()
    pages, sector = struct.unpack(">I", journal[8:12])[0], struct.unpack(">I", journal[20:24])[0]
    name = bytes(victim)
    ending = struct.pack(">I", PENDING_BYTE // page + 1) + name + struct.pack(">II", len(name), sum(name)) + MAGIC
    database.write_bytes(half)
    beside.write_bytes(journal[: sector + pages * (page + 8)] + ending)


@fault(51)
@pytest.mark.parametrize("words", [("results", "r1"), ("status",), ("why", "0"), ("retry", "0")], ids=" ".join)
def test_a_file_beside_a_journal_makes_root_remove_no_file(home: Home, words: tuple[str, ...]) -> None:
    """SQLite removed any file that it named, for example /etc/shadow, with the rights of root."""
    victim = home.root / "shadow"
    victim.write_text("root:x\n")
    doom(home.state / "runs/1/journal.db", victim)
    for path in (home.state, *home.state.rglob("*")):
        os.chown(path, BOB, BOB, follow_symlinks=False)
    said = home.call(*words).stdout
    assert victim.exists()
    assert "failed" in said


@fault(51)
def test_a_link_in_the_place_of_profiles_makes_root_change_no_file(home: Home) -> None:
    """The target of the link, for example /bin/sh, became accessible to root only."""
    tool, profiles = home.root / "tool", home.state / "profiles.db"
    tool.touch(0o755)
    profiles.unlink()
    profiles.symlink_to(tool)
    for path in (home.state, *home.state.rglob("*")):
        os.chown(path, BOB, BOB, follow_symlinks=False)
    assert "another user" in home.call("profiles").stderr
    assert (stat.S_IMODE(tool.stat().st_mode), tool.stat().st_size) == (0o755, 0)
