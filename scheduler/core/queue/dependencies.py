"""Dependencies of tasks on other tasks and on times: which tasks are blocked, and what follows when a task ends."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from heapq import heappop, heappush
from math import inf

from scheduler.core.causes import DependencyStep
from scheduler.core.events import Depended, Observed
from scheduler.core.model import NO_TASK, UNFINISHED, UNSUCCESSFUL, State
from scheduler.values import dataclass

MOST_TASKS = 5000
"""The most tasks that one event names."""
_MOVABLE = frozenset({State.WAITING, State.BLOCKED, State.SKIPPED})
"""States of children that their parents can change now. The state of a task that runs, is held or has ended stays as it
is."""
STATE_AFTER = {
    DependencyStep.BLOCK: State.BLOCKED,
    DependencyStep.READY: State.WAITING,
    DependencyStep.SKIP: State.SKIPPED,
}
"""The state of a task after each step."""
_JUDGED = _MOVABLE | {State.HELD}
"""States of children that their parents can change now, or later when they are released."""
_FREE = State.WAITING, NO_TASK
"""The state and the cause (none) of a task that no parent blocks."""
_STEPS = {state: step for step, state in STATE_AFTER.items()}


@dataclass(frozen=True, slots=True)
class Parents:
    """The tasks on which other tasks depend; all tasks of one event share one object."""

    after: tuple[int, ...] = ()
    """Tasks that must succeed."""
    ended: tuple[int, ...] = ()
    """Tasks that must end, with or without success."""

    def __iter__(self) -> Iterator[int]:
        yield from self.after
        yield from self.ended


NONE = Parents()


@dataclass(slots=True)
class _Group:
    """Tasks that one event gave equal parents."""

    tasks: tuple[int, ...]
    parents: Parents
    needed: frozenset[int]
    """The parents that must succeed."""
    last: int = NO_TASK
    """A parent that still blocks the tasks. While it blocks them, the success of another parent changes nothing."""


class DependencyTracker:
    """The dependencies of a run's tasks, and the events that follow from the states of the tasks.

    The Brain passes every event about dependencies and every changed state to the tracker. Nothing else changes the
    tracker, except that `due` forgets the changes that it has seen. So a replay of the journal restores the tracker.
    """

    def __init__(self, state: Callable[[int], State]) -> None:
        """Create a tracker without dependencies; `state` returns the present state of a task of this run."""
        self._own = state
        self._group: dict[int, _Group] = {}
        """The group of each task that has parents."""
        self._below: dict[int, list[_Group]] = {}
        """For each parent, the groups of its children, in the order in which they were accepted."""
        self._causes: dict[int, int] = {}
        """For each task that is skipped because of its parents, the task whose end caused the skip."""
        self._outside: dict[int, State] = {}
        """The last known states of parents in other runs."""
        self._moved: dict[int, None] = {}
        """Tasks with parents, children or a begin time whose state has changed since the last call of `due`."""
        self._begins: dict[int, float] = {}
        """For each task with a begin time, the time before which it must not start."""
        self._at: dict[float, list[int]] = {}
        """For each future begin time, its tasks; the begin time of some of these tasks may have changed since."""
        self._times: list[float] = []
        """The future begin times, as a heap."""

    def __bool__(self) -> bool:
        return bool(self._group)

    # ---- what happened ----

    def apply(self, event: Depended) -> None:
        """Note the parents of new tasks, or the task because of which tasks are skipped. Call this before the states of
        the tasks change.
        """
        if event.after or event.ended:
            group = _Group(event.tasks, Parents(event.after, event.ended), frozenset(event.after))
            self._group.update(dict.fromkeys(event.tasks, group))
            for parent in {*event.after, *event.ended}:
                self._below.setdefault(parent, []).append(group)
        for task in event.tasks:
            if event.step is DependencyStep.SKIP:
                self._causes[task] = event.parent
            self._moved[task] = None

    def see(self, event: Observed) -> None:
        """Note the state of parents in other runs."""
        for parent in event.parents:
            self._outside[parent] = event.state
            if parent in self._below:
                self._moved[parent] = None

    def moved(self, task: int, to: State) -> None:
        """Note that the state of a task has changed."""
        if to is not State.SKIPPED:
            self._causes.pop(task, None)
        if task in self._below or task in self._group or task in self._begins:
            self._moved[task] = None

    def begin(self, tasks: Iterable[int], at: float | None) -> None:
        """Note the time before which tasks must not start; None: they may start at once."""
        for task in tasks:
            if at is None:
                self._begins.pop(task, None)
            else:
                self._begins[task] = at
                self._at.setdefault(at, []).append(task)
            self._moved[task] = None
        if at in self._at:
            heappush(self._times, at)

    # ---- questions ----

    def state(self, parent: int) -> State:
        """Return the present state of a task of this run, or the last known state of a parent in another run."""
        outside = self._outside.get(parent)
        return self._own(parent) if outside is None else outside

    def is_outside(self, parent: int) -> bool:
        """Tell whether a parent belongs to another run."""
        return parent in self._outside

    def begins(self, task: int) -> float:
        """Return the time before which a task must not start; 0 if there is none."""
        return self._begins.get(task, 0.0)

    @property
    def next_time(self) -> float:
        """The next time at which a task may begin; inf if there is none."""
        return self._times[0] if self._times else inf

    def parents(self, task: int) -> Parents:
        """Return the parents of a task."""
        group = self._group.get(task)
        return NONE if group is None else group.parents

    def edges(self) -> Iterator[tuple[int, int]]:
        """Yield each parent in this run with each of its children."""
        for parent, groups in self._below.items():
            if parent not in self._outside:
                yield from ((parent, child) for group in groups for child in group.tasks)

    def cause(self, task: int) -> int:
        """Return the task whose end caused a task to be skipped; NO_TASK if there is none."""
        return self._causes.get(task, NO_TASK)

    def unfinished(self, task: int) -> list[int]:
        """Return the parents of a task that have not ended."""
        return [parent for parent in self.parents(task) if self.state(parent) in UNFINISHED]

    def awaited(self) -> list[int]:
        """Return the parents in other runs that may still change the state of a task of this run."""
        return [
            parent for parent, state in self._outside.items() if state is not State.SUCCEEDED and self._matters(parent)
        ]

    def _matters(self, parent: int) -> bool:
        return any(self._own(child) in _JUDGED for group in self._below.get(parent, ()) for child in group.tasks)

    # ---- what follows ----

    def due(self, now: float = 0.0) -> list[Depended]:
        """Return the events that follow from the time and from all changes since the last call, including what follows
        from these events.

        Once they are applied, nothing more follows. After a restart the whole history counts as changes, so that `due`
        returns the events that could not be recorded before.
        """
        while self._times and self._times[0] <= now:
            self._moved.update(dict.fromkeys(self._at.pop(heappop(self._times), ())))
        if not self._moved:
            return []
        moved, self._moved = self._moved, {}
        own = _Cascade(self.state, self._outside, self._group, self._below, self._causes, self._begins, now)
        return own.events(moved)


class _Cascade:
    """The changes of tasks that follow from one another, before they are recorded."""

    def __init__(
        self,
        state: Callable[[int], State],
        outside: Container[int],
        group: Mapping[int, _Group],
        below: Mapping[int, list[_Group]],
        causes: Mapping[int, int],
        begins: Mapping[int, float],
        now: float,
    ) -> None:
        self._before = state
        self._outside = outside
        self._group = group
        self._below = below
        self._causes_before = causes
        self._begins, self._now = begins, now
        self._after: dict[int, tuple[State, int]] = {}
        """The new state of each changed task, and the cause if it is skipped."""

    def events(self, moved: Iterable[int]) -> list[Depended]:
        """Return the events that follow from these changed tasks; each task is in at most one event."""
        moved = list(moved)
        work, verdicts = deque(moved), dict[int, tuple[State, int]]()
        for task in moved:
            group = self._group.get(task)
            if group is None and task not in self._outside:
                blocked = task in self._begins or self._before(task) is State.BLOCKED
                work += [task] if blocked and self._judge(task, _FREE) else []
            elif group is not None:
                verdict = verdicts.get(id(group)) or verdicts.setdefault(id(group), self._verdict(group))
                work += [task] if self._judge(task, verdict) else []
        while work:
            parent = work.popleft()
            for group in self._below.get(parent, ()):
                if not self._waits_for_another(group, parent):
                    verdict = self._verdict(group)
                    work += [child for child in group.tasks if self._judge(child, verdict)]
        return list(self._gathered())

    def _judge(self, child: int, verdict: tuple[State, int]) -> bool:
        """Note the new state of a child after a change of its own state or of a parent's; return whether it differs
        from the present one.
        """
        if verdict == _FREE and self._begins.get(child, 0.0) > self._now:
            verdict = State.BLOCKED, NO_TASK
        now = self._state(child), self._cause(child)
        if now[0] not in _MOVABLE or now in (verdict, (State.SKIPPED, NO_TASK)):
            return False
        self._after[child] = verdict
        return True

    def _waits_for_another(self, group: _Group, parent: int) -> bool:
        """Tell whether the end of a parent changes nothing, because another parent still blocks the group and the ended
        one has not failed.
        """
        last = group.last
        if last in (NO_TASK, parent) or self._state(last) not in UNFINISHED:
            return False
        return parent not in group.needed or self._spoiler(parent) == NO_TASK

    def _verdict(self, group: _Group) -> tuple[State, int]:
        """Return the state that the tasks of a group should have because of their parents, and the cause if they are
        skipped.
        """
        group.last = NO_TASK
        for parent in group.parents.after:
            if (spoiler := self._spoiler(parent)) != NO_TASK:
                return State.SKIPPED, spoiler
        for parent in reversed(tuple(group.parents)):  # tasks end in about the order of their ids
            if self._state(parent) in UNFINISHED:
                group.last = parent
                return State.BLOCKED, NO_TASK
        return _FREE

    def _spoiler(self, parent: int) -> int:
        """Return the task that prevents the success of a parent: the parent itself, or the task because of which it was
        skipped.

        Return NO_TASK if there is none. A parent that is skipped because an equal row succeeded in an earlier run
        counts as succeeded.
        """
        state = self._state(parent)
        if state in UNSUCCESSFUL:
            return parent
        if state is not State.SKIPPED:
            return NO_TASK
        return parent if parent in self._outside else self._cause(parent)

    def _state(self, task: int) -> State:
        new = self._after.get(task)
        return self._before(task) if new is None else new[0]

    def _cause(self, task: int) -> int:
        new = self._after.get(task)
        return self._causes_before.get(task, NO_TASK) if new is None else new[1]

    def _gathered(self) -> Iterator[Depended]:
        """Yield the events. Each event is for one new state and one cause, and names the tasks whose state or cause has
        changed.
        """
        groups: dict[tuple[State, int], list[int]] = {}
        for task, new in self._after.items():
            if new != (self._before(task), self._causes_before.get(task, NO_TASK)):
                groups.setdefault(new, []).append(task)
        for (state, cause), tasks in groups.items():
            tasks.sort()
            for start in range(0, len(tasks), MOST_TASKS):
                yield Depended(_STEPS[state], tuple(tasks[start : start + MOST_TASKS]), parent=cause)
