"""Quotas: what one user may still reserve in a pass, and how far the leases of other users count."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from scheduler.core.leases import Lease
from scheduler.core.model import HOST, Device, DeviceBudget, Machine, Placement, gpus_in
from scheduler.core.placement.device_capacity import DeviceCapacity
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.placement.request import MemoryRequest, ResourceRequest
from scheduler.core.site_policy import GPUS, MEMORY, TASKS, Caps, UserQuotas
from scheduler.values import replace

NO_END = 1 << 62


class QuotaUse:
    """The use of a user's quota: by the leases of all its runs, and by the placements of one pass."""

    def __init__(self, machine: Machine, own: Iterable[Placement]) -> None:
        self._caps = machine.caps
        others = [lease.reserved for lease in machine.leases if lease.uid == machine.uid]
        self._mine = [*others, *(placement.reservation for placement in own)]
        self._used = {key for reserved in self._mine for key in gpus_in(reserved)}

    @property
    def tasks_left(self) -> int:
        """The number of tasks that the user may still start."""
        return NO_END if self._caps.tasks is None else self._caps.tasks - len(self._mine)

    def take(self, placement: Placement) -> None:
        """Count a placement of this pass as reserved."""
        self._mine.append(placement.reservation)
        self._used.update(placement.gpus)

    def too_many(self, task: int) -> Refusal:
        """Return the refusal of a task because its user may not run more tasks."""
        return self._refusal(task, TASKS, 1, len(self._mine), self._caps.tasks)

    def too_many_gpus(self, task: int, number: int) -> Refusal:
        """Return the refusal of a task because its user may not use this many GPUs."""
        return self._refusal(task, GPUS, number, len(self._used), self._caps.gpus)

    def refuses(self, task: int, need: ResourceRequest) -> Refusal | None:
        """Return why the quota does not allow a task with this request to start now, or ever; None if it may start
        now.
        """
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

    def _never(self, task: int, need: ResourceRequest) -> Refusal | None:
        """Return a refusal if a task requests more than its user may ever hold."""
        cap = self._caps.gpus
        if cap is not None and len(need.gpus) > cap:
            return self._refusal(task, GPUS, len(need.gpus), 0, cap, Reason.ABOVE_QUOTA)
        for what, asks, _, most in self._sizes(need):
            bare = sum(ask.bare for ask in asks)
            if most is not None and bare > most:
                return self._refusal(task, what, bare, 0, most, Reason.ABOVE_QUOTA)
        return None

    def _sizes(self, need: ResourceRequest) -> list[tuple[str, Sequence[MemoryRequest], int, int | None]]:
        """Return one entry for GPU memory and one for RAM: the name, the requests of a task, the bytes that the user
        holds, and the quota.
        """
        gpus = sum(reserved.get(key, 0) for reserved in self._mine for key in gpus_in(reserved))
        ram = sum(reserved.get(HOST, 0) for reserved in self._mine)
        return [(MEMORY, need.gpus, gpus, self._caps.memory), (HOST, (need.host,), ram, self._caps.host_memory)]

    def among(self, task: int, number: int, gpus: Sequence[DeviceCapacity]) -> Sequence[DeviceCapacity] | Refusal:
        """Return the GPUs that a task may use, or a refusal. If the user may not use another GPU, these are the GPUs
        that it uses already.
        """
        cap = self._caps.gpus
        if cap is None or not number:
            return gpus
        left = cap - len(self._used)
        if left >= number:
            return gpus
        mine = [room for room in gpus if room.device.key in self._used]
        if len(mine) + max(0, left) < number:
            return self.too_many_gpus(task, number)
        return mine if left <= 0 else mine + [room for room in gpus if room.device.key not in self._used]

    def cut(self, placement: Placement, need: ResourceRequest) -> Placement | Refusal:
        """Return a placement whose margins are cut so that the placement keeps within the quota, or a refusal."""
        most = self._caps.gpus
        if most is not None and len(self._used.union(placement.gpus)) > most:
            return self.too_many_gpus(placement.task, len(placement.gpus))
        reservation = dict(placement.reservation)
        keys = (placement.gpus, tuple(key for key in (HOST,) if key in reservation))
        for (what, asks, held, cap), here in zip(self._sizes(need), keys, strict=True):
            wanted = sum(reservation[key] for key in here)
            if cap is None or wanted <= cap - held:
                continue
            if held and cap - held < min(cap, _enough(asks, wanted)):
                return self._refusal(placement.task, what, wanted, held, cap)
            for key, ask in zip(here, asks, strict=True):
                reservation[key] = max(ask.bare, int(reservation[key] * max(0, cap - held) / wanted))
        return replace(placement, reservation=reservation)

    def _refusal(
        self, task: int, what: str, wanted: int, held: int, cap: int | None, reason: Reason = Reason.QUOTA
    ) -> Refusal:
        return Refusal(task, reason, what, wanted, held, cap or 0, text=self._caps.source)


def exceeded(caps: Caps, held: Sequence[Mapping[str, int]], wanted: Mapping[str, int]) -> str:
    """Return the name of the quota that a reservation would exceed, counting what its user already holds; empty if it
    exceeds none.
    """
    together = [*held, wanted]
    ram = sum(reserved.get(HOST, 0) for reserved in together)
    memory = sum(reserved[key] for reserved in together for key in gpus_in(reserved))
    gpus = {key for reserved in together for key in gpus_in(reserved)}
    for what, number, most in (
        (TASKS, len(together), caps.tasks), (GPUS, len(gpus), caps.gpus), (MEMORY, memory, caps.memory),
        ("RAM", ram, caps.host_memory),
    ):  # fmt: skip
        if most is not None and number > most:
            return f"the quota of {what} for one user ({caps.source})"
    return ""


def capped(
    budgets: Sequence[DeviceBudget], caps: Caps, uid: int, leases: Sequence[Lease] = ()
) -> tuple[DeviceBudget, ...]:
    """Return devices whose capacity is limited to the quota of one user, plus what other users hold there.

    So a decision that does not know the quotas neither waits for more, nor reserves more for an unknown need.
    """
    theirs = [lease.reserved for lease in leases if lease.uid != uid]
    return tuple(replace(budget, cap=_cap(budget, caps, theirs)) for budget in budgets)


def _cap(budget: DeviceBudget, caps: Caps, theirs: Sequence[Mapping[str, int]]) -> int | None:
    quota = caps.host_memory if budget.device.is_host else caps.memory
    if quota is None:
        return budget.cap
    beside = quota + sum(reserved.get(budget.device.key, 0) for reserved in theirs)
    most = budget.device.total if budget.cap is None else budget.cap
    return beside if beside < most else budget.cap


def _enough(asks: Iterable[MemoryRequest], wanted: int) -> int:
    """Return the bytes with which a task may start although its user holds some already. For an unknown need, these are
    half of the reservation.
    """
    return wanted // 2 if any(ask.bytes is None for ask in asks) else wanted


def bounded(leases: Sequence[Lease], own: int, quotas: UserQuotas, devices: Sequence[Device]) -> tuple[Lease, ...]:
    """Return leases in the size in which they count: for other users, at most their quotas and the devices.

    Users write their lease files themselves, and could write anything into them. The leases of the user `own` count
    unchanged. The measured use of a lease stays unchanged, so that this memory does not count as unmanaged. If leases
    together exceed a quota, earlier ones in the sequence count first; unreadable leases come last and get the rest.
    Each node is counted separately.
    """
    sizes: dict[str, dict[str, Device]] = {}
    for device in devices:
        sizes.setdefault(device.node, {})[device.key_there] = device
    users: dict[tuple[int, str], _CountedUser] = {}
    found = [lease for lease in leases if lease.uid == own]
    for lease in sorted((lease for lease in leases if lease.uid != own), key=_has_no_sizes):
        key = (lease.uid, lease.node)
        if key not in users:
            users[key] = _CountedUser(quotas.of(lease.uid), sizes.get(lease.node, {}))
        found += users[key].count(lease)
    return tuple(found)


def _has_no_sizes(lease: Lease) -> bool:
    return bool(lease.unreadable) and not lease.reserved


class _CountedUser:
    """The unused part of another user's quota while the leases of that user are counted."""

    def __init__(self, caps: Caps, devices: Mapping[str, Device]) -> None:
        self._devices = devices
        self._most_gpus = NO_END if caps.gpus is None else caps.gpus
        self._gpus: set[str] = set()
        self._left = {MEMORY: caps.memory, HOST: caps.host_memory}
        """Bytes on GPUs and bytes of RAM that may still count; None: no quota."""
        self._tasks = NO_END if caps.tasks is None else caps.tasks

    def count(self, lease: Lease) -> Iterator[Lease]:
        """Yield a lease in the size in which it counts. A lease without sizes becomes two leases, one for the GPUs and
        one for the host.
        """
        self._tasks -= 1
        if self._tasks < 0:
            yield replace(lease, reserved={}, load={}, alone=False, unreadable="")
        elif _has_no_sizes(lease):
            yield self._possible(lease, MEMORY, [key for key in self._devices if key != HOST])
            yield self._possible(replace(lease, used={}), HOST, [key for key in self._devices if key == HOST])
        else:
            yield self._cut(lease)

    def _cut(self, lease: Lease) -> Lease:
        reserved = {key: self._take(key, bytes_) for key, bytes_ in lease.reserved.items()}
        counted = {key: bytes_ for key, bytes_ in reserved.items() if bytes_ is not None}
        if not counted:
            return replace(lease, reserved={}, load={}, alone=False, unreadable="")
        here = {key: load for key, load in lease.load.items() if key in counted or key not in reserved}
        load = {key: min(load, self._devices[key].load_capacity) for key, load in here.items() if key in self._devices}
        return replace(lease, reserved=counted, load=load)

    def _take(self, key: str, wanted: int) -> int | None:
        """Return how many of the wanted bytes on a device still count, and subtract them; None if the lease cannot be
        on that device.
        """
        device, what = self._devices.get(key), HOST if key == HOST else MEMORY
        if what == MEMORY and gpus_in((key,)) and not self._may_use(key):
            return None
        left = self._left[what]
        most = min(wanted, wanted if left is None else left, wanted if device is None else device.total)
        if left is not None:
            self._left[what] = left - most
        return most if most or not wanted else None

    def _may_use(self, key: str) -> bool:
        if key not in self._gpus and len(self._gpus) >= self._most_gpus:
            return False
        self._gpus.add(key)
        return True

    def _possible(self, lease: Lease, what: str, keys: Sequence[str]) -> Lease:
        """Return a lease without sizes, given the most that it could have reserved on these devices: all that is left
        of its user's quota.
        """
        left = self._left[what]
        if left is None:
            return replace(lease, reserved=dict.fromkeys(keys, 0), unreadable=lease.unreadable if keys else "")
        memory = gpus_in(keys) if what == MEMORY else keys
        here = {key: min(left, self._devices[key].total) for key in memory} if left else {}
        self._left[what] = 0
        return replace(lease, reserved=here, unreadable="")
