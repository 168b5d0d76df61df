"""The room on every device, kept from pass to pass: only what came, went or was seen since is worked out again."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress, count
from math import inf
from operator import is_not

from scheduler.core import packing
from scheduler.core.model import Budget, Device, Hold, Machine, Placement
from scheduler.core.packing import Room
from scheduler.core.rules import Rules
from scheduler.values import dataclass

Place = tuple[float, int]
"""So much of something is left on the GPU of that number."""


@dataclass(slots=True)
class Ends:
    """GPUs on which something could still start, by the bytes and by the load that are left there.

    An empty one stands last in both: what fits there follows rules of its own.
    """

    bytes: list[Place]
    load: list[Place]

    def copy(self) -> Ends:
        return Ends(self.bytes.copy(), self.load.copy())

    def add(self, number: int, room: Room, rules: Rules) -> None:
        """A GPU, if anything could start there."""
        if is_open(room, rules):
            free = room.residents == 0 or rules.slots is not None
            insort(self.bytes, (inf if free else room.bytes, number))
            insort(self.load, (inf if free else room.load, number))

    def remove(self, number: int, room: Room, rules: Rules) -> None:
        """The same GPU as it was added."""
        if is_open(room, rules):
            free = room.residents == 0 or rules.slots is not None
            del self.bytes[bisect_left(self.bytes, (inf if free else room.bytes, number))]
            del self.load[bisect_left(self.load, (inf if free else room.load, number))]

    @property
    def most_bytes(self) -> float:
        """The most that is left on any."""
        return self.bytes[-1][0] if self.bytes else -inf

    @property
    def most_load(self) -> float:
        """The same of the load."""
        return self.load[-1][0] if self.load else -inf

    def with_both(self, bytes_: float, load: float) -> list[int]:
        """The GPUs that have so much left of one of them, whichever says it of fewer."""
        by_bytes = bisect_left(self.bytes, (bytes_, -1))
        by_load = bisect_left(self.load, (load - packing.ENOUGH, -1))
        if len(self.bytes) - by_bytes <= len(self.load) - by_load:
            return [number for _, number in self.bytes[by_bytes:]]
        return [number for _, number in self.load[by_load:]]


def is_open(room: Room, rules: Rules) -> bool:
    """Whether a device could still take the smallest of tasks."""
    if room.closed or room.taken_alone or room.shut is not None:
        return False
    per_device = rules.max_per_device if rules.slots is None else rules.slots
    if per_device is not None and room.ours >= per_device:
        return False
    return room.residents == 0 or rules.slots is not None or (room.bytes > 0 and room.load > packing.ENOUGH)


class Working(dict[str, Room]):
    """The rooms of one pass: those it changes are copies of its own."""

    def __init__(self, base: Mapping[str, Room]) -> None:
        super().__init__()
        self._base = base

    def __missing__(self, key: str) -> Room:
        mine = self[key] = self._base[key].copy()
        return mine

    def __contains__(self, key: object) -> bool:
        return key in self._base

    def now(self, key: str) -> Room:
        """A room as it is, only to be read."""
        return super().get(key) or self._base[key]


class Yard:
    """All devices of a run, as its decisions see them."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._here: dict[str, dict[int, Placement]] = {}
        """The promises that live on each device; what they come to is worked out from them, never counted on."""
        self._stale: set[str] = set()
        self._coming: set[str] = set()
        """Devices where memory was just coming back: the time alone ends that."""
        self._machine: Machine | None = None
        self._budgets: tuple[Budget, ...] = ()
        self._holds: tuple[Hold, ...] = ()
        self._used: Mapping[tuple[int, int], Mapping[str, int]] = {}
        self._at: dict[str, int] = {}
        self.rooms: dict[str, Room] = {}
        self.gpus: list[str] = []
        self.everywhere: tuple[str, ...] = ()
        self.numbers: dict[str, int] = {}
        self.ends = Ends([], [])
        self.has_slots = False
        self.smallest = 0
        """The least that a GPU has, cut at its cap, and whatever else makes a task fit there with less."""
        self.version = 0
        """Grows when there is more or less room anywhere."""

    def follow(self, rules: Rules) -> None:
        """Other rules hold from now on: every room may be another one."""
        self._rules, self._machine, self._budgets = rules, None, ()

    def come(self, placement: Placement) -> None:
        """A promise lives from now on, or is another one."""
        for key in placement.promise:
            self._here.setdefault(key, {})[placement.task] = placement
            self._stale.add(key)

    def go(self, placement: Placement) -> None:
        """A promise lives no more."""
        for key in placement.promise:
            del self._here[key][placement.task]
            self._stale.add(key)

    def here(self, key: str) -> Iterable[Placement]:
        """The promises that live on a device."""
        return self._here.get(key, {}).values()

    def stir(self, placement: Placement) -> None:
        """What an attempt holds was looked at again."""
        self._stale.update(placement.promise)

    def look(self, machine: Machine) -> Yard:
        """Bring everything up to what the machine is now.

        A mapping of what is used that was handed in before may only have changed where `stir` was told of it.
        """
        if machine is self._machine and not self._stale:
            return self
        self._machine = machine
        differing = self._differing(machine.budgets)
        if machine.used is not self._used or machine.holds != self._holds or differing is None:
            self._build(machine)
            return self
        stale = self._coming | self._stale | differing
        self._budgets = machine.budgets
        for key in stale & self.rooms.keys():
            self._renew(key, machine)
        self._stale.clear()
        return self

    def _differing(self, budgets: Sequence[Budget]) -> set[str] | None:
        """Devices that are seen in another way than before; None where they are others altogether."""
        if budgets is self._budgets:
            return set()
        if len(budgets) != len(self._budgets):
            return None
        found = set()
        for at in compress(count(), map(is_not, self._budgets, budgets)):
            old, new = self._budgets[at], budgets[at]
            if new.device != old.device or new.cap != old.cap:
                return None
            found.add(new.device.key)
        return found

    def _build(self, machine: Machine) -> None:
        self._budgets, self._holds, self._used = machine.budgets, machine.holds, machine.used
        self._at = {budget.device.key: at for at, budget in enumerate(machine.budgets)}
        self.rooms = {budget.device.key: self._room(budget, machine) for budget in machine.budgets}
        self._coming = {key for key, room in self.rooms.items() if room.coming}
        self.has_slots = any(budget.device.is_slot for budget in machine.budgets)
        self.gpus = [budget.device.key for budget in machine.budgets if budget.device.is_gpu]
        self.everywhere = tuple(self.gpus)
        self.numbers = {key: number for number, key in enumerate(self.gpus)}
        self.ends = Ends([], [])
        for number, key in enumerate(self.gpus):
            self.ends.add(number, self.rooms[key], self._rules)
        self.smallest = min((self.rooms[key].most for key in self.gpus), default=0)
        self._stale.clear()
        self.version += 1

    def _renew(self, key: str, machine: Machine) -> None:
        before = self.rooms[key]
        after = self._room(machine.budgets[self._at[key]], machine)
        (self._coming.add if after.coming else self._coming.discard)(key)
        if after == before:
            return
        self.rooms[key] = after
        self.version += 1
        if (number := self.numbers.get(key)) is not None:
            self.ends.remove(number, before, self._rules)
            self.ends.add(number, after, self._rules)

    def _room(self, budget: Budget, machine: Machine) -> Room:
        return packing.room(budget, list(self._here.get(budget.device.key, {}).values()), machine, self._rules)

    def called(self, word: str) -> list[Device]:
        """The GPUs that people can mean by a word."""
        devices = (self.rooms[key].device for key in self.gpus)
        return [device for device in devices if packing.is_called(device, word)]
