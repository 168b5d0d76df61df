"""Observations: the peaks, times and load that an ended attempt has shown."""

from __future__ import annotations

from typing import Any

import pytest

from scheduler.core.events import Exited
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, EstimateSource, Outcome, Placement, Purpose
from scheduler.core.profiling.class_profile import Observation
from scheduler.core.profiling.observation import evidence, peaks
from tests.support.builders import rules

RULES = rules(profile_epochs=2)


def placement(purpose: Purpose = Purpose.RUN) -> Placement:
    return Placement(1, 1, purpose, {"GPU-a": 90, "GPU-b": 80, HOST: 70}, 1.0, EstimateSource.PROFILE)


def ended(outcome: Outcome = Outcome.SUCCEEDED, **said: Any) -> Exited:
    values = {"peak": {"GPU-a": 30, "GPU-b": 20, HOST: 10}, "seconds": 8.0, "cpu_seconds": 9.0, "busy": 0.5, **said}
    return Exited(1, 1, outcome, **values)


def seen(event: Exited, epochs: int | None = 5, purpose: Purpose = Purpose.RUN, **task: Any) -> Observation:
    return evidence(TaskState(1, 0, **task), placement(purpose), epochs, event, RULES)


def test_a_whole_run_shows_its_peaks_by_position_its_times_and_its_load() -> None:
    assert seen(ended(epoch_seconds=1.5)) == Observation(
        {"0": 30, "1": 20, HOST: 10}, 8.0, 5, 1.5, 9.0, 0.5, whole=True, broken=False, probe=False
    )


def test_the_higher_of_what_was_sampled_and_what_the_end_reports_is_the_peak() -> None:
    task = TaskState(1, 0, peak={"GPU-a": 50, "GPU-b": 5})
    assert peaks(task, placement(), ended()) == {"0": 50, "1": 20, HOST: 10}


@pytest.mark.parametrize(("epochs", "counted"), [(5, 2), (1, 1), (None, 0)])
def test_a_probe_has_run_for_the_epochs_of_profiling_at_most(epochs: int | None, counted: int) -> None:
    found = seen(ended(), epochs, Purpose.PROBE)
    assert (found.epochs, found.whole, found.probe, found.broken) == (counted, False, True, False)


@pytest.mark.parametrize(
    ("event", "whole", "broken"),
    [
        (ended(watched=1.0), True, False),
        (ended(watched=0.99), False, False),
        (ended(Outcome.FAILED), False, True),
        (ended(Outcome.OOM), False, True),
    ],
)
def test_only_a_success_that_was_watched_from_end_to_end_is_whole(event: Exited, whole: bool, broken: bool) -> None:
    found = seen(event)
    assert (found.whole, found.broken, found.epochs) == (whole, broken, 5)
    assert not seen(event, purpose=Purpose.PROBE).whole


def test_a_probe_that_failed_is_none() -> None:
    assert not seen(ended(Outcome.FAILED), purpose=Purpose.PROBE).probe


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ({"part": "gpu", "asked": 100}, {"0": 120, "1": 120, HOST: 10}),
        ({"part": "gpu", "asked": 100, "position": 1}, {"0": 30, "1": 120, HOST: 10}),
        ({"part": "host", "asked": 100}, {"0": 30, "1": 20, HOST: 110}),
        ({"part": "gpu"}, {"0": 30, "1": 20, HOST: 10}),
    ],
)
def test_a_request_that_was_refused_is_added_to_the_least_use_of_what_may_have_run_out(
    said: dict[str, Any], shown: dict[str, int]
) -> None:
    assert seen(ended(Outcome.OOM, **said)).peaks == shown


def test_a_request_of_an_attempt_that_did_not_run_out_says_nothing() -> None:
    assert seen(ended(Outcome.FAILED, part="gpu", asked=100)).peaks == {"0": 30, "1": 20, HOST: 10}
