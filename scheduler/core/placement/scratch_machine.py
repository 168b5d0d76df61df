"""The working copy of the machine in one pass; it shrinks as placements are made and devices are kept."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from math import inf

from scheduler.core.config import SchedulingConfig
from scheduler.core.model import Placement, Terms
from scheduler.core.placement import fit, node_choice
from scheduler.core.placement.capacity import CapacityView, FreeIndex, is_open, rank_of
from scheduler.core.placement.device_capacity import ENOUGH, NEARLY, DeviceCapacity, is_called, may_use, usable
from scheduler.core.placement.request import ResourceRequest

FEW = 4
"""With more GPUs than this, only the best GPUs are examined to find out what a task lacks."""
FIRST = 16
"""The number of GPUs that are tried first if a task may fit on more than this."""
SCANNED = 4
"""The search for the GPUs to try first ends after this many times `FIRST` GPUs."""
ASKED = 2
"""The number of GPUs with the most bytes left, and of GPUs with the most load left, that are examined to find out what
a task lacks."""


class ScratchCapacity(dict[str, DeviceCapacity]):
    """The capacities of devices during one pass. A device is copied before the pass changes it."""

    def __init__(self, base: Mapping[str, DeviceCapacity]) -> None:
        super().__init__()
        self._base = base

    def __missing__(self, key: str) -> DeviceCapacity:
        mine = self[key] = self._base[key].copy()
        return mine

    def __contains__(self, key: object) -> bool:
        return key in self._base

    def now(self, key: str) -> DeviceCapacity:
        """Return the present capacity of a device, for reading only."""
        return super().get(key) or self._base[key]


class NodeHosts(Mapping[str, DeviceCapacity | None]):
    """The host of each node, with its present capacity in a pass; None if the host is not a device of the run."""

    def __init__(self, capacity: CapacityView, rooms: ScratchCapacity) -> None:
        self._capacity, self._rooms = capacity, rooms

    def __getitem__(self, node: str) -> DeviceCapacity | None:
        key = self._capacity.nodes.hosts.get(node)
        return None if key is None else self._rooms.now(key)

    def __len__(self) -> int:
        return len(self._capacity.nodes.names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._capacity.nodes.names)


class ScratchMachine:
    """All devices during one pass, and an index of the GPUs on which a task may still fit."""

    def __init__(self, capacity: CapacityView, rules: SchedulingConfig) -> None:
        self._capacity, self._rules = capacity, rules
        self.rooms = ScratchCapacity(capacity.rooms)
        self.hosts = NodeHosts(capacity, self.rooms)
        self.host_labels = capacity.nodes.host_labels
        self.gpus = capacity.gpus
        self.smallest = capacity.smallest
        self.free = capacity.free
        """The GPUs that could take one more task. The index is shared with later passes until this pass changes it."""
        self._are_mixed = capacity.largest > capacity.smallest
        """True if the GPUs differ in capacity."""
        self._are_several = len(capacity.nodes.names) > 1
        """True if the run has several nodes."""
        self.kept_for = ""
        """The task for which all GPUs are kept; then they are not marked one by one. Empty: none."""

    # ---- changes ----

    def take(self, placement: Placement, peaks: Mapping[str, int] | None = None) -> None:
        """Subtract a placement, so that later placements of this pass take it into account. `peaks` are the known peaks
        of the placed task.
        """
        gpus = [(self._capacity.numbers[key], self.rooms[key]) for key in placement.gpus]
        self._own_free()
        for number, room in gpus:
            self.free.remove(number, room, self._rules)
        fit.take(self.rooms, placement, peaks)
        for number, room in gpus:
            self.free.add(number, room, self._rules)

    def close(self, room: DeviceCapacity, who: str) -> None:
        """Keep a GPU for a task: nothing more starts there in this pass."""
        if room.closed:
            return
        self._own_free()
        key = room.device.key
        self.free.remove(self._capacity.numbers[key], self.rooms.now(key), self._rules)
        mine = self.rooms[key]
        mine.closed, mine.kept_for = True, who

    def close_all(self, who: str) -> None:
        """Keep all GPUs for a task: nothing more starts there in this pass."""
        self.free, self.kept_for = FreeIndex([], []), self.kept_for or who

    def close_host(self, node: str, who: str) -> None:
        """Keep the RAM of a node's host for a task."""
        host = self.rooms[self._capacity.nodes.hosts[node]]
        host.closed, host.kept_for = True, host.kept_for or who

    def _own_free(self) -> None:
        if self.free is self._capacity.free:
            self.free = self.free.copy()

    def refresh(self) -> None:
        """Rebuild the index of free GPUs, after capacity was kept for other schedulers."""
        self.free = FreeIndex([], [])
        for number, key in enumerate(self.gpus):
            self.free.add(number, self.rooms.now(key), self._rules)

    # ---- questions ----

    def is_full(self, *, some_without_gpus: bool) -> bool:
        """Tell whether no waiting task could start anywhere, however little it requests."""
        if self.gpus and self.free.bytes:
            return False
        with_host = some_without_gpus or not self.gpus
        return not with_host or not any(
            is_open(self.rooms.now(key), self._rules) for key in self._capacity.nodes.hosts.values()
        )

    def most_bytes(self, lightest: float, *, known: bool = False) -> float:
        """Return the largest memory request that could still fit on a GPU with running tasks. Every task requests at
        least the load `lightest`; return -1 if no GPU has that load left, and inf if a request of any size may fit.
        With `known`, only requests for known memory count.
        """
        if not self.gpus:
            return inf
        if self.free.most_load + ENOUGH < lightest and lightest > 0:
            return -1.0
        bytes_ = max(0.0, self._most_for_known() if known else self.free.most_bytes)
        return bytes_ if bytes_ < self.smallest - self._rules.buffer else inf

    def _most_for_known(self) -> float:
        """Return the most bytes left on any GPU, without GPUs where a task of unknown memory is at its beginning."""
        places = reversed(self.free.bytes)
        return next((bytes_ for bytes_, at in places if not self.rooms.now(self.gpus[at]).beginning), -inf)

    def idle_gpus(self) -> set[str]:
        """Return the empty GPUs on which a task could start; if GPUs differ in capacity, only the largest ones."""
        last = bisect_left(self.free.bytes, (inf, -1))
        rooms = (self.rooms.now(self.gpus[number]) for _, number in self.free.bytes[last:])
        return {room.device.key for room in rooms if room.residents == 0 and room.most >= self._capacity.largest}

    def is_there(self, terms: Terms, *, for_gpus: bool) -> bool:
        """Tell whether the run has a GPU, or a host, on which a task with these terms may run."""
        keys = self.gpus if for_gpus else self._capacity.nodes.hosts.values()
        return any(may_use(self.rooms.now(key).device, terms) for key in keys)

    def hosts_for(self, terms: Terms, gpus: int) -> Mapping[str, DeviceCapacity | None]:
        """Return the hosts of the nodes on which a task that requests this many GPUs may run."""
        return node_choice.hosts_for(terms, gpus, self.hosts)

    def may_never_fit(self, need: ResourceRequest) -> bool:
        """Tell whether a request exceeds the smallest GPU, or the smallest host if there are several nodes."""
        ram = need.host
        if self._are_several and max(ram.bytes or 0, ram.bare, ram.wanted) > self._capacity.nodes.smallest_host:
            return True
        for ask in need.gpus:
            if (ask.bytes or 0) > self.smallest or ask.bare > self.smallest or ask.wanted > self.smallest:
                return True
        return False

    def candidates(self, terms: Terms, gpus: int, node: str | None = None) -> list[DeviceCapacity]:
        """Return the GPUs, best first, on which a task that requests `gpus` GPUs may run. `node` limits them to one
        node.
        """
        if not gpus:
            return []
        keys = self.gpus if node is None else self._capacity.nodes.gpus_on.get(node, [])
        return self.sorted_for(terms, self._usable(terms, [self.rooms.now(key) for key in keys]))

    def best(self, terms: Terms, need: ResourceRequest) -> list[DeviceCapacity]:
        """Return the best-ranked GPUs on which a task may fit, at most `FIRST`. Return an empty list if few GPUs come
        into question, or if the run has slots or the row of the task names or prefers devices.

        If the task fits on some of them, a search among all GPUs would choose these as well. Sorting all GPUs for each
        task would take longer the more there are.
        """
        if len(self.free.bytes) <= FIRST or terms.is_bound or terms.prefer or self._rules.slots is not None:
            return []
        least, busy = self._least(need)
        if self.free.number_with(least, busy) <= FIRST:
            return []
        found = []
        for *_, number in self.free.ranked[: SCANNED * FIRST]:
            room = self.rooms.now(self.gpus[number])
            if room.residents == 0 or (room.bytes >= least and room.load + ENOUGH >= busy):
                found.append(room)
                if len(found) == FIRST:
                    break
        return found

    def _least(self, need: ResourceRequest) -> tuple[float, float]:
        """Return the bytes and the load that a GPU must have left for a task; an empty GPU need not have them."""
        if need.alone:
            return inf, 0.0
        least = self.smallest - self._rules.buffer
        for ask in need.gpus:
            least = min(least, ask.starts_with)
        return least, fit.load_asked(need.busy, self._rules)

    def hopeful(self, terms: Terms, need: ResourceRequest) -> list[DeviceCapacity]:
        """Return the GPUs on which a task may fit. Leave out the GPUs that certainly lack bytes or the GPUs that
        certainly lack load, whichever are more. Return no GPUs if each of several hosts certainly lacks RAM for the
        task.
        """
        if self._are_several and not self._capacity.hosts.some_may_have(self._least_ram(need)):
            return []
        least, busy = self._least(need)
        return self._usable(terms, [self.rooms.now(self.gpus[number]) for number in self.free.with_both(least, busy)])

    def _least_ram(self, need: ResourceRequest) -> int:
        """Return the RAM that a host must have left for a task on GPUs, but not more than the smallest host has."""
        if self._rules.slots is not None:
            return 0
        asked = need.host.starts_with if need.host.bytes is not None else self._rules.unknown_beside
        return min(asked, int((self._capacity.nodes.smallest_host - self._rules.buffer) * NEARLY))

    def _usable(self, terms: Terms, rooms: list[DeviceCapacity]) -> list[DeviceCapacity]:
        return usable(rooms, terms) if terms.is_bound else rooms

    def most_hopeful(self, terms: Terms, need: ResourceRequest) -> list[DeviceCapacity]:
        """Return the GPUs that are examined to find out what a task lacks: all if there are few, otherwise the best
        ones.
        """
        if len(self.gpus) <= FEW or terms.is_bound or len(need.gpus) != 1 or self.may_never_fit(need):
            return self.candidates(terms, len(need.gpus))
        last = {at for _, at in (*self.free.bytes[-ASKED:], *self.free.load[-ASKED:])} or set(range(ASKED))
        return self.sorted_for(terms, [self.rooms.now(self.gpus[at]) for at in last])

    def large_enough(
        self, terms: Terms, need: ResourceRequest, rooms: Sequence[DeviceCapacity]
    ) -> Sequence[DeviceCapacity]:
        """Return those of `rooms` that are large enough for the need that a task has shown; all of them if GPUs do not
        differ.

        If too few GPUs are large enough, the largest ones count as such, because the task has to be tried somewhere.
        """
        shown = max(ask.shown for ask in need.gpus) if self._are_mixed and need.gpus else 0
        if not shown:
            return rooms
        largest = sorted((_at_most(room) for room in self.candidates(terms, len(need.gpus))), reverse=True)
        least = min(shown, int(largest[: len(need.gpus)][-1] * NEARLY)) if largest else shown
        return [room for room in rooms if _at_most(room) >= least]

    def without_small(self, need: ResourceRequest, rooms: Sequence[DeviceCapacity]) -> Sequence[DeviceCapacity]:
        """Return the GPUs on which a task of unknown memory is tried first. GPUs are left out if they have less memory
        than most GPUs, and less than six of ten known classes need.

        Return all GPUs if something is known about the task's need, or if no GPU is smaller than most.
        """
        if self.smallest == self._capacity.usual or not need.is_guessed:
            return rooms
        enough, buffer = max(ask.enough for ask in need.gpus), self._rules.buffer
        least = min(self._capacity.usual, enough + buffer) if enough else self._capacity.usual
        return [room for room in rooms if room.most >= least]

    def sorted_for(self, terms: Terms, rooms: list[DeviceCapacity]) -> list[DeviceCapacity]:
        """Sort GPUs: preferred ones first, then without unmanaged processes, then most load left, then most bytes
        left.
        """
        if len(rooms) < 2:
            return rooms
        numbers = self._capacity.numbers
        best = sorted(rooms, key=lambda room: rank_of(room, numbers[room.device.key]))
        return sorted(best, key=lambda room: not is_called(room.device, terms.prefer)) if terms.prefer else best


def _at_most(room: DeviceCapacity) -> int:
    """Return the bytes that one task could have on a device after all leases there have ended."""
    return room.released if room.shut is None else 0
