"""The older one-shot tool's view of GPUs: their users, GPUs out of service, and how GPUs are released."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
from collections.abc import Iterator, Mapping, Sequence

from scheduler.app.control import device_reservations
from scheduler.app.observe.lease_holders import LeaseHolder, holders
from scheduler.app.observe.run_facts import find_run, places
from scheduler.app.observe.run_reader import RunReader
from scheduler.app.run.devices import find_devices
from scheduler.compat.schedule_messages import ScheduleGpu
from scheduler.core.model import DeviceBudget
from scheduler.errors import SchedulerError, StateError
from scheduler.runtime.paths import make_private
from scheduler.runtime.settings import Settings
from scheduler.values import dataclass

LEAST = 256 << 20
"""The bytes of unmanaged memory below which a GPU counts as free, because only a display uses it."""
NOT_SHOWN = ("(not", "shown)")
BY_HAND = ("(started", "by", "hand)")


@dataclass(frozen=True, slots=True)
class ScheduleGpus:
    """The GPUs of this machine that this shell may use, with their current state."""

    budgets: Sequence[DeviceBudget]
    held: Sequence[LeaseHolder]
    out_of_service: Mapping[str, str]

    @property
    def numbers(self) -> list[int]:
        """Return the numbers of the GPUs as nvidia-smi counts them."""
        return [budget.device.index for budget in self.budgets]

    def of(self, number: int) -> list[LeaseHolder]:
        """Return the holders of leases on a GPU."""
        keys = {budget.device.key for budget in self.budgets if budget.device.index == number}
        return [holder for holder in self.held if not keys.isdisjoint(holder.lease.reserved)]


def look(settings: Settings) -> ScheduleGpus:
    """Read the state of the GPUs and all leases once."""
    pool = find_devices("auto", settings)
    try:
        budgets = [budget for budget in pool.snapshot() if budget.device.is_gpu]
    finally:
        pool.close()
    everybodys = device_reservations.closed_to_me(settings)
    own = {b.device.key: "you have taken it out of service" for b in budgets if b.device.index in own_out(settings)}
    return ScheduleGpus(budgets, holders(settings), {**own, **everybodys})


def cards(gpus: ScheduleGpus, settings: Settings) -> list[ScheduleGpu]:
    """Return each GPU in the form in which the older tool listed it; commands and arguments of other users' tasks are
    left out.
    """
    return [_card(budget, gpus, settings) for budget in gpus.budgets]


def _card(budget: DeviceBudget, gpus: ScheduleGpus, settings: Settings) -> ScheduleGpu:
    device = budget.device
    available = device.key not in gpus.out_of_service and not budget.closed
    for holder in gpus.of(device.index):
        task = _own_words(holder, settings) if holder.lease.uid == os.getuid() else NOT_SHOWN
        return ScheduleGpu(device.index, False, holder.user, task, holder.pid or holder.lease.shim, holder.lease.since)
    for unmanaged_process in budget.unmanaged:
        if unmanaged_process.bytes >= LEAST:
            return ScheduleGpu(device.index, False, unmanaged_process.user or "unknown", BY_HAND, unmanaged_process.pid)
    return ScheduleGpu(device.index, available)


def _own_words(holder: LeaseHolder, settings: Settings) -> tuple[str, ...]:
    try:
        with contextlib.closing(RunReader(find_run(settings, f"r{holder.lease.number}"))) as reader:
            commands = [row["command"] for row in reader.rows() if row["id"] == holder.lease.task]
    except SchedulerError:  # it is kept in another state directory
        return NOT_SHOWN
    return tuple(shlex.split(commands[0])) if commands else NOT_SHOWN


def own_out(settings: Settings) -> frozenset[int]:
    """Return the GPUs that this user has taken out of service for one-shot tasks."""
    try:
        said = json.loads(places(settings).out_of_service.read_text(encoding="ascii"))
        return frozenset(int(number) for number in said)
    except (OSError, ValueError, TypeError):
        return frozenset()


def put_out(settings: Settings, numbers: Sequence[int], gpus: ScheduleGpus) -> str:
    """Disable these GPUs and enable all others: for all users if this user is root, otherwise for this user's one-shot
    tasks.
    """
    if os.getuid() == 0:
        device_reservations.set_disabled(settings, [b.device.key for b in gpus.budgets if b.device.index in numbers])
        return "for all users of this machine, since you are root"
    home = places(settings)
    make_private(home.root)
    part = home.out_of_service.with_suffix(".part")
    try:
        part.write_text(json.dumps(sorted(numbers)), encoding="ascii")
        part.rename(home.out_of_service)
    except OSError as exc:
        raise StateError(f"{part} cannot be written: {exc.strerror}; give another state with --state DIR") from exc
    return "for your own one-shot jobs; only root can do that for all users"


def release(gpus: ScheduleGpus, numbers: Sequence[int]) -> Iterator[str]:
    """Send SIGTERM to the shims of the tasks on these GPUs; only root may end tasks of other users. Yield a sentence
    about each task.
    """
    for number in numbers:
        for holder in gpus.of(number):
            yield _release(number, holder)


def _release(number: int, holder: LeaseHolder) -> str:
    whose = "your" if holder.lease.uid == os.getuid() else f"{holder.user}'s"
    what = f"GPU {number}: {whose} task {holder.lease.task} of run {holder.lease.number}"
    if holder.lease.uid != os.getuid() and os.getuid() != 0:
        return f"{what} runs there: only {holder.user} or root can end it, nothing was released"
    if not holder.lease.shim or not _is_of(holder.lease.shim, holder.lease.uid):
        return f"{what} has no process that can be seen from here: nothing was released"
    try:
        os.kill(holder.lease.shim, signal.SIGTERM)
    except OSError as exc:
        return f"{what} cannot be ended: {(exc.strerror or str(exc)).lower()}"
    force = " by root's force" if holder.lease.uid != os.getuid() else ""
    return f"{what} is stopped{force}; the GPU is free once its processes have ended"


def _is_of(pid: int, uid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == uid
    except OSError:
        return False
