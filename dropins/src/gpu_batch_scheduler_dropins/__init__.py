"""The commands of older tools: each is a door of gpu-batch-scheduler under its own name."""

from __future__ import annotations

import sys
from importlib.util import find_spec

if find_spec("gpu_batch_scheduler") is None:
    sys.exit(f"the Python package gpu-batch-scheduler is missing: {sys.executable} -m pip install gpu-batch-scheduler")

import gpu_batch_scheduler


def simple_gpu_scheduler() -> None:
    """Run one command from each line of standard input, one at a time for each listed GPU."""
    gpu_batch_scheduler.door("simple_gpu_scheduler")


def simple_hypersearch() -> None:
    """Print the commands of a grid of parameters."""
    gpu_batch_scheduler.door("simple_hypersearch")


def schedule() -> None:
    """Run one job now, in line with all users of this machine."""
    gpu_batch_scheduler.door("schedule")


def start_gpu_task() -> None:
    """Run one Python task of a run, from the file that the run wrote for it."""
    gpu_batch_scheduler.launch()
