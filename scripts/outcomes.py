"""A plugin of pytest for `./scripts/mutate`: it writes what became of each test to the file $TEST_OUTCOMES.

One line of JSON per test that was run: its name, `passed`, `failed` or `skipped`, its seconds; one without a name for a
file that could not be imported.
"""

from __future__ import annotations

import json
import os

import pytest

VARIABLE = "TEST_OUTCOMES"


class Outcomes:
    """The reports of a test so far: it has passed if all its phases have."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seconds = 0.0
        self._told = False

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Write down a file that could not be imported."""
        if report.failed:
            self._write("", "broken", 0.0)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write down a test that failed or was skipped, in any phase, or has passed in its last one."""
        if report.when == "setup":
            self._seconds, self._told = 0.0, False
        self._seconds += report.duration
        if not report.passed or (report.when == "teardown" and not self._told):
            self._told = True
            self._write(report.nodeid, report.outcome, self._seconds)

    def _write(self, name: str, outcome: str, seconds: float) -> None:
        with open(self._path, "a", encoding="utf-8") as file:
            file.write(json.dumps([name, outcome, round(seconds, 3)]) + "\n")


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin where the file is named."""
    if VARIABLE in os.environ:
        config.pluginmanager.register(Outcomes(os.environ.pop(VARIABLE)))
