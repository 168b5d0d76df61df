"""Attempts that do not use a GPU, as its looks prove it; an absence that is not proved is no measurement.

A look proves that an attempt is absent if the driver lists processes by pids that are known here, none of them belongs
to the attempt, and no memory came since its launch that may be its own under another name: memory without a process,
or a process of the same user that no lease owns.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scheduler.core.ports import Key
from scheduler.values import dataclass

GAP = 3.0
"""A look proves nothing about more than so many seconds before it: as long as it counts as fresh elsewhere."""
COVERED = 0.9
"""The share of the time since the first look that has to be proved."""
LOOKS = 2
"""The least number of looks: one alone may have come before the program had begun."""


@dataclass(slots=True)
class _Proof:
    """The evidence about one attempt."""

    first: float
    last: float
    covered: float = 0.0
    looks: int = 0
    present: bool = False
    """True if it was seen to use the GPU; that is never undone."""

    def take(self, at: float, *, proved: bool) -> None:
        """Take in one look."""
        since, self.last = at - self.last, at
        if proved:
            self.looks += 1
            self.covered += min(since, GAP)

    @property
    def holds(self) -> bool:
        """True if the attempt was absent for all the time in which it was looked for, but for short gaps."""
        return not self.present and self.looks >= LOOKS and self.covered >= COVERED * (self.last - self.first)


class Absences:
    """The attempts on one GPU that were never seen to use it."""

    def __init__(self) -> None:
        self._proofs: dict[Key, _Proof] = {}

    def keep(self, here: Collection[Key]) -> None:
        """Forget all other attempts."""
        self._proofs = {key: proof for key, proof in self._proofs.items() if key in here}

    def see(self, at: float, proved: Mapping[Key, bool], present: Collection[Key]) -> None:
        """Take in one look: whether it proves the absence of each attempt, and the attempts that it shows."""
        for key, is_proved in proved.items():
            proof = self._proofs.setdefault(key, _Proof(at, at))
            proof.present = proof.present or key in present
            proof.take(at, proved=is_proved and key not in present)

    def __contains__(self, key: object) -> bool:
        proof = self._proofs.get(key)  # type: ignore[call-overload]  # whatever is asked for
        return proof is not None and proof.holds
