"""The Trainer callback of Transformers that reports steps and metrics: `Trainer(callbacks=[SchedulerCallback()])`."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback

from gpu_batch_scheduler_plugins.reporting import report


class SchedulerCallback(TrainerCallback):
    """The callback that reports the metrics that the Trainer logs, at every `logging_steps` and every evaluation."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **_: Any) -> None:
        """Report the metrics that were logged at this step."""
        report(logs or {}, step=state.global_step, done=state.global_step, total=state.max_steps)
