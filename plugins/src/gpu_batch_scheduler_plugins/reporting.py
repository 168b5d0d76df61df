"""Progress and metrics of a training. Outside of a task, and in all ranks but the first, reporting does nothing.

This module uses the standard library only, so a script without a framework can call `report` itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any


def report(metrics: Mapping[str, Any], *, step: int | None = None, done: int = 0, total: int = 0) -> None:
    """Append the numbers of `metrics` to the task's result, as points of curves, and write its progress.

    `step` is the position of the points on the curves (an epoch or a step); `done` of `total` is the progress.
    """
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("RANK", "LOCAL_RANK")):
        return
    numbers = {name: number for name, value in metrics.items() if (number := _number(value)) is not None}
    if numbers and (path := os.environ.get("SCHEDULER_RESULT")):
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps({**({} if step is None else {"step": step}), **numbers}) + "\n")
    if total and (path := os.environ.get("SCHEDULER_PROGRESS")):
        with open(path, "w", encoding="utf-8") as file:
            file.write(f"{done}/{total}")


def _number(value: Any) -> float | None:
    """Return a value as a number, even if it is a tensor with one element; None for any other value."""
    try:
        return None if isinstance(value, str | bytes | bool) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
