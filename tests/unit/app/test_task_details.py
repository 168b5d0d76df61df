"""The details of a task's page in the live view."""

from __future__ import annotations

import time

from scheduler.app.live.details import _to_the_end
from scheduler.core.reporting.memory_timeline import MemoryTimeline
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
