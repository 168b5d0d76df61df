"""The base class of Python tasks, where older scripts import it from."""

from gpu_batch_scheduler import GPUTask

__all__ = ["GPUTask"]
