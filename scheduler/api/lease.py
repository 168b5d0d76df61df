"""`scheduler.lease`: GPUs and memory that are reserved for this process, as for a task."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from scheduler.api.lease_words import asker, caller
from scheduler.api.process_leases import PROCESS, HeldDevices
from scheduler.app.queue.background_start import start_apart
from scheduler.app.queue.lease_client import LeaseClient, LeaseRequest
from scheduler.app.queue.leases import lease_fields, patience_of
from scheduler.app.run.options import chosen_python
from scheduler.core.tasks.fields import BY_COLUMN, BadCell
from scheduler.errors import UsageError
from scheduler.runtime.settings import read_settings
from scheduler.store.queue.queue_link import USUAL, checked_name

_F = TypeVar("_F", bound=Callable[..., Any])
_COLUMNS = {
    "gpus": "GPUs", "memory": "Memory", "host_memory": "HostMemory", "cpus": "CPUs", "device": "Device",
    "prefer": "Prefer", "priority": "Priority", "timeout": "Timeout", "grace": "Grace", "exclusive": "Exclusive",
    "name": "Name",
}  # fmt: skip
"""The column of each task field that a lease has."""


class ProcessLease:
    """GPUs and memory for this process, from `with` to its end, or from `acquire` to `release`.

    As a decorator it takes a new lease for each call.
    """

    def __init__(
        self, fields: Mapping[str, str], patience: float, queue: str, state: str | None, what: Sequence[str]
    ) -> None:
        """Prepare a lease; `acquire` requests it."""
        self._fields, self._patience, self._queue, self._state, self._what = fields, patience, queue, state, what
        self._held: list[HeldDevices] = []

    def acquire(self) -> ProcessLease:
        """Wait for the devices, and set the variables that name them. Raise NoLease if they cannot be had, and
        LeaseTimeout if the wait takes too long.
        """
        self._held.append(PROCESS.take(self._fields, self._patience, self._ask))
        return self

    def _ask(self, fields: Mapping[str, str]) -> LeaseClient:
        settings = read_settings({"state": self._state})
        grace = float(BY_COLUMN["grace"].read(fields.get("Grace") or BY_COLUMN["grace"].default))
        wanted = LeaseRequest(self._what, fields, grace, self._queue, settings, chosen_python(settings))
        return LeaseClient(wanted, start_apart)

    @contextlib.contextmanager
    def held(self) -> Iterator[ProcessLease]:
        """Give the acquired devices back at the end of a `with` block; after an exception the lease's task counts as
        failed.
        """
        try:
            yield self
        except BaseException as exc:
            self.__exit__(type(exc), exc, exc.__traceback__)
            raise
        self.release()

    def release(self) -> None:
        """Give the devices back. What this process still holds on a GPU counts as unmanaged from now on."""
        self._release(0, "")

    def _release(self, code: int, why: str) -> None:
        if not self._held:
            raise UsageError("this lease is not held: acquire it first")
        PROCESS.give_back(self._held.pop(), code, why)

    def _now(self) -> HeldDevices:
        if not self._held:
            raise UsageError("this lease is not held: acquire it first")
        return self._held[-1]

    @property
    def task_id(self) -> int:
        """The id of the lease's task, which scheduler list, why, results and cancel accept."""
        return self._now().task

    @property
    def gpus(self) -> list[int]:
        """The numbers of the leased GPUs, as nvidia-smi shows them; none without GPUs."""
        return [int(word) for word in self._now().gpus]

    def __enter__(self) -> ProcessLease:
        return self.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Give the devices back; after an exception the lease's task counts as failed."""
        why = "" if exc is None else f"{type(exc).__module__}.{type(exc).__qualname__}: {exc}"
        self._release(0 if exc is None or (isinstance(exc, SystemExit) and not exc.code) else 1, why)

    def __call__(self, function: _F) -> _F:
        """Return a function that calls `function` with a new lease each time."""

        @functools.wraps(function)
        def leased(*args: Any, **kwargs: Any) -> Any:
            with ProcessLease(self._fields, self._patience, self._queue, self._state, self._what):
                return function(*args, **kwargs)

        return leased  # type: ignore[return-value]  # it has the signature of the function


def lease(  # noqa: PLR0913  # each is a column or a flag, by keyword only
    gpus: int | None = None,
    memory: str | None = None,
    wait: bool | float | str = True,
    *,
    host_memory: str | None = None,
    cpus: float | None = None,
    device: str | int | None = None,
    prefer: str | int | None = None,
    priority: int | None = None,
    timeout: str | None = None,
    grace: str | None = None,
    exclusive: bool | None = None,
    name: str | None = None,
    queue: str = USUAL,
    state: str | None = None,
) -> ProcessLease:
    """Return a lease of GPUs and memory for this process, to be used in `with`, as a decorator, or by `acquire`.

    `gpus` is how many; None: one, where there are GPUs. `memory` is what this process needs on each ("8GiB"); None: it
    is learned. `wait` is True, False, or the longest wait: seconds, or a string such as "10m". The other arguments are
    fields of a task; `timeout` is how long the lease may last. Raise UsageError for values that no task can have.
    """
    said = {
        "gpus": gpus, "memory": memory, "host_memory": host_memory, "cpus": cpus, "device": device, "prefer": prefer,
        "priority": priority, "timeout": timeout, "grace": grace, "exclusive": exclusive, "name": name,
    }  # fmt: skip
    fields = {_COLUMNS[key]: _text(value) for key, value in said.items() if value is not None}
    for column, text in fields.items():
        try:
            BY_COLUMN[column.lower()].read(text)
        except (ValueError, BadCell) as exc:
            raise UsageError(f"{column.lower()}: {exc}") from exc
    called, what = caller()
    return ProcessLease(
        lease_fields(fields, asker(called)), patience_of("wait", wait), checked_name(queue), state, what
    )


def _text(value: object) -> str:
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
