"""A run whose user may have no more processes: what its tasks leave of them is all there is for it, too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults import fault
from tests.system.killing import Home
from tests.system.test_two_users import SYSTEM_PYTHON, become, common, reachable_python  # noqa: F401 - fixtures

pytestmark = [pytest.mark.slow, pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")]
CARL = 61_003
"""Nobody else: the limit counts all that a user runs."""


@fault(19)
@pytest.mark.parametrize("most", [3, 5, 8])
def test_without_processes_for_its_helpers_it_goes_on(common: Path, most: int) -> None:  # noqa: F811 - the fixture
    """It ended with a traceback, since it could have no thread to remove files or no process to look at memory."""
    python, code = reachable_python(common)
    (common / "carl").mkdir()
    os.chown(common / "carl", CARL, CARL)
    home = Home(common / "carl", [*become(CARL), "prlimit", f"--nproc={most}", python, "-m", "scheduler"])
    home.env["PYTHONPATH"] = str(code)
    os.chown(
        home.root / home.write("jobs.csv", "Command,Memory,CPUs", *(["sleep 0.2", "1MiB", "0.01"],) * 6), CARL, CARL
    )
    done = home.call("run", "jobs.csv", "--devices", "host", "--plain")
    assert done.returncode in (0, 1)
    assert "run 1: 6 tasks: " in done.stdout
    home.end()
