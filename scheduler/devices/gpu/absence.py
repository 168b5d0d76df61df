"""Proofs, from samples, that attempts do not use a GPU; an attempt without a proof is not assumed to be absent.

A sample proves that an attempt is absent if the driver lists processes by pids that this process can identify, and none
of the listed processes belongs to the attempt. In addition, no memory may have appeared since the launch of the attempt
that could be the attempt's own in another form: memory without a process, or a process of the same user without a
lease.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from scheduler.core.ports import Key
from scheduler.values import dataclass

GAP = 3.0
"""The most seconds of absence before a sample that the sample proves: a sample counts as fresh for as long."""
COVERED = 0.9
"""The share of the time since an attempt's first sample for which its absence must be proved."""
LOOKS = 2
"""The least number of samples that must prove an absence: one is not enough, because the program may have started only
after it.
"""


@dataclass(slots=True)
class _Proof:
    """The evidence that one attempt does not use the GPU."""

    first: float
    last: float
    covered: float = 0.0
    looks: int = 0
    present: bool = False
    """True if any sample has shown the attempt on the GPU; it is never set back to False."""

    def take(self, at: float, *, proved: bool) -> None:
        """Add one sample; `proved` is true if the sample proves that the attempt was absent at the time `at`."""
        since, self.last = at - self.last, at
        if proved:
            self.looks += 1
            self.covered += min(since, GAP)

    @property
    def holds(self) -> bool:
        """Return whether the attempt was absent during all of the observed time, except for short gaps."""
        return not self.present and self.looks >= LOOKS and self.covered >= COVERED * (self.last - self.first)


class Absences:
    """The attempts on one GPU that were never seen to use it."""

    def __init__(self) -> None:
        self._proofs: dict[Key, _Proof] = {}

    def keep(self, here: Collection[Key]) -> None:
        """Forget all attempts that are not in the collection `here`."""
        self._proofs = {key: proof for key, proof in self._proofs.items() if key in here}

    def see(self, at: float, proved: Mapping[Key, bool], present: Collection[Key]) -> None:
        """Add a sample; `proved` tells which attempts the sample proves to be absent, and `present` has the attempts
        that it shows on the GPU.
        """
        for key, is_proved in proved.items():
            proof = self._proofs.setdefault(key, _Proof(at, at))
            proof.present = proof.present or key in present
            proof.take(at, proved=is_proved and key not in present)

    def __contains__(self, key: object) -> bool:
        proof = self._proofs.get(key)  # type: ignore[call-overload]  # whatever is asked for
        return proof is not None and proof.holds
