"""The forecasts of two runs of one user and a run of another user, who share one GPU."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from scheduler.core.reporting.forecast import Forecast
from tests.e2e.sharing.test_two_users import common, reachable_python
from tests.support.killing import Started
from tests.support.standin import box
from tests.support.two_users import USERS, User
from tests.support.waiting import wait_until

__all__ = ["common"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users"),
    pytest.mark.skipif(shutil.which("cc") is None, reason=box.NO_COMPILER),
]
SECONDS = 2.5
PATIENCE = 120.0


class GpuUser(User):
    """A user who shares the stand-in GPU, on which one of the tasks fits at a time."""

    def start_list(self, name: str, tasks: int) -> Started:
        """Start a list of equal tasks."""
        self.write(name, "Command,Memory", *[[f"sleep {SECONDS}", "10GiB"]] * tasks)
        return self.start("run", name, "--max-load", "100")

    def forecast(self, run: int) -> Forecast | None:
        """Return the last forecast of a run's scheduler."""
        try:
            return Forecast.from_dict(json.loads((self.state / f"runs/{run}/forecast.json").read_bytes()))
        except OSError:
            return None

    def forecast_after(self, run: int, at: float) -> Forecast | None:
        """Return the last forecast of a run's scheduler if it was made after that time."""
        found = self.forecast(run)
        return found if found is not None and found.at > at else None

    def times(self, run: int) -> dict[int, tuple[float, float]]:
        """Return when each task of a run started and ended."""
        return {task["id"]: (moment(task["started"]), moment(task["ended"])) for task in self.tasks(str(run))}


def moment(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


@pytest.fixture
def users(common: Path) -> Iterator[list[GpuUser]]:
    leases = common / "leases"
    leases.mkdir()
    leases.chmod(0o1777)
    python, code = reachable_python(common)
    with box.Box(common / "gpus", gpus=1, total="16GiB", cache=common / "built") as gpus:
        gpus.file.chmod(0o666)
        made = [GpuUser(common / str(uid), uid, python, code, leases) for uid in USERS]
        for user in made:
            user.env |= gpus.env
            user.prepare(0, random.Random(0))
            assert user.start_list("learned.csv", 1).wait(PATIENCE) == 0
        yield made
        for user in made:
            user.end()


def test_runs_of_two_users_are_expected_to_end_when_they_do(users: list[GpuUser]) -> None:
    ann, ben = users
    runs = [(ann, 2), (ann, 3), (ben, 2)]
    with ann.start_list("a.csv", 3) as a, ann.start_list("b.csv", 3) as b, ben.start_list("c.csv", 5) as c:
        wait_until(lambda: all(user.forecast(run) for user, run in runs), PATIENCE)
        known = time.time()  # from now on each scheduler has published, and its next estimate knows of the others
        said = [wait_until(lambda user=user, run=run: user.forecast_after(run, known), PATIENCE) for user, run in runs]
        assert [process.wait(PATIENCE) for process in (a, b, c)] == [0] * 3
    assert list(ann.leases.iterdir()) == []
    for (user, run), told in zip(runs, said, strict=True):
        times = user.times(run)
        assert told.end is not None
        real = max(end for _, end in times.values()) - told.at
        assert told.end.likely - told.at == pytest.approx(real, rel=0.2, abs=1.0), (user.uid, run, told, times)
        for task, one in told.tasks.items():
            assert one.end.likely - told.at == pytest.approx(times[task][1] - told.at, rel=0.2, abs=SECONDS + 1.0)
