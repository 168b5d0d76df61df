"""When a list is not worth going on with: wrong from its first rows, or more of it failed than was allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import field

from scheduler.core.events import Exited, Halted
from scheduler.core.model import Outcome, State
from scheduler.core.rules import Rules
from scheduler.units import count
from scheduler.values import dataclass

LONGEST = 300
"""Characters of a last line that are kept."""
_NEUTRAL = (Outcome.LOST, Outcome.INTERRUPTED)
_FAILED = (State.FAILED, State.OOM, State.TIMEOUT)
_BETWEEN = r"[\s\"'`=,:;()\[\]{}<>]+"
_TOKEN = re.compile(_BETWEEN.replace("[", "[^", 1))
_MASKED = re.compile(rf"_(?:{_BETWEEN}_)+")


def last_line(text: str) -> str:
    """The last line of an output that is not blank; of a progress bar its last state."""
    for line in reversed(text.rstrip().split("\n")):
        shown = line.rstrip().rpartition("\r")[2].strip()
        if shown:
            return shown[:LONGEST]
    return ""


def gist(line: str, words: Iterable[str]) -> str:
    """What a last line has in common with that of another row: without numbers, and without the row's own words.

    "unrecognized arguments: --lr 0.1 --id=17" differs in every row and says the same in all of them.
    """
    own = {token for word in words for token in _TOKEN.findall(word)}
    masked = _TOKEN.sub(lambda m: "_" if m[0] in own or any(map(str.isdigit, m[0])) else m[0], line)
    short = _MASKED.sub("_", masked)
    return short if any(map(str.isalpha, short)) else line


@dataclass(slots=True)
class Tally:
    """The attempts that have ended since a scheduler took the run."""

    tasks: list[int] = field(default_factory=list)
    """The first that failed alike, one attempt of each."""
    first: Exited | None = None
    fine: bool = False
    """Whether something else became of one of the first, so that the list is not wrong as a whole."""
    failed: int = 0
    """Tasks that failed for good."""
    last: Exited | None = None

    def take(self, event: Exited, to: State, rules: Rules) -> None:
        """One more attempt has ended, and its task goes to a state; what nobody's row is to blame for tells nothing."""
        if event.outcome in _NEUTRAL:
            return
        if to in _FAILED:
            self.failed, self.last = self.failed + 1, event
        again = event.task in self.tasks and event.outcome is Outcome.FAILED
        if rules.first_rows and not self.fine and not again:
            self._compare(event, rules)

    def _compare(self, event: Exited, rules: Rules) -> None:
        if not self._is_alike(event, rules):
            self.fine = len(self.tasks) < rules.first_rows or event.outcome is Outcome.SUCCEEDED
        elif len(self.tasks) < rules.first_rows:
            self.tasks.append(event.task)
            self.first = self.first or event

    def _is_alike(self, event: Exited, rules: Rules) -> bool:
        if event.outcome is not Outcome.FAILED or not event.gist or event.seconds > rules.first_rows_within:
            return False
        return self.first is None or event.gist == self.first.gist

    def verdict(self, rules: Rules) -> Halted | None:
        """Why nothing more should be started, if so."""
        if self.first is not None and not self.fine and 0 < rules.first_rows <= len(self.tasks):
            return _halted("first rows", self.first, len(self.tasks))
        if self.last is not None and rules.max_failures is not None and self.failed >= rules.max_failures:
            return _halted("failures", self.last, self.failed)
        return None


def _halted(why: str, event: Exited, number: int) -> Halted:
    return Halted(why, event.task, event.attempt, number, event.last)


def sentences(halted: Halted, command: str, log: str, run: str, waiting: int) -> list[str]:
    """What people are told: the line, the command, the log, what to do next."""
    said = f"nothing more is started, {count(waiting, 'task')} left waiting: "
    if halted.why == "first rows":
        said += f"the first {halted.number} tasks that ended all failed within a minute with the same last line"
        onward = f"scheduler resume {run} --keep-going goes on as it is"
    else:
        said += f"{count(halted.number, 'task')} failed, which is all that --max-failures allows; the last was"
        said += f" task {halted.task}"
        onward = f"scheduler resume {run} goes on until as many more have failed"
    return [
        said + (f": {halted.line}" if halted.line else ""),
        f"    command  {command}",
        f"    log      {log}",
        f"    next     mend the script, then scheduler resume {run}; {onward}",
        "             where the list itself is wrong: mend it, then scheduler run FILE --new",
    ]
