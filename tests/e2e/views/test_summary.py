"""The last lines of a run claim no more than was measured."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.killing import Home

pytestmark = pytest.mark.slow

EPOCHS, WORK_SECONDS = 4, 0.3
WORK = f"""\
import os, sys, time
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
for epoch in range(1, {EPOCHS + 1}):
    while time.process_time() < epoch * {WORK_SECONDS}:
        pass
    print(f"epoch {{epoch}}/{EPOCHS}", flush=True)
"""
CLAIM = re.compile(r"([\d.]+)(?: to [\d.]+)? times as fast as one task at a time")


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    (made.root / "work.py").write_text(WORK)
    made.commands(*[f"{sys.executable} work.py --n {n}" for n in range(4)])
    yield made
    made.end()


def test_tasks_that_slow_one_another_down_on_one_core_are_not_said_to_be_faster_together(home: Home) -> None:
    """The sum of their times is four times what they take one at a time, which is the time of their processors."""
    together = home.call("run", "jobs.csv", "--devices", "host", "--slots", "4", code=0).stdout
    assert (found := re.search(r"tasks ran for (\S+)s in all, ([\d.]+) at once", together)), together
    assert float(found[2]) > 2
    assert float(found[1]) > 1.5 * 4 * EPOCHS * WORK_SECONDS
    assert not CLAIM.search(together)
