"""The scheduler of Python tasks, where older scripts import it from."""

from gpu_batch_scheduler import GPUTaskScheduler

__all__ = ["GPUTaskScheduler"]
