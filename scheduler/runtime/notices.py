"""The loop's messages about lasting states: each appears once, when the state begins or changes."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.attempts import backoff
from scheduler.core.brain import Brain
from scheduler.core.model import NO_TASK
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.ports import View
from scheduler.errors import SchedulerError, StateError
from scheduler.units import count


class LoopNotices:
    """The states of one run that have been reported to its user."""

    def __init__(self, brain: Brain, view: View, run: str) -> None:
        self.full = ""
        """The reason why nothing can be launched, such as a full disk; empty if there is none."""
        self._brain = brain
        self._view = view
        self._run = run
        self._trouble = ""
        self._unwritten = False
        self._held = 0
        self._uncounted: set[str] = set()
        self._paused: set[str] = set()

    def say_trouble(self, exc: SchedulerError) -> None:
        """Report an error, unless it is a repetition of the last one."""
        if str(exc) != self._trouble:
            self._trouble = str(exc)
            self._view.say(self._trouble)

    def say_unwritten(self, exc: StateError) -> None:
        """Report that the journal cannot be written."""
        self._unwritten = True
        self.say_trouble(StateError(f"{exc}: nothing starts until that ends; running tasks continue"))

    def say_written(self) -> None:
        """Report that the journal can be written again, if it could not."""
        if self._unwritten:
            self._unwritten = False
            self.end_trouble()
            self._view.say("the journal can be written again: the run goes on")

    def end_trouble(self) -> None:
        """Forget the last error, so that the next one is reported even if it is equal."""
        self._trouble = ""

    def say_uncounted(self, sentences: Sequence[str]) -> None:
        """Report once which leases of another user do not count."""
        for sentence in sentences:
            if sentence not in self._uncounted:
                self._uncounted.add(sentence)
                self._view.say(sentence)

    def say_full(self, full: str) -> None:
        """Report that nothing can be launched any more, and why; if `full` is empty, report that it can."""
        if full != self.full:
            self.full = full
            self._view.say(full or "there is space on the disk again: tasks are started again")

    @property
    def refusal(self) -> Refusal | None:
        """The refusal of every task while the disk is full."""
        return Refusal(NO_TASK, Reason.FULL_DISK, text=self.full) if self.full else None

    def say_held(self) -> None:
        """Report that only held tasks keep the run from ending."""
        brain = self._brain
        held = brain.held if not (brain.waiting or brain.draining or brain.placements_exist()) else 0
        if held and held != self._held:
            self._view.say(
                f"nothing runs and {count(held, 'task')} of this run {'is' if held == 1 else 'are'} held: "
                f"scheduler release --run r{self._run} releases, scheduler stop r{self._run} ends the run"
            )
        self._held = held

    def say_pauses(self, now: float) -> None:
        """Report each cause for which launching has paused, and report when launching continues."""
        brain = self._brain
        stopped = {cause: pause for cause, pause in brain.backoff.pauses().items() if pause.stopped(now, brain.rules)}
        for cause in self._paused - stopped.keys():
            self._view.say(backoff.goes_on(cause))
        for cause in stopped.keys() - self._paused:
            self._view.say(backoff.stopped(cause, stopped[cause], brain.rules))
        self._paused = set(stopped)
