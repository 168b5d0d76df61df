"""Dependencies between tasks: which of them start, wait or are skipped, whatever their parents' ends."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.core.causes import DependencyStep
from scheduler.core.events import Depended, Observed
from scheduler.core.lifecycle import MOVES
from scheduler.core.model import NO_TASK, RETRIABLE, UNFINISHED, State
from scheduler.core.queue.dependencies import STATE_AFTER, DependencyTracker
from scheduler.values import dataclass, field

ENDS = (State.SUCCEEDED, State.FAILED, State.OOM, State.TIMEOUT, State.CANCELLED)


class Tasks:
    """Tasks with states and a tracker, and a log of all that happened to them."""

    def __init__(self, number: int) -> None:
        self.states = dict.fromkeys(range(number), State.WAITING)
        self.tracker = DependencyTracker(self.states.__getitem__)
        self.log: list[Depended | tuple[int, State]] = []

    def depend(self, tasks: tuple[int, ...], after: tuple[int, ...] = (), ended: tuple[int, ...] = ()) -> None:
        self.apply(Depended(DependencyStep.BLOCK, tasks, after, ended))

    def apply(self, event: Depended) -> None:
        self.log.append(event)
        self.tracker.apply(event)
        for task in event.tasks:
            if self.states[task] is not STATE_AFTER[event.step]:
                self._move(task, STATE_AFTER[event.step])

    def apply_all(self, events: list[Depended]) -> None:
        for event in events:
            self.apply(event)

    def move(self, *moves: tuple[int, State]) -> None:
        for task, to in moves:
            self.log.append((task, to))
            self._move(task, to)

    def _move(self, task: int, to: State) -> None:
        assert to in MOVES[self.states[task]], f"task {task}: {self.states[task]} -> {to}"
        self.states[task] = to
        self.tracker.moved(task, to)

    def settle(self) -> list[Depended]:
        events = self.tracker.due()
        for event in events:
            self.apply(event)
        assert self.tracker.due() == []
        return events

    def end(self, task: int, to: State) -> list[Depended]:
        self.move((task, State.RUNNING), (task, to))
        return self.settle()

    def see(self, state: State) -> None:
        self.tracker.see(Observed((99,), state))

    def replayed(self) -> Tasks:
        again = Tasks(len(self.states))
        for entry in self.log:
            again.apply(entry) if isinstance(entry, Depended) else again.move(entry)
        return again


def pipeline() -> Tasks:
    """Return preprocess (0), twelve trainings, and evaluate (13)."""
    tasks = Tasks(14)
    tasks.depend(tuple(range(1, 13)), after=(0,))
    tasks.depend((13,), after=tuple(range(1, 13)))
    tasks.settle()
    return tasks


class TestPipeline:
    def test_only_the_task_without_parents_may_start(self) -> None:
        tasks = pipeline()
        assert [task for task, state in tasks.states.items() if state is State.WAITING] == [0]

    def test_children_are_ready_after_the_success_of_their_parent(self) -> None:
        assert pipeline().end(0, State.SUCCEEDED) == [Depended(DependencyStep.READY, tuple(range(1, 13)))]

    def test_a_task_with_many_parents_is_ready_after_the_last_of_them(self) -> None:
        tasks = pipeline()
        tasks.end(0, State.SUCCEEDED)
        for training in (12, *range(2, 12)):
            assert tasks.end(training, State.SUCCEEDED) == []
        assert tasks.end(1, State.SUCCEEDED) == [Depended(DependencyStep.READY, (13,))]

    def test_a_failed_parent_skips_all_descendants_in_one_event_that_names_it(self) -> None:
        assert pipeline().end(0, State.FAILED) == [Depended(DependencyStep.SKIP, tuple(range(1, 14)), parent=0)]

    def test_retry_of_a_failed_parent_blocks_all_descendants_again(self) -> None:
        tasks = pipeline()
        tasks.end(0, State.FAILED)
        tasks.move((0, State.WAITING))
        assert tasks.settle() == [Depended(DependencyStep.BLOCK, tuple(range(1, 14)))]
        assert tasks.end(0, State.SUCCEEDED) == [Depended(DependencyStep.READY, tuple(range(1, 13)))]

    def test_a_failed_training_skips_the_evaluation_while_the_others_go_on(self) -> None:
        tasks = pipeline()
        tasks.end(0, State.SUCCEEDED)
        assert tasks.end(5, State.OOM) == [Depended(DependencyStep.SKIP, (13,), parent=5)]
        assert tasks.states[6] is State.WAITING

    def test_another_failed_parent_keeps_a_child_skipped_when_the_first_is_retried(self) -> None:
        tasks = pipeline()
        tasks.end(0, State.SUCCEEDED)
        tasks.end(5, State.FAILED)
        tasks.end(6, State.FAILED)
        tasks.move((5, State.WAITING))
        assert tasks.settle() == [Depended(DependencyStep.SKIP, (13,), parent=6)]


class TestSingleChildren:
    def test_a_parent_that_must_only_end_frees_its_child_by_a_failure(self) -> None:
        tasks = Tasks(2)
        tasks.depend((1,), ended=(0,))
        assert tasks.end(0, State.FAILED) == [Depended(DependencyStep.READY, (1,))]

    def test_a_skipped_parent_that_must_only_end_frees_its_child(self) -> None:
        tasks = Tasks(3)
        tasks.depend((1,), after=(0,))
        tasks.depend((2,), ended=(1,))
        events = tasks.end(0, State.FAILED)
        assert set(events) == {Depended(DependencyStep.SKIP, (1,), parent=0), Depended(DependencyStep.READY, (2,))}

    def test_a_parent_that_succeeded_in_an_earlier_run_counts_as_succeeded(self) -> None:
        tasks = Tasks(2)
        tasks.depend((1,), after=(0,))
        tasks.move((0, State.SKIPPED))
        assert tasks.settle() == [Depended(DependencyStep.READY, (1,))]

    def test_a_child_of_a_parent_that_ended_before_is_judged_at_once(self) -> None:
        tasks = Tasks(3)
        tasks.end(0, State.SUCCEEDED)
        tasks.end(1, State.FAILED)
        tasks.depend((2,), after=(0, 1))
        assert tasks.settle() == [Depended(DependencyStep.SKIP, (2,), parent=1)]

    def test_a_held_child_waits_for_its_release_and_then_for_its_parent(self) -> None:
        tasks = Tasks(2)
        tasks.depend((1,), after=(0,))
        tasks.move((1, State.HELD))
        assert tasks.settle() == []
        tasks.move((1, State.WAITING))
        assert tasks.settle() == [Depended(DependencyStep.BLOCK, (1,))]

    def test_a_cancelled_child_stays_cancelled(self) -> None:
        tasks = Tasks(2)
        tasks.depend((1,), after=(0,))
        tasks.move((1, State.CANCELLED))
        assert tasks.end(0, State.SUCCEEDED) == []

    def test_a_chain_of_ten_thousand_tasks_is_skipped_in_two_events(self) -> None:
        tasks = Tasks(10_001)
        for task in range(1, 10_001):
            tasks.depend((task,), after=(task - 1,))
        assert [len(event.tasks) for event in tasks.end(0, State.FAILED)] == [5000, 5000]

    def test_the_parents_of_a_task_are_told(self) -> None:
        tasks = Tasks(3)
        tasks.depend((2,), after=(0,), ended=(1,))
        assert tuple(tasks.tracker.parents(2)) == (0, 1)
        tasks.end(0, State.SUCCEEDED)
        assert tasks.tracker.unfinished(2) == [1]


def outside(state: State) -> Tasks:
    """Return a task (0) that waits for task 99 of another run, which is in a state."""
    tasks = Tasks(2)
    tasks.see(state)
    tasks.depend((0,), after=(99,))
    tasks.settle()
    return tasks


class TestParentsInOtherRuns:
    def test_a_task_waits_for_an_unfinished_parent(self) -> None:
        tasks = outside(State.RUNNING)
        assert tasks.states[0] is State.BLOCKED
        assert tasks.tracker.unfinished(0) == [99]

    def test_a_task_is_ready_once_its_parent_was_seen_to_succeed(self) -> None:
        tasks = outside(State.RUNNING)
        tasks.see(State.SUCCEEDED)
        assert tasks.settle() == [Depended(DependencyStep.READY, (0,))]

    @pytest.mark.parametrize("end", [State.FAILED, State.SKIPPED])
    def test_a_parent_that_did_not_succeed_skips_the_task_and_its_retry_brings_it_back(self, end: State) -> None:
        tasks = outside(State.RUNNING)
        tasks.see(end)
        assert tasks.settle() == [Depended(DependencyStep.SKIP, (0,), parent=99)]
        tasks.see(State.WAITING)
        assert tasks.settle() == [Depended(DependencyStep.BLOCK, (0,))]

    def test_a_parent_is_awaited_while_it_may_change_a_task(self) -> None:
        tasks = outside(State.RUNNING)
        assert tasks.tracker.awaited() == [99]
        tasks.see(State.FAILED)
        tasks.settle()
        assert tasks.tracker.awaited() == [99]
        tasks.see(State.SUCCEEDED)
        tasks.settle()
        assert tasks.tracker.awaited() == []

    def test_a_parent_of_a_cancelled_task_is_not_awaited(self) -> None:
        tasks = outside(State.RUNNING)
        tasks.move((0, State.CANCELLED))
        assert tasks.tracker.awaited() == []


class TestManyTasks:
    def test_the_cost_of_a_parents_end_does_not_grow_with_the_tasks_that_wait_for_all_parents(self) -> None:
        tasks = Tasks(4000)
        asked = Counter[str]()

        def state(task: int) -> State:
            asked["state"] += 1
            return tasks.states[task]

        tasks.tracker = DependencyTracker(state)
        tasks.depend(tuple(range(2000, 4000)), after=tuple(range(2000)))
        tasks.settle()
        asked.clear()
        tasks.end(0, State.SUCCEEDED)
        assert 0 < asked["state"] < 20


@dataclass(frozen=True, slots=True)
class Graph:
    """Parents of each task, always among the tasks before it, and the ends of its attempts."""

    after: list[tuple[int, ...]]
    ended: list[tuple[int, ...]]
    ends: list[State]
    order: list[int] = field(default_factory=list)
    """Which of the startable tasks is next, as numbers to be taken modulo their count."""

    def tasks(self) -> Tasks:
        tasks = Tasks(len(self.ends))
        for task, (after, ended) in enumerate(zip(self.after, self.ended, strict=True)):
            if after or ended:
                tasks.depend((task,), after, ended)
        tasks.settle()
        return tasks

    def failed(self, task: int, memory: dict[int, bool]) -> bool:
        """Tell whether a task or one that it needs ends badly."""
        if task not in memory:
            above = any(self.failed(parent, memory) for parent in self.after[task])
            memory[task] = above or self.ends[task] in RETRIABLE
        return memory[task]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    number = draw(st.integers(1, 14))
    after, ended = [], []
    for task in range(number):
        before = st.sets(st.integers(0, task - 1), max_size=4) if task else st.just(set[int]())
        needed = draw(before)
        after.append(tuple(sorted(needed)))
        ended.append(tuple(sorted(draw(before) - needed)))
    ends = draw(st.lists(st.sampled_from(ENDS), min_size=number, max_size=number))
    return Graph(after, ended, ends, draw(st.lists(st.integers(0, 99), min_size=3 * number, max_size=3 * number)))


def run_to_the_end(graph: Graph, tasks: Tasks, ends: list[State]) -> Tasks:
    """Run whatever may start, one task at a time, and check that each comes after its parents."""
    order = iter(graph.order)
    while ready := [task for task, state in tasks.states.items() if state is State.WAITING]:
        task = ready[next(order, 0) % len(ready)]
        assert all(tasks.states[parent] is State.SUCCEEDED for parent in graph.after[task])
        assert all(tasks.states[parent] not in UNFINISHED for parent in graph.ended[task])
        tasks.end(task, ends[task])
    return tasks


class TestRandomGraphs:
    @given(graphs())
    def test_every_task_starts_after_its_parents_or_is_skipped_for_one_that_failed(self, graph: Graph) -> None:
        tasks, memory = run_to_the_end(graph, graph.tasks(), graph.ends), dict[int, bool]()
        for task, state in tasks.states.items():
            spoiled = any(graph.failed(parent, memory) for parent in graph.after[task])
            assert state is (State.SKIPPED if spoiled else graph.ends[task])
            if spoiled:
                assert tasks.states[tasks.tracker.cause(task)] in RETRIABLE

    @given(graphs())
    def test_retry_of_all_that_failed_runs_everything_that_was_skipped(self, graph: Graph) -> None:
        tasks = run_to_the_end(graph, graph.tasks(), graph.ends)
        for task, state in [*tasks.states.items()]:
            if state in RETRIABLE:
                tasks.move((task, State.WAITING))
        tasks.settle()
        run_to_the_end(graph, tasks, [State.SUCCEEDED] * len(graph.ends))
        assert set(tasks.states.values()) == {State.SUCCEEDED}
        assert all(tasks.tracker.cause(task) == NO_TASK for task in tasks.states)

    @given(graphs(), st.data())
    def test_a_replay_after_any_event_leads_to_equal_states(self, graph: Graph, data: st.DataObject) -> None:
        tasks = run_to_the_end(graph, graph.tasks(), graph.ends)
        cut = data.draw(st.integers(0, len(tasks.log)))
        tasks.log = [*tasks.log[:cut]]
        again = tasks.replayed()
        submitted = {task for entry in again.log if isinstance(entry, Depended) for task in entry.tasks}
        if any((graph.after[task] or graph.ended[task]) and task not in submitted for task in tasks.states):
            return  # cut within the submission, which is one transaction
        for task, state in [*again.states.items()]:
            if state is State.RUNNING:
                again.move((task, State.WAITING))
        again.settle()
        memory = dict[int, bool]()
        run_to_the_end(graph, again, graph.ends)
        for task, state in again.states.items():
            spoiled = any(graph.failed(parent, memory) for parent in graph.after[task])
            assert state is (State.SKIPPED if spoiled else graph.ends[task])


class TestTimes:
    def test_a_task_is_blocked_until_its_time(self) -> None:
        tasks = Tasks(2)
        tasks.tracker.begin((0,), 100.0)
        tasks.apply_all(tasks.tracker.due(50.0))
        assert (tasks.states[0], tasks.states[1]) == (State.BLOCKED, State.WAITING)
        assert tasks.tracker.next_time == 100.0
        assert tasks.tracker.due(99.0) == []
        tasks.apply_all(tasks.tracker.due(100.0))
        assert tasks.states[0] is State.WAITING
        assert tasks.tracker.next_time == inf

    def test_a_task_waits_for_its_time_and_for_its_parents(self) -> None:
        tasks = Tasks(2)
        tasks.depend((1,), after=(0,))
        tasks.tracker.begin((1,), 100.0)
        tasks.move((0, State.RUNNING), (0, State.SUCCEEDED))
        assert tasks.tracker.due(50.0) == []
        tasks.apply_all(tasks.tracker.due(100.0))
        assert tasks.states[1] is State.WAITING

    def test_a_task_whose_parent_fails_is_skipped_before_its_time(self) -> None:
        tasks = Tasks(2)
        tasks.depend((1,), after=(0,))
        tasks.tracker.begin((1,), 100.0)
        tasks.move((0, State.RUNNING), (0, State.FAILED))
        tasks.apply_all(tasks.tracker.due(50.0))
        assert tasks.states[1] is State.SKIPPED

    def test_a_time_that_is_taken_away_frees_the_task(self) -> None:
        tasks = Tasks(1)
        tasks.tracker.begin((0,), 100.0)
        tasks.apply_all(tasks.tracker.due(50.0))
        tasks.tracker.begin((0,), None)
        tasks.apply_all(tasks.tracker.due(51.0))
        assert tasks.states[0] is State.WAITING

    def test_a_later_time_replaces_an_earlier_one(self) -> None:
        tasks = Tasks(1)
        tasks.tracker.begin((0,), 100.0)
        tasks.apply_all(tasks.tracker.due(50.0))
        tasks.tracker.begin((0,), 200.0)
        assert tasks.tracker.due(150.0) == []
        tasks.apply_all(tasks.tracker.due(200.0))
        assert tasks.states[0] is State.WAITING

    @given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), min_size=1, max_size=9), st.data())
    def test_no_task_is_free_before_its_time_or_blocked_after_it(
        self, rows: list[tuple[int, bool]], data: st.DataObject
    ) -> None:
        tasks = Tasks(len(rows))
        for task, (at, begins) in enumerate(rows):
            if begins:
                tasks.tracker.begin((task,), float(at))
        for now in sorted(data.draw(st.lists(st.integers(0, 10), min_size=1, max_size=6))):
            tasks.apply_all(tasks.tracker.due(float(now)))
            for task, (at, begins) in enumerate(rows):
                assert (tasks.states[task] is State.BLOCKED) == (begins and at > now)
