"""The names of gpu-batch-scheduler that plug-ins use; they are found even if another module is called `scheduler`."""

from __future__ import annotations

import gpu_batch_scheduler

_ = gpu_batch_scheduler.run  # so that the package `scheduler` that is imported below is ours

from scheduler.api.call_words import describe  # noqa: E402  # after the line above
from scheduler.api.executor import Executor  # noqa: E402
from scheduler.api.submit import SubmittedTasks, submit  # noqa: E402
from scheduler.core.tasks.placeholders import literal  # noqa: E402
from scheduler.errors import SchedulerError, StateError, UsageError  # noqa: E402
from scheduler.inputs.python_calls import target_words, varied_word  # noqa: E402
from scheduler.inputs.python_tasks import Task  # noqa: E402

__all__ = [
    "Executor",
    "SchedulerError", "StateError", "SubmittedTasks", "Task", "UsageError", "describe", "literal", "submit",
    "target_words", "varied_word",
]  # fmt: skip
