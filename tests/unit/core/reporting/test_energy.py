"""The energy of tasks: the power of their GPUs over time, divided where they shared one."""

from __future__ import annotations

import pytest

from scheduler.core.model import HOST, Device, DeviceBudget, Purpose, State
from scheduler.core.reporting.columns import _per_epoch
from scheduler.core.reporting.device_history import DeviceHistory
from scheduler.core.reporting.energy import watt_hours, whole
from scheduler.core.reporting.run_history import AttemptHistory, TaskHistory


def history(*watts: float | None, key: str = "GPU-0") -> DeviceHistory:
    """Return points two seconds apart, from second 0 on."""
    made = DeviceHistory()
    for number, power in enumerate(watts):
        made.add(2.0 * number, [DeviceBudget(Device(key, "GPU 0", 1000, 1.0, 0), 500, busy=0.5, watts=power)])
    return made


def attempt(begin: float, end: float | None, busy: float = 0.0, device: str = "GPU-0") -> AttemptHistory:
    made = AttemptHistory(1, Purpose.RUN, (device,), {device: 100}, "measured", begin)
    made.ended, made.busy = end, busy
    return made


def joules(recorded: DeviceHistory, **tasks: AttemptHistory | list[AttemptHistory]) -> dict[str, float]:
    """Return the energy of tasks with these attempts, by their names `t0`, `t1` and so on."""
    given = {
        int(name.removeprefix("t")): TaskHistory(made if isinstance(made, list) else [made])
        for name, made in tasks.items()
    }
    return {f"t{task}": pytest.approx(energy * 3600, abs=2.0) for task, energy in watt_hours(recorded, given).items()}


def test_task_alone_on_a_gpu_used_all_of_its_energy_while_it_lived() -> None:
    assert joules(history(100, 200, 300, 300), t0=attempt(0, 6)) == {"t0": 1200}


def test_energy_of_the_whole_run_counts_the_time_between_tasks_too() -> None:
    assert whole(history(1800, 1800, None)) == 2.0
    assert whole(history(None, None)) is None


def test_energy_of_an_epoch_is_that_of_a_task_that_has_completed_them() -> None:
    assert _per_epoch(6.0, 4, State.SUCCEEDED) == 1.5
    assert [_per_epoch(6.0, 4, State.FAILED), _per_epoch(None, 4, State.SUCCEEDED)] == [None, None]
    assert _per_epoch(6.0, None, State.SUCCEEDED) is None


def test_energy_counts_only_the_part_of_a_point_in_which_the_task_lived() -> None:
    assert joules(history(1000, 1000), t0=attempt(1, 2)) == {"t0": 1000}


def test_energy_of_neighbours_is_divided_by_their_shares_of_the_gpus_time() -> None:
    assert joules(history(400, 400), t0=attempt(0, 4, 0.6), t1=attempt(0, 4, 0.2)) == {"t0": 1200, "t1": 400}


def test_energy_of_neighbours_with_an_unknown_share_is_divided_equally() -> None:
    assert joules(history(400, 400), t0=attempt(0, 4, 0.6), t1=attempt(0, None)) == {"t0": 800, "t1": 800}


def test_all_attempts_of_a_task_count_and_what_ran_between_them_does_not() -> None:
    again = [attempt(0, 2), attempt(4, 6)]
    assert joules(history(100, 500, 100), t0=again, t1=attempt(2, 4)) == {"t0": 400, "t1": 1000}


def test_task_without_a_recorded_power_has_no_energy() -> None:
    assert joules(history(None, None), t0=attempt(0, 4)) == {}
    assert joules(history(100, 100), t0=attempt(0, 4, device=HOST), t1=attempt(0, 4, device="GPU-7")) == {}
    assert joules(history(None, 100), t0=attempt(0, 4)) == {"t0": 200}


def test_long_history_keeps_the_energy_of_the_whole_run() -> None:
    recorded = history(*[150.0] * 4000)
    assert recorded.every > 2.0
    (energy,) = watt_hours(recorded, {0: TaskHistory([attempt(0, 8000)])}).values()
    assert energy == pytest.approx(150 * 8000 / 3600, rel=0.01)
