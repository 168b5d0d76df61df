"""The file of a lease: its name, its fields, and whether it is alive; no other user's process can keep it alive."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from scheduler.core.leases import NO_OFFER, Lease, RoomOffer
from scheduler.core.model import Placement
from scheduler.core.tasks.guest import Guest
from scheduler.runtime.shim import pack_block, start_time
from scheduler.runtime.users import user_name_soon
from scheduler.store.machine.locked_files import LockHolders
from scheduler.store.machine.records import RecordFile, RecordKind, amount, read_all, size
from scheduler.values import replace

VERSION = 1
FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of the first pid namespace. In a container, /proc/locks omits locks that were taken by processes which have
ended.
"""
BY_SHIM = ".shim"
"""The suffix of a lease that was created again: such a lease lives as long as the shim that it names."""
LASTING = ("since", "expected", "locker", "namespace", "guest", "guest_id")
"""The fields of a record that never change after the creation of the lease."""


def stem(uid: int, run: str) -> str:
    """Return the beginning of the file names of a run's leases."""
    return f"{uid}.{run}."


def to_block(
    placement: Placement, shim: int, boot: str, lasting: Mapping[str, Any], offer: RoomOffer = NO_OFFER
) -> bytes:
    """Return the record of a placement's lease; `lasting` has the fields that were set when the lease was created."""
    fields = {
        **lasting,
        "alone": placement.alone,
        "version": VERSION,
        "shim": shim,
        "shim_id": process_identity(shim) if shim else "",
        "boot": boot,
        "bytes": dict(placement.reservation),
        "load": placement.load,
        "port": placement.port,
        "offer": [offer.priority, offer.asked_by],
    }
    return pack_block(fields)


class LeaseKind(RecordKind[Lease]):
    """The leases in a directory."""

    prefix = tuple("0123456789")
    pattern = re.compile(rf"(\d+)\.([0-9a-f-]+)\.(\d+)\.(\d+)\.[0-9a-f]{{16}}({re.escape(BY_SHIM)})?\Z")
    most = 4096  # no machine runs so many tasks of one user at once
    plural = "leases"
    is_cached = True

    def lives_unlocked(self, name: re.Match[str]) -> bool:
        """Tell whether a lease was created again, which is the case in which it may live without a lock."""
        return bool(name[5])

    def parse(self, name: re.Match[str], said: Mapping[str, Any]) -> Lease:
        """Return the lease in a record; the fields for shim, bytes and load have the same meaning in every version."""
        return Lease(
            *_identifiers(name),
            shim=int(said["shim"]),
            shim_id=str(said.get("shim_id", "")),
            reserved={str(key): size(bytes_) for key, bytes_ in said["bytes"].items()},
            load={str(key): amount(load) for key, load in said["load"].items()},
            unreadable="" if said.get("version") == VERSION else user_name_soon(int(name[1])),
            alone=bool(said.get("alone", False)),
            locker=int(said.get("locker", 0)) if said.get("namespace") == namespace() == FIRST_NAMESPACE else 0,
            by_shim=bool(name[5]) and bool(said.get("shim_id", "")),
            since=amount(said.get("since", 0.0)),
            expected=amount(said.get("expected", 0.0)),
            port=int(said.get("port", 0)),
            offer=_offer(said),
            guest=_guest(said),
        )

    def nonsense(self, name: re.Match[str]) -> Lease:
        """Return a lease for an unreadable record; this lease closes its devices to all other schedulers."""
        return Lease(*_identifiers(name), shim=0, reserved={}, load={}, unreadable=user_name_soon(int(name[1])))

    def judge(self, record: Lease, file: RecordFile) -> Lease | None:
        """Return a lease, without its shim or guest if these processes are not its own; None if the lease is dead. Only
        a lease that was created again may live without a lock.
        """
        if file.is_free and not record.by_shim:
            return None
        if not _has_its_shim(record, file.lockers):
            if file.is_free or _is_feigned(record, file):
                return None
            record = replace(record, shim=0) if record.shim else record  # the mutex is held: each copy counts
        if record.guest and file.lockers.user(record.guest) != record.uid:
            record = replace(record, guest=0)  # it has ended, or it belongs to another user, whatever the lease says
        return replace(record, unreadable=file.user()) if record.unreadable else record


LEASES = LeaseKind()


def living(directory: Path) -> list[Lease]:
    """Return every living lease of this machine, for views. The mutex is not taken, so the leases may be from slightly
    different times.
    """
    return read_all(directory, LEASES)


def _offer(said: Mapping[str, Any]) -> RoomOffer:
    """Return the offer to make room that a record has; a record without such fields makes no offer."""
    priority, asked_by = said.get("offer", (None, None))
    return RoomOffer(*(None if number is None else int(number) for number in (priority, asked_by)))


def _guest(said: Mapping[str, Any]) -> int:
    """Return the pid of the guest that a record names: a process outside of the shim's tree that uses the lease. Return
    0 if that process has ended, or if its pid belongs to another process in this pid namespace.
    """
    guest = int(said.get("guest", 0))
    return guest if guest and said.get("guest_id") == process_identity(guest) else 0


def guest_fields(guest: str) -> dict[str, Any]:
    """Return the fields of a record for the guest of a task; no fields if the task has no guest."""
    if not guest:
        return {}
    one = Guest.read(guest)
    return {"guest": one.pid, "guest_id": one.identity}


def _identifiers(name: re.Match[str]) -> tuple[str, int, str, int, int]:
    """Return the fields of a lease that are part of its name."""
    return name.string, int(name[1]), name[2], int(name[3]), int(name[4])


def _has_its_shim(lease: Lease, lockers: LockHolders) -> bool:
    """Tell whether the process that a lease names is the shim of the lease, so that its memory counts as used under the
    lease.

    A process of another user is never the shim, whatever the lease says. Neither is a process that only has the pid in
    this namespace: the scheduler of the lease may be in a container with its own pids.
    """
    if not lease.shim or lockers.user(lease.shim) != lease.uid:
        return False
    return lease.shim_id in ("", process_identity(lease.shim))


def process_identity(pid: int) -> str:
    """Return a string that distinguishes a process from all other processes of this machine, in any pid namespace;
    `gone` if the process has ended.
    """
    try:
        return _identity_of(pid, os.stat(f"/proc/{pid}").st_ino)
    except OSError:
        return "gone"


@lru_cache(maxsize=1024)
def _identity_of(pid: int, inode: int) -> str:
    """Return a process's identity, cached by the inode of its folder in /proc. The cache saves time, because many
    leases are read while all other schedulers wait.
    """
    return f"{namespace()}.{start_time(pid)}"


@cache
def namespace() -> int:
    """Return the inode of this process's pid namespace; a pid has a meaning only within its namespace."""
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _is_feigned(lease: Lease, file: RecordFile) -> bool:
    """Tell whether a lease without a shim of its own is kept locked by another user, to make the lease seem alive.

    The kernel lists a lock under the process that took it: this is the scheduler, even when only the shim or the rest
    of its tree still holds the lock. The lease names the scheduler's pid, so a lock that is listed under another pid
    belongs to another user. A lease counts as alive if this cannot be decided: if its lock is not listed in this
    namespace, or if the scheduler is in a container, where its pid may belong to another process here.
    """
    pids = file.lockers.of(file.status)
    if lease.locker and pids and lease.locker not in pids:
        return True
    return file.lockers.are_other_users(file.status) and (bool(lease.shim) or not _has_shims(lease.uid))


def _has_shims(uid: int) -> bool:
    """Tell whether a user has any process that could be the shim of a lease whose record names no shim."""
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and os.stat(f"/proc/{name}").st_uid == uid and b"shim.py" in _command_line(name):
                return True
        except OSError:
            continue
    return False


def _command_line(pid: str) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()
