"""What is left of one user's caps during a pass; what all of that user's runs hold counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from scheduler.core.house import GPUS, MEMORY, TASKS
from scheduler.core.model import HOST, Machine, Placement, Refusal, gpus_in
from scheduler.core.packing import Ask, Need, Room

NO_END = 1 << 62


class Allowance:
    """The caps, and what the user holds: leases of other runs, promises of this one, what the pass has placed."""

    def __init__(self, machine: Machine, own: Iterable[Placement]) -> None:
        self._caps = machine.caps
        others = [hold.promised for hold in machine.holds if hold.uid == machine.uid]
        self._mine = [*others, *(placement.promise for placement in own)]
        self._used = {key for promised in self._mine for key in gpus_in(promised)}

    @property
    def tasks_left(self) -> int:
        """How many more may run."""
        return NO_END if self._caps.tasks is None else self._caps.tasks - len(self._mine)

    def take(self, placement: Placement) -> None:
        """A placement of this pass counts from now on."""
        self._mine.append(placement.promise)
        self._used.update(placement.gpus)

    def too_many(self, task: int) -> Refusal:
        """What a task waits for where no more may run."""
        return self._refusal(task, TASKS, 1, len(self._mine), self._caps.tasks)

    def refuses(self, task: int, need: Need) -> Refusal | None:
        """Why a task may not start now, or never may, by what is known of its need."""
        if self.tasks_left <= 0:
            return self.too_many(task)
        never = self._never(task, need)
        if never is not None:
            return never
        for what, asks, held, cap in self._sizes(need):
            wanted = sum(ask.bytes for ask in asks if ask.bytes is not None)
            if cap is not None and wanted > cap - held and held:
                return self._refusal(task, what, wanted, held, cap)
        return None

    def _never(self, task: int, need: Need) -> Refusal | None:
        """Whether it asks for more than the user may ever hold."""
        cap = self._caps.gpus
        if cap is not None and len(need.gpus) > cap:
            return self._refusal(task, GPUS, len(need.gpus), 0, cap, "never")
        for what, asks, _, most in self._sizes(need):
            bare = sum(ask.bare for ask in asks)
            if most is not None and bare > most:
                return self._refusal(task, what, bare, 0, most, "never")
        return None

    def _sizes(self, need: Need) -> list[tuple[str, Sequence[Ask], int, int | None]]:
        """(what, what is asked of it, what is held, cap) of both kinds of memory."""
        gpus = sum(promised.get(key, 0) for promised in self._mine for key in gpus_in(promised))
        ram = sum(promised.get(HOST, 0) for promised in self._mine)
        return [(MEMORY, need.gpus, gpus, self._caps.memory), (HOST, (need.host,), ram, self._caps.host_memory)]

    def among(self, task: int, number: int, gpus: Sequence[Room]) -> Sequence[Room] | Refusal:
        """The GPUs that a task on so many may have, those that the user has anyway first where they run short."""
        cap = self._caps.gpus
        if cap is None or not number:
            return gpus
        left = cap - len(self._used)
        if left >= number:
            return gpus
        mine = [room for room in gpus if room.device.key in self._used]
        if len(mine) + max(0, left) < number:
            return self._refusal(task, GPUS, number, len(self._used), cap)
        return mine if left <= 0 else mine + [room for room in gpus if room.device.key not in self._used]

    def cut(self, placement: Placement, need: Need) -> Placement | Refusal:
        """What the caps leave of a placement: margins are cut where they end, as they are where a device ends."""
        most = self._caps.gpus
        if most is not None and len(self._used.union(placement.gpus)) > most:
            return self._refusal(placement.task, GPUS, len(placement.gpus), len(self._used), most)
        promise = dict(placement.promise)
        keys = (placement.gpus, tuple(key for key in (HOST,) if key in promise))
        for (what, asks, held, cap), here in zip(self._sizes(need), keys, strict=True):
            wanted = sum(promise[key] for key in here)
            if cap is None or wanted <= cap - held:
                continue
            if held and cap - held < min(cap, _enough(asks, wanted)):
                return self._refusal(placement.task, what, wanted, held, cap)
            for key, ask in zip(here, asks, strict=True):
                promise[key] = max(ask.bare, int(promise[key] * max(0, cap - held) / wanted))
        return replace(placement, promise=promise)

    def _refusal(self, task: int, what: str, wanted: int, held: int, cap: int | None, reason: str = "cap") -> Refusal:
        return Refusal(task, reason, what, wanted, held, cap or 0, text=self._caps.source)


def _enough(asks: Iterable[Ask], wanted: int) -> int:
    """With how much of a promise a task starts beside others of its user's: half of it, where nobody knows its need."""
    return wanted // 2 if any(ask.bytes is None for ask in asks) else wanted
