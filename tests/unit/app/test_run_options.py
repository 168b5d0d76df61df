"""The settings of a run as its Brain gets them."""

from __future__ import annotations

from scheduler.app.run.start import profile_index
from scheduler.runtime.settings import Settings


def test_ignore_args_and_memory_args_of_a_run_reach_its_profiles() -> None:
    assert profile_index({}, Settings(ignore_args="seed, name")).unheard() == ["name", "seed"]
    assert profile_index({}, Settings(memory_args="lr")).unheard() == ["lr"]
    assert profile_index({}, Settings()).unheard() == []
