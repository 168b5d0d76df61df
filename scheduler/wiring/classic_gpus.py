"""Joins what the older one-shot tool knew of GPUs: who has which, which are out of service, which are let go."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence

from scheduler.core.model import Budget
from scheduler.errors import SchedulerError, StateError
from scheduler.paths import make_private
from scheduler.settings import Settings
from scheduler.values import dataclass
from scheduler.view.classic import Card
from scheduler.wiring import closures
from scheduler.wiring.finding import find_devices
from scheduler.wiring.holders import Holder, holders
from scheduler.wiring.reading import Telling, find_run, places

LEAST = 256 << 20
"""What somebody without a lease holds below that is a display, not a job."""
NOT_SHOWN = ("(not", "shown)")
BY_HAND = ("(started", "by", "hand)")


@dataclass(frozen=True, slots=True)
class Gpus:
    """The GPUs of this machine that this shell may use, as they are now."""

    budgets: Sequence[Budget]
    held: Sequence[Holder]
    out_of_service: Mapping[str, str]

    @property
    def numbers(self) -> list[int]:
        """As nvidia-smi counts."""
        return [budget.device.index for budget in self.budgets]

    def of(self, number: int) -> list[Holder]:
        """Who has leases on one of them."""
        keys = {budget.device.key for budget in self.budgets if budget.device.index == number}
        return [holder for holder in self.held if not keys.isdisjoint(holder.promised)]


def look(settings: Settings) -> Gpus:
    """Ask everybody once."""
    pool = find_devices("auto", settings)
    try:
        budgets = [budget for budget in pool.snapshot() if budget.device.is_gpu]
    finally:
        pool.close()
    everybodys = closures.closed_to_me(settings)
    own = {b.device.key: "you have taken it out of service" for b in budgets if b.device.index in own_out(settings)}
    return Gpus(budgets, holders(settings), {**own, **everybodys})


def cards(gpus: Gpus, settings: Settings) -> list[Card]:
    """Each GPU as the older tool listed it; of others' tasks neither command nor arguments."""
    return [_card(budget, gpus, settings) for budget in gpus.budgets]


def _card(budget: Budget, gpus: Gpus, settings: Settings) -> Card:
    device = budget.device
    available = device.key not in gpus.out_of_service and not budget.closed
    for holder in gpus.of(device.index):
        task = _own_words(holder, settings) if holder.uid == os.getuid() else NOT_SHOWN
        return Card(device.index, False, holder.user, task, holder.pid or holder.shim, holder.since)
    for stranger in budget.foreign:
        if stranger.bytes >= LEAST:
            return Card(device.index, False, stranger.user or "somebody", BY_HAND, stranger.pid)
    return Card(device.index, available)


def _own_words(holder: Holder, settings: Settings) -> tuple[str, ...]:
    try:
        with contextlib.closing(Telling(find_run(settings, holder.run))) as telling:
            commands = [row["command"] for row in telling.rows() if row["id"] == holder.task]
    except SchedulerError:  # it is kept in another state directory
        return NOT_SHOWN
    return tuple(shlex.split(commands[0])) if commands else NOT_SHOWN


def own_out(settings: Settings) -> frozenset[int]:
    """The GPUs that this user's one-shot jobs leave alone."""
    try:
        said = json.loads(places(settings).out_of_service.read_text(encoding="ascii"))
        return frozenset(int(number) for number in said)
    except (OSError, ValueError, TypeError):
        return frozenset()


def put_out(settings: Settings, numbers: Sequence[int], gpus: Gpus) -> str:
    """Take these out of service and all others into it again: root for everybody, else for one's own one-shot jobs."""
    if os.getuid() == 0:
        closures.set_disabled(settings, [b.device.key for b in gpus.budgets if b.device.index in numbers])
        return "for everybody on this machine, since you are root"
    home = places(settings)
    make_private(home.root)
    part = home.out_of_service.with_suffix(".part")
    try:
        part.write_text(json.dumps(sorted(numbers)), encoding="ascii")
        part.rename(home.out_of_service)
    except OSError as exc:
        raise StateError(f"{part} cannot be written: {exc.strerror}; give another state with --state DIR") from exc
    return "for your own one-shot jobs; for everybody it takes root"


def release(gpus: Gpus, numbers: Sequence[int]) -> Iterator[str]:
    """End what holds these GPUs, one's own only, root's force aside; what became of each, in a sentence."""
    for number in numbers:
        for holder in gpus.of(number):
            yield _release(number, holder)


def _release(number: int, holder: Holder) -> str:
    whose = "your" if holder.uid == os.getuid() else f"{holder.user}'s"
    what = f"GPU {number}: {whose} task {holder.task} of run {holder.run}"
    if holder.uid != os.getuid() and os.getuid() != 0:
        return f"{what} runs there: only {holder.user} or root can end it, nothing was released"
    if not holder.shim or not _is_of(holder.shim, holder.uid):
        return f"{what} has no process that can be seen from here: nothing was released"
    try:
        os.kill(holder.shim, signal.SIGTERM)
    except OSError as exc:
        return f"{what} cannot be ended: {(exc.strerror or str(exc)).lower()}"
    force = " by root's force" if holder.uid != os.getuid() else ""
    return f"{what} is stopped{force}; the GPU is free once nothing of it is left"


def _is_of(pid: int, uid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid
    except OSError:
        return False
