"""The memory of a device that no listed process uses, and its likely owners."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from scheduler.core.ports import Key
from scheduler.units import MIB
from scheduler.values import dataclass

GROWTH = 64 * MIB
"""The number of bytes below which a change counts neither as growth nor as unfreed memory."""
USUAL = 8
"""The number of samples from which a device's usual unattributed memory is determined."""


class Lag:
    """Memory that ended processes have not freed yet; after their end, it can only shrink."""

    def __init__(self) -> None:
        self.owed = 0
        self.names: list[str] = []
        self._usual: deque[int] = deque(maxlen=USUAL)
        self._last: int | None = None

    def see(self, unexplained: int, gone: Sequence[tuple[str, int]]) -> None:
        """Add a sample: the memory without a process, and (owner, bytes) of the processes that are no longer listed.

        Only memory that two samples agree on counts as usual: the driver is queried for the processes first and for the
        memory afterwards, so memory that was allocated between the two queries belongs to no process in that sample.
        """
        self.names += [name for name, _ in gone]
        usual = max(self._usual, default=unexplained)
        self.owed = min(self.owed + sum(held for _, held in gone), max(0, unexplained - usual))
        if self.owed < GROWTH:
            self.owed, self.names = 0, []
            self._usual.append(unexplained if self._last is None else min(unexplained, self._last))
        self._last = unexplained


@dataclass(frozen=True, slots=True)
class RiseShare:
    """The reservation of an attempt, which limits its part of the rise, and whether the attempt has settled."""

    reservation: int
    settled: bool


class UnattributedMemory:
    """The rise of a device's use above its base, divided among attempts whose processes are not visible."""

    def __init__(self) -> None:
        self.base = 0
        """The bytes in the pool before the first of these attempts was launched."""
        self.credit: dict[Key, int] = {}
        self.believed: list[Key] = []
        """Attempts whose share counts as measured use."""
        self.owed = 0
        """Bytes of ended attempts that are not freed yet."""
        self.gone: list[Key] = []
        self.left = 0
        """The bytes of the rise that cannot be credited to any attempt."""
        self._last = 0

    def see(self, pool: int, shares: Mapping[Key, RiseShare]) -> None:
        """Divide the rise of the pool among the attempts: `pool` is the memory in bytes that no visible process
        explains.
        """
        self._settle_up(pool, shares)
        left = max(0, pool - self.base - self.owed)
        new = [key for key, share in shares.items() if not share.settled]
        before, self.credit = self.credit, {}
        for key, share in shares.items():
            if share.settled:
                # While one is measured, the others are assumed to be constant: else they would get its rise.
                self.credit[key] = min(left, before.get(key, 0) if new else share.reservation)
                left -= self.credit[key]
        self.credit.update(dict.fromkeys(new, left // len(new) if new else 0))
        self.believed = new if len(new) == 1 else []
        self.left = 0 if new else left

    def _settle_up(self, pool: int, shares: Mapping[Key, RiseShare]) -> None:
        """Count a decrease of the pool as memory of ended attempts that was freed."""
        ended = [key for key in self.credit if key not in shares]
        self.gone += ended
        self.owed += sum(self.credit[key] for key in ended)
        self.owed = max(0, self.owed - max(0, self._last - pool))
        self._last = pool
        if self.owed < GROWTH or (not shares and pool <= self.base):
            self.owed, self.gone = 0, []
