"""Which unknown kinds of a family to try side by side, and which wait since another one tells more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from scheduler.core.profiling.family.factor_test import Key

Group = tuple[str, int | Key | None]
"""Why a key is tried, and for which place or values; of the keys of one group one is tried at a time."""


class Exploration:
    """Every undecided factor is a question; a kind with a new value of it, all else as seen, is a step to its answer.

    One kind at a time is tried for each question, for each new combination of values that are known to matter,
    and, where neither is left, of those that only put values together that were seen apart.
    """

    def __init__(self, undecided: Collection[int], seen: Collection[Key]) -> None:
        """Create an exploration; `undecided` are places in the keys, `seen` the keys with peaks, or the one that is
        tried first.
        """
        self._undecided = tuple(sorted(undecided))
        self._seen = frozenset(seen)
        self._known: dict[Key, Key] = {}
        """One of the seen for each combination of what is decided."""
        for key in seen:
            self._known.setdefault(self._decisive(key), key)
        self._counts = {at: Counter(_rest(key, at) for key in seen) for at in self._undecided}
        self._most = {at: max(counts.values()) for at, counts in self._counts.items()}
        self._first: dict[int, int] = {}
        """Where in the list the first step to each answer stands."""
        self._order: dict[Key, int] = {}
        self._asked: tuple[int, Group] | None = None
        """Where the first key of the list stands that asks something, and what."""

    def take(self, key: Key, order: int) -> None:
        """Return the next key of the list, and its place there."""
        self._order.setdefault(key, order)
        for at in self._steps(key):
            self._first.setdefault(at, order)
        if self._asked is None and (group := self._asks(key)):
            self._asked = order, group

    def group(self, key: Key) -> Group:
        """Return a value that is equal for keys of which only one is to be tried at a time."""
        if key in self._seen:
            return ("seen", key)
        return self._asks(key) or self._waits_for(key)

    def _asks(self, key: Key) -> Group | None:
        """Return the question that a key answers; None where it has peaks, or only combines values that were seen
        apart.
        """
        if key in self._seen:
            return None
        step = next(self._steps(key), None)
        if step is not None:
            return ("step", step)
        decisive = self._decisive(key)
        return None if decisive in self._known else ("new", decisive)

    def _waits_for(self, key: Key) -> Group:
        """Return, for a key without a question, a question that comes before it in the list, while there is one."""
        known, mine = self._known[self._decisive(key)], self._order.get(key, len(self._order))
        differing = [at for at in self._undecided if key[at] != known[at]]
        if never := [at for at in differing if at not in self._first]:
            return ("rest", never[0])
        earlier = next((at for at in differing if self._first[at] < mine), None)
        if earlier is not None:
            return ("step", earlier)
        return self._asked[1] if self._asked and self._asked[0] < mine else ("rest", None)

    def _steps(self, key: Key) -> Iterator[int]:
        """Return the questions to which this key is a step: the new value is where the most values have been seen."""
        if key in self._seen:
            return
        for at in self._undecided:
            if self._counts[at][_rest(key, at)] == self._most[at]:
                yield at

    def _decisive(self, key: Key) -> Key:
        return tuple(code for at, code in enumerate(key) if at not in self._undecided)


def _rest(key: Key, at: int) -> Key:
    return key[:at] + key[at + 1 :]
