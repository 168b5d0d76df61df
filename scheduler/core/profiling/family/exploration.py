"""Which unknown classes of a family to try side by side, and which wait because another one shows more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

from scheduler.core.profiling.family.factor_test import Key

Group = tuple[str, int | Key | None]
"""Why a class is tried, and for which place or values; of each group one class is tried at a time."""


class Exploration:
    """Each undecided factor is a question; a class with a new value of it, and known values otherwise, helps to answer
    it.

    At any time one class is tried for each question, for each new combination of values that are known to matter, and,
    if neither is left, for those that only combine known values.
    """

    def __init__(self, undecided: Collection[int], seen: Collection[Key]) -> None:
        """Create an exploration. `undecided` are places in the keys, `seen` the keys with peaks, or the key to try
        first.
        """
        self._undecided = tuple(sorted(undecided))
        self._seen = frozenset(seen)
        self._known: dict[Key, Key] = {}
        """One of the seen keys for each combination of decided values."""
        for key in seen:
            self._known.setdefault(self._decisive(key), key)
        self._counts = {at: Counter(_rest(key, at) for key in seen) for at in self._undecided}
        self._most = {at: max(counts.values()) for at, counts in self._counts.items()}
        self._first: dict[int, int] = {}
        """The position in the list of the first key that helps to answer each question."""
        self._order: dict[Key, int] = {}
        self._asked: tuple[int, Group] | None = None
        """The position of the first key in the list that answers a question, and that question."""

    def take(self, key: Key, order: int) -> None:
        """Add the next key of the list, with its position there."""
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
        """Return the question that a key answers; None if it has peaks, or only combines known values."""
        if key in self._seen:
            return None
        step = next(self._steps(key), None)
        if step is not None:
            return ("step", step)
        decisive = self._decisive(key)
        return None if decisive in self._known else ("new", decisive)

    def _waits_for(self, key: Key) -> Group:
        """Return the question for which a key without an own one waits: one earlier in the list, if there is any."""
        known, mine = self._known[self._decisive(key)], self._order.get(key, len(self._order))
        differing = [at for at in self._undecided if key[at] != known[at]]
        if never := [at for at in differing if at not in self._first]:
            return ("rest", never[0])
        earlier = next((at for at in differing if self._first[at] < mine), None)
        if earlier is not None:
            return ("step", earlier)
        return self._asked[1] if self._asked and self._asked[0] < mine else ("rest", None)

    def _steps(self, key: Key) -> Iterator[int]:
        """Return the questions that a key helps to answer: its new value is where the most values have been seen."""
        if key in self._seen:
            return
        for at in self._undecided:
            if self._counts[at][_rest(key, at)] == self._most[at]:
                yield at

    def _decisive(self, key: Key) -> Key:
        return tuple(code for at, code in enumerate(key) if at not in self._undecided)


def _rest(key: Key, at: int) -> Key:
    return key[:at] + key[at + 1 :]
