"""A run whose sampler is stopped: it starts tasks, obeys requests and signals, and reports what happened."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.faults import fault
from tests.support.killing import Home, Started, children, state_of
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow
SOON = 5.0
"""Seconds within which a scheduler must go on, whatever its sampler does."""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    made = Home(tmp_path)
    yield made
    made.end()


def started(home: Home, tasks: int, at_once: int = 10) -> Started:
    """Start a run of many short tasks, and stop its sampler for good as soon as it lives."""
    home.commands(*[f"sleep 0.{n % 5 + 5}" for n in range(tasks)])
    scheduler = home.start("run", "jobs.csv", "-j", str(at_once), "--devices", "host")
    (sampler,) = wait_until(lambda: children(scheduler.pid, "sampler"), 60)
    os.kill(sampler, signal.SIGSTOP)
    wait_until(lambda: state_of(sampler) == "T")
    return scheduler


def ended(home: Home) -> int:
    return home.states("1").count("succeeded")


@fault(85)
def test_run_goes_on_and_reports_once_that_its_sampler_was_restarted(home: Home) -> None:
    scheduler = started(home, 80)
    before = ended(home)
    wait_until(lambda: ended(home) >= before + 20, SOON + 5, pause=0.25)
    assert scheduler.wait(60) == 0
    said = home.log(1)
    assert said.count("the sampler of the host's memory did not answer for 3 s (a signal had stopped it)") == 1


@fault(85)
def test_cancel_and_ctrl_c_are_obeyed_while_the_sampler_is_stopped(home: Home) -> None:
    """The sampler's pipe would be full of orders by then."""
    scheduler = started(home, 400, at_once=40)
    before = ended(home)
    wait_until(lambda: ended(home) >= before + 100, 60, pause=0.25)
    home.call("cancel", "350", code=0)
    for _ in range(3):
        scheduler.send_signal(signal.SIGINT)
        wait_until(lambda: signal.SIGINT not in signal.sigpending())
    assert scheduler.wait(SOON + 10) == 130
