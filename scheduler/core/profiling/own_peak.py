"""The request of a task under `--profile sequential`: the peak of its own profiling run, without a margin."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.config import BATCHES, SchedulingConfig
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import HOST, EstimateSource, Purpose, RankOrder, Terms
from scheduler.core.placement.request import MemoryRequest, ResourceRequest, declared
from scheduler.core.profiling import estimator
from scheduler.core.profiling.class_profile import main_parts
from scheduler.values import replace


def config(rules: SchedulingConfig) -> SchedulingConfig:
    """Return the settings for `--profile sequential`: no margin, and growth above a peak is reserved in small steps."""
    return replace(rules, policy=BATCHES, order=RankOrder.BATCH, margin=0.0, margin_bytes=rules.peak_step_bytes)


def need(terms: Terms, task: TaskState | None, gpus: int, rules: SchedulingConfig) -> ResourceRequest:
    """Return the request of a task: a whole device for its profiling run, and later the peak of that run, or what its
    row declares.

    Each device has one buffer, however many tasks share the device. Load does not count, and cores count only if the
    row declares them.
    """
    peaks = task.probed if task is not None else None
    said = declared(terms, gpus)
    asks = tuple(_ask(said, peaks, part) for part in main_parts(gpus))
    asked = ResourceRequest(
        host=_ask(terms.host_memory, peaks, HOST) if gpus else asks[0],
        gpus=asks if gpus else (),
        cores=terms.cpus or 0.0,
        source=EstimateSource.DECLARED if said is not None else EstimateSource.PROBE,
        alone=terms.exclusive or peaks is None,
        purpose=Purpose.PROBE if peaks is None else Purpose.RUN,
    )
    return estimator.retried(asked, task, rules) if task is not None and task.floors else asked


def _ask(said: int | None, peaks: Mapping[str, int] | None, part: str) -> MemoryRequest:
    """Return the request on one part. It is unknown if a short profiling run ended before its use of that part was
    measured.
    """
    bytes_ = said if said is not None else (peaks or {}).get(part)
    return MemoryRequest(None) if bytes_ is None else MemoryRequest(bytes_, bytes_)
