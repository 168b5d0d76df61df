"""The sampler children of the GPUs: one looks at all that are well; one that hangs, crashes or errs is set apart.

A GPU that keeps the others waiting stays with the child that waits for it, and the others get a new child; so they are
seen again long before anything is decided about the slow one. A GPU that hung, crashed the library or erred is away
until it answers a child of its own, started after a while for this; then that child, the youngest, takes the others in.
Nothing here waits for a child.
"""

from __future__ import annotations

import select
import signal
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

from scheduler.devices.attribution import Look, read_look
from scheduler.devices.node import Gpu, death, hung, hung_at_start, trouble, why_not
from scheduler.devices.nvml_child import INIT, Call, NvmlChild, bury
from scheduler.values import dataclass

AT_ONCE = frozenset(
    {"GPU_IS_LOST", "RESET_REQUIRED", "NO_PERMISSION", "OPERATING_SYSTEM", "NOT_FOUND", "NOT_SUPPORTED"}
)
"""Errors that do not go away by asking again; of others there have to be some in a row."""
ERRORS = 3
CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
)
"""By these the library ends a process; by others somebody else does."""
MOST_DEATHS = 5
"""Children that end for no reason within a minute, before a pause is made."""
GOOD_LOOKS = 3
DYING = 0.5
"""Seconds for which a process that has closed its output may take to tell how it ended."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that things may take."""

    init: float = 10.0
    """The library, to come up."""
    call: float = 3.0
    """One call."""
    patience: float = 0.4
    """A GPU may keep the others waiting for so long; with a tick of the loop that is less than a second."""
    retry: float = 60.0
    """Until a GPU that is away is tried again."""
    fresh: float = 3.0
    """What was seen is good for so long."""
    quick: float = 0.25
    """A look that takes no longer keeps nobody waiting."""


@dataclass(slots=True, eq=False)
class Group:
    """A child, and the GPUs it looks at."""

    child: NvmlChild
    gpus: dict[str, Gpu]
    apart: bool
    """Whether it was started for a GPU that may be ill."""
    began: float
    ready: bool = False
    good: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    died: float | None = None
    bug: str = ""


@dataclass(slots=True)
class Away:
    """A GPU that nothing may be started on."""

    reason: str
    again_at: float
    together: bool
    """Whether it has the same trouble as others, so that one child tries them all."""
    trying: bool = False


class Samplers:
    """`fileno` is readable when `gather` has something; call that once a second all the same, for the deadlines."""

    def __init__(self, start: Callable[[Mapping[str, Any]], NvmlChild], limits: Limits) -> None:
        self._start = start
        self._limits = limits
        self._epoll = select.epoll()
        self._groups: list[Group] = []
        self._away: dict[str, Away] = {}
        self._gpus: dict[str, Gpu] = {}
        self._dying: list[NvmlChild] = []
        self._deaths: deque[float] = deque(maxlen=MOST_DEATHS)
        self._watched: Mapping[str, Any] = {"attempts": {}, "strangers": []}
        self._news: list[str] = []

    def fileno(self) -> int:
        """The same for ever, whichever children there are."""
        return self._epoll.fileno()

    def adopt(self, child: NvmlChild, gpus: Iterable[Gpu]) -> None:
        """Go on with the child that found the GPUs."""
        group = Group(child, {gpu.uuid: gpu for gpu in gpus}, False, time.monotonic(), True)
        self._gpus.update(group.gpus)
        self._add(group)

    def tell(self, attempts: Mapping[str, Any], strangers: Iterable[int]) -> None:
        """Whose processes to tell apart from now on."""
        watched = {"attempts": attempts, "strangers": sorted(strangers)}
        if watched != self._watched:
            self._watched = watched
            for group in self._groups:
                self._order(group)

    def why_away(self, uuid: str) -> str:
        """What is the matter with a GPU, to be read behind its name; empty while it is well."""
        away = self._away.get(uuid)
        return away.reason if away else ""

    def news(self) -> list[str]:
        """What became of GPUs since the last call."""
        news, self._news = self._news, []
        return news

    def gather(self) -> dict[str, Look]:
        """The newest look at each GPU that was looked at since the last call; sees to the children as well."""
        looks: dict[str, Look] = {}
        for group in list(self._groups):
            if group not in self._groups:  # it was merged into another just now
                continue
            group.child.push()
            for answer in group.child.answers():
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

    def _take(self, group: Group, answer: Mapping[str, Any], looks: dict[str, Look]) -> None:
        if group not in self._groups:
            return
        group.ready = True
        group.bug = answer.get("bug", group.bug)
        if "failed" in answer:
            code, word, _ = answer["failed"]
            self._give_up(group, list(group.gpus), f"cannot be looked at: {why_not(code, word, there=True)[0]}")
        for uuid, said in answer.get("looks", {}).items():
            if uuid not in group.gpus:
                continue
            if "failed" in said:
                self._note_error(group, uuid, *said["failed"])
                continue
            looks[uuid] = read_look(said, answer["pids"], answer["clients"])
            self._note_well(group, uuid, looks[uuid].cost)

    def _note_error(self, group: Group, uuid: str, code: int, word: str, call: str) -> None:
        group.errors[uuid] = group.errors.get(uuid, 0) + 1
        group.good = 0
        if word in AT_ONCE or group.errors[uuid] >= ERRORS:
            self._give_up(group, [uuid], trouble(code, word, call))

    def _note_well(self, group: Group, uuid: str, cost: float) -> None:
        group.errors.pop(uuid, None)
        group.good = group.good + 1 if cost < self._limits.quick else 0
        if self._away.pop(uuid, None):
            self._news.append(f"{self._gpus[uuid].label} answers again")
        main = self._main()
        if main is None:
            group.apart = False
        elif group.apart and group.good >= GOOD_LOOKS * len(group.gpus):
            self._merge(group, main)

    def _main(self) -> Group | None:
        return next((group for group in self._groups if not group.apart), None)

    def _merge(self, group: Group, main: Group) -> None:
        """The younger child takes the other's GPUs: a library that was there before the trouble may not see its end."""
        gpus = {**main.gpus, **group.gpus}
        group.gpus = {uuid: gpus[uuid] for uuid in sorted(gpus, key=lambda uuid: gpus[uuid].index)}
        group.apart = False
        self._end(main)
        self._order(group)

    def _judge(self, group: Group, now: float) -> None:
        """Whether the call it is in takes too long."""
        limits, call = self._limits, group.child.call()
        if not group.ready and now - group.began > limits.init + limits.call:
            self._give_up(group, list(group.gpus), f"cannot be looked at: {hung_at_start(now - group.began)}")
        elif call is None:
            return
        elif call.where == INIT:
            if now - call.since > limits.init:
                self._give_up(group, list(group.gpus), f"cannot be looked at: {hung_at_start(limits.init)}")
        elif now - call.since > limits.call:
            self._give_up(group, [call.where], hung(call.name, limits.call), kill=True)
        elif call.where in group.gpus and len(group.gpus) > 1 and now - call.there_since > limits.patience:
            self._set_apart(group, call.where)

    def _set_apart(self, group: Group, uuid: str) -> None:
        """It goes on waiting for this one; the others get a new child."""
        others = {other: gpu for other, gpu in group.gpus.items() if other != uuid}
        self._open(others, apart=group.apart)
        group.gpus, group.apart, group.good = {uuid: group.gpus[uuid]}, True, 0
        self._order(group)

    def _see_how_it_died(self, group: Group, now: float) -> None:
        group.died = group.died or now
        code = group.child.code()
        if code is None and now - group.died < DYING:
            return
        call = group.child.call()
        crashed = not group.bug and (code is None or code > 0 or -code in CRASHES)
        if crashed and call is not None:
            self._blame(group, call, death(code))
            return
        self._deaths.append(now)
        said = group.bug.strip().rpartition("\n")[2] or death(code)
        if len(self._deaths) == MOST_DEATHS and now - self._deaths[0] < self._limits.retry:
            self._give_up(group, list(group.gpus), f"cannot be looked at: the sampler keeps ending ({said})", kill=True)
            return
        self._replace(group)

    def _blame(self, group: Group, call: Call, how: str) -> None:
        if call.where == INIT:
            reason = f"cannot be looked at: the NVIDIA library crashes as it comes up ({how} in {call.name})"
            self._give_up(group, list(group.gpus), reason)
        else:
            self._give_up(group, [call.where], f"crashes the NVIDIA library ({how} in {call.name})", kill=True)

    def _give_up(self, group: Group, uuids: list[str], reason: str, *, kill: bool = False) -> None:
        """These are away for a while. The others go on: in the same child, or where that has to go, in a new one."""
        self._send_away([uuid for uuid in uuids if group.gpus.pop(uuid, None)], reason)
        if kill or not group.gpus:
            self._replace(group)
        else:
            self._order(group)

    def _send_away(self, uuids: Sequence[str], reason: str) -> None:
        """Said once, however often it is tried in vain."""
        new = [self._gpus[uuid].label for uuid in uuids if uuid not in self._away]
        again = time.monotonic() + self._limits.retry
        self._away.update({uuid: Away(reason, again, len(uuids) > 1) for uuid in uuids})
        if new:
            self._news.append(f"{', '.join(new)} {reason}; nothing is started there until it answers again")

    def _replace(self, group: Group) -> None:
        self._end(group)
        self._open(group.gpus, apart=group.apart)

    def _open(self, gpus: Mapping[str, Gpu], *, apart: bool = False) -> None:
        if not gpus:
            return
        try:
            child = self._start({})
        except OSError as exc:
            self._send_away(list(gpus), f"cannot be looked at: the sampler cannot be started ({exc.strerror})")
            return
        self._add(Group(child, dict(gpus), apart, time.monotonic()))

    def _add(self, group: Group) -> None:
        self._groups.append(group)
        self._epoll.register(group.child.fileno(), select.EPOLLIN)
        self._order(group)

    def _end(self, group: Group) -> None:
        self._groups.remove(group)
        self._epoll.unregister(group.child.fileno())
        group.child.end()
        self._dying.append(group.child)

    def _order(self, group: Group) -> None:
        gpus = [[gpu.uuid, gpu.bus_id, gpu.index] for gpu in group.gpus.values()]
        group.child.order({"gpus": gpus, **self._watched})

    def _try_again(self, now: float) -> None:
        """Each in a child of its own, but for those that have one trouble together."""
        due = {uuid: away for uuid, away in self._away.items() if now >= away.again_at and not away.trying}
        for away in due.values():
            away.trying = True
        gpus = {uuid: self._gpus[uuid] for uuid in due}
        together = {uuid for uuid, away in due.items() if away.together}
        self._open({uuid: gpus[uuid] for uuid in together}, apart=True)
        for uuid in due.keys() - together:
            self._open({uuid: gpus[uuid]}, apart=True)
