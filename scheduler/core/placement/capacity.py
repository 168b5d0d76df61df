"""The capacity of every device, kept from pass to pass: only devices that have changed are recomputed."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from math import inf
from operator import is_not

from scheduler.core.config import SchedulingConfig
from scheduler.core.leases import Lease
from scheduler.core.model import DeviceBudget, Machine, Placement, Terms
from scheduler.core.placement.device_capacity import (
    ENOUGH,
    DeviceCapacity,
    LeaseSums,
    capacity_of,
    largest,
    may_use,
    sums_on,
)
from scheduler.core.queue.released import Released
from scheduler.values import dataclass, field

PIECE = 64
"""The number of devices whose states are compared at once."""
_NONE_YOUNG: Mapping[int, bool] = {}
Place = tuple[float, int]
"""The bytes or the load that a GPU has left, and the number of the GPU."""
Rank = tuple[bool, float, int, int]
"""The sort key of a GPU; a GPU with a smaller key is preferred."""


@dataclass(slots=True)
class FreeIndex:
    """The GPUs on which a task could still start, in two lists: by the bytes and by the load that are left.

    An empty GPU comes last in both lists, because other rules apply to what fits there.
    """

    bytes: list[Place]
    load: list[Place]
    ranked: list[Rank] = field(default_factory=list)
    """These GPUs in the order in which tasks prefer them."""

    def copy(self) -> FreeIndex:
        return FreeIndex(self.bytes.copy(), self.load.copy(), self.ranked.copy())

    def add(self, number: int, room: DeviceCapacity, rules: SchedulingConfig) -> None:
        """Add a GPU if a task could start there."""
        if is_open(room, rules):
            free = room.residents == 0 or rules.slots is not None
            insort(self.bytes, (inf if free else room.bytes, number))
            insort(self.load, (inf if free else room.load, number))
            insort(self.ranked, rank_of(room, number))

    def remove(self, number: int, room: DeviceCapacity, rules: SchedulingConfig) -> None:
        """Remove a GPU; `room` is the capacity with which it was added."""
        if is_open(room, rules):
            free = room.residents == 0 or rules.slots is not None
            del self.bytes[bisect_left(self.bytes, (inf if free else room.bytes, number))]
            del self.load[bisect_left(self.load, (inf if free else room.load, number))]
            del self.ranked[bisect_left(self.ranked, rank_of(room, number))]

    @property
    def most_bytes(self) -> float:
        """The most bytes left on any GPU."""
        return self.bytes[-1][0] if self.bytes else -inf

    @property
    def most_load(self) -> float:
        """The most load left on any GPU."""
        return self.load[-1][0] if self.load else -inf

    def number_with(self, bytes_: float, load: float) -> int:
        """Return how many GPUs `with_both` would return."""
        by_bytes = len(self.bytes) - bisect_left(self.bytes, (bytes_, -1))
        return min(by_bytes, len(self.load) - bisect_left(self.load, (load - ENOUGH, -1)))

    def with_both(self, bytes_: float, load: float) -> list[int]:
        """Return the GPUs that have enough bytes left, or those that have enough load left: the shorter one of these
        two lists.
        """
        by_bytes = bisect_left(self.bytes, (bytes_, -1))
        by_load = bisect_left(self.load, (load - ENOUGH, -1))
        if len(self.bytes) - by_bytes <= len(self.load) - by_load:
            return [number for _, number in self.bytes[by_bytes:]]
        return [number for _, number in self.load[by_load:]]


def rank_of(room: DeviceCapacity, number: int) -> Rank:
    """Return the sort key of a GPU: first those without unmanaged processes, then by the load and bytes left."""
    return room.unmanaged_bytes > 0, -room.load, -room.bytes, number


def is_open(room: DeviceCapacity, rules: SchedulingConfig) -> bool:
    """Tell whether a device could still take the smallest possible task."""
    if room.closed or room.taken_alone or room.shut is not None:
        return False
    per_device = rules.max_per_device if rules.slots is None else rules.slots
    if per_device is not None and room.ours >= per_device:
        return False
    return room.residents == 0 or rules.slots is not None or (room.bytes > 0 and room.load > ENOUGH)


class ReleaseFloor:
    """A lower bound of the bytes that each of several devices would have free without leases; it is recomputed when
    needed.
    """

    def __init__(self) -> None:
        self._least = self._version = -1

    def lower(self, room: DeviceCapacity) -> None:
        """Lower the bound if one of the devices would now have fewer bytes."""
        self._least = min(self._least, _releases(room))

    def has(self, bytes_: int, rooms: Mapping[str, DeviceCapacity], keys: Iterable[str], version: int) -> bool:
        """Tell whether each of these devices would have this many bytes free without leases."""
        if bytes_ > self._least and self._version != version:
            self._least = min((_releases(rooms[key]) for key in keys), default=-1)
            self._version = version
        return bytes_ <= self._least


class HostIndex:
    """The hosts of all nodes, sorted by the bytes and by the cores that they had left when the pass began."""

    def __init__(self) -> None:
        self._bytes: list[tuple[float, str]] = []
        self._load: list[tuple[float, str]] = []
        self._most: list[tuple[float, str]] = []
        self._shut = 0

    def add(self, key: str, room: DeviceCapacity) -> None:
        """Add a host."""
        insort(self._bytes, (room.bytes, key))
        insort(self._load, (room.load, key))
        insort(self._most, (room.bytes if room.residents else inf, key))
        self._shut += _takes_nothing(room)

    def remove(self, key: str, room: DeviceCapacity) -> None:
        """Remove a host; `room` is the capacity with which it was added."""
        del self._bytes[bisect_left(self._bytes, (room.bytes, key))]
        del self._load[bisect_left(self._load, (room.load, key))]
        del self._most[bisect_left(self._most, (room.bytes if room.residents else inf, key))]
        self._shut -= _takes_nothing(room)

    def all_have(self, bytes_: int, cores: float) -> bool:
        """Tell whether each host could take tasks and had at least this many bytes and cores left."""
        return not self._shut and bool(self._bytes) and bytes_ <= self._bytes[0][0] and cores <= self._load[0][0]

    def some_may_have(self, bytes_: int) -> bool:
        """Tell whether some host had this many bytes left, or was empty: other rules apply to what fits on an empty
        host.
        """
        return not self._most or bytes_ <= self._most[-1][0]


def _takes_nothing(room: DeviceCapacity) -> bool:
    return room.closed or room.taken_alone or room.shut is not None


class NodeTable:
    """The nodes of a run, each with its devices; a single machine is a node without a name."""

    def __init__(self, budgets: Sequence[DeviceBudget]) -> None:
        devices = [budget.device for budget in budgets]
        self.names = tuple(dict.fromkeys(device.node for device in devices))
        self.ends = {device.node: device.node_ends for device in devices if device.node_ends}
        """For each node whose end is known, the time of its end."""
        self.hosts = {device.node: device.key for device in devices if device.is_host}
        """For each node whose host is a device of the run, the key of that host."""
        self.host_labels = frozenset(device.label for device in devices if device.is_host)
        self.keys_on: dict[str, list[str]] = {}
        self.gpus_on: dict[str, list[str]] = {}
        """For each node with GPUs, the keys of these GPUs; `keys_on` has the keys of all devices."""
        for device in devices:
            self.keys_on.setdefault(device.node, []).append(device.key)
            if device.is_gpu:
                self.gpus_on.setdefault(device.node, []).append(device.key)
        hosts = [largest(budget.device, budget.cap) for budget in budgets if budget.device.is_host]
        self.smallest_host = min(hosts, default=0)
        """The capacity in bytes of the smallest host; its budget (`--devices`) counts if that is smaller."""
        self.gpus = tuple([device.key for device in devices if device.is_gpu])
        self.fewest_gpus = min(map(len, self.gpus_on.values()), default=0)
        """The smallest number of GPUs on a node; nodes without GPUs do not count."""


class CapacityView:
    """All devices of a run, with the capacity that decisions count on."""

    def __init__(self, rules: SchedulingConfig) -> None:
        self._rules = rules
        self._here: dict[str, dict[int, Placement]] = {}
        """Live reservations by device. The remaining capacity is always computed from these reservations, never
        adjusted step by step."""
        self._peaks: dict[str, dict[int, int]] = {}
        """The known peaks of tasks that share their margins, by device and task."""
        self._young: dict[str, dict[int, bool]] = {}
        """The tasks that have used no more than a CUDA context, by GPU; True for a task of unknown memory."""
        self._sums: dict[str, LeaseSums] = {}
        """For each device, the sums over its leases; they must be recomputed if there is no entry."""
        self._since: dict[str, int] = {}
        """For each device, the bytes reserved since its last measurement, minus the bytes given back."""
        self._stale, self._measured, self._coming = set[str](), set[str](), set[str]()
        """Devices to recompute; devices that were measured without a change, for which only smoothed numbers are
        recomputed; and devices on which ended attempts are still giving memory back, which may change without an
        event."""
        self._machine: Machine | None = None
        self._budgets: tuple[DeviceBudget, ...] = ()
        self._leases: tuple[Lease, ...] = ()
        self._used: Mapping[tuple[int, int], Mapping[str, int]] = {}
        self._at: dict[str, int] = {}
        self._released = Released()
        self._floor, self._host_floor = ReleaseFloor(), ReleaseFloor()
        self.hosts = HostIndex()
        self.rooms, self.gpus = dict[str, DeviceCapacity](), list[str]()
        self.nodes = NodeTable(())
        self.numbers: dict[str, int] = {}
        self.free = FreeIndex([], [])
        self.has_slots = False
        self.smallest = self.usual = self.largest = 0
        """The bytes (or the budget) of the smallest GPU, `usual` those of the median one, and `largest` those of the
        largest. A task that requests less than the smallest fits on every empty GPU."""
        self.version = 0
        """A counter that grows when the capacity of any device changes."""

    def follow(self, rules: SchedulingConfig) -> None:
        """Apply changed settings, and recompute all devices with them."""
        self._rules, self._machine, self._budgets = rules, None, ()

    def come(self, placement: Placement, peaks: Mapping[str, int] | None = None) -> None:
        """Add a live reservation, or replace it. `peaks` are the known peaks of the reservation's task by device, if
        the task shares its margins.
        """
        for key, bytes_ in placement.by_device.items():
            self._here.setdefault(key, {})[placement.task] = placement
            if peaks and (peak := peaks.get(key)):
                self._peaks.setdefault(key, {})[placement.task] = peak
            self._since[key] = self._since.get(key, 0) + bytes_
            self._stale.add(key)

    def go(self, placement: Placement) -> None:
        """Remove the reservation of an ended or changed attempt."""
        for key, bytes_ in placement.by_device.items():
            del self._here[key][placement.task]
            self._peaks.get(key, {}).pop(placement.task, None)
            self._since[key] = self._since.get(key, 0) - bytes_
            self._stale.add(key)

    def note_youth(self, placement: Placement, unknown: bool | None) -> None:
        """Note an attempt that has used no more than a CUDA context on its GPUs; `unknown` tells whether its memory is
        unknown. None: the attempt has used more, or has ended. An attempt of known memory counts only on GPUs where
        more than twice a context is reserved for it.
        """
        for key in placement.sees:
            if unknown is False and placement.reservation[key] <= 2 * self._rules.context:
                unknown_here = None
            else:
                unknown_here = unknown
            young = self._young.get(key, _NONE_YOUNG)
            if young.get(placement.task) is unknown_here:
                continue
            if unknown_here is None:
                del self._young[key][placement.task]
            else:
                self._young.setdefault(key, {})[placement.task] = unknown_here
            self._stale.add(key)

    @property
    def has_host(self) -> bool:
        """True if tasks may run on a host; also true before the devices are first measured."""
        return bool(self.nodes.hosts) or not self.rooms

    def left(self, key: str) -> int | None:
        """Return the bytes that may still be reserved on a device; None if the device is unknown."""
        room = self.rooms.get(key)
        return None if room is None else max(0, room.bytes - self._since.get(key, 0))

    def kept_aside(self, key: str) -> int:
        """Return the bytes of a GPU that are reserved for attempts which compute without it."""
        return sum(one.reservation[key] for one in self.here(key) if key in one.visible)

    def margins_beside(self, placement: Placement) -> dict[str, tuple[int, float]]:
        """Return two sums for each GPU of a placement, over the other tasks of known memory there: the bytes reserved
        above their peaks, and the squares of these peaks.
        """
        found = {}
        for key in placement.gpus:
            known = [
                (one.reservation[key], self._peaks.get(key, {}).get(one.task, 0))
                for one in self.here(key)
                if one.task != placement.task
            ]
            spare = sum(max(0, reserved - peak) for reserved, peak in known if peak)
            found[key] = (spare, sum(float(peak) * peak for _, peak in known))
        return found

    def here(self, key: str) -> Iterable[Placement]:
        """Return the live reservations on a device."""
        return self._here.get(key, {}).values()

    def stir(self, placement: Placement, *, is_flat: bool = False) -> None:
        """Mark the devices of an attempt as changed, because the attempt was measured. With `is_flat`, the attempt uses
        as much as before, so that the sums over the leases are still valid.
        """
        (self._measured if is_flat else self._stale).update(placement.by_device)

    def look(self, machine: Machine) -> CapacityView:
        """Update all devices to the present state of the machine.

        If the mapping of used bytes is the same object as at the last call, it may differ only on devices for which
        `stir` was called.
        """
        if machine is self._machine and not self._stale and not self._measured:
            return self
        self._machine = machine
        differing = self._differing(machine.budgets)
        if machine.used is not self._used or differing is None:
            self._build(machine)
            return self
        self._stale |= self._beside_changed(machine.leases)
        for key in self._stale:
            self._sums.pop(key, None)
        stale = self._coming.union(self._stale, self._measured, differing, self._released.due(machine.now))
        self._budgets = machine.budgets
        for key in stale:
            if key in self.rooms:
                self._renew(key, machine)
        self._stale.clear()
        self._measured.clear()
        self._since.clear()
        return self

    def _differing(self, budgets: Sequence[DeviceBudget]) -> set[str] | None:
        """Return the devices whose measurements have changed; None if a device was added, removed or replaced, or has
        another budget.
        """
        if budgets is self._budgets:
            return set()
        if len(budgets) != len(self._budgets):
            return None
        found = set()
        for first in range(0, len(budgets), PIECE):
            before, after = self._budgets[first : first + PIECE], budgets[first : first + PIECE]
            if before == after:  # far quicker than one by one where the objects are the same
                continue
            for old, new in compress(zip(before, after, strict=True), map(is_not, before, after)):
                if (new.device is not old.device and new.device != old.device) or new.cap != old.cap:
                    return None
                found.add(new.device.key)
        return found

    def _beside_changed(self, leases: tuple[Lease, ...]) -> set[str]:
        """Return the devices of each node on which leases of other runs have come, gone or changed."""
        if leases == self._leases:
            return set()
        before, after = ({lease.name: lease for lease in some} for some in (self._leases, leases))
        self._leases = leases
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        nodes = {lease.node for some in (before, after) for lease in map(some.get, names) if lease is not None}
        return {key for node in nodes for key in self.nodes.keys_on.get(node, ())}

    def _build(self, machine: Machine) -> None:
        self._budgets, self._leases, self._used = machine.budgets, machine.leases, machine.used
        self._sums.clear()
        self._at = {budget.device.key: at for at, budget in enumerate(machine.budgets)}
        self.has_slots = any(budget.device.is_slot for budget in machine.budgets)
        self.rooms = {budget.device.key: self._room(budget, machine) for budget in machine.budgets}
        self.gpus = [budget.device.key for budget in machine.budgets if budget.device.is_gpu]
        self.nodes = NodeTable(machine.budgets)
        self.numbers = {key: number for number, key in enumerate(self.gpus)}
        self.free = FreeIndex([], [])
        for number, key in enumerate(self.gpus):
            self.free.add(number, self.rooms[key], self._rules)
        self.hosts = HostIndex()
        for key in self.nodes.hosts.values():
            self.hosts.add(key, self.rooms[key])
        self._floor, self._host_floor = ReleaseFloor(), ReleaseFloor()
        sizes = sorted([self.rooms[key].most for key in self.gpus]) or [0]
        self.smallest, self.usual, self.largest = sizes[0], sizes[(len(sizes) - 1) // 2], sizes[-1]
        self._stale.clear()
        self._measured.clear()
        self._since.clear()
        self.version += 1

    def _renew(self, key: str, machine: Machine) -> None:
        before = self.rooms[key]
        after = self._room(machine.budgets[self._at[key]], machine)
        if after.bytes == before.bytes and after == before:
            return
        self.rooms[key] = after
        self.version += 1
        if (number := self.numbers.get(key)) is not None:
            self.free.remove(number, before, self._rules)
            self.free.add(number, after, self._rules)
            self._floor.lower(after)
        elif after.device.is_host:
            self.hosts.remove(key, before)
            self.hosts.add(key, after)
            self._host_floor.lower(after)

    def _room(self, budget: DeviceBudget, machine: Machine) -> DeviceCapacity:
        key = budget.device.key
        sums = self._sums.get(key)
        if sums is None:
            sums = self._sums[key] = sums_on(budget.device, self.here(key), machine, self._peaks.get(key))
        room = capacity_of(budget, sums, machine, self._rules)
        if (young := self._young.get(key)) and not self.has_slots:
            unknown = [task for task, is_unknown in young.items() if is_unknown]
            room.unsettled, room.beginning = len(unknown), unknown[0] if unknown else 0
            room.arriving = len(unknown) < len(young)
        self._released.steady(room, machine.now)
        (self._coming.add if room.coming else self._coming.discard)(key)
        return room

    def releases(self, bytes_: int) -> bool:
        """Tell whether a request of this size would fit on each GPU if all leases there ended now."""
        return self._floor.has(bytes_, self.rooms, self.gpus, self.version)

    def hosts_release(self, bytes_: int) -> bool:
        """Tell whether a request of this size would fit on each host if all leases there ended now."""
        return self._host_floor.has(bytes_, self.rooms, self.nodes.hosts.values(), self.version)

    def open_to(self, terms: Terms) -> tuple[str, ...]:
        """Return the GPUs on which a task may run."""
        return tuple([key for key in self.gpus if may_use(self.rooms[key].device, terms)])


def _releases(room: DeviceCapacity) -> int:
    return room.released if room.shut is None else -1
