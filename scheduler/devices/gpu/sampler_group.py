"""The sampler children of the GPUs: one samples all healthy GPUs; a GPU that hangs, crashes or fails is separated.

A GPU that delays the others stays with the child that waits for it, and a new child takes over the others; so they are
sampled again long before the slow GPU is judged. A GPU that hung, crashed the library or failed is unavailable until it
answers a child of its own, which is started for it after a while. This youngest child then takes over all other GPUs
too. No method waits for a child.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import Any

from scheduler.devices.gpu.allocation import divided
from scheduler.devices.gpu.attribution import DeviceLook, read_look
from scheduler.devices.gpu.child_faults import DYING, Fault, SamplerLimits, find_crash, find_hang, hung_at_start
from scheduler.devices.gpu.inventory import XID, InstalledGpu, is_unread, trouble, why_not
from scheduler.devices.sampler_child import SamplerChild, bury
from scheduler.values import dataclass, field

AT_ONCE = frozenset(
    {"GPU_IS_LOST", "RESET_REQUIRED", "NO_PERMISSION", "OPERATING_SYSTEM", "NOT_FOUND", "NOT_SUPPORTED"}
)
"""Errors after which a GPU is separated at once, because repeated calls do not clear them; any other error must occur
several times in a row.
"""
ERRORS = 3
MOST_DEATHS = 5
"""The number of children that may end within a minute without a fault of a GPU; after that, no child is started for a
while.
"""
GOOD_LOOKS = 3


@dataclass(slots=True, eq=False)
class SampledGroup:
    """A child, and the GPUs that it samples."""

    child: SamplerChild
    gpus: dict[str, InstalledGpu]
    apart: bool
    """True if the child samples only GPUs that may be faulty."""
    began: float
    ready: bool = False
    good: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    died: float | None = None


@dataclass(slots=True)
class QuarantinedGpu:
    """A GPU on which no task may start."""

    reason: str
    again_at: float
    together: bool
    """True if other GPUs have the same fault, so that one child tries all of them."""
    trying: bool = False


class SamplerGroup:
    """All sampler children. `fileno` is readable when `gather` has samples to return; call `gather` once a second
    anyway, to check the deadlines.
    """

    def __init__(self, start: Callable[[Mapping[str, Any]], SamplerChild], limits: SamplerLimits) -> None:
        self._start = start
        self._limits = limits
        self._epoll = select.epoll()
        self._groups: list[SampledGroup] = []
        self._away: dict[str, QuarantinedGpu] = {}
        self._gpus: dict[str, InstalledGpu] = {}
        self._dying: list[SamplerChild] = []
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)
        self._watched: Mapping[str, Any] = {"attempts": {}, "others": []}
        self._divided: Sequence[tuple[int, Sequence[str]]] = ()
        self._uncompared: set[int] = set()
        """The indexes of GPUs that delayed, hung or crashed a child: their division into instances is not compared,
        because only a child of its own reads each of them.
        """
        self._changes: list[list[dict[str, Any]]] = []
        self._news: list[str] = []
        self._told_silent = False

    def fileno(self) -> int:
        """Return a descriptor that stays valid when children start and end."""
        return self._epoll.fileno()

    def adopt(self, child: SamplerChild, gpus: Iterable[InstalledGpu]) -> None:
        """Take over the child that found the GPUs, and sample them with it."""
        group = SampledGroup(child, {gpu.uuid: gpu for gpu in gpus}, False, time.monotonic(), True)
        self._gpus.update(group.gpus)
        self._add(group)

    def expect(self, gpus: Mapping[str, InstalledGpu], reasons: Mapping[str, str]) -> None:
        """Try these GPUs, which could not be read, at regular intervals: each is in `changes` once it answers."""
        self._gpus.update(gpus)
        again = time.monotonic() + self._limits.retry
        self._away.update({uuid: QuarantinedGpu(reason, again, False) for uuid, reason in reasons.items()})

    def join(self, gpus: Iterable[InstalledGpu]) -> None:
        """Sample more GPUs, unless a child already samples them, in the child that samples all healthy GPUs."""
        new = {gpu.uuid: gpu for gpu in gpus if not any(gpu.uuid in group.gpus for group in self._groups)}
        if not new:
            return
        self._gpus.update(new)
        main = self._main()
        if main is None:
            self._open(new)
        else:
            main.gpus.update(new)
            self._order(main)

    def compare(self, divided: Sequence[tuple[int, Sequence[str]]]) -> None:
        """Report MIG instances that differ from `divided`, which has the index of each GPU with the UUIDs of
        its parts.
        """
        self._divided = divided
        for group in self._groups:
            self._order(group)

    def changes(self) -> list[list[dict[str, Any]]]:
        """Return the facts of GPUs whose division into instances has changed since the last call, and of their
        instances.
        """
        changes, self._changes = self._changes, []
        return changes

    def tell(self, attempts: Mapping[str, Any], others: Mapping[int, int]) -> None:
        """Set the attempts and process trees to which processes are attributed from now on."""
        watched = {"attempts": attempts, "others": sorted(others.items())}
        if watched != self._watched:
            self._watched = watched
            for group in self._groups:
                self._order(group)

    def look_now(self) -> None:
        """Have every child begin its next round at once; an order ends the child's pause."""
        for group in self._groups:
            self._order(group)

    def why_away(self, uuid: str) -> str:
        """Return the fault of an unavailable GPU, as words that follow its name; empty if the GPU works."""
        away = self._away.get(uuid)
        return away.reason if away else ""

    def news(self) -> list[str]:
        """Return the sentences about GPUs that were added since the last call."""
        news, self._news = self._news, []
        return news

    def gather(self) -> dict[str, DeviceLook]:
        """Return the newest sample of each GPU since the last call, and check the children."""
        looks: dict[str, DeviceLook] = {}
        for group in list(self._groups):
            if group not in self._groups:  # it was merged into another just now
                continue
            group.child.push()
            for answer in group.child.answers(time.monotonic()):
                self._take(group, answer, looks)
        now = time.monotonic()
        for group in list(self._groups):
            if group.child.ended:
                self._see_how_it_died(group, now)
            else:
                self._judge(group, now)
        self._try_again(now)
        self._dying = bury(self._dying)
        return looks

    def close(self) -> None:
        """End all children."""
        for group in list(self._groups):
            self._end(group)
        bury(self._dying, 1.0)
        self._epoll.close()

    def _take(self, group: SampledGroup, answer: Mapping[str, Any], looks: dict[str, DeviceLook]) -> None:
        if group not in self._groups:
            return
        group.ready = True
        if "failed" in answer:
            code, word, call = answer["failed"]
            of_library = f"cannot be read: {why_not(code, word, there=True)[0]}"
            self._give_up(group, list(group.gpus), trouble(code, word, call) if _is_unread(group) else of_library)
        self._changes += answer.get("divided", ())
        if _is_unread(group) and "divided" in answer:
            self._sample_found(group, [InstalledGpu(**one) for one in answer["divided"][0]])
        for uuid, said in answer.get("looks", {}).items():
            if uuid not in group.gpus:
                continue
            if "failed" in said:
                self._note_error(group, uuid, *said["failed"])
                continue
            looks[uuid] = read_look(said, answer["pids"], answer["clients"])
            self._note_well(group, uuid, looks[uuid].cost)

    def _sample_found(self, group: SampledGroup, found: Sequence[InstalledGpu]) -> None:
        """Let the child that was able to read a new GPU sample this GPU, or the MIG instances into which it is
        divided.
        """
        for uuid in group.gpus:
            del self._gpus[uuid], self._away[uuid]
        group.gpus = {gpu.uuid: gpu for gpu in divided(found[:1], found) if not gpu.unusable}
        self._gpus.update(group.gpus)
        if group.gpus:
            self._order(group)
        else:
            self._end(group)

    def _note_error(self, group: SampledGroup, uuid: str, code: int, word: str, call: str) -> None:
        group.errors[uuid] = group.errors.get(uuid, 0) + 1
        group.good = 0
        if word in AT_ONCE or word.startswith(XID) or group.errors[uuid] >= ERRORS:
            self._give_up(group, [uuid], trouble(code, word, call), for_good=word.startswith(XID))

    def _note_well(self, group: SampledGroup, uuid: str, cost: float) -> None:
        group.errors.pop(uuid, None)
        group.good = group.good + 1 if cost < self._limits.quick else 0
        if self._away.pop(uuid, None):
            self._news.append(f"{self._gpus[uuid].label} answers again")
        main = self._main()
        if main is None:
            self._trust(group)
            self._order(group)
        elif group.apart and group.good >= GOOD_LOOKS * len(group.gpus):
            self._merge(group, main)

    def _main(self) -> SampledGroup | None:
        return next((group for group in self._groups if not group.apart), None)

    def _trust(self, group: SampledGroup) -> None:
        """Make a child whose GPUs answer the main one, which samples all healthy GPUs from now on."""
        group.apart = False
        self._uncompared -= {gpu.index for gpu in group.gpus.values()}

    def _merge(self, group: SampledGroup, main: SampledGroup) -> None:
        """Give all GPUs of `main` to the younger child: a library that was loaded before a fault may not notice that
        the fault is over.
        """
        self._trust(group)
        gpus = {**main.gpus, **group.gpus}
        group.gpus = {uuid: gpus[uuid] for uuid in sorted(gpus, key=lambda uuid: (gpus[uuid].index, gpus[uuid].part))}
        self._end(main)
        self._order(group)

    def _judge(self, group: SampledGroup, now: float) -> None:
        """Check whether a child's current call takes too long."""
        limits, call = self._limits, group.child.call()
        if not group.ready and now - group.began > limits.init + limits.call:
            self._blame(group, Fault("", hung_at_start(now - group.began)))
        elif call is None or group.child.is_stopped():
            if group.ready and group.child.silence(now) > limits.call:
                self._replace_silent(group, now)
        elif (fault := find_hang(call, limits, now)) is not None:
            self._blame(group, fault)
        elif now - call.there_since > limits.patience and 0 < len(asked := _asked(group, call.where)) < len(group.gpus):
            self._set_apart(group, asked)

    def _set_apart(self, group: SampledGroup, asked: dict[str, InstalledGpu]) -> None:
        """Leave the GPU that delays the others (or its instances) with their child, and give the others to a
        new child.
        """
        self._uncompared |= {gpu.index for gpu in asked.values()}
        others = {uuid: gpu for uuid, gpu in group.gpus.items() if uuid not in asked}
        self._open(others, apart=group.apart)
        group.gpus, group.apart, group.good = asked, True, 0
        self._order(group)

    def _see_how_it_died(self, group: SampledGroup, now: float) -> None:
        group.died = group.died or now
        if group.child.code() is None and now - group.died < DYING:
            return
        fault, how = find_crash(group.child)
        if fault is not None:
            self._blame(group, fault)
        else:
            self._note_death(group, now, how)

    def _note_death(self, group: SampledGroup, now: float, why: str) -> None:
        """Replace a child that ended without a fault of its GPUs; after MOST_DEATHS such ends within a minute, make its
        GPUs unavailable for a while.
        """
        self._deaths.append(now)
        if len(self._deaths) == MOST_DEATHS and now - self._deaths[0] < self._limits.retry:
            self._give_up(group, list(group.gpus), f"cannot be read: the sampler keeps exiting ({why})", kill=True)
            return
        self._replace(group)

    def _replace_silent(self, group: SampledGroup, now: float) -> None:
        """Replace a child that gives no sign of life although it does not wait for a call to the library."""
        why = f"it did not answer for {self._limits.call:g} s"
        if not self._told_silent:
            self._told_silent = True
            self._news.append(
                f"the sampler of the GPUs is started again: {why}, though it waits for no call of the NVIDIA library"
            )
        self._note_death(group, now, why)

    def _blame(self, group: SampledGroup, fault: Fault) -> None:
        """Make the faulty GPU unavailable, or all GPUs of the child if the library is at fault."""
        if fault.where:
            asked = _asked(group, fault.where)
            self._uncompared |= {gpu.index for gpu in asked.values()}
            if fault.where.isdecimal():
                self._uncompared.add(int(fault.where))
            self._give_up(group, list(asked), fault.sentence, kill=True)
        else:
            self._give_up(group, list(group.gpus), f"cannot be read: {fault.sentence}", kill=True)

    def _give_up(
        self, group: SampledGroup, uuids: list[str], reason: str, *, kill: bool = False, for_good: bool = False
    ) -> None:
        """Make these GPUs unavailable for a while, or for the rest of the run. The others continue, in this child or,
        if this child must end, in a new one.
        """
        self._send_away([uuid for uuid in uuids if group.gpus.pop(uuid, None)], reason, for_good=for_good)
        looks_for_parts = bool(self._divided) and not group.apart
        if kill or not (group.gpus or looks_for_parts):
            self._replace(group)
        else:
            self._order(group)

    def _send_away(self, uuids: Sequence[str], reason: str, *, for_good: bool = False) -> None:
        """Mark GPUs as unavailable and report each of them once, even if later attempts to read it fail too."""
        new = [self._gpus[uuid].label for uuid in uuids if uuid not in self._away]
        again = inf if for_good else time.monotonic() + self._limits.retry
        self._away.update({uuid: QuarantinedGpu(reason, again, len(uuids) > 1) for uuid in uuids})
        if new:
            until = (
                "no task of this run starts there any more"
                if for_good
                else "no task starts there until it answers again"
            )
            self._news.append(f"{', '.join(new)} {reason}; {until}")

    def _replace(self, group: SampledGroup) -> None:
        self._end(group)
        self._open(group.gpus, apart=group.apart)

    def _open(self, gpus: Mapping[str, InstalledGpu], *, apart: bool = False) -> None:
        if not gpus:
            return
        try:
            expected = [gpu.index for uuid, gpu in gpus.items() if is_unread(uuid)]
            child = self._start({"index": expected[0]} if expected else {})
        except OSError as exc:
            self._send_away(list(gpus), f"cannot be read: the sampler cannot be started ({exc.strerror})")
            return
        self._add(SampledGroup(child, dict(gpus), apart, time.monotonic()))

    def _add(self, group: SampledGroup) -> None:
        self._groups.append(group)
        self._epoll.register(group.child.fileno(), select.EPOLLIN)
        self._order(group)

    def _end(self, group: SampledGroup) -> None:
        self._groups.remove(group)
        self._epoll.unregister(group.child.fileno())
        group.child.end()
        self._dying.append(group.child)

    def _order(self, group: SampledGroup) -> None:
        gpus = [[gpu.uuid, gpu.bus_id, gpu.index, gpu.part] for gpu in group.gpus.values() if not is_unread(gpu.uuid)]
        compared = [one for one in self._divided if not group.apart and one[0] not in self._uncompared]
        group.child.order({"gpus": gpus, "divided": compared, **self._watched})

    def _try_again(self, now: float) -> None:
        """Try unavailable GPUs that are due, each in a child of its own; GPUs that failed together share a child."""
        due = {uuid: away for uuid, away in self._away.items() if now >= away.again_at and not away.trying}
        for away in due.values():
            away.trying = True
        gpus = {uuid: self._gpus[uuid] for uuid in due}
        together = {uuid for uuid, away in due.items() if away.together}
        self._open({uuid: gpus[uuid] for uuid in together}, apart=True)
        for uuid in due.keys() - together:
            self._open({uuid: gpus[uuid]}, apart=True)


def _is_unread(group: SampledGroup) -> bool:
    """Tell whether a child was started to try a GPU that could not be read yet."""
    return any(is_unread(uuid) for uuid in group.gpus)


def _asked(group: SampledGroup, where: str) -> dict[str, InstalledGpu]:
    """Return the GPUs of a child that `where` names: the GPU with this UUID, or all parts of the GPU with this
    index.
    """
    return {uuid: gpu for uuid, gpu in group.gpus.items() if where in (uuid, str(gpu.index))}
