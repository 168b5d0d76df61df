"""The tasks that are held back while another task shows what their class needs."""

from __future__ import annotations

from scheduler.core.model import EstimateSource, Placement, Profiling, Purpose
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.waiting_task import WaitingTask
from scheduler.core.profiling.estimator import is_watched
from scheduler.core.run_state import RunState


class LearningHold:
    """The task classes that are being learned. Tasks of such a class are held back while one of them shows the need."""

    def __init__(self, brain: RunState, *, watches: bool) -> None:
        """Note what the living tasks will show. With `watches`, tasks also wait while a similar task of unknown need is
        measured.
        """
        self._brain, self._watches = brain, watches
        self._probed: dict[int, int] = {}
        """For each task class that is being probed, the task of the probe."""
        self._checked: dict[int, int] = {}
        """For each task class whose need one attempt has shown, the task that is to confirm the need."""
        self._unproved: dict[int, int] = {}
        """For each task class whose need is to be confirmed, the number of its living attempts that have shown nothing
        yet."""
        self._watched: dict[int, int] = {}
        """For each task class that is learned from a real run on GPUs, the task of that run."""
        self.measured_on: dict[str, int] = {}
        """The living task of unknown memory on each GPU, while it is being measured there."""
        self._sizes_differ = brain.capacity.largest > brain.capacity.smallest
        """True if the GPUs differ in capacity: then the need of a class decides on which GPUs its tasks fit."""
        self.held: list[WaitingTask] = []
        """Tasks that are held back because another task of their class is being measured. They may still start on GPUs
        that would stay empty."""
        self.living = brain.learning()
        """The living tasks that can still show something about their class."""
        for task in self.living:
            if task.placement is not None:
                proved = task.settled if task.placement.gpus else task.without
                self.note(task.placement, brain.kind_of(task.id), settled=proved, overdue=task.overdue)

    def note(self, placement: Placement, kind: int, *, settled: bool = False, overdue: bool = False) -> None:
        """Note that a placed attempt will show the need of its class. `settled` is True if the attempt has done so
        already, and `overdue` if tasks of other classes no longer wait for it.
        """
        task = placement.task
        if placement.purpose is Purpose.PROBE:
            self._probed[kind] = task
        if settled:
            return
        if is_watched(placement, settled) and placement.gpus:
            self._watched[kind] = task
            self.measured_on.update({} if overdue else dict.fromkeys(placement.gpus, task))
        if self._brain.is_unsure(task) and placement.sees:
            self._check(kind, placement)

    def _check(self, kind: int, placement: Placement) -> None:
        """Note an attempt that is to confirm the need of its class. If the class seems to need no GPU, two attempts may
        run for this purpose at once.
        """
        self._unproved[kind] = self._unproved.get(kind, 0) + 1
        if placement.gpus or self._unproved[kind] > 1:
            self._checked[kind] = placement.task

    def refuses(self, task: WaitingTask) -> Refusal | None:
        """Return why a task is not even tried: its class is not known yet, its class is being learned, or the run only
        learns and needs no more attempts for that.

        None: the task may be tried. A task that was bypassed too often is not held back.
        """
        rules, number, kind = self._brain.rules, task.number, task.kind
        if kind == 0 and rules.profile is not Profiling.OFF:
            return Refusal(number, Reason.UNLOOKED)
        if kind in self._probed and self._is_patient(task):
            return Refusal(number, Reason.PROBING, wanted=self._probed[kind])
        if rules.learn_only and task.need.purpose is not Purpose.PROBE:
            return Refusal(number, Reason.LEARNED)
        by = self._taught_by(task) if self._watches and kind and task.gpus else None
        if by is None or not self._is_patient(task):
            return None
        if not task.need.visible:
            self.held.append(task)
        return Refusal(number, Reason.WATCHED, wanted=by)

    def _taught_by(self, task: WaitingTask) -> int | None:
        """Return the living task that will show the need of this one. If the given task ran as well, it would show
        nothing new and occupy a GPU.
        """
        by = self._checked.get(task.kind)
        if by is None and self._watched and (task.need.unknown or self._may_be_too_large(task)):
            by = self._watched.get(task.kind)
        return by

    def _may_be_too_large(self, task: WaitingTask) -> bool:
        """Tell whether nothing is known yet of a task's need, and the task may not fit on every GPU."""
        is_measured = task.need.source is EstimateSource.MEASURED
        return self._sizes_differ and is_measured and not any(ask.shown for ask in task.need.gpus)

    def _is_patient(self, task: WaitingTask) -> bool:
        return self._brain.wait_queue.bypassed(task.number, task.rank) < self._brain.rules.bypass_limit
