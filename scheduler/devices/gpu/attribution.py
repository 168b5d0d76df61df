"""The attribution of one GPU's memory to attempts, to unmanaged processes, and to memory that is not freed yet.

If the driver lists the memory of every process, an attempt uses what its processes use. Otherwise memory cannot be
attributed to processes: with the Windows driver, in a container that sees only its own pids, or if a task's container
is not a descendant of the task's shim. Then the rise of the device's use since before the launch is divided among the
attempts. Attempts whose need is known are credited with their reservations, as far as the rise suffices, and these
credits are not recorded as measurements. A single attempt of unknown need gets the rest of the rise, which counts as
measured. The module is pure: the time and all observations are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from typing import Any

from scheduler.core.ports import Key, Watched
from scheduler.devices.gpu.absence import Absences
from scheduler.devices.gpu.unattributed import GROWTH, Lag, RiseShare, UnattributedMemory
from scheduler.units import GIB, MIB
from scheduler.values import dataclass, replace

UNLISTED = 512 * MIB
"""If more bytes than this are in use and no process is listed, the driver is assumed to hide the list of processes."""
UNLISTED_OLD = GIB
"""The limit in bytes that replaces UNLISTED if the driver counts its own memory as used."""
SURE = 3
"""The number of contradicting samples in a row that change how the device is read: per process, or as a whole."""

PROCESS, DEVICE = "process", "device"


@dataclass(frozen=True, slots=True)
class ListedProcess:
    """A process that the driver lists."""

    pid: int
    bytes: int | None
    owner: str
    """The owner of the process: `7.1` is an attempt of this run, `!4711` is an attempt of another scheduler with the
    pid of its shim. An empty string: the process belongs to no lease.
    """
    there: bool
    """True if the process was found in /proc; False if it has ended since the driver listed it."""
    age: float
    uid: int
    busy: float | None


@dataclass(frozen=True, slots=True)
class DeviceLook:
    """One sample of one device."""

    at: float
    cost: float
    total: int
    free: int
    held: int
    exact: bool
    """True if `held` does not contain the driver's own memory."""
    processes: tuple[ListedProcess, ...] | None
    """The listed processes; None: the driver does not list processes."""
    busy: float | None
    peaks: Mapping[int, int]
    """The exact peak of each process, by pid, if accounting mode is on."""
    clients: frozenset[str]
    """Attempts that have a container client in their process tree, but no process in any list."""
    celsius: int | None = None
    watts: float | None = None


def ownerless(looks: Iterable[DeviceLook]) -> set[int]:
    """Return the pids of the existing processes that have no owner in the samples."""
    return {one.pid for look in looks for one in look.processes or () if one.there and not one.owner}


def with_owners(look: DeviceLook, owners: Mapping[int, str]) -> DeviceLook:
    """Return the look with the given owners (by pid) for those processes that had no owner."""
    if look.processes is None or not owners:
        return look
    return replace(
        look, processes=tuple(replace(one, owner=one.owner or owners.get(one.pid, "")) for one in look.processes)
    )


def read_look(said: Mapping[str, Any], pids: Mapping[str, Any], clients: Iterable[str]) -> DeviceLook:
    """Return a sample from the report of the sampler child."""
    listed = said["processes"]
    return DeviceLook(
        at=said["at"],
        cost=said["cost"],
        total=said["total"],
        free=said["free"],
        held=said["held"],
        exact=said["exact"],
        processes=None if listed is None else tuple(_listed(entry, pids) for entry in listed),
        busy=said["busy"],
        peaks={int(pid): peak for pid, peak in said["peaks"].items()},
        clients=frozenset(clients),
        celsius=said.get("celsius"),
        watts=said.get("watts"),
    )


def _listed(entry: tuple[int, int | None, float | None], pids: Mapping[str, Any]) -> ListedProcess:
    pid, held, busy = entry
    owner, age, uid = pids.get(str(pid), ("", 0.0, -1))
    return ListedProcess(pid, held, owner, str(pid) in pids, age, uid, busy)


def name_of(key: Key) -> str:
    """Return the sampler child's name for an attempt."""
    return f"{key[0]}.{key[1]}"


@dataclass(slots=True)
class UnmanagedProcess:
    """The memory of a process without a lease, and the time since which it has not grown."""

    bytes: int
    uid: int
    came: float
    since: float
    low: int

    def see(self, held: int, now: float) -> None:
        """Update the memory of the process. If it has grown by more than GROWTH, its time without growth begins
        again.
        """
        if held > self.low + GROWTH:
            self.low, self.since = held, now
        self.low = min(self.low, held)
        self.bytes = held


@dataclass(frozen=True, slots=True)
class LaunchBaseline:
    """The use of a device just before an attempt was launched."""

    at: float
    held: int
    unexplained: int
    """The part of `held` that belongs to no listed process."""


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """The owner of a process when the process was last seen, and the time at which the process started."""

    owner: str
    born: float


class DeviceAccount:
    """The account of one device, updated with every sample."""

    def __init__(self, uuid: str, *, first_namespace: bool = True, reads: str = PROCESS, uid: int = -1) -> None:
        """Create an account. `uid` is the user of this scheduler: a process of this user without a lease may belong to
        an attempt.
        """
        self.reads = reads
        """How the device's memory is read: per process or per device."""
        self.used: dict[Key, int] = {}
        self.peak: dict[Key, int] = {}
        """The highest measured use of each attempt."""
        self.busy: dict[Key, float] = {}
        self.other_use: dict[int, int] = {}
        """Bytes that other schedulers' attempts use, by the pid of the attempt's shim."""
        self.unmanaged: dict[int, UnmanagedProcess] = {}
        """Unmanaged processes by pid; 0 stands for memory without a visible process. A process may have 0 bytes left
        after the memory of attempts is subtracted.
        """
        self.unreclaimed: dict[str, int] = {}
        """Bytes of ended attempts that the driver has not freed yet, by the attempts' names."""
        self.astray: dict[str, int] = {}
        """Bytes that attempts without a reservation on this device use on it, by the attempts' names."""
        self.absent = Absences()
        """Attempts with a reservation on this device that provably never used it."""
        self._uuid, self._uid = uuid, uid
        self._first_namespace = first_namespace
        self._knows_pids = first_namespace
        """True if this process can identify the pids that the driver lists: it is in the first pid namespace, or a
        listed process was found to belong to an attempt.
        """
        self._known: dict[int, KnownProcess] = {}
        self._held_by: dict[int, int] = {}
        self._doubts = 0
        self._seen = False
        self._lag = Lag()
        self._rise = UnattributedMemory()
        self._rising_since = 0.0
        self._before: dict[Key, LaunchBaseline] = {}
        self._at_last = LaunchBaseline(0.0, 0, 0)

    @property
    def doubtful(self) -> bool:
        """True if the last sample contradicts `reads`."""
        return self._doubts > 0

    def watch(self, attempts: Mapping[Key, Watched]) -> None:
        """Set the attempts that have a reservation on this device; the last sample becomes the baseline of the new
        ones.
        """
        here = {key for key, watched in attempts.items() if self._uuid in watched.reservation}
        self._before = {key: self._before.get(key, self._at_last) for key in here}
        self.used = {key: used for key, used in self.used.items() if key in here}
        self.peak = {key: peak for key, peak in self.peak.items() if key in here}
        self.absent.keep(here)

    def hand_over(self, owners: Mapping[int, str]) -> None:
        """Attribute processes that counted as unmanaged to their owners, which have become known since."""
        for pid in self.unmanaged.keys() & owners.keys():
            one, owner = self.unmanaged.pop(pid), owners[pid]
            if owner.startswith("!"):
                shim = int(owner[1:])
                self.other_use[shim] = self.other_use.get(shim, 0) + one.bytes
            if (known := self._known.get(pid)) is not None:
                self._known[pid] = KnownProcess(owner, known.born)

    def see(self, look: DeviceLook, attempts: Mapping[Key, Watched]) -> None:
        """Add one sample."""
        here = {name_of(key): key for key in self._before}
        listed = [(process, self._owner(process, look.at)) for process in look.processes or ()]
        self._choose(look, listed, here)
        if self.reads == DEVICE:
            listed = []
        explained: dict[str, int] = {}
        for process, owner in listed:
            explained[owner] = explained.get(owner, 0) + (process.bytes or 0)
        unexplained = max(0, look.held - sum(explained.values()))
        self._see_unmanaged_users(look, listed)
        self._see_attempts(look, listed, explained, here)
        self._update_unreclaimed(listed, explained, unexplained, {name_of(key) for key in attempts})
        self._share_out(look, unexplained, attempts)
        self._see_the_absent(look, listed, unexplained)
        self._see_the_unseen(look)
        self._at_last = LaunchBaseline(look.at, look.held, unexplained)
        self._held_by = {process.pid: process.bytes or 0 for process, _ in listed}
        self._known = {
            process.pid: KnownProcess(owner, look.at - process.age) if process.there else self._known[process.pid]
            for process, owner in listed
            if process.there or process.pid in self._known
        }
        self._seen = True

    def _owner(self, process: ListedProcess, at: float) -> str:
        """Return the owner of a process; a process that has ended, or whose parents have ended, keeps its earlier
        owner.
        """
        known = self._known.get(process.pid)
        if process.owner or known is None:
            return process.owner
        same = not process.there or abs(known.born - (at - process.age)) < 1
        return known.owner if same else ""

    def _choose(self, look: DeviceLook, listed: _Processes, here: Mapping[str, Key]) -> None:
        """Choose between reading per process and reading per device; only several contradicting samples in a row change
        the choice.
        """
        seen = self._tells_processes(look, listed, here)
        if seen is None or seen == (self.reads == PROCESS):
            self._doubts = 0
            return
        self._doubts += 1
        if self._doubts >= SURE:
            self.reads = PROCESS if seen else DEVICE
            self._doubts = 0
            self._rise, self._lag, self.unmanaged = UnattributedMemory(), Lag(), {}

    def _tells_processes(self, look: DeviceLook, listed: _Processes, here: Mapping[str, Key]) -> bool | None:
        if look.processes is None:
            return False
        if not listed:
            unexplained = look.held - self._lag.owed - self._rise.owed
            return False if unexplained > self._unlisted(look) else None
        silent = [owner for process, owner in listed if process.bytes is None]
        unknown = [process for process, _ in listed if not process.there and process.pid not in self._known]
        if len(silent) == len(listed) or any(owner in here for owner in silent):
            return False
        return not unknown or (self._first_namespace and len(unknown) < len(listed))

    @staticmethod
    def _unlisted(look: DeviceLook) -> int:
        return UNLISTED if look.exact else UNLISTED_OLD

    def _see_unmanaged_users(self, look: DeviceLook, listed: _Processes) -> None:
        """Update the unmanaged processes. The start of a process in the first sample is unknown; a process that first
        appears in a later sample has started since the sample before it.

        A process that the driver lists and that /proc does not have may have ended between the two queries. Its owner
        is unknown, so it counts only once it is listed again.
        """
        before = self.unmanaged
        self.unmanaged = {}
        for process, owner in listed:
            if owner or (not process.there and process.pid not in self._held_by):
                continue
            held, came = process.bytes or 0, look.at if self._seen else look.at - process.age
            one = before.get(process.pid) or UnmanagedProcess(held, process.uid, came, came, held)
            one.see(held, look.at)
            self.unmanaged[process.pid] = one

    def _see_attempts(
        self, look: DeviceLook, listed: _Processes, explained: Mapping[str, int], here: Mapping[str, Key]
    ) -> None:
        self.other_use = {int(owner[1:]): held for owner, held in explained.items() if owner.startswith("!")}
        self.used = {key: explained.get(name, 0) for name, key in here.items()}
        for key, used in self.used.items():
            self._note_peak(key, used)
        now = {process.pid: owner for process, owner in listed}
        for pid, peak in look.peaks.items():
            owner = now.get(pid) or self._once(pid)
            if owner in here:
                self._note_peak(here[owner], peak)
        self.busy = self._shares_of_time(look, listed, here)

    def _once(self, pid: int) -> str:
        """Return the owner that a process had in the last sample; empty if it was not in that sample."""
        return self._known[pid].owner if pid in self._known else ""

    def _note_peak(self, key: Key, peak: int) -> None:
        if peak:
            self.peak[key] = max(peak, self.peak.get(key, 0))

    def _shares_of_time(self, look: DeviceLook, listed: _Processes, here: Mapping[str, Key]) -> dict[Key, float]:
        """Return each attempt's share of the GPU's busy time: the sum over its processes, if known; otherwise an
        attempt that has the GPU to itself gets all of the time.
        """
        shares: dict[Key, float] = {}
        for process, owner in listed:
            if owner in here and process.busy is not None:
                shares[here[owner]] = shares.get(here[owner], 0.0) + process.busy
        alone = set(here) if self.reads == DEVICE else {owner for _, owner in listed}
        if not shares and len(alone) == 1 and alone <= here.keys() and look.busy is not None:
            return {here[alone.pop()]: look.busy}
        return shares

    def _update_unreclaimed(
        self, listed: _Processes, explained: Mapping[str, int], unexplained: int, living: set[str]
    ) -> None:
        """Update the memory of attempts that have ended, or that use a device without a reservation."""
        others = {owner: held for owner, held in explained.items() if owner and not owner.startswith("!")}
        without = {owner: held for owner, held in others.items() if owner not in map(name_of, self._before) and held}
        self.astray = {owner: held for owner, held in without.items() if owner in living}
        self.unreclaimed = {owner: held for owner, held in without.items() if owner not in living}
        here = {process.pid for process, _ in listed}
        gone = [(self._once(pid), held) for pid, held in self._held_by.items() if pid not in here]
        self._lag.see(unexplained, [(owner, held) for owner, held in gone if owner and not owner.startswith("!")])
        self._add_unreclaimed(self._lag.names, self._lag.owed)

    def _add_unreclaimed(self, names: Sequence[str], owed: int) -> None:
        if owed:
            name = names[-1] if names else ""
            self.unreclaimed[name] = self.unreclaimed.get(name, 0) + owed

    def _share_out(self, look: DeviceLook, unexplained: int, attempts: Mapping[Key, Watched]) -> None:
        """Divide the memory that cannot be attributed to processes."""
        unseen = [key for key in self._before if self.reads == DEVICE or self._works_elsewhere(key, look)]
        if not self._rise.credit and not self._rise.owed:
            first = min((self._before[key] for key in unseen), key=lambda before: before.at, default=self._at_last)
            self._rising_since = first.at
            self._rise.base = first.held if self.reads == DEVICE else first.unexplained
        young = sum(one.bytes for one in self._young())
        pool = look.held if self.reads == DEVICE else max(0, unexplained - self._lag.owed) + young
        shares = {key: RiseShare(attempts[key].reservation[self._uuid], attempts[key].settled) for key in unseen}
        self._rise.see(pool, shares)
        self.used.update(self._rise.credit)
        for key in self._rise.believed:
            self._note_peak(key, self._rise.credit[key])
        self._add_unreclaimed([name_of(key) for key in self._rise.gone], self._rise.owed)

    def _works_elsewhere(self, key: Key, look: DeviceLook) -> bool:
        return name_of(key) in look.clients and not self.used.get(key)

    def _young(self) -> list[UnmanagedProcess]:
        """Return the unmanaged processes that started after attempts whose processes are invisible.

        Such processes may belong to these attempts. The newest comes first.
        """
        young = [one for one in self.unmanaged.values() if one.came > self._rising_since]
        return sorted(young, key=lambda one: one.came, reverse=True)

    def _see_the_absent(self, look: DeviceLook, listed: _Processes, unexplained: int) -> None:
        """Note which attempts this sample proves to be absent, and which it shows on the device."""
        owners = {owner for _, owner in listed}
        shown = {key for key in self._before if name_of(key) in owners or self.used.get(key) or key in self.peak}
        self._knows_pids = self._knows_pids or bool(shown)
        tells = self.reads == PROCESS and not self._doubts and look.processes is not None and self._knows_pids
        alike = (self._uid, -1)
        newest = max((one.came for one in self.unmanaged.values() if one.uid in alike), default=-inf)
        without = unexplained - self._lag.owed
        proved = {
            key: tells
            and name_of(key) not in look.clients
            and newest <= before.at
            and without <= before.unexplained + GROWTH
            for key, before in self._before.items()
        }
        self.absent.see(look.at, proved, shown)

    def _see_the_unseen(self, look: DeviceLook) -> None:
        """Update the unmanaged memory.

        If processes are listed, subtract the memory that is credited to attempts from the processes that may belong to
        them. Otherwise, all use that is not credited to attempts is unmanaged.
        """
        rise = self._rise
        if self.reads == PROCESS:
            ours = sum(rise.credit.values()) + rise.owed
            for one in self._young():
                taken = min(ours, one.bytes)
                one.bytes -= taken
                ours -= taken
            return
        held = rise.base + rise.left if rise.credit or rise.owed else look.held
        if held <= self._unlisted(look):
            self.unmanaged = {}
            return
        came = look.at if self._seen else 0.0
        one = self.unmanaged.setdefault(0, UnmanagedProcess(held, -1, came, came, held))
        one.see(held, look.at)


_Processes = list[tuple[ListedProcess, str]]
"""Processes, each with its owner."""
