"""One row of results for each task."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from scheduler.core.events import Event, Peaked
from scheduler.core.model import HOST, Job, Purpose, Spec, State
from scheduler.core.reporting.columns import COLUMNS, row
from scheduler.units import GIB
from tests.support.builders import exited, history_of, placed, refused, run, spec, started


def cells(*events: tuple[float, Event], of: Spec | None = None, state: State = State.SUCCEEDED) -> dict[str, Any]:
    """Return the row of task 1, submitted at 100."""
    task_history = history_of((event, at) for at, event in events).tasks.get(1)
    job = Job(of or spec("train.py", row=4, directory="work", priority=2), "a name", "k1")
    return row(1, 3, job, state, task_history, "python train.py", "/log", 100.0)


ATTEMPT = ((101.0, placed(1, "2GiB")), (103.5, started(1)), (110.0, exited(1, code=0, seconds=6.5, peak="1GiB")))


def test_a_row_has_times_memory_and_exit_code_of_a_task_that_ran() -> None:
    assert cells(*ATTEMPT) == {
        "id": 1, "key": "k1", "row": 4, "name": "a name", "state": "succeeded", "exit_code": 0, "reason": "",
        "priority": 2, "batch": 3, "attempts": 1, "ooms": 0, "device": "host", "node": None, "gpus": 0,
        "reserved_bytes": 2 * GIB,
        "peak_bytes": GIB, "host_reserved_bytes": 2 * GIB, "host_peak_bytes": GIB, "source": "declared",
        "submitted": 100.0, "started": 103.5, "ended": 110.0, "waited_s": 3.5, "ran_s": 6.5, "neighbours_max": 0,
        "stretched": None,
        "command": "python train.py", "directory": "work", "log": "/log",
        "done_by": None, "skipped_for": None, "mps": None, "thread_percentage": None, "fenced": None, "energy_wh": None,
        "epoch_energy_wh": None,
    }  # fmt: skip


def test_a_row_names_the_node_of_its_task_and_the_host_there() -> None:
    history = history_of([(replace(placed(1), node="n1"), 101.0), (started(1), 102.0)]).tasks.get(1)
    job = Job(spec("train.py"), "a name", "k1")
    found = row(1, 1, job, State.RUNNING, history, "", "", 100.0, {"host@n1": "n1 host", "host@n2": "n2 host"})
    assert (found["node"], found["device"]) == ("n1", "n1 host")


def test_tasks_on_the_hosts_of_two_nodes_are_no_neighbours() -> None:
    events = [(replace(placed(task), node=f"n{task}"), 100.0) for task in (1, 2)]
    assert [one.attempts[-1].neighbours for one in history_of(events).tasks.values()] == [0, 0]


def test_the_row_of_a_waiting_task_has_the_same_columns() -> None:
    waiting = cells(state=State.WAITING)
    assert tuple(waiting) == COLUMNS == tuple(cells(*ATTEMPT))
    assert [waiting[name] for name in ("attempts", "ooms", "started", "ran_s", "log")] == [0, 0, None, None, None]


def test_the_row_of_a_running_task_has_a_start_and_no_end() -> None:
    running = cells(*ATTEMPT[:2], state=State.RUNNING)
    assert [running[name] for name in ("started", "ended", "ran_s", "exit_code")] == [103.5, None, None, None]


def test_attempts_and_ooms_count_all_attempts_and_times_are_of_the_last() -> None:
    first = [(101.0, event) for event in run(1, "oom")]
    again = [(200.0, placed(1, "3GiB", attempt=2)), (201.0, started(1, attempt=2))]
    told = cells(*first, *again, state=State.RUNNING)
    assert [told[name] for name in ("attempts", "ooms", "reserved_bytes", "waited_s")] == [2, 1, 3 * GIB, 101.0]


def test_the_exit_code_of_a_signal_is_the_one_of_a_shell() -> None:
    assert cells((101, placed(1)), (102, exited(1, "failed", signal=9)))["exit_code"] == 137


def test_a_probe_counts_as_an_attempt_and_has_no_times() -> None:
    probed = cells((101, placed(1, purpose=Purpose.PROBE)), state=State.WAITING)
    assert (probed["attempts"], probed["started"], probed["device"]) == (1, None, None)


@pytest.mark.parametrize(("device", "gpus"), [("GPU-1", 1), (HOST, 0)])
def test_a_row_names_the_device_and_counts_its_gpus(device: str, gpus: int) -> None:
    told = cells((101, placed(1, "2GiB", device=device)))
    assert (told["device"], told["gpus"], told["reserved_bytes"]) == (device, gpus, 2 * GIB)


def test_a_row_names_devices_by_their_labels() -> None:
    told = row(
        1, 1, Job(spec("train.py"), "a", "k"), State.RUNNING,
        history_of([(placed(1, device="GPU-1"), 1.0)]).tasks[1], "", "", 0.0, {"GPU-1": "GPU 0"},
    )  # fmt: skip
    assert told["device"] == "GPU 0"


def test_the_reason_of_a_row_is_that_of_the_last_attempt_or_of_the_refusal() -> None:
    first = [(101.0, placed(1)), (102.0, exited(1, "lost", reason="its shim was killed"))]
    again = [(103.0, placed(1, attempt=2)), (104.0, exited(1, "oom", attempt=2, reason="out of memory"))]
    assert cells(*first, *again)["reason"] == "out of memory"
    assert cells((101.0, refused(1, "too large")))["reason"] == "too large"


def test_memory_of_a_row_is_the_most_on_one_of_its_gpus_and_ram_stands_apart() -> None:
    on_gpus = replace(placed(1), reservation={"GPU-0": 2 * GIB, "GPU-1": 3 * GIB, HOST: 5 * GIB})
    used = Peaked(1, 1, {"GPU-0": 2 * GIB, HOST: 4 * GIB})
    told = cells((101.0, on_gpus), (102.0, used))
    assert (told["reserved_bytes"], told["host_reserved_bytes"]) == (3 * GIB, 5 * GIB)
    assert (told["peak_bytes"], told["host_peak_bytes"]) == (2 * GIB, 4 * GIB)
    assert cells((101.0, on_gpus))["peak_bytes"] is None


def test_columns_of_the_file_come_before_columns_of_results() -> None:
    of = spec(own=(("lr", "0.1"), ("state", "mine")))
    told = cells((101, placed(1)), (102, exited(1, result={"loss": 0.5, "state": "x"})), of=of)
    assert list(told)[len(COLUMNS) :] == ["lr", "file.state", "result.loss", "result.state"]
    assert (told["lr"], told["file.state"], told["state"], told["result.loss"]) == ("0.1", "mine", "succeeded", 0.5)
