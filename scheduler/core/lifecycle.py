"""The lifecycle of tasks: which state may follow which, and what an ended attempt means for its task."""

from __future__ import annotations

from collections.abc import Mapping

from scheduler.core.causes import Action
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Edge, Exited
from scheduler.core.model import NO_TASK, Outcome, Placement, Purpose, State, Terms
from scheduler.errors import ForbiddenEvent
from scheduler.values import dataclass, field

S = State

MOVES: dict[State, frozenset[State]] = {
    S.WAITING: frozenset({S.RUNNING, S.PROBING, S.BLOCKED, S.HELD, S.CANCELLED, S.REFUSED, S.SKIPPED}),
    S.BLOCKED: frozenset({S.WAITING, S.HELD, S.CANCELLED, S.SKIPPED}),
    S.HELD: frozenset({S.WAITING, S.CANCELLED, S.SKIPPED}),
    S.PROBING: frozenset({S.WAITING, S.FAILED, S.CANCELLED, S.INTERRUPTED, S.OOM, S.TIMEOUT}),
    S.RUNNING: frozenset({
        S.SUCCEEDED, S.FAILED, S.OOM, S.TIMEOUT, S.INTERRUPTED, S.CANCELLED, S.PRUNED, S.WAITING,
    }),
    S.INTERRUPTED: frozenset({S.WAITING, S.CANCELLED}),
    S.FAILED: frozenset({S.WAITING}),
    S.OOM: frozenset({S.WAITING}),
    S.TIMEOUT: frozenset({S.WAITING}),
    S.CANCELLED: frozenset({S.WAITING}),
    S.REFUSED: frozenset({S.WAITING}),
    S.SUCCEEDED: frozenset(),
    S.SKIPPED: frozenset({S.WAITING, S.BLOCKED}),
    S.PRUNED: frozenset({S.WAITING}),
}  # fmt: skip
"""All allowed transitions; any other transition raises an error."""


@dataclass(slots=True)
class TaskState:
    """The details that the Brain keeps about a task with an attempt or a request; all other tasks are only numbers in
    the task table.
    """

    id: int
    terms: int
    state: State = S.WAITING
    attempts: int = 0
    failures: int = 0
    ooms: int = 0
    edges: int = 0
    """The number of times that the task ran out of memory with nearly all of a device reserved."""
    at_end_of_memory: bool = False
    """True if the last attempt ran out of memory, and another attempt would get no more memory."""
    faults: int = 0
    """The number of consecutive attempts that were lost for reasons other than the task."""
    short_turns: int = 0
    """The number of consecutive attempts that asked for another turn soon after their start."""
    asked: Action | None = None
    """The request that the living attempt was sent: stop, save, cancel or prune."""
    placement: Placement | None = None
    started_at: float = 0.0
    peak: dict[str, int] = field(default_factory=dict)
    """The living attempt's highest use so far, by device."""
    floors: dict[str, int] = field(default_factory=dict)
    """The least reservation of the next attempt after an out-of-memory. The key is a part: `host`, or the position of a
    GPU."""
    seen: dict[str, int] = field(default_factory=dict)
    """The highest use of an attempt that ran out of memory, by part."""
    wanted: dict[str, tuple[int, int]] = field(default_factory=dict)
    """For each part that ran out of memory: the bytes reserved, and the bytes that the attempt used plus those that it
    last requested."""
    probed: Mapping[str, int] | None = None
    """The peak of the task's own probe, by part; None before a probe."""
    last_peak_at: float = 0.0
    """The time at which the living attempt last reached a new peak."""
    last_ram_peak_at: float = 0.0
    """The time at which the living attempt last reached a new peak of the host's RAM."""
    began: bool = False
    """True if the living attempt is known to have started."""
    settled: bool = False
    """True if the living attempt's reservation was reduced to its observed need."""
    loaded: bool = False
    """True if the load of the living attempt on its GPUs was measured."""
    overdue: bool = False
    """True if other tasks no longer wait for the living attempt to settle, because it has used little for very long."""
    without: bool = False
    """True if the living attempt has shown that it computes without its GPUs."""
    without_at: float = 0.0
    """The time at which the living attempt left its GPUs; 0: it did not."""
    making_way_for: int = NO_TASK
    """The more urgent task for which the living attempt was asked to save; NO_TASK: none."""
    preemptions: int = 0
    """The number of consecutive attempts that made room for more urgent tasks."""
    apart: bool = False
    """True if a GPU fault under MPS ended an attempt, so that the next one runs outside of MPS. Which task on the GPU
    caused the fault is unknown; outside of MPS, a fault ends only the task that caused it."""
    history: list[str] = field(default_factory=list)

    def move(self, to: State, why: str) -> None:
        """Move to another state; raise ForbiddenEvent if `MOVES` does not allow the transition."""
        if to not in MOVES[self.state]:
            raise ForbiddenEvent(
                f"task {self.id} cannot go from {self.state} to {to} ({why}); "
                f"history: {'; '.join(self.history) or 'none'}"
            )
        self.history.append(f"{self.state} -> {to}: {why}")
        self.state = to


def count_exit(task: TaskState, event: Exited, rules: SchedulingConfig) -> None:
    """Update the task's counters of failures and of other ends after an attempt has ended."""
    if event.outcome is Outcome.UNSTARTED:
        return
    if event.outcome is not Outcome.LOST:
        task.faults = 0
    elif not event.node_lost and (task.began or event.watched >= 1.0):
        task.faults += 1  # an attempt that an earlier scheduler placed and never started does not count
    short = event.outcome is Outcome.AGAIN and event.seconds < rules.short_turn and task.asked is not Action.SAVE
    task.short_turns = task.short_turns + 1 if short else 0
    task.preemptions = task.preemptions + 1 if task.making_way_for != NO_TASK else 0
    if event.mps:
        from scheduler.core.attempts.mps_policy import FAULT  # a process that only looks at a run does not need it

        task.apart = task.apart or event.mps == FAULT
    task.failures += event.outcome in (Outcome.FAILED, Outcome.TIMEOUT)
    task.ooms += event.outcome is Outcome.OOM
    task.edges += event.edge is not Edge.NO
    task.at_end_of_memory = event.edge is Edge.FINAL or (event.edge is Edge.ONCE_MORE and task.edges > 1)


def after_exit(task: TaskState, outcome: Outcome, terms: Terms, rules: SchedulingConfig, away: float = 0.0) -> State:
    """Return the state that follows from an attempt's end; the task's counters already include that attempt.

    `away` is the number of seconds for which the task's directory could not be entered.

    A task that was asked to end by a cancel or by its metrics becomes cancelled or pruned, however its attempt ended.
    The exception is a success, because the attempt may have succeeded before it was asked to end.
    """
    probing = task.placement is not None and task.placement.purpose is Purpose.PROBE
    if outcome is Outcome.SUCCEEDED and not probing:
        return S.SUCCEEDED
    held = bool(terms.guest)  # a process that lost its lease is not started again
    retried = task.failures <= terms.retries and str(outcome) in terms.retry_on.split(",")
    table = {
        Outcome.INTERRUPTED: S.INTERRUPTED,
        Outcome.LOST: S.FAILED if task.faults >= rules.max_faults or (held and task.began) else S.WAITING,
        Outcome.UNSTARTED: S.FAILED if 0.0 < rules.directory_wait <= away else S.WAITING,
        Outcome.OOM: S.OOM if held or task.ooms > rules.max_ooms or task.at_end_of_memory else S.WAITING,
        Outcome.SUCCEEDED: S.WAITING,
        Outcome.FAILED: S.WAITING if retried else S.FAILED,
        Outcome.TIMEOUT: S.WAITING if retried else S.TIMEOUT,
        Outcome.AGAIN: S.FAILED if task.short_turns >= rules.max_short_turns else S.WAITING,
    }
    to = table[outcome]
    if task.asked is Action.PRUNE:
        return S.PRUNED
    return S.CANCELLED if task.asked is Action.CANCEL else to
