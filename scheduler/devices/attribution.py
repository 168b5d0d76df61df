"""Who holds what of one GPU: the driver's list of processes, made into attempts, strangers, foreigners and ghosts.

Where the list says what every process holds, an attempt holds what its processes do. Where it does not (Windows'
driver, a container that sees no pids but its own, a task whose container is nobody's child here) memory cannot be
pinned on a process: then the rise of the device since before the launch is shared out. One attempt whose need is not
known yet gets what is left of it, and that is believed; the others are credited with what they were promised, as far as
the rise goes, and nothing is learned from it. Pure: time and everything that is seen are arguments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scheduler.core.ports import Key, Watched
from scheduler.devices.rise import GROWTH, Lag, Rise, Share
from scheduler.units import GIB, MIB
from scheduler.values import dataclass

UNLISTED = 512 * MIB
"""More than this held while nobody is listed: the list is kept from us."""
UNLISTED_OLD = GIB
"""The same where the driver's own share is within what is held."""
SURE = 3
"""Looks in a row before what was seen as one kind of device is taken as the other."""

PROCESS, DEVICE = "process", "device"


@dataclass(frozen=True, slots=True)
class Listed:
    """A process that the driver lists."""

    pid: int
    bytes: int | None
    owner: str
    """`7.1` is an attempt, `!4711` the shim of a stranger's; empty: nobody who has a lease."""
    there: bool
    """Whether there is such a process here."""
    age: float
    uid: int
    busy: float | None


@dataclass(frozen=True, slots=True)
class Look:
    """One look at one device."""

    at: float
    cost: float
    total: int
    free: int
    held: int
    exact: bool
    """Whether the driver's own share is left out of `held`."""
    processes: tuple[Listed, ...] | None
    """None: it does not list them."""
    busy: float | None
    peaks: Mapping[int, int]
    """The most that a process ever held, exactly; where accounting mode tells."""
    clients: frozenset[str]
    """Attempts that have a container client in their tree and no process in any list."""
    celsius: int | None = None


def read_look(said: Mapping[str, Any], pids: Mapping[str, Any], clients: Iterable[str]) -> Look:
    """A look as the sampler child told it."""
    listed = said["processes"]
    return Look(
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
    )


def _listed(entry: tuple[int, int | None, float | None], pids: Mapping[str, Any]) -> Listed:
    pid, held, busy = entry
    owner, age, uid = pids.get(str(pid), ("", 0.0, -1))
    return Listed(pid, held, owner, str(pid) in pids, age, uid, busy)


def name_of(key: Key) -> str:
    """What the sampler child calls an attempt."""
    return f"{key[0]}.{key[1]}"


@dataclass(slots=True)
class Stranger:
    """What somebody without a lease holds, and since when it has been no more."""

    bytes: int
    uid: int
    came: float
    since: float
    low: int

    def see(self, held: int, now: float) -> None:
        """Calm begins again when it has grown by more than a little."""
        if held > self.low + GROWTH:
            self.low, self.since = held, now
        self.low = min(self.low, held)
        self.bytes = held


@dataclass(frozen=True, slots=True)
class Before:
    """What a device held when an attempt was about to be launched."""

    at: float
    held: int
    unexplained: int
    """Of that, what no process was listed for."""


@dataclass(frozen=True, slots=True)
class Known:
    """Whose process it was when it was last seen, and when it was born."""

    owner: str
    born: float


class Account:
    """One device, look after look."""

    def __init__(self, uuid: str, *, first_namespace: bool = True, reads: str = PROCESS) -> None:
        self.reads = reads
        """What its memory is told by."""
        self.used: dict[Key, int] = {}
        self.peak: dict[Key, int] = {}
        """Of attempts, as far as it was really seen."""
        self.busy: dict[Key, float] = {}
        self.strangers: dict[int, int] = {}
        """By the pid of their shim."""
        self.foreign: dict[int, Stranger] = {}
        """By pid; 0: nobody who can be seen. Of some nothing is left after ours were taken out."""
        self.ghosts: dict[str, int] = {}
        """By the names of the attempts that they are of."""
        self.astray: dict[str, int] = {}
        """Attempts that hold memory here without a promise."""
        self._uuid = uuid
        self._first_namespace = first_namespace
        self._known: dict[int, Known] = {}
        self._held_by: dict[int, int] = {}
        self._doubts = 0
        self._seen = False
        self._lag = Lag()
        self._rise = Rise()
        self._rising_since = 0.0
        self._before: dict[Key, Before] = {}
        self._at_last = Before(0.0, 0, 0)

    @property
    def doubtful(self) -> bool:
        """Whether the last look spoke against `reads`."""
        return self._doubts > 0

    def watch(self, attempts: Mapping[Key, Watched]) -> None:
        """Who is here from now on; what the device held at the last look, it held before those that are new."""
        here = {key for key, watched in attempts.items() if self._uuid in watched.promise}
        self._before = {key: self._before.get(key, self._at_last) for key in here}
        self.used = {key: used for key, used in self.used.items() if key in here}
        self.peak = {key: peak for key, peak in self.peak.items() if key in here}

    def see(self, look: Look, attempts: Mapping[Key, Watched]) -> None:
        """Take in one look."""
        here = {name_of(key): key for key in self._before}
        listed = [(process, self._owner(process, look.at)) for process in look.processes or ()]
        self._choose(look, listed, here)
        if self.reads == DEVICE:
            listed = []
        explained: dict[str, int] = {}
        for process, owner in listed:
            explained[owner] = explained.get(owner, 0) + (process.bytes or 0)
        unexplained = max(0, look.held - sum(explained.values()))
        self._see_foreigners(look, listed)
        self._see_attempts(look, listed, explained, here)
        self._see_the_dead(listed, explained, unexplained, {name_of(key) for key in attempts})
        self._share_out(look, unexplained, attempts)
        self._see_the_unseen(look)
        self._at_last = Before(look.at, look.held, unexplained)
        self._held_by = {process.pid: process.bytes or 0 for process, _ in listed}
        self._known = {
            process.pid: Known(owner, look.at - process.age) if process.there else self._known[process.pid]
            for process, owner in listed
            if process.there or process.pid in self._known
        }
        self._seen = True

    def _owner(self, process: Listed, at: float) -> str:
        """A process that is gone, or has lost its parents, belongs to whom it did before."""
        known = self._known.get(process.pid)
        if process.owner or known is None:
            return process.owner
        same = not process.there or abs(known.born - (at - process.age)) < 1
        return known.owner if same else ""

    def _choose(self, look: Look, listed: _Processes, here: Mapping[str, Key]) -> None:
        """Whether to go by processes or by the whole device: as it was, until the contrary was seen some times."""
        seen = self._tells_processes(look, listed, here)
        if seen is None or seen == (self.reads == PROCESS):
            self._doubts = 0
            return
        self._doubts += 1
        if self._doubts >= SURE:
            self.reads = PROCESS if seen else DEVICE
            self._doubts = 0
            self._rise, self._lag, self.foreign = Rise(), Lag(), {}

    def _tells_processes(self, look: Look, listed: _Processes, here: Mapping[str, Key]) -> bool | None:
        if look.processes is None:
            return False
        if not listed:
            nobodys = look.held - self._lag.owed - self._rise.owed
            return False if nobodys > self._unlisted(look) else None
        silent = [owner for process, owner in listed if process.bytes is None]
        unknown = [process for process, _ in listed if not process.there and process.pid not in self._known]
        if len(silent) == len(listed) or any(owner in here for owner in silent):
            return False
        return not unknown or (self._first_namespace and len(unknown) < len(listed))

    @staticmethod
    def _unlisted(look: Look) -> int:
        return UNLISTED if look.exact else UNLISTED_OLD

    def _see_foreigners(self, look: Look, listed: _Processes) -> None:
        """One who was here before the first look may be as old as it likes; who comes later, came then.

        A process that is listed and cannot be found may have ended between the two questions, so nobody knows whose
        it was: it is somebody only once it is listed again.
        """
        before = self.foreign
        self.foreign = {}
        for process, owner in listed:
            if owner or (not process.there and process.pid not in self._held_by):
                continue
            held, came = process.bytes or 0, look.at if self._seen else look.at - process.age
            one = before.get(process.pid) or Stranger(held, process.uid, came, came, held)
            one.see(held, look.at)
            self.foreign[process.pid] = one

    def _see_attempts(
        self, look: Look, listed: _Processes, explained: Mapping[str, int], here: Mapping[str, Key]
    ) -> None:
        self.strangers = {int(owner[1:]): held for owner, held in explained.items() if owner.startswith("!")}
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
        """Whose process it was at the last look."""
        return self._known[pid].owner if pid in self._known else ""

    def _note_peak(self, key: Key, peak: int) -> None:
        if peak:
            self.peak[key] = max(peak, self.peak.get(key, 0))

    def _shares_of_time(self, look: Look, listed: _Processes, here: Mapping[str, Key]) -> dict[Key, float]:
        """By process where that is told; who is alone has all of the device's."""
        shares: dict[Key, float] = {}
        for process, owner in listed:
            if owner in here and process.busy is not None:
                shares[here[owner]] = shares.get(here[owner], 0.0) + process.busy
        alone = set(here) if self.reads == DEVICE else {owner for _, owner in listed}
        if not shares and len(alone) == 1 and alone <= here.keys() and look.busy is not None:
            return {here[alone.pop()]: look.busy}
        return shares

    def _see_the_dead(
        self, listed: _Processes, explained: Mapping[str, int], unexplained: int, living: set[str]
    ) -> None:
        """Who is over, or holds what it was not promised."""
        others = {owner: held for owner, held in explained.items() if owner and not owner.startswith("!")}
        without = {owner: held for owner, held in others.items() if owner not in map(name_of, self._before) and held}
        self.astray = {owner: held for owner, held in without.items() if owner in living}
        self.ghosts = {owner: held for owner, held in without.items() if owner not in living}
        here = {process.pid for process, _ in listed}
        gone = [(self._once(pid), held) for pid, held in self._held_by.items() if pid not in here]
        self._lag.see(unexplained, [(owner, held) for owner, held in gone if owner and not owner.startswith("!")])
        self._add_ghosts(self._lag.names, self._lag.owed)

    def _add_ghosts(self, names: Sequence[str], owed: int) -> None:
        if owed:
            name = names[-1] if names else ""
            self.ghosts[name] = self.ghosts.get(name, 0) + owed

    def _share_out(self, look: Look, unexplained: int, attempts: Mapping[Key, Watched]) -> None:
        """What cannot be pinned on processes."""
        unseen = [key for key in self._before if self.reads == DEVICE or self._works_elsewhere(key, look)]
        if not self._rise.credit and not self._rise.owed:
            first = min((self._before[key] for key in unseen), key=lambda before: before.at, default=self._at_last)
            self._rising_since = first.at
            self._rise.base = first.held if self.reads == DEVICE else first.unexplained
        young = sum(one.bytes for one in self._young())
        pool = look.held if self.reads == DEVICE else max(0, unexplained - self._lag.owed) + young
        shares = {key: Share(attempts[key].promise[self._uuid], attempts[key].settled) for key in unseen}
        self._rise.see(pool, shares)
        self.used.update(self._rise.credit)
        for key in self._rise.believed:
            self._note_peak(key, self._rise.credit[key])
        self._add_ghosts([name_of(key) for key in self._rise.gone], self._rise.owed)

    def _works_elsewhere(self, key: Key, look: Look) -> bool:
        return name_of(key) in look.clients and not self.used.get(key)

    def _young(self) -> list[Stranger]:
        """Foreigners that came after those whose work nobody here can see: perhaps it is theirs."""
        young = [one for one in self.foreign.values() if one.came > self._rising_since]
        return sorted(young, key=lambda one: one.came, reverse=True)

    def _see_the_unseen(self, look: Look) -> None:
        """What is foreign: less of those who came when ours did, or more than anybody was promised."""
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
            self.foreign = {}
            return
        came = look.at if self._seen else 0.0
        one = self.foreign.setdefault(0, Stranger(held, -1, came, came, held))
        one.see(held, look.at)


_Processes = list[tuple[Listed, str]]
"""Processes, each with its owner."""
