"""The reader of configurations, where older scripts import it from."""

from gpu_batch_scheduler import ConfigManager

__all__ = ["ConfigManager"]
