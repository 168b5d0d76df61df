"""The details of a task's page in the live view."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

from scheduler.app.live.details import _to_the_end
from scheduler.app.observe.metric_files import AttemptMetrics
from scheduler.core.metrics.record import MetricRecord
from scheduler.core.model import HOST, Purpose
from scheduler.core.reporting.memory_timeline import MemoryTimeline
from scheduler.core.reporting.run_history import AttemptHistory
from scheduler.runtime.paths import RunPaths
from scheduler.units import GIB
from tests.support import builders as b


def test_memory_of_a_task_reaches_to_its_end_and_until_then_to_now() -> None:
    timeline = MemoryTimeline()
    for at, event in ((10.0, b.placed(1, "4GiB")), (11.0, b.started(1)), (12.0, b.peaked(1, "3GiB"))):
        timeline.take(event, at)
    (steps,) = _to_the_end(timeline.tracks[-1]).values()
    assert steps[-2] == (12.0, 4 * GIB, 3 * GIB)
    assert steps[-1][0] >= time.time() - 5
    assert steps[-1][1:] == steps[-2][1:]
    timeline.take(b.exited(1, seconds=50.0), 60.0)
    (steps,) = _to_the_end(timeline.tracks[-1]).values()
    assert steps[-1][0] == 60.0


def test_metrics_of_a_task_end_with_the_result_that_its_sampler_missed(tmp_path: Path) -> None:
    places, seen = RunPaths(tmp_path, 1), MetricRecord()
    Path(places.task(1)).mkdir(parents=True)
    seen.take([("loss", 0.5, 1.0)], reported=True)
    Path(places.metrics(1, 1)).write_bytes(seen.dump())
    metrics = AttemptMetrics(SimpleNamespace(places=places, meta={"settings": "{}"}))  # type: ignore[arg-type]  # all that it reads
    attempt = AttemptHistory(1, Purpose.RUN, (HOST,), {}, "measured", 0.0, result={"loss": 0.25, "step": 2})
    assert metrics.record(1, attempt).curves["loss"].steps() == [(1.0, 0.5), (2.0, 0.25)]
