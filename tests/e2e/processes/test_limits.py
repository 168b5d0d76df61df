"""Runs under small limits of their shell: processes, memory, open files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.sharing.test_two_users import SYSTEM_PYTHON, become, common, reachable_python  # noqa: F401 - fixtures
from tests.support.faults import fault
from tests.support.killing import Home
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
CARL = 61_003
"""A uid of its own: the limit counts all processes of a user."""


def limited(place: Path, most: int) -> Home:
    """Return the home of a user who may have this many processes, with a list of six tasks."""
    python, code = reachable_python(place)
    (place / "carl").mkdir()
    os.chown(place / "carl", CARL, CARL)
    home = Home(place / "carl", [*become(CARL), "prlimit", f"--nproc={most}", python, "-m", "scheduler"])
    home.env["PYTHONPATH"] = str(code)
    rows = [["sleep 0.2", "1MiB", "0.01"]] * 6
    os.chown(home.root / home.write("jobs.csv", "Command,Memory,CPUs", *rows), CARL, CARL)
    return home


@as_root
@fault(90)
def test_run_goes_on_without_processes_for_its_helpers(common: Path) -> None:  # noqa: F811 - the fixture
    """The run ended with a traceback: it got no thread to remove files, or no process to sample memory."""
    home = limited(common, 8)
    done = home.call("run", "jobs.csv", "--devices", "host", "--plain", code=0)
    assert "run 1: 6 tasks: 6 succeeded" in done.stdout
    home.end()


@as_root
@fault(90)
def test_run_without_processes_for_tasks_waits_and_obeys_ctrl_c(common: Path) -> None:  # noqa: F811 - the fixture
    home = limited(common, 3)
    with home.start("run", "jobs.csv", "--devices", "host", "--plain") as scheduler:
        wait_until(lambda: "nothing starts for now" in home.log(), 30)
        scheduler.send_signal(signal.SIGINT)
        assert scheduler.wait(30) == 130
    assert home.states() == ["waiting"] * 6
    home.end()


@fault(116)
@pytest.mark.parametrize(
    "limit",
    ["--data=10000000", "--data=12000000", "--data=20000000", "--as=30000000", "--as=36000000"],
)
@pytest.mark.parametrize("verb", [("run", "jobs.csv", "--devices", "host", "--plain"), ("status",)])
def test_command_with_too_little_memory_ends_with_one_sentence(
    tmp_path: Path, limit: str, verb: tuple[str, ...]
) -> None:
    home = Home(tmp_path, ["prlimit", limit, sys.executable, "-m", "scheduler"])
    home.commands("true")
    done = home.call(*verb)
    if done.returncode:
        assert done.stderr.splitlines()[-1].startswith("scheduler: not enough memory for this command: raise ulimit -v")
    home.end()


@fault(116)
@pytest.mark.parametrize("error", ["OSError(errno.ENOMEM, 'no memory')", "MemoryError()", "ImportError()"])
def test_sentence_is_said_where_its_module_cannot_be_loaded(tmp_path: Path, error: str) -> None:
    """To list the folder of a module takes memory too, and that error is the kernel's."""
    text = f"""
import errno, sys
from scheduler.cli.main import guarded

class Full:
    def find_spec(self, name, *rest):
        if name.startswith("scheduler.ui"):
            raise {error}

def command():
    raise MemoryError

sys.meta_path.insert(0, Full())
sys.exit(guarded(command))
"""
    home = Home(tmp_path)
    done = subprocess.run([sys.executable, "-c", text], env=home.env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("scheduler: not enough memory for this command: raise ulimit -v")
    assert done.stderr.count("\n") == 1
    home.end()


@fault(116)
@pytest.mark.parametrize(("most", "code"), [(64, 0), (16, 1)])
def test_run_with_too_few_open_files_names_the_limit(tmp_path: Path, most: int, code: int) -> None:
    home = Home(tmp_path, ["prlimit", f"--nofile={most}", sys.executable, "-m", "scheduler"])
    home.commands("true")
    said = home.call("run", "jobs.csv", "--devices", "host", "--plain", code=code).stderr
    if code:
        assert said.splitlines()[-1] == f"scheduler: the limit of {most} open files is too low: raise it with ulimit -n"
    home.end()
