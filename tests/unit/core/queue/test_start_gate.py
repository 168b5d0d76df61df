"""The gate of a run: pauses, windows, both at once, and a clock that is set back."""

from __future__ import annotations

from datetime import datetime
from math import inf
from zoneinfo import ZoneInfo

from scheduler.core.config import SchedulingConfig
from scheduler.core.control.messages import why
from scheduler.core.local_time import instant
from scheduler.core.queue.start_gate import GateState, StartGate

ZONE = ZoneInfo("Asia/Tokyo")
"""Not the zone of the machine that runs the tests."""


def at(text: str) -> float:
    return instant(datetime.fromisoformat(f"2026-11-20 {text}"), ZONE)


def says(state: GateState) -> str:
    return why(state.refusal) if state.refusal else ""


class TestLook:
    def test_without_a_pause_and_a_window_tasks_may_always_start(self) -> None:
        assert StartGate().look(SchedulingConfig(), at("12:00"), ZONE) == GateState(None, inf)

    def test_a_pause_without_an_end_lasts(self) -> None:
        state = StartGate().look(SchedulingConfig(paused=True), at("12:00"), ZONE)
        assert (says(state), state.until) == ("may not start: the run is paused; scheduler unpause continues it", inf)

    def test_no_jobs_at_all_are_a_pause_without_an_end(self) -> None:
        state = StartGate().look(SchedulingConfig(jobs=0), at("12:00"), ZONE)
        said = "may not start: the run is paused (-j 0); scheduler set -j N continues it"
        assert (says(state), state.until) == (said, inf)

    def test_a_pause_for_a_time_ends_by_itself(self) -> None:
        rules, gate = SchedulingConfig(paused=True, paused_until=at("13:00")), StartGate()
        state = gate.look(rules, at("12:00"), ZONE)
        assert "paused until 13:00 (in 1h00m)" in says(state)
        assert state.until == at("13:00")
        assert gate.look(rules, at("13:00"), ZONE).refusal is None

    def test_a_closed_window_says_when_it_opens(self) -> None:
        state = StartGate().look(SchedulingConfig(window="20:00-07:00"), at("16:48"), ZONE)
        assert says(state) == ("may start at 20:00 (in 3h12m): the run starts tasks only within 20:00-07:00 (--window)")
        assert state.until == at("20:00")

    def test_a_clock_that_is_set_back_closes_an_open_window_again(self) -> None:
        rules, gate = SchedulingConfig(window="20:00-07:00"), StartGate()
        assert gate.look(rules, at("20:00"), ZONE).refusal is None
        assert gate.look(rules, at("19:30"), ZONE).refusal is not None
        assert gate.look(rules, at("20:30"), ZONE).refusal is None

    def test_another_window_counts_at_once(self) -> None:
        gate = StartGate()
        assert gate.look(SchedulingConfig(window="20:00-07:00"), at("12:00"), ZONE).refusal is not None
        assert gate.look(SchedulingConfig(window="11:00-13:00"), at("12:00"), ZONE).refusal is None
