"""The task table: batch, terms, class and state of every task of a run, in a few bytes each."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence

from scheduler.core.model import State

_STATES = tuple(State)
_NUMBER = {state: number for number, state in enumerate(_STATES)}


class TaskTable:
    """All tasks of a run. Each batch has consecutive ids; batches whose ids follow each other share one array."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._terms: list[array[int]] = []
        self._kinds: list[array[int]] = []
        self._states: list[bytearray] = []
        self._batch_starts: array[int] = array("q")
        self._batches: array[int] = array("q")
        self.counts: Counter[State] = Counter()
        self.batches = 0

    def __len__(self) -> int:
        return sum(len(states) for states in self._states)

    def __contains__(self, task: int) -> bool:
        return self._place(task) is not None

    def __iter__(self) -> Iterator[int]:
        for start, states in zip(self._starts, self._states, strict=True):
            yield from range(start, start + len(states))

    def add(self, batch: int, first: int, terms: Sequence[int]) -> None:
        """Add one batch of waiting tasks."""
        if not self._starts or first != self._starts[-1] + len(self._states[-1]):
            self._starts.append(first)
            self._terms.append(array("I"))
            self._kinds.append(array("I"))
            self._states.append(bytearray())
        self._terms[-1].extend(terms)
        self._kinds[-1].frombytes(bytes(4 * len(terms)))
        self._states[-1].extend(bytes([_NUMBER[State.WAITING]]) * len(terms))
        self._batch_starts.append(first)
        self._batches.append(batch)
        self.batches = max(self.batches, batch)
        self.counts[State.WAITING] += len(terms)

    def _place(self, task: int) -> tuple[int, int] | None:
        stretch = bisect_right(self._starts, task) - 1
        if stretch < 0 or task - self._starts[stretch] >= len(self._states[stretch]):
            return None
        return stretch, task - self._starts[stretch]

    def _known(self, task: int) -> tuple[int, int]:
        stretch = bisect_right(self._starts, task) - 1
        offset = task - self._starts[stretch]
        if stretch < 0 or offset >= len(self._states[stretch]):
            raise KeyError(task)
        return stretch, offset

    def batch(self, task: int) -> int:
        """Return the number of a task's batch, from 1."""
        return self._batches[bisect_right(self._batch_starts, task) - 1]

    def terms(self, task: int) -> int:
        """Return the number under which the terms of a task are kept."""
        stretch, offset = self._known(task)
        return self._terms[stretch][offset]

    def change(self, task: int, terms: int, *, keeps_class: bool = False) -> None:
        """Give a task the terms with this number. The class of the task must then be determined again, except with
        `keeps_class`, for terms that do not affect the class.
        """
        stretch, offset = self._known(task)
        self._terms[stretch][offset] = terms
        if not keeps_class:
            self._kinds[stretch][offset] = 0

    def kind(self, task: int) -> int:
        """Return the number that stands for a task's class; 0 while the class is not determined."""
        stretch, offset = self._known(task)
        return self._kinds[stretch][offset]

    def assign(self, task: int, kind: int) -> None:
        """Set the class of a task, given by its number."""
        stretch, offset = self._known(task)
        self._kinds[stretch][offset] = kind

    def state(self, task: int) -> State:
        """Return the state of a task."""
        stretch, offset = self._known(task)
        return _STATES[self._states[stretch][offset]]

    def mark(self, task: int, state: State) -> None:
        """Set the state of a task."""
        stretch, offset = self._known(task)
        self.counts[_STATES[self._states[stretch][offset]]] -= 1
        self._states[stretch][offset] = _NUMBER[state]
        self.counts[state] += 1

    @property
    def living(self) -> int:
        """The number of tasks that have an attempt."""
        return self.counts.get(State.RUNNING, 0) + self.counts.get(State.PROBING, 0)

    def blocks(self, state: State) -> Iterator[tuple[int, int, int, int]]:
        """Yield for each block of a batch: the batch, the first id, the number of ids, and how many of them are in this
        state.
        """
        wanted, blocks = _NUMBER[state], len(self._batch_starts)
        place = 0
        for start, numbers in zip(self._starts, self._states, strict=True):
            end = start + len(numbers)
            while place < blocks and self._batch_starts[place] < end:
                first, batch = self._batch_starts[place], self._batches[place]
                place += 1
                after = min(end, self._batch_starts[place]) if place < blocks else end
                yield batch, first, after - first, numbers.count(wanted, first - start, after - start)

    def in_state(self, *states: State) -> Iterator[int]:
        """Yield all ids whose tasks are in one of these states."""
        wanted = {_NUMBER[state] for state in states}
        for start, numbers in zip(self._starts, self._states, strict=True):
            yield from (start + offset for offset, number in enumerate(numbers) if number in wanted)
