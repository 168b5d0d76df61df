"""How much a device holds that no process is listed for: whose that may be."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from scheduler.core.ports import Key
from scheduler.units import MIB
from scheduler.values import dataclass

GROWTH = 64 * MIB
"""Less than this is no growth, and no ghost."""
USUAL = 8
"""So many looks tell how much of a device is usually nobody's."""


class Lag:
    """Memory of which the processes are gone, and which is not back yet; it can only become less."""

    def __init__(self) -> None:
        self.owed = 0
        self.names: list[str] = []
        self._usual: deque[int] = deque(maxlen=USUAL)
        self._last: int | None = None

    def see(self, unexplained: int, gone: Sequence[tuple[str, int]]) -> None:
        """What nobody is listed for now, and (whose, bytes) of processes that were listed until now.

        Usual is what two looks have seen: the driver is asked for the processes first and for the memory then, so what
        was allocated in between is nobody's for one look.
        """
        self.names += [name for name, _ in gone]
        usual = max(self._usual, default=unexplained)
        self.owed = min(self.owed + sum(held for _, held in gone), max(0, unexplained - usual))
        if self.owed < GROWTH:
            self.owed, self.names = 0, []
            self._usual.append(unexplained if self._last is None else min(unexplained, self._last))
        self._last = unexplained


@dataclass(frozen=True, slots=True)
class Share:
    """What an attempt may have of the rise."""

    promise: int
    settled: bool


class Rise:
    """The rise of a device above its base, shared out among attempts whose processes tell nothing."""

    def __init__(self) -> None:
        self.base = 0
        """What the device held before the first of them."""
        self.credit: dict[Key, int] = {}
        self.believed: list[Key] = []
        """Of whom the credit is what they really hold."""
        self.owed = 0
        """What those held that are over, and is not back yet."""
        self.gone: list[Key] = []
        self.left = 0
        """Beyond what all of them may have."""
        self._last = 0

    def see(self, pool: int, shares: Mapping[Key, Share]) -> None:
        """Take in how much there is to be shared out now."""
        self._settle_up(pool, shares)
        left = max(0, pool - self.base - self.owed)
        new = [key for key, share in shares.items() if not share.settled]
        before, self.credit = self.credit, {}
        for key, share in shares.items():
            if share.settled:
                # Beside one that is measured, the others are taken to hold still: else its rise would be theirs.
                self.credit[key] = min(left, before.get(key, 0) if new else share.promise)
                left -= self.credit[key]
        self.credit.update(dict.fromkeys(new, left // len(new) if new else 0))
        self.believed = new if len(new) == 1 else []
        self.left = 0 if new else left

    def _settle_up(self, pool: int, shares: Mapping[Key, Share]) -> None:
        """Whatever falls is taken to be what the dead give back."""
        ended = [key for key in self.credit if key not in shares]
        self.gone += ended
        self.owed += sum(self.credit[key] for key in ended)
        self.owed = max(0, self.owed - max(0, self._last - pool))
        self._last = pool
        if self.owed < GROWTH or (not shares and pool <= self.base):
            self.owed, self.gone = 0, []
