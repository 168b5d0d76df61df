"""The detection of a list not worth continuing, because its latest attempts failed alike or too many tasks failed."""

from __future__ import annotations

from collections.abc import Iterable

from scheduler.core.causes import HaltCause
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Exited, Halted
from scheduler.core.model import Outcome, State
from scheduler.patterns import lazy_pattern
from scheduler.units import count
from scheduler.values import dataclass, field

_NEUTRAL = (Outcome.LOST, Outcome.UNSTARTED, Outcome.INTERRUPTED)
_FAILED = (State.FAILED, State.OOM, State.TIMEOUT)
_BETWEEN = r"[\s\"'`=,:;()\[\]{}<>]+"
_TOKEN = lazy_pattern(_BETWEEN.replace("[", "[^", 1))
_MASKED = lazy_pattern(rf"_(?:{_BETWEEN}_)+")


def gist(line: str, words: Iterable[str]) -> str:
    """Return an error message without numbers and without the row's own words, so that it can be compared with those of
    other rows.

    "unrecognized arguments: --lr 0.1 --id=17" has other values in every row, but is the same error in all of them.
    """
    own = {token for word in words for token in _TOKEN.findall(word)}
    masked = _TOKEN.sub(lambda m: "_" if m[0] in own or any(map(str.isdigit, m[0])) else m[0], line)
    short = _MASKED.sub("_", masked)
    return short if any(map(str.isalpha, short)) else line


@dataclass(slots=True)
class FailureTally:
    """The failures since a scheduler took over the run, counted to find out whether launching should end."""

    tasks: list[int] = field(default_factory=list)
    """The tasks of the latest attempts, if these failed one after another with equal errors."""
    first: Exited | None = None
    """The end of the first attempt in the present series of equal failures; None if there is no such series."""
    mixed: bool = False
    """True if an earlier attempt ended in another way, which shows that not every row of the list is wrong."""
    failed: int = 0
    """The number of tasks that failed for good."""
    last: Exited | None = None

    def take(self, event: Exited, to: State, rules: SchedulingConfig) -> None:
        """Count the end of an attempt whose task goes on to the state `to`; ignore an end that is not the fault of the
        row.
        """
        if event.outcome in _NEUTRAL:
            return
        if to in _FAILED:
            self.failed, self.last = self.failed + 1, event
        again = event.task in self.tasks and event.outcome is Outcome.FAILED
        if rules.first_rows and not again:
            self._compare(event, rules)

    def _compare(self, event: Exited, rules: SchedulingConfig) -> None:
        if not _is_early(event, rules):
            self.tasks, self.first, self.mixed = [], None, True
        elif self.first is None or event.gist != self.first.gist:
            self.mixed = self.mixed or self.first is not None
            self.tasks, self.first = [event.task], event
        elif len(self.tasks) < self._most(rules):
            self.tasks.append(event.task)

    def _most(self, rules: SchedulingConfig) -> int:
        return rules.rows_alike if self.mixed else rules.first_rows

    def verdict(self, rules: SchedulingConfig) -> Halted | None:
        """Return why no more tasks should start; None if tasks may start."""
        if self.first is not None and rules.first_rows > 0 and len(self.tasks) >= self._most(rules):
            return _halted(HaltCause.ALIKE if self.mixed else HaltCause.FIRST_ROWS, self.first, len(self.tasks))
        if self.last is not None and rules.max_failures is not None and self.failed >= rules.max_failures:
            return _halted(HaltCause.FAILURES, self.last, self.failed)
        return None


def _is_early(event: Exited, rules: SchedulingConfig) -> bool:
    """Tell whether an attempt failed soon after its start, with an error message that can be compared with others."""
    return event.outcome is Outcome.FAILED and bool(event.gist) and event.seconds <= rules.first_rows_within


def _halted(why: HaltCause, event: Exited, number: int) -> Halted:
    return Halted(why, event.task, event.attempt, number, event.last)


def sentences(halted: Halted, command: str, log: str, run: str, waiting: int) -> list[str]:
    """Return the lines for the user: the last error, the command, the log and the next step."""
    said = f"nothing more is started, {count(waiting, 'task')} left waiting: "
    onward = f"scheduler resume r{run} --keep-going continues anyway"
    if halted.why is HaltCause.FIRST_ROWS:
        said += f"the first {halted.number} tasks that ended all failed within a minute with the same error"
    elif halted.why is HaltCause.ALIKE:
        said += f"the last {halted.number} tasks that ended all failed within a minute with the same error"
        onward += f"; scheduler retry --run r{run} first lets the failed ones wait again"
    else:
        said += f"{count(halted.number, 'task')} failed, as many as --max-failures allows; the last one was"
        said += f" task {halted.task}"
        onward = f"scheduler resume r{run} continues until as many more have failed"
    return [
        said + (f": {halted.line}" if halted.line else ""),
        f"    command  {command}",
        f"    log      {log}",
        f"    next     fix the script, then scheduler resume r{run}; {onward}",
        "             if the list itself is wrong: fix it, then scheduler run FILE --new",
    ]
