"""Wait tickets: one record in the lease directory for each scheduler that waits for capacity."""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scheduler.core.leases import RoomCall
from scheduler.core.model import Waiter, WaitTicket
from scheduler.runtime.clock import since_boot
from scheduler.runtime.shim import pack_block
from scheduler.store.machine.records import OwnRecord, RecordDirectory, RecordFile, RecordKind, amount, read_all, size
from scheduler.values import replace

VERSION = 3


def to_dict(ticket: WaitTicket, now: float) -> dict[str, Any]:
    """Return the record of a ticket that is published at the time `now`; times are in seconds since boot."""
    return {
        "version": VERSION,
        "task": ticket.task,
        "devices": ticket.devices,
        "gpus": ticket.gpus,
        "host": ticket.host,
        "cores": ticket.cores,
        "busy": ticket.busy,
        "alone": ticket.alone,
        "closed": ticket.closed,
        "bare": ticket.bare,
        "last": round(ticket.last, 3),
        "urgent": ticket.urgent,
        "call": None if ticket.call is None else [ticket.call.by, ticket.call.priority, ticket.call.attempts],
        "since": now - ticket.waited,
        "looked": now,
    }


def from_dict(said: Mapping[str, Any], now: float) -> WaitTicket:
    """Return the ticket in a record. Raise an error of NONSENSE if the record is invalid."""
    return WaitTicket(
        task=size(said["task"]),
        devices=tuple(str(key) for key in said["devices"]),
        gpus=tuple(None if bytes_ is None else size(bytes_) for bytes_ in said["gpus"]),
        host=None if said["host"] is None else size(said["host"]),
        cores=amount(said["cores"]),
        busy=amount(said["busy"]),
        alone=bool(said["alone"]),
        waited=amount(now - float(said["since"])),
        closed=bool(said["closed"]),
        bare=tuple(size(bytes_) for bytes_ in said["bare"]),
        last=amount(said["last"]),
        urgent=bool(said["urgent"]),
        call=None if said["call"] is None else _call(*said["call"]),
    )


def _call(by: Any, priority: Any, attempts: Any) -> RoomCall:
    found = tuple((str(run), int(task), int(attempt)) for run, task, attempt in attempts)
    return RoomCall(int(by), int(priority), found)


class TicketKind(RecordKind[Waiter]):
    """The wait tickets in a directory."""

    prefix = ("ticket.",)
    pattern = re.compile(r"ticket\.(\d+)\.([0-9a-f-]+)\.[0-9a-f]{16}\Z")
    most = 1024  # one for each run of a user that waits
    plural = "tickets"

    def parse(self, name: re.Match[str], said: Mapping[str, Any]) -> Waiter | None:
        """Return the waiter of a ticket; None if the ticket is invalid, which gives it no turn."""
        if said.get("version") != VERSION:
            return None
        now = since_boot()
        return Waiter(name.string, int(name[1]), name[2], from_dict(said, now), amount(now - float(said["looked"])))

    def judge(self, record: Waiter, file: RecordFile) -> Waiter:
        """Return a waiter with the name of its user. If its ticket is `closed`, the name also includes the process that
        locks the file.
        """
        return replace(record, who=file.user(with_process=record.ticket.closed))


TICKETS = TicketKind()


def waiters(directory: Path) -> list[Waiter]:
    """Return all waiters of a directory, the longest wait first, for views."""
    return sorted(read_all(directory, TICKETS), key=lambda waiter: -waiter.ticket.waited)


class Tickets(OwnRecord):
    """This run's ticket, and a view of all other tickets. `show` must be called with the directory's mutex held;
    `others` removes dead tickets only while it is held.
    """

    def __init__(self, uid: int, run: str) -> None:
        super().__init__(f"ticket.{uid}.{run}.")
        self._uid = uid
        self._absent: dict[str, float] = {}
        """For each ticket that the last read found, the time of the last read that did not find it; -inf if no read has
        missed it.
        """
        self._looked_at = -math.inf

    def show(self, records: RecordDirectory, ticket: WaitTicket | None) -> None:
        """Publish what this run waits for; None removes the ticket. If the file cannot be written, the run only loses
        its turn.
        """
        if ticket is None:
            self.leave(records.fd)
            return
        block = pack_block(to_dict(ticket, since_boot()))
        with contextlib.suppress(OSError):
            if self._fd >= 0 and not os.fstat(self._fd).st_nlink:
                self.leave(records.fd)  # the directory's owner has removed it
            if self._fd < 0:
                self._name, self._fd = records.make(self._stem, block)
            else:
                os.pwrite(self._fd, block, 0)

    def is_of_this_user(self, name: re.Match[str]) -> bool:
        """Tell whether a file name belongs to a ticket of another run of this user."""
        return int(name[1]) == self._uid and not name.string.startswith(self._stem)

    def others(self, records: RecordDirectory) -> list[Waiter]:
        """Return the other waiters of the directory; remove dead tickets of this user, including tickets of this run's
        earlier schedulers that were killed.

        The waiting time that a ticket of another user claims is limited to the time since the last read that did not
        find the ticket.
        """
        mine = self._name if self._fd >= 0 else ""
        every = records.read(TICKETS, lambda name: name.string != mine)
        found = [waiter for waiter in every if not waiter.name.startswith(self._stem)]
        self._absent = {waiter.name: self._absent.get(waiter.name, self._looked_at) for waiter in found}
        self._looked_at = now = since_boot()
        return [
            waiter if waiter.uid == self._uid else _bounded(waiter, now - self._absent[waiter.name]) for waiter in found
        ]


def _bounded(waiter: Waiter, longest: float) -> Waiter:
    """Return a waiter whose waiting time is at most `longest` seconds."""
    if waiter.ticket.waited <= longest:
        return waiter
    return replace(waiter, ticket=replace(waiter.ticket, waited=longest))
