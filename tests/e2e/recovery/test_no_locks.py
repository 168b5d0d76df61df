"""File systems without locks, and disks below `disk_min`: the sentences at the start of a list and by `doctor`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.killing import ROOT, Home

pytestmark = pytest.mark.slow

SITE = """
import errno, fcntl, os, sqlite3
real, connect = fcntl.flock, sqlite3.connect
def flock(fd, how):
    number = fd if isinstance(fd, int) else fd.fileno()
    if os.readlink(f"/proc/self/fd/{number}").startswith(os.environ["NO_FLOCK"]):
        code = getattr(errno, os.environ["NO_FLOCK_CODE"])
        raise OSError(code, os.strerror(code))
    return real(number, how)
def refuse(path, *args, **how):
    if "try.db" in str(path) and "NO_SQLITE" in os.environ:
        raise sqlite3.OperationalError("locking protocol")
    return connect(path, *args, **how)
fcntl.flock, sqlite3.connect = flock, refuse
"""
"""A module that makes Python see a file system without locks below a directory."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(SITE)
    made.env |= {"PYTHONPATH": f"{tmp_path / 'site'}:{ROOT}", "NO_FLOCK": "/nowhere", "NO_FLOCK_CODE": "ENOLCK"}
    made.commands("true")
    made.call("run", "jobs.csv", "--devices", "host", code=0)
    yield made
    made.end()


def trouble(home: Home, what: str) -> str:
    """Return the output of `doctor` from its finding about a part on."""
    return " ".join(home.call("doctor").stdout.split()).partition(f"!! {what} ")[2]


@fault(117)
@pytest.mark.parametrize(
    ("code", "says"), [("ENOLCK", "no locks available"), ("EOPNOTSUPP", "operation not supported")]
)
@pytest.mark.parametrize("what", ["state", "leases"])
def test_a_directory_without_locks_is_named_by_doctor_and_before_a_list_is_accepted(
    home: Home, what: str, code: str, says: str
) -> None:
    place = getattr(home, what)
    home.env |= {"NO_FLOCK": str(place), "NO_FLOCK_CODE": code}
    assert says in trouble(home, what)
    said = home.call("run", "jobs.csv", "--devices", "host", "--new", code=1)
    assert str(place) in said.stderr
    assert says in said.stderr
    assert len(said.stderr.splitlines()) == 1
    home.env["NO_FLOCK"] = "/nowhere"
    assert len(json.loads(home.call("runs", "--json", code=0).stdout)["runs"]) == 1


@fault(117)
def test_a_state_directory_where_sqlite_cannot_lock_is_named_by_doctor(home: Home) -> None:
    home.env["NO_SQLITE"] = "1"
    assert "cannot hold an SQLite journal: locking protocol" in trouble(home, "state")
    assert list(home.state.glob(".locks-*")) == []


@fault(22)
def test_a_disk_below_disk_min_is_named_by_run_detach_and_by_doctor(home: Home) -> None:
    home.env["SCHEDULER_DISK_MIN"] = "99%"
    assert "no task starts until there is space" in trouble(home, "state")
    said = home.call("run", "jobs.csv", "--devices", "host", "--new", "-d", code=0).stderr
    assert "nothing starts until there is more" in said
    assert home.states("2") == ["waiting"]
    home.call("stop", "r2", "--now", code=0)
