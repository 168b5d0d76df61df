"""The job environment of submitit in a task of gpu-batch-scheduler: ids, ranks, and the signals to save."""

from __future__ import annotations

import signal
import sys
import types

from submitit.core import job_environment, logger, utils

from gpu_batch_scheduler_plugins import submitit_task

AGAIN = 75
"""The exit code with which a task of the mode Resumable ends its turn and waits for the next one."""


class TurnHandler(job_environment.SignalHandler):
    """The handler of the signals that tell a job to save its state. A job that is asked to make room has not
    timed out.
    """

    _makes_room = False

    def make_room(self, signum: int, frame: types.FrameType | None = None) -> None:
        """Save the job's state and end this turn; the turn does not count as one of the time-outs that the job may
        have.
        """
        self._makes_room = True
        self.checkpoint_and_try_requeue(signum, frame)

    def has_timed_out(self) -> bool:
        """Tell whether the signal was sent because of the time limit."""
        return not self._makes_room and bool(super().has_timed_out())


class GschedJobEnvironment(job_environment.JobEnvironment):
    """The environment of a job on this machine; each task of a job with several tasks is told its rank."""

    _env = {  # noqa: RUF012  # as submitit declares it
        "job_id": "SCHEDULER_TASK_ID",
        "num_tasks": submitit_task.RANKS,
        "num_nodes": "SUBMITIT_GSCHED_NODES",
        "node": "SUBMITIT_GSCHED_NODE",
        "global_rank": submitit_task.RANK,
        "local_rank": submitit_task.RANK,
    }

    def _handle_signals(self, paths: utils.JobPaths, submission: utils.DelayedSubmission) -> None:
        """Save the job's state and requeue the job on SIGTERM too, with which the scheduler asks a task to make
        room.
        """
        handler = TurnHandler(self, paths, submission)
        signal.signal(signal.SIGCONT, handler.bypass)
        signal.signal(signal.SIGTERM, handler.make_room)
        signal.signal(self._usr_sig(), handler.checkpoint_and_try_requeue)

    def _requeue(self, countdown: int) -> None:
        """End this attempt; the task waits for its next turn."""
        logger.get_logger().info(f"Requeued job {self.job_id} ({countdown} remaining timeouts)")
        sys.exit(AGAIN)
