"""The base class of Python tasks, where older scripts import it from."""

import gpu_batch_scheduler_dropins  # noqa: F401 - it tells where the project itself is missing

from gpu_batch_scheduler import GPUTask

__all__ = ["GPUTask"]
