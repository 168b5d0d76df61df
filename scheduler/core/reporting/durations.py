"""The expected durations of tasks that have not ended, and their uncertainty."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice
from math import sqrt
from typing import NamedTuple

from scheduler.core.model import State
from scheduler.core.profiling.class_profile import Profile
from scheduler.core.profiling.profile_index import ProfileIndex
from scheduler.core.reporting.schedule import MachineSnapshot
from scheduler.core.run_state import RunState

OWN_SPREAD, SCRIPT_SPREAD, RUN_SPREAD = 0.08, 0.25, 0.5
"""The least relative standard deviations of an expected duration: one that the task's own class has shown, one from
other classes of its script, and one from other tasks of its run."""
FEW_PROFILES = 3
"""If fewer durations than this are known for a script or a run, its durations are assumed to vary as much as those of
different scripts in a run."""
RUNNING_SHARE = 0.5
"""The share of the time that living attempts of unknown duration have run so far, by which expected durations are
raised. Without it, estimates would be too short, because short tasks end first and only ended tasks show their
durations. In a real run of 70 short tasks a share of 0.5 predicted 0.98 times the real time, 1 predicted 1.27 times,
and 0 predicted 0.73 times."""
LATE_SHARE = 0.25
"""An attempt that has exceeded its expected duration is expected to continue for at least this share of its elapsed
time."""
MOST_PROFILES = 1000
"""The most profiles that are read for one estimate, to limit the time that it takes."""


class Duration(NamedTuple):
    """The expected duration of one attempt."""

    seconds: float
    spread: float
    """The standard deviation, as a share of the duration."""


class _SeenDurations:
    """The durations that several task classes have shown: seconds per epoch, and seconds of whole attempts."""

    def __init__(self) -> None:
        self.epochs: list[float] = []
        self.wholes: list[float] = []
        self.running = 0.0
        """The total seconds that living attempts of unknown duration have run so far."""
        self._means: dict[bool, tuple[float, float]] = {}
        """The mean and the relative standard deviation: of seconds per epoch (True), and of seconds of whole attempts
        (False). Each is computed once."""

    def add(self, profile: Profile) -> None:
        self.epochs += [profile.epoch_seconds] if profile.epoch_seconds else []
        self.wholes += [profile.whole_seconds] if profile.whole_seconds else []

    def expect(self, epochs: int | None, least_spread: float) -> Duration | None:
        """Return the expected duration; None if none was observed. Nothing may be added after the first call."""
        per_epoch = bool(epochs and self.epochs)
        seen, times = (self.epochs, epochs or 1) if per_epoch else (self.wholes, 1)
        if not seen:
            return None
        if per_epoch not in self._means:
            self._means[per_epoch] = _mean_and_spread(seen)
        mean, spread = self._means[per_epoch]
        more = 0.0 if per_epoch else RUNNING_SHARE * self.running / len(seen)
        least_spread = max(least_spread, RUN_SPREAD if len(seen) < FEW_PROFILES else 0.0)
        return Duration((mean + more) * times, max(least_spread, spread))


def _mean_and_spread(seen: Sequence[float]) -> tuple[float, float]:
    """Return the mean of some seconds, and their relative standard deviation."""
    mean = sum(seen) / len(seen)
    return mean, sqrt(sum((seconds - mean) ** 2 for seconds in seen) / len(seen)) / mean


class DurationIndex:
    """All durations that are known at one moment: of each task class, of each script and of the whole run."""

    def __init__(
        self,
        profiles: ProfileIndex,
        epoch_times: Iterable[tuple[int, float]] = (),
        running: Iterable[tuple[int, float]] = (),
    ) -> None:
        """Collect the durations in the profiles, and those that living attempts have shown.

        `epoch_times` has the seconds per epoch of living attempts, and `running` the seconds that each has run; in
        both, the number of the attempt's task class comes first.
        """
        self._profiles = profiles
        self._run = _SeenDurations()
        self._scripts: defaultdict[str, _SeenDurations] = defaultdict(_SeenDurations)
        for script, profile, of_this_run in islice(profiles.learned(), MOST_PROFILES):
            if of_this_run:
                self._run.add(profile)
            if script:
                self._scripts[script].add(profile)
        self._epoch_times = dict(epoch_times)
        for number, seconds in self._epoch_times.items():
            for seen in self._seen(self._script(number)):
                seen.epochs.append(seconds)
        for number, seconds in running:
            for seen in self._seen(self._script(number)) if not profiles.expected(number, None) else ():
                seen.running += seconds
        self._known: dict[tuple[int, int | None], Duration | None] = {}

    def _script(self, number: int) -> str:
        task_class = self._profiles.kind(number)
        return task_class.family if task_class is not None else ""

    def _seen(self, script: str) -> list[_SeenDurations]:
        """Return the collections to which a duration of this script belongs: that of the run, and that of the script if
        it has a name.
        """
        return [self._run, self._scripts[script]] if script else [self._run]

    def expect(self, number: int, epochs: int | None) -> Duration | None:
        """Return the expected duration of a task of this class; None while no similar task has shown one."""
        if (number, epochs) not in self._known:
            self._known[number, epochs] = self._look_up(number, epochs)
        return self._known[number, epochs]

    def _look_up(self, number: int, epochs: int | None) -> Duration | None:
        own = self._profiles.expected(number, epochs) or self._epoch_times.get(number, 0.0) * (epochs or 0)
        if own:
            return Duration(own, OWN_SPREAD)
        script = self._script(number)
        similar = self._scripts[script].expect(epochs, SCRIPT_SPREAD) if script else None
        return similar or self._run.expect(epochs, RUN_SPREAD)


def remaining(whole: float, elapsed: float) -> float:
    """Return how many seconds of a duration remain. If the duration is exceeded already, return a share of the elapsed
    time.
    """
    return max(whole - elapsed, LATE_SHARE * elapsed if elapsed > whole else 0.0)


def durations_of(brain: RunState, snapshot: MachineSnapshot, now: float) -> DurationIndex:
    """Return all durations that are known for a run, including what its living attempts show."""
    epochs = [(brain.task_table.kind(task), seconds) for (task, _), (_, seconds) in snapshot.progress.items()]
    started = (task for task in brain.living() if task.started_at)
    elapsed = [(brain.task_table.kind(task.id), max(0.0, now - task.started_at)) for task in started]
    return DurationIndex(brain.profiles, epochs, elapsed)


def classes_of(brain: RunState, most: int) -> set[tuple[int, int | None]]:
    """Return the class and the epochs of living tasks, of at most `most` waiting groups, and of as many blocked
    tasks.
    """
    groups = () if brain.draining else islice(brain.wait_queue.grouped(), most)
    waiting = {(number, brain.terms[terms].epochs) for (terms, number, _), _ in groups}
    others = [task.id for task in brain.living()]
    if not brain.draining:
        others += islice(brain.task_table.in_state(State.BLOCKED), most)
    return waiting | {(brain.kind_of(task), brain.terms_of(task).epochs) for task in others}
