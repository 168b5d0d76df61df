"""The back-off of starts: after failed starts, launching pauses until a few trial starts show that it can continue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import inf

from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Exited
from scheduler.core.lifecycle import TaskState
from scheduler.core.model import Outcome, Placement
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.values import dataclass, field

Key = tuple[int, int]
MACHINE = ""
"""The cause of a pause in all starts. Any other cause is the path of a directory that could not be entered."""


@dataclass(slots=True)
class Pause:
    """A pause in starting tasks, because starts have failed for one cause. The first trial start comes after half a
    second, and each later one waits twice as long as the one before.

    Only events change it. Anything that depends on time alone (a trial start is due, its process has lived long enough)
    is computed for the time that the caller passes in.
    """

    reason: str = ""
    """Why the last attempt did not start."""
    rounds: int = 0
    """The number of failed rounds in a row; attempts that were placed together belong to one round."""
    until: float = -inf
    """The time before which no trial starts."""
    since: float = inf
    """The time of the first failure since the last successful start; inf: no start has failed since."""
    window: int = 1
    """The number of trial starts that may be under way at once."""
    trials: dict[Key, float] = field(default_factory=dict)
    """The trial starts whose result is not known yet, each with the time when its process started; inf: the process has
    not started yet."""

    def fail(self, key: Key, reason: str, at: float, rules: SchedulingConfig) -> None:
        """Note that an attempt did not start."""
        self.trials.pop(key, None)
        self.reason, self.window, self.since = reason, 1, min(self.since, at)
        if at >= self.until:  # other attempts of this round were placed before the failure
            self.until = at + min(rules.start_pause * 2.0**self.rounds, rules.start_pause_most)
            self.rounds = min(self.rounds + 1, 30)

    def settle(self, at: float, rules: SchedulingConfig) -> None:
        """Count each trial start whose process has lived long enough as successful."""
        for key, began in list(self.trials.items()):
            if at >= began + rules.start_proof:
                self.work(key)

    def work(self, key: Key) -> None:
        """Note that a trial start was successful."""
        if self.trials.pop(key, None) is not None:
            self.rounds, self.window, self.until, self.since = 0, self.window * 2, -inf, inf

    def left(self, now: float, rules: SchedulingConfig) -> int:
        """Return how many trial starts are allowed now."""
        proved = self._proved(now, rules)
        if now < self.until and not proved:
            return 0
        return max(0, (self.window << proved) - (len(self.trials) - proved))

    def stopped(self, now: float, rules: SchedulingConfig) -> bool:
        """Tell whether enough rounds in a row have failed for the pause to be reported."""
        return self.rounds >= rules.start_rounds and not self._proved(now, rules)

    def over(self, rules: SchedulingConfig) -> bool:
        """Tell whether enough starts were successful for the pause to end."""
        return self.window > rules.start_window

    def _proved(self, now: float, rules: SchedulingConfig) -> int:
        return sum(now >= began + rules.start_proof for began in self.trials.values())


@dataclass(slots=True)
class FailedStarts:
    """The failed starts of one task since its last successful start."""

    number: int = 0
    own: int = 0
    """The number of the task's starts that failed while other tasks started successfully."""
    reason: str = ""
    until: float = -inf
    """The time before which the task is not tried again, whatever happens to other tasks."""

    @property
    def is_suspect(self) -> bool:
        """True if the task itself may be what makes starts fail; a suspect task is started alone."""
        return self.number > 1

    def fail(self, reason: str, at: float, rules: SchedulingConfig, *, trial: bool) -> None:
        """Count one more failed start; `trial` is True if the start was a trial start during a pause."""
        if self.is_suspect and not trial:
            self.own += 1
            self.until = at + min(rules.start_pause * 4.0**self.own, rules.start_rest_most)
        self.number, self.reason = self.number + 1, reason


class Backoff:
    """The pauses of one run: one for the whole machine, and one for each directory that could not be entered.

    A task whose own launch fails must not hold up the others. After two failures in a row the task is a suspect: it is
    started alone, and during a pause after all other tasks. If it fails while other tasks start successfully, it rests
    for increasing times.
    """

    def __init__(self) -> None:
        self._pauses: dict[str, Pause] = {}
        self._failed_starts: dict[int, FailedStarts] = {}
        """The tasks whose last start failed."""
        self._directories: dict[int, str] = {}
        """For each task in a directory that has or had a pause, that directory. The entry lasts until the task has
        started."""
        self._numbers: dict[str, int] = {}

    @property
    def limits(self) -> bool:
        """True if starts are limited by a pause, or by a task whose last start failed."""
        return bool(self._pauses or self._failed_starts)

    @property
    def away(self) -> tuple[str, ...]:
        """The directories in which starts pause, because they could not be entered."""
        return tuple(cause for cause in self._pauses if cause != MACHINE)

    def pauses(self) -> Mapping[str, Pause]:
        """Return all pauses by cause."""
        return self._pauses

    def away_for(self, directory: str, at: float) -> float:
        """Return for how many seconds tasks have been unable to enter a directory."""
        pause = self._pauses.get(directory) if directory else None
        return 0.0 if pause is None else max(0.0, at - pause.since)

    def directory(self, task: int) -> str:
        """Return the directory of a task, if starts there pause or have paused; else an empty string."""
        return self._directories.get(task, "")

    def locate(self, task: int, directory: str) -> int:
        """Note the directory of a task; return the number of the directory."""
        self._directories[task] = directory
        return self._numbers.setdefault(directory, len(self._numbers))

    # ---- what happens ----

    def placed(self, key: Key, at: float, rules: SchedulingConfig) -> None:
        """Note that an attempt was placed. The attempt counts as a trial start if its task is subject to a pause."""
        for pause in self._of(key[0], at, rules):
            pause.trials[key] = inf

    def started(self, key: Key, at: float, rules: SchedulingConfig) -> None:
        """Note that the process of an attempt runs; its program may still fail to start."""
        for pause in self._of(key[0], at, rules):
            if key in pause.trials:
                pause.trials[key] = at

    def exited(self, event: Exited, at: float, *, began: bool, rules: SchedulingConfig) -> None:
        """Note the end of an attempt: a failed start begins a pause or extends it; any other end shows that starts
        succeed again.
        """
        key = (event.task, event.attempt)
        if event.outcome is Outcome.UNSTARTED:
            self._failed(key, event, at, rules)
            return
        for pause in self._of(event.task, at, rules):
            if began:
                pause.work(key)
            else:
                pause.trials.pop(key, None)
        self._failed_starts.pop(event.task, None)
        self._directories.pop(event.task, None)
        machine = self._pauses.get(MACHINE)
        if machine is not None and began:
            machine.until = min(machine.until, at)  # the ended attempt may free what other starts lacked
        self._drop(rules)

    def _failed(self, key: Key, event: Exited, at: float, rules: SchedulingConfig) -> None:
        pauses = list(self._of(event.task, at, rules))
        trial = any(key in pause.trials for pause in pauses)
        self._failed_starts.setdefault(event.task, FailedStarts()).fail(event.reason, at, rules, trial=trial)
        for pause in pauses:
            if event.away and pause is not self._pauses.get(event.away):
                pause.work(key)  # its process was started: the machine lacks nothing
            else:
                pause.trials.pop(key, None)
        pause = self._pauses.setdefault(event.away, Pause())
        pause.settle(at, rules)
        pause.fail(key, event.reason, at, rules)

    def clear(self) -> None:
        """Forget all pauses and failed starts, so that a scheduler that takes over the run starts tasks at once."""
        self._pauses.clear()
        self._failed_starts.clear()

    def _of(self, task: int, at: float, rules: SchedulingConfig) -> Iterator[Pause]:
        """Return the active pauses that apply to a task."""
        if not self._pauses:
            return
        for pause in self._pauses.values():
            pause.settle(at, rules)
        self._drop(rules)
        for cause in dict.fromkeys((MACHINE, self.directory(task))):
            if cause in self._pauses:
                yield self._pauses[cause]

    def _drop(self, rules: SchedulingConfig) -> None:
        for cause in [cause for cause, pause in self._pauses.items() if pause.over(rules)]:
            del self._pauses[cause]

    # ---- what a decision asks ----

    def left(self, now: float, rules: SchedulingConfig) -> int | None:
        """Return how many starts the pause of the whole machine allows now; None: no limit."""
        pause = self._pauses.get(MACHINE)
        return None if pause is None else pause.left(now, rules)

    def suspended(self, task: int) -> Refusal:
        """Return the refusal of a task while all starts are paused."""
        pause = self._pauses[MACHINE]
        return Refusal(task, Reason.SUSPENDED, text=pause.reason)

    def look(self, now: float, rules: SchedulingConfig) -> tuple[object, ...]:
        """Return the state of pauses and rests at this time; while this state is unchanged, the last decision stays
        valid.
        """
        if not self.limits:
            return ()
        resting = sum(now < failed.until for failed in self._failed_starts.values())
        return (resting, *((cause, pause.left(now, rules)) for cause, pause in self._pauses.items()))

    def apart(
        self, placements: tuple[Placement, ...], living: Callable[[], Iterable[TaskState]]
    ) -> tuple[Placement, ...]:
        """Return the placements that may start: those before the first suspect, or the suspect alone once the start of
        every `living` attempt is known to have succeeded.
        """
        for place, placement in enumerate(placements):
            failed = self._failed_starts.get(placement.task)
            if failed is not None and failed.is_suspect:
                return placements[:place] if place or not all(task.began for task in living()) else placements[:1]
        return placements

    def starts(self, now: float, rules: SchedulingConfig) -> Starts | None:
        """Return the limits on the starts of one scheduling pass, apart from the pause of the whole machine; None if
        there are none.
        """
        if not self.limits:
            return None
        left = {cause: self._pauses[cause].left(now, rules) for cause in self.away}
        reasons = {cause: self._pauses[cause].reason for cause in self.away}
        failed = self._failed_starts.items()
        resting = {task: its.reason for task, its in failed if now < its.until}
        again = {task: its.number for task, its in failed if its.is_suspect} if self._pauses else {}
        return Starts(self._directories, left, reasons, resting, again)


@dataclass(slots=True)
class Starts:
    """The limits on starts in one scheduling pass: the remaining trial starts of each directory, and the tasks whose
    own starts failed.
    """

    directories: Mapping[int, str]
    left: Mapping[str, int]
    reasons: Mapping[str, str]
    resting: Mapping[int, str]
    """Tasks that may not start yet, each with the reason why its last start failed."""
    again: Mapping[int, int]
    """Tasks that are tried after all others, each with the number of its failed starts."""
    taken: Counter[str] = field(default_factory=Counter)
    postponed: list[int] = field(default_factory=list)

    def postpones(self, task: int) -> bool:
        """Tell whether a task must be tried after all others; if so, postpone it."""
        if task in self.again:
            self.postponed.append(task)
        return task in self.again

    def refuses(self, task: int) -> Refusal | None:
        """Return the refusal of a task that rests, or whose directory has a pause; None if the task may be tried."""
        if task in self.resting:
            return Refusal(task, Reason.SUSPENDED, text=self.resting[task])
        directory = self.directories.get(task, "")
        if directory not in self.left or self.left[directory] > self.taken[directory]:
            return None
        return Refusal(task, Reason.AWAY, directory, text=self.reasons[directory])

    def in_order(self, tasks: Iterable[int]) -> list[int]:
        """Return tasks in the order in which they are tried: first ordinary ones, then suspects, then those that
        rest.
        """
        return sorted(tasks, key=lambda task: (task in self.resting, self.again.get(task, 0)))

    def take(self, placement: Placement) -> None:
        """Count the placement of a task as a start in its directory."""
        directory = self.directories.get(placement.task)
        if directory is not None:
            self.taken[directory] += 1


def stopped(cause: str, pause: Pause, rules: SchedulingConfig) -> str:
    """Return the sentence that tells the user that starts pause, and why."""
    again = f"no task is charged for it, and starts are tried again at least every {rules.start_pause_most:g} s"
    if cause == MACHINE:
        rounds = f"{pause.rounds} rounds of starts in a row failed"
        return f"nothing starts for now, because {rounds}: {pause.reason}; {again}; running tasks continue"
    return (
        f"tasks in {cause} are not started for now: {pause.reason}; {again}. Other tasks continue; if the directory "
        "will not come back, cancel its tasks (scheduler cancel)"
    )


def goes_on(cause: str) -> str:
    """Return the sentence that tells the user that starts continue."""
    return f"tasks in {cause} are started again" if cause else "a start was successful: tasks start again"
