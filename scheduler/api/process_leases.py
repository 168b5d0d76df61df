"""The devices that a process holds by leases: one lease at a time, shared by threads and by leases within it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Mapping

from scheduler.app.queue.lease_client import LeaseClient
from scheduler.app.queue.leases import given_devices
from scheduler.core.tasks.fields import BY_COLUMN
from scheduler.errors import NoLease
from scheduler.runtime import shim
from scheduler.store.queue.visible_devices import VISIBLE
from scheduler.ui.terminal.sink import hint
from scheduler.units import count

INDICES = "SCHEDULER_GPU_INDICES"
UVM = "/dev/nvidia-uvm"
"""The device file that only CUDA opens, when it is initialised."""
Ask = Callable[[Mapping[str, str]], LeaseClient]
"""A function that requests a lease with the given task fields."""


class HeldDevices:
    """The devices that this process holds: by its own lease, or as a part of a task."""

    def __init__(
        self, task: int, told: Mapping[str, str], fields: Mapping[str, str], client: LeaseClient | None
    ) -> None:
        self.task = task
        self.environ = {name: told.get(name, os.environ.get(name, "")) for name in ("SCHEDULER_GPU_INDICES", VISIBLE)}
        self.fields = dict(fields)
        self.client = client
        """The client of the lease; None: the devices belong to a task or to another process, which releases them."""
        self.users = 0
        """The number of leases of this process that use these devices."""
        self._told = dict(told)
        self._before = {name: os.environ.get(name) for name in told}

    @property
    def gpus(self) -> list[str]:
        """The numbers of the GPUs that are held, as nvidia-smi shows them."""
        return [word for word in self.environ[INDICES].split(",") if word]

    def check(self, asked: Mapping[str, str]) -> None:
        """Raise NoLease if a lease that is requested within this lease asks for more than this lease has."""
        has = f"this process already holds {count(len(self.gpus), 'GPU')} as task {self.task}"
        if int(asked.get("GPUs") or 0) > len(self.gpus):
            raise NoLease(f"{has}, and gets no more of them: ask for {asked['GPUs']} in its first lease")
        needs, mine = asked.get("Memory"), self.fields.get("Memory")
        read = BY_COLUMN["memory"].read
        if needs and mine and read(needs) > read(mine):
            raise NoLease(f"{has} with {mine} each, and gets no more of it: ask for {needs} in its first lease")
        device = asked.get("Device")
        if device and not {*device.split(",")} & {*self.gpus, *self.environ[VISIBLE].split(",")}:
            raise NoLease(f"{has} ({', '.join(self.gpus) or 'none'}), and cannot get GPU {device} as well")

    def enter(self) -> None:
        """Set the environment variables of the lease in this process."""
        os.environ.update(self._told)

    def leave(self) -> None:
        """Restore the variables that `enter` set, except those that other code has changed since."""
        for name, text in self._told.items():
            if os.environ.get(name) == text:
                before = self._before[name]
                os.environ.pop(name) if before is None else os.environ.__setitem__(name, before)


class ProcessLeases:
    """The one lease that a process holds at a time, shared by its threads and by leases within leases."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._held: HeldDevices | None = None
        self._bound = ""
        """The GPUs to which CUDA is bound in this process, if the process first used CUDA within a lease; otherwise
        empty.
        """

    def take(
        self, asked: Mapping[str, str], patience: float, ask: Callable[[Mapping[str, str]], LeaseClient]
    ) -> HeldDevices:
        """Return the devices that this process holds; if it holds none, wait for a lease first. Raise NoLease if they
        cannot be had, and LeaseTimeout after `patience` seconds.
        """
        if not self._lock.acquire(timeout=min(patience, threading.TIMEOUT_MAX)):
            raise NoLease("another thread of this process waits for a lease, and this thread would share that lease")
        try:
            held = self._held or _of_task()
            if held is not None:
                held.check(asked)
            else:
                held = self._wait(asked, patience, ask)
            self._held = held
            held.users += 1
            return held
        finally:
            self._lock.release()

    def _wait(self, asked: Mapping[str, str], patience: float, ask: Ask) -> HeldDevices:
        fields = self._where_cuda_is(asked)
        client = ask(fields)
        for sentence in client.hints:
            hint(sentence)
        held = HeldDevices(client.task, client.wait(patience, hint), fields, client)
        held.enter()
        return held

    def _where_cuda_is(self, asked: Mapping[str, str]) -> Mapping[str, str]:
        """Return the fields of a lease. A process that has used CUDA keeps its GPU, so the lease names that GPU; raise
        NoLease if the process has several GPUs.
        """
        used = cuda_user()
        if not used or asked.get("GPUs") == "0":
            return given_devices(asked)
        seen = [word for word in (self._bound or os.environ.get(VISIBLE, "")).split(",") if word]
        if len(seen) != 1:
            raise NoLease(
                f"{used} has already initialised CUDA in this process, which therefore keeps its GPUs: take the lease "
                "before anything uses a GPU (in a notebook, restart the kernel first)"
            )
        return {**asked, "Device": seen[0]}

    def give_back(self, held: HeldDevices, code: int, why: str) -> None:
        """End one use of the devices that this process holds; the end of the last use ends the lease."""
        with self._lock:
            held.users -= 1
            if held.users > 0 or self._held is not held:
                return
            self._held = None
            if held.client is not None:
                if cuda_user():
                    self._bound = held.environ[VISIBLE]
                held.leave()
                held.client.release(code, why)

    def forked(self) -> None:
        """Make this forked copy of a process use its parent's devices: the copy takes no lease of its own, and the end
        of the copy does not end the parent's lease.
        """
        self._lock = threading.RLock()
        held, self._held = self._held, None
        if held is not None and held.client is not None:
            held.client.leave()


def _of_task() -> HeldDevices | None:
    """Return the devices of the living task to which this process belongs; None if it belongs to no task."""
    task, attempt, folder = (os.environ.get(f"SCHEDULER_{name}", "") for name in ("TASK_ID", "ATTEMPT", "TASK_DIR"))
    if not (task.isdecimal() and attempt.isdecimal() and folder):
        return None
    if shim.claim_state(shim.claim_path(folder, int(attempt))) != shim.ClaimState.LOCKED:
        return None  # the variables were inherited by a process that outlived the task
    return HeldDevices(int(task), {}, {}, None)


def cuda_user() -> str:
    """Return the name of the library that has initialised CUDA in this process; empty if none has."""
    torch = sys.modules.get("torch")
    with contextlib.suppress(Exception):  # any module may be called torch
        if torch is not None and torch.cuda.is_initialized():
            return "torch"
    return "a library" if UVM in map(_opened, os.listdir("/proc/self/fd")) else ""


def _opened(fd: str) -> str:
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{fd}")
    return ""


PROCESS = ProcessLeases()
os.register_at_fork(after_in_child=PROCESS.forked)
