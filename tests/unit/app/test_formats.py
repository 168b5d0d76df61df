"""Names in the journal and in JSON that the application writes are frozen here."""

from __future__ import annotations

import json

from scheduler.app.run.options import RunOptions
from scheduler.app.run.start import UNWRITTEN
from scheduler.core.model import State
from scheduler.core.reporting.forecast import ExpectedTask, Forecast, TimeSpan
from scheduler.core.reporting.live_status import LiveStatus, LiveTask, MemoryBar, QueueSummary, WaitingBatch
from scheduler.runtime.settings import READERS

SPAN = {"likely": 3.0, "early": 2.0, "late": 5.0}


def test_options_of_a_run_survive_the_journal() -> None:
    options = RunOptions(
        "0-1",
        2,
        3,
        4,
        "n",
        learn_only=True,
        keep_going=False,
        max_failures=5,
        plain=True,
        mps="on",
        fence="torch",
        power_cap=250.0,
        preload=["torch"],
        path=["/site"],
    )
    data = options.to_dict()
    assert data == {
        "devices": "0-1", "slots": 2, "jobs": 3, "max_per_device": 4, "name": "n", "learn_only": True,
        "keep_going": False, "max_failures": 5, "plain": True, "mps": "on", "mps_fence": True, "mps_exclusive": False,
        "fence": "torch", "power_cap": 250.0, "preload": ["torch"], "path": ["/site"],
    }  # fmt: skip
    assert RunOptions.from_dict(json.loads(json.dumps(data))) == options


def test_settings_that_a_journal_keeps_are_all_but_places_and_secrets() -> None:
    assert sorted(READERS.keys() - {*UNWRITTEN}) == [
        "buffer", "cgroup", "directory_wait", "disk_min", "ignore_args", "keep_best", "launcher_args", "log_max",
        "margin", "max_gpu_load", "max_load", "memory_args", "metrics", "my_columns", "node_fence", "num", "on",
        "order", "preempt", "preempt_after",
        "profile", "profile_epochs", "profile_id", "python", "queue_idle", "settle", "stop_when", "unmanaged",
        "unmanaged_calm",
        "visible", "window",
    ]  # fmt: skip


def test_forecast_survives_its_file() -> None:
    span = TimeSpan(3.0, 2.0, 5.0)
    forecast = Forecast(1.0, span, "", {7: ExpectedTask(None, span), 8: ExpectedTask(span, span, ("GPU-0",))})
    data = forecast.to_dict()
    assert data == {
        "at": 1.0, "end": SPAN, "why": "", "held": 0, "too_long": 0,
        "tasks": {
            "7": {"start": None, "end": SPAN, "devices": []}, "8": {"start": SPAN, "end": SPAN, "devices": ["GPU-0"]},
        },
    }  # fmt: skip
    assert Forecast.from_dict(json.loads(json.dumps(data))) == forecast


def test_forecast_of_a_task_that_has_started_since_has_no_start() -> None:
    span = TimeSpan(3.0, 2.0, 5.0)
    forecast = Forecast(1.0, span, "", {8: ExpectedTask(span, span)})
    assert forecast.of_task(8, State.WAITING) == ExpectedTask(span, span)
    assert forecast.of_task(8, State.RUNNING) == ExpectedTask(None, span)
    assert forecast.of_task(8, State.SUCCEEDED) is None
    assert forecast.of_task(9, State.WAITING) is None


def test_live_status_as_json() -> None:
    bar = MemoryBar("GPU 0", 10, 1, 2, 3, 1, 1, 0.5, 1.0, 60, watts=250.0)
    living = LiveTask(3, 1, "train", ("GPU 0",), False, "", 2.0, 4.0, 10, 5, 6, 7, 8.0, {"loss": [0.5, None]})
    queue = QueueSummary([WaitingBatch(1, 4, {2: 3, 5: 1})], 2, 9)
    status = LiveStatus(
        1, "jobs.csv", 9.0, 5.0, {State.WAITING: 9, State.RUNNING: 1}, 0, 1, [bar], [living], queue, None
    )
    assert json.loads(json.dumps(status.to_dict())) == {
        "run": 1, "what": "jobs.csv", "now": 9.0, "seconds": 5.0, "states": {"waiting": 9, "running": 1}, "tasks": 10,
        "over": 0, "retried": 0, "ooms": 1,
        "bars": [
            {
                "label": "GPU 0", "total": 10, "ours": 1, "others": 2, "reserved": 3, "buffer": 1, "free": 3,
                "tasks": 1, "load": 0.5, "capacity": 1.0, "celsius": 60, "watts": 250.0,
                "drained": "", "node": "",
            }
        ],
        "living": [
            {
                "task": 3, "attempt": 1, "name": "train", "devices": ["GPU 0"], "probe": False, "asked": "",
                "seconds": 2.0, "epochs": 4.0, "of_epochs": 10, "used": 5, "peak": 6, "reserved": 7, "left": 8.0,
                "metrics": {"loss": [0.5, None]},
            }
        ],
        "queue": {"first": [{"batch": 1, "tasks": 4, "priorities": {"2": 3, "5": 1}}], "batches": 2, "tasks": 9},
        "end": None, "unknown": "", "draining": False,
            "paused": False, "paused_until": None,
    }  # fmt: skip
