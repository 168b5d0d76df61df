"""The times at which a run may start tasks: its pause, its window and the begin times of its tasks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from math import inf

from scheduler.core.brain import Brain
from scheduler.core.causes import Action, DependencyStep
from scheduler.core.control.messages import makes_room, makes_room_for_other, skipped_sentences
from scheduler.core.events import Asked, Depended, Preempted
from scheduler.core.local_time import moment
from scheduler.core.placement.preemption import Preemption
from scheduler.core.placement.refusal import Refusal
from scheduler.core.ports import LeaseRegistry, View, World
from scheduler.core.queue.node_end import only_too_long
from scheduler.core.queue.start_gate import GateState, StartGate
from scheduler.core.reporting.forecast import tasks_too_long
from scheduler.units import count, duration
from scheduler.values import replace

MOST_TIMES = 3
"""The most times that one sentence names."""


class StartClock:
    """The limits that the wall clock puts on the starts of a run, and the times at which these limits change."""

    def __init__(self, brain: Brain, world: World, view: View, preemption: Preemption) -> None:
        self._brain, self._world, self._view, self._preemption = brain, world, view, preemption
        self._gate, self._was_shut = StartGate(), False

    def shut(self) -> Refusal | None:
        """Return why nothing may start now, as the refusal of the first waiting task; None if tasks may start."""
        refusal = self._state().refusal
        if refusal is None:
            return None
        first = self._brain.wait_queue.walk().front()
        return refusal if first is None else replace(refusal, task=first)

    def _state(self) -> GateState:
        return self._gate.look(self._brain.rules, self._world.wall())

    @property
    def next_time(self) -> float:
        """The next time of the wall clock at which starts may become possible, or a task urgent; inf if there is
        none.
        """
        opens = self._state().until if self._brain.waiting and not self._brain.draining else inf
        urgent = self._world.wall() + self._preemption.due - self._world.now()
        return min(opens, urgent, self._brain.dependencies.next_time)

    def due(self) -> list[Depended]:
        """Return the events for tasks that become blocked, free or skipped because of the time or the ends of other
        tasks.
        """
        return self._brain.dependencies.due(self._world.wall())

    def show(self, shut: Refusal | None) -> None:
        """Show why nothing starts; report once that tasks may start again."""
        if shut is not None:
            self._view.waits([shut])
        elif self._was_shut:
            self._view.say("tasks may start again")
        self._was_shut = shut is not None

    def nothing_more(self, *, more: bool) -> list[Asked]:
        """Return the event that ends a run in which nothing runs, if no waiting task will ever start; else nothing.
        `more` is True if rows may still arrive.

        With `--learn-only`, the run ends once nothing is left to learn, unless starts pause after failures. Otherwise
        it ends if every waiting task takes longer than the nodes of the run last.
        """
        if self._brain.rules.learn_only:
            return [] if self._brain.backoff.pauses() else [Asked(Action.SKIP)]
        late = None if more else only_too_long(self._brain, self._world.now())
        if late is None:
            return []
        example = f"task {late.task} {late.text}, and the nodes end in {duration(late.room)}"
        onward = "scheduler resume in the next one continues the run"
        self._view.say(f"{tasks_too_long(self._brain.waiting)} ({example}): {onward}")
        return [Asked(Action.DRAIN)]

    def say_room(self, event: Preempted) -> None:
        """Report which tasks are asked to make room."""
        self._view.say(makes_room(event, self._brain.waiting_since(event.by), self._world.now()))

    def called(self, leases: LeaseRegistry) -> list[Preempted]:
        """Return which tasks of this run must save and make room for urgent tasks of the user's other runs; report each
        of these requests.
        """
        if not self._preemption.is_to_listen(self._world.now()):
            return []
        answers = self._preemption.answered(leases.calls(), leases.run)
        for answer in answers:
            self._view.say(makes_room_for_other(answer))
        return answers

    def say(self, events: Sequence[Depended]) -> None:
        """Report which tasks begin at a later time, and which are skipped because another one ended."""
        if not events:
            return
        for sentence in later_sentences(events, self._brain.dependencies.begins, self._world.wall()):
            self._view.say(sentence)
        for sentence in skipped_sentences(events, self._brain.dependencies.state):
            self._view.say(sentence)


def later_sentences(events: Sequence[Depended], begins: Callable[[int], float], now: float) -> list[str]:
    """Return sentences that say how many tasks begin at each of the next times; `begins` returns the begin time of a
    task.
    """
    blocked = (event for event in events if event.step is DependencyStep.BLOCK)
    times = Counter(at for event in blocked for task in event.tasks if (at := begins(task)) > now)
    return [
        f"{count(number, 'task')} {'begins' if number == 1 else 'begin'} at {moment(at, now)}"
        for at, number in sorted(times.items())[:MOST_TIMES]
    ]
