"""The watch over guests, the processes that ask for leases: when a guest ends, its waiting lease is cancelled."""

from __future__ import annotations

import os
import select
from collections.abc import Sequence

from scheduler.core.brain import Brain
from scheduler.core.control.request_kinds import Verb
from scheduler.core.model import State
from scheduler.core.ports import Happening, Request
from scheduler.core.tasks.guest import Guest
from scheduler.runtime.shim import boot_id
from scheduler.store.machine.lease_records import namespace, process_identity


class GuestWatch:
    """The watch over the guests of a queue. When a guest ends, the watch returns a request that cancels the guest's
    waiting tasks.

    A running task is ended by the lease holder, which is the task's own process.
    """

    def __init__(self, brain: Brain) -> None:
        """Watch the guests of all tasks that the brain knows, and those of later tasks."""
        self._brain = brain
        self._read = 0
        """The number of entries in the brain's `terms` that were searched for guests so far."""
        self._epoll = select.epoll()
        self._guests: dict[int, str] = {}
        """The living guests, each by the descriptor that becomes readable at the guest's end."""
        self._ended: set[str] = set()

    def fileno(self) -> int:
        """Return a descriptor that is readable when a guest has ended."""
        return self._epoll.fileno()

    def collect(self) -> Sequence[Happening]:
        """Return a request that cancels the waiting tasks of guests that have ended."""
        for text in {terms.guest for terms in self._brain.terms[self._read :]} - {"", *self._guests.values()}:
            self._watch(text)
        self._read = len(self._brain.terms)
        for fd, _ in self._epoll.poll(0) if self._guests else ():
            self._ended.add(self._guests.pop(fd))
            os.close(fd)
        if not self._ended:
            return ()
        ended, self._ended = self._ended, set()
        waiting = self._brain.task_table.in_state(State.WAITING)
        tasks = tuple(task for task in waiting if self._brain.terms_of(task).guest in ended)
        return [Request(Verb.CANCEL, tasks)] if tasks else ()

    def _watch(self, text: str) -> None:
        guest = Guest.read(text)
        if guest.boot == boot_id() and guest.identity.partition(".")[0] != str(namespace()):
            return  # its pid means nothing here: the holder will notice its end
        try:
            fd = os.pidfd_open(guest.pid)
        except OSError:
            self._ended.add(text)
            return
        if (guest.boot, guest.identity) != (boot_id(), process_identity(guest.pid)):
            os.close(fd)
            self._ended.add(text)
            return
        self._guests[fd] = text
        self._epoll.register(fd, select.EPOLLIN)

    def close(self) -> None:
        """Close all descriptors."""
        self._epoll.close()
        for fd in self._guests:
            os.close(fd)
        self._guests.clear()
