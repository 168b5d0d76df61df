"""Lightning's callback that reports epochs and metrics: `Trainer(callbacks=[SchedulerCallback()])`."""

from __future__ import annotations

from typing import Any

try:
    from lightning.pytorch import Callback
except ImportError:
    from pytorch_lightning import Callback

from gpu_batch_scheduler_plugins.reporting import report


class SchedulerCallback(Callback):
    """The callback that reports the metrics of each epoch, including the metrics of its validation."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """Report the metrics that were logged in the epoch."""
        total = trainer.max_epochs if trainer.max_epochs and trainer.max_epochs > 0 else 0
        report(trainer.callback_metrics, step=trainer.current_epoch + 1, done=trainer.current_epoch + 1, total=total)
