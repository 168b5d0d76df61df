"""Leases whose files or whose directory are removed while their tasks live."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from scheduler.core.model import HOST
from scheduler.store.machine.lease_records import living
from scheduler.store.machine.locked_files import is_free
from scheduler.units import MIB
from tests.support import leftovers
from tests.support.faults import fault
from tests.support.gpu_home import GpuHome
from tests.support.killing import Home, Started, children, kill
from tests.support.standin.box import NO_COMPILER
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ROOM = ("--devices", "host:2GiB", "--buffer", "32MiB", "--max-load", "1000")
UNMANAGED_UID = 61_003


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


@pytest.fixture
def run(home: Home) -> Iterator[Started]:
    """Yield a run of one task of 1200 MiB, which lasts until the file `end` exists; its lease names its shim."""
    home.write("jobs.csv", "Command,Memory", ["sh -c 'until [ -e end ]; do sleep 0.05; done'", "1200MiB"])
    with ExitStack() as stack:
        process = stack.enter_context(home.start("run", "jobs.csv", *ROOM))
        wait_until(lambda: [lease.shim for lease in living(home.leases) if lease.shim], 20)
        yield process
        (home.root / "end").touch()
        process.kill()


def reserved(home: Home) -> list[int]:
    return [lease.reserved[HOST] for lease in living(home.leases)]


def locked(home: Home) -> list[bool]:
    """Tell of each lease whether it is locked."""
    found = []
    for path in home.leases.iterdir():
        with path.open("rb") as file:
            found.append(not is_free(file.fileno()))
    return found


def rename_directory(home: Home) -> None:
    home.leases.rename(home.root / "away")


def remove_directory(home: Home) -> None:
    shutil.rmtree(home.leases)


def remove_files(home: Home) -> None:
    for path in home.leases.iterdir():
        path.unlink()


@fault(100)
@pytest.mark.parametrize(
    ("lose", "said"),
    [
        (rename_directory, "was removed or replaced: 1 lease of this run was made again in the new one"),
        (remove_directory, "was removed or replaced: 1 lease of this run was made again in the new one"),
        (remove_files, "1 lease of this run was made again: the files were removed from"),
    ],
)
def test_a_lost_lease_of_a_living_task_is_made_again_and_outlives_its_scheduler(
    home: Home, run: Started, lose: Callable[[Home], None], said: str
) -> None:
    lose(home)
    wait_until(lambda: reserved(home) == [1200 * MIB], 5)
    wait_until(lambda: said in home.log(), 5)
    run.kill()
    run.wait()
    assert reserved(home) == [1200 * MIB], "its shim lives"
    with home.start("resume", "r1") as resumed:
        wait_until(lambda: locked(home) == [True], 10)
        assert reserved(home) == [1200 * MIB]
        (home.root / "end").touch()
        assert resumed.wait(20) == 0
    assert home.states("1") == ["succeeded"]
    assert [path.name for path in home.leases.iterdir()] == []


@fault(100)
def test_a_lease_that_was_made_again_ends_with_its_shim_where_no_scheduler_is_left(home: Home, run: Started) -> None:
    remove_files(home)
    wait_until(lambda: reserved(home) == [1200 * MIB], 5)
    (lease,) = living(home.leases)
    run.kill()
    run.wait()
    assert reserved(home) == [1200 * MIB]
    assert kill(lease.shim)
    wait_until(lambda: reserved(home) == [], 5)
    leftovers.remove_groups(home.root)


@fault(100)
def test_a_task_that_starts_after_the_directory_was_lost_finds_the_lease_of_the_living_task(
    home: Home, run: Started
) -> None:
    rename_directory(home)
    wait_until(lambda: reserved(home) == [1200 * MIB], 5)
    with home.start("exec", *ROOM, "--memory", "1200MiB", "--", "true") as second:
        wait_until(lambda: [*home.leases.glob("ticket.*")], 20)
        assert reserved(home) == [1200 * MIB]
        (home.root / "end").touch()
        assert second.wait(20) == 0
    run.wait(20)


@pytest.mark.skipif(not shutil.which("cc"), reason=NO_COMPILER)
@fault(128)
def test_lease_is_not_made_again_while_the_end_of_its_attempt_waits_for_a_look_at_the_gpu(tmp_path: Path) -> None:
    home = GpuHome(tmp_path, gpus=1)
    try:
        failing = "sh -c 'until [ -e go ]; do sleep 0.05; done; exit 3'"
        home.jobs({"Command": failing, "GPUs": 1, "Memory": "1GiB"})
        with home.going(code=1) as scheduler:
            wait_until(lambda: [lease.shim for lease in living(home.leases) if lease.shim], 20)
            for sampler in children(scheduler.pid, "nvml_sampler"):
                kill(sampler, signal.SIGSTOP)  # the failure is judged once another sampler has looked, or after 4 s
            home.go()
            wait_until(lambda: not living(home.leases), 20)
        assert [attempt.outcome for attempt in home.tries()] == ["lost", "failed"]
        assert "made again" not in home.log()
    finally:
        home.end()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@fault(100)
def test_a_run_names_the_other_user_who_could_remove_its_leases(home: Home) -> None:
    home.leases.mkdir()
    home.leases.chmod(0o1777)
    os.chown(home.leases, UNMANAGED_UID, -1)
    said = home.call("run", home.commands("true"), code=0).stdout
    assert (
        f"(user {UNMANAGED_UID}), who can remove the leases of others there: this run makes its lost leases again"
        in said
    )
    assert "as root, while nothing runs: scheduler devices init" in said
