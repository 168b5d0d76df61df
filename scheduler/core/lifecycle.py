"""The table of moves: which state may follow which, and what an ended attempt makes of its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from scheduler.core.model import Outcome, Placement, Purpose, State, Terms
from scheduler.core.rules import Rules
from scheduler.errors import Forbidden
from scheduler.values import dataclass

S = State

MOVES: dict[State, frozenset[State]] = {
    S.WAITING: frozenset({S.RUNNING, S.PROBING, S.HELD, S.CANCELLED, S.REFUSED, S.SKIPPED}),
    S.HELD: frozenset({S.WAITING, S.CANCELLED}),
    S.PROBING: frozenset({S.WAITING, S.FAILED, S.CANCELLED, S.INTERRUPTED, S.OOM, S.TIMEOUT}),
    S.RUNNING: frozenset({S.SUCCEEDED, S.FAILED, S.OOM, S.TIMEOUT, S.INTERRUPTED, S.CANCELLED, S.WAITING}),
    S.INTERRUPTED: frozenset({S.WAITING, S.CANCELLED}),
    S.FAILED: frozenset({S.WAITING}),
    S.OOM: frozenset({S.WAITING}),
    S.TIMEOUT: frozenset({S.WAITING}),
    S.CANCELLED: frozenset({S.WAITING}),
    S.REFUSED: frozenset({S.WAITING}),
    S.SUCCEEDED: frozenset(),
    S.SKIPPED: frozenset({S.WAITING}),
}
"""Everything not in here raises."""


@dataclass(slots=True)
class Task:
    """What the Brain remembers of a task that was touched at least once; untouched ones are numbers in the roll."""

    id: int
    terms: int
    state: State = S.WAITING
    attempts: int = 0
    failures: int = 0
    ooms: int = 0
    faults: int = 0
    """Attempts in a row that were lost to other causes than the task."""
    short_turns: int = 0
    """Attempts in a row that wanted to go on in another turn soon after they had begun."""
    asked: str = ""
    """What was asked of the living attempt: stop or cancel."""
    placement: Placement | None = None
    started_at: float = 0.0
    peak: dict[str, int] = field(default_factory=dict)
    """The living attempt's highest use so far, by device."""
    floors: dict[str, int] = field(default_factory=dict)
    """What an out-of-memory taught: the next promise is at least this, by part."""
    seen: dict[str, int] = field(default_factory=dict)
    """The most it held when it ran out of memory, by part."""
    wanted: dict[str, tuple[int, int]] = field(default_factory=dict)
    """What it was promised then, and what it held and asked for besides, by part."""
    probed: Mapping[str, int] | None = None
    """What its own short run was seen to hold, by part; None before that."""
    last_peak_at: float = 0.0
    """When the living attempt last held more than ever before."""
    began: bool = False
    """Whether the living attempt is known to have started."""
    settled: bool = False
    """Whether the living attempt's promise was cut to what it was seen to need."""
    apart: bool = False
    """Whether a fault of its GPU ended it under MPS, which nobody can pin on one of those that shared it: outside of
    MPS the next one strikes whoever makes it."""
    story: list[str] = field(default_factory=list)

    def move(self, to: State, why: str) -> None:
        """Go to another state, if the table allows it."""
        if to not in MOVES[self.state]:
            raise Forbidden(
                f"task {self.id} cannot go from {self.state} to {to} ({why}); "
                f"its story: {'; '.join(self.story) or 'none'}"
            )
        self.story.append(f"{self.state} -> {to}: {why}")
        self.state = to


def after_exit(task: Task, outcome: Outcome, terms: Terms, rules: Rules) -> State:
    """The state that an attempt's end leads to, the counters of the task already including it.

    A cancelled one is cancelled however it ends, but for one that was quicker and has succeeded.
    """
    probing = task.placement is not None and task.placement.purpose is Purpose.PROBE
    if outcome is Outcome.SUCCEEDED and not probing:
        return S.SUCCEEDED
    retried = task.failures <= terms.retries and str(outcome) in terms.retry_on.split(",")
    table = {
        Outcome.INTERRUPTED: S.INTERRUPTED,
        Outcome.LOST: S.FAILED if task.faults >= rules.max_faults else S.WAITING,
        Outcome.OOM: S.OOM if task.ooms > rules.max_ooms else S.WAITING,
        Outcome.SUCCEEDED: S.WAITING,
        Outcome.FAILED: S.WAITING if retried else S.FAILED,
        Outcome.TIMEOUT: S.WAITING if retried else S.TIMEOUT,
        Outcome.AGAIN: S.FAILED if task.short_turns >= rules.max_short_turns else S.WAITING,
    }
    to = table[outcome]
    return S.CANCELLED if task.asked == "cancel" else to
