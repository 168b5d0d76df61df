"""The table of moves: which state may follow which, and what an ended attempt makes of its task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from scheduler.core.config import SchedulingConfig
from scheduler.core.model import Outcome, Placement, Purpose, State, Terms
from scheduler.errors import ForbiddenEvent
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
"""All allowed moves; any other move raises."""


@dataclass(slots=True)
class TaskState:
    """The Brain's details of a task that was touched at least once; an untouched task is a number in the task table."""

    id: int
    terms: int
    state: State = S.WAITING
    attempts: int = 0
    failures: int = 0
    ooms: int = 0
    faults: int = 0
    """Attempts in a row that were lost to other causes than the task."""
    short_turns: int = 0
    """Attempts in a row that asked for another turn soon after they had begun."""
    asked: str = ""
    """The request for the living attempt: stop or cancel."""
    placement: Placement | None = None
    started_at: float = 0.0
    peak: dict[str, int] = field(default_factory=dict)
    """The living attempt's highest use so far, by device."""
    floors: dict[str, int] = field(default_factory=dict)
    """The least next reservation after an out-of-memory, by part."""
    seen: dict[str, int] = field(default_factory=dict)
    """Its highest use when it ran out of memory, by part."""
    wanted: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Its reservation then, and its use and further request together, by part."""
    probed: Mapping[str, int] | None = None
    """The peak of its own probe, by part; None before a probe."""
    last_peak_at: float = 0.0
    """When the living attempt last reached a new peak."""
    last_ram_peak_at: float = 0.0
    """When the living attempt last reached a new peak of the host's RAM."""
    began: bool = False
    """True if the living attempt is known to have started."""
    settled: bool = False
    """True if the living attempt's reservation was cut to its observed need."""
    overdue: bool = False
    """True if the living attempt uses so little for so long that its peak is expected at no moment in particular."""
    apart: bool = False
    """True if a GPU fault under MPS ended it. The fault cannot be attributed to one of the tasks on the GPU; outside
    of MPS the next fault hits its cause alone."""
    history: list[str] = field(default_factory=list)

    def move(self, to: State, why: str) -> None:
        """Move to another state; raise ForbiddenEvent if the table does not allow it."""
        if to not in MOVES[self.state]:
            raise ForbiddenEvent(
                f"task {self.id} cannot go from {self.state} to {to} ({why}); "
                f"history: {'; '.join(self.history) or 'none'}"
            )
        self.history.append(f"{self.state} -> {to}: {why}")
        self.state = to


def after_exit(task: TaskState, outcome: Outcome, terms: Terms, rules: SchedulingConfig) -> State:
    """Return the state that follows from an attempt's end; the counters of the task already include it.

    A cancelled task is cancelled however it ends, except that it may have succeeded before.
    """
    probing = task.placement is not None and task.placement.purpose is Purpose.PROBE
    if outcome is Outcome.SUCCEEDED and not probing:
        return S.SUCCEEDED
    retried = task.failures <= terms.retries and str(outcome) in terms.retry_on.split(",")
    table = {
        Outcome.INTERRUPTED: S.INTERRUPTED,
        Outcome.LOST: S.FAILED if task.faults >= rules.max_faults else S.WAITING,
        Outcome.UNSTARTED: S.WAITING,
        Outcome.OOM: S.OOM if task.ooms > rules.max_ooms else S.WAITING,
        Outcome.SUCCEEDED: S.WAITING,
        Outcome.FAILED: S.WAITING if retried else S.FAILED,
        Outcome.TIMEOUT: S.WAITING if retried else S.TIMEOUT,
        Outcome.AGAIN: S.FAILED if task.short_turns >= rules.max_short_turns else S.WAITING,
    }
    to = table[outcome]
    return S.CANCELLED if task.asked == "cancel" else to
