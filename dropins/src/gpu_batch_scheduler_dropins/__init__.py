"""The commands of older tools: each is a door of gpu-batch-scheduler under its own name."""

from __future__ import annotations

import gpu_batch_scheduler


def simple_gpu_scheduler() -> None:
    """One command from each line of standard input, one at a time for each listed GPU."""
    gpu_batch_scheduler.door("simple_gpu_scheduler")


def simple_hypersearch() -> None:
    """The commands of a grid of parameters."""
    gpu_batch_scheduler.door("simple_hypersearch")


def schedule() -> None:
    """One job now, in line with everybody on this machine."""
    gpu_batch_scheduler.door("schedule")


def start_gpu_task() -> None:
    """One Python task of a run, from the file that the run gave it."""
    gpu_batch_scheduler.launch()
