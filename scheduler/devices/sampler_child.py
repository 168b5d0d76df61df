"""A sampler child from its parent's side: started, given orders, read, supervised and killed, never waited for."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.devices.sampler_protocol import BOARD
from scheduler.runtime.processes import isolated_python, start_child
from scheduler.runtime.shim import is_stopped
from scheduler.values import dataclass

HOST, GPUS = "host.sampler", "gpu.nvml_sampler"
"""The modules that run as sampler children."""
INIT = "init"
STEP = 1.0
"""The most seconds between two checks that count as silence of the child; if more time has passed, the parent itself
was suspended.
"""
_START = "import sys; sys.path.insert(0, sys.argv[1]); from scheduler.devices.{} import main; main()"
_RUNS = b"R"


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """A step that a child has announced."""

    where: str
    """The subject of the step: a UUID, an index (during discovery), `init`, or the name of a process tree."""
    name: str
    since: float
    """The time at which the step began, on the monotonic clock."""
    there_since: float
    """The time at which the first of the consecutive steps about this `where` began."""


class SamplerChild:
    """A process that may hang, be stopped or crash at any moment; no method waits for it.

    Only the newest order matters: it replaces an order that was not sent yet. So the outgoing buffer holds at most the
    rest of one order and one complete order, however long the child does not read.
    """

    bug = ""
    """The error in the child's own program that ended the child; empty if there was none."""

    def __init__(
        self, module: str, code: Path, arguments: Sequence[str] = (), env: Mapping[str, str] | None = None
    ) -> None:
        """Start the child from the `code` directory. Raise OSError if it cannot be started."""
        board = os.memfd_create("board")
        try:
            os.ftruncate(board, BOARD)
            self._board = mmap.mmap(board, BOARD, prot=mmap.PROT_READ)
            command = [*isolated_python(), "-c", _START.format(module), str(code), str(board), *arguments]
            self._process = start_child(command, env=env, pass_fds=(board,), tied=True)
        finally:
            os.close(board)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._epoll = select.epoll()
        self._epoll.register(self._stdout, select.EPOLLIN)
        self._pushes = False
        """True if the epoll descriptor also waits until the child's standard input accepts more data."""
        self._unsent = self._order = self._pending = b""
        self._number = self._answered = 0
        """The number of the newest order, and the number of the order to which the last answer belongs."""
        self._due = float("inf")
        """The time at which the next answer is due without an order."""
        self._sign: tuple[Any, ...] = ()
        """The last signs of life; any change shows that the child is still working."""
        self._silent = self._judged = 0.0
        self._heard = 0
        self.ended = False

    @property
    def pid(self) -> int:
        """The pid of the child."""
        return self._process.pid

    def fileno(self) -> int:
        """Return the descriptor that is readable when `push` or `answers` has something to do, and when the child has
        ended.
        """
        return self._epoll.fileno()

    def order(self, order: Mapping[str, Any]) -> None:
        """Send an order; it replaces an order that has not been sent yet."""
        self._number += 1
        self._order = json.dumps({"order": self._number, **order}).encode() + b"\n"
        self.push()

    def push(self) -> None:
        """Write as much of the orders as the child's pipe accepts now."""
        try:
            while self._unsent or self._order:
                if not self._unsent:
                    self._unsent, self._order = self._order, b""
                self._unsent = self._unsent[os.write(self._stdin, self._unsent) :]
        except BlockingIOError:
            self._wait_for_room(wanted=True)
        except OSError:  # it has ended, which the next read shows
            self._unsent = self._order = b""
            self._wait_for_room(wanted=False)
        else:
            self._wait_for_room(wanted=False)

    def _wait_for_room(self, *, wanted: bool) -> None:
        if wanted and not self._pushes:
            self._epoll.register(self._stdin, select.EPOLLOUT)
        elif self._pushes and not wanted:
            self._epoll.unregister(self._stdin)
        self._pushes = wanted

    def answers(self, now: float) -> list[dict[str, Any]]:
        """Return the child's answers since the last call; `ended` becomes true when no more answers can come."""
        lines: list[bytes] = []
        while (got := self._read()) is not None:
            *whole, self._pending = (self._pending + got).split(b"\n")
            lines += whole
        answers = [json.loads(line) for line in lines]
        for answer in answers:
            self._heard += 1
            self._answered = max(self._answered, answer.pop("order", 0))
            rest = answer.pop("rest", None)
            self._due = float("inf") if rest is None else now + rest
            self.bug = answer.pop("bug", "").strip().rpartition("\n")[2] or self.bug
        return [answer for answer in answers if answer]

    def _read(self) -> bytes | None:
        try:
            got = os.read(self._stdout, 1 << 18)
        except BlockingIOError:
            return None
        if not got:
            self.ended = True
            return None
        return got

    def silence(self, now: float) -> float:
        """Return the seconds for which the child has owed an answer without a sign of life; call this repeatedly.

        Signs are an answer, a new step on the board, used processor time, and waiting for a processor: on a machine
        with a thousand busy tasks this wait may be long although nothing is wrong with the child. Seconds for which
        this process itself was suspended do not count.
        """
        step, self._judged = min(now - self._judged, STEP), now
        if self._answered == self._number and now <= self._due:
            self._silent, self._sign = 0.0, ()
            return 0.0
        state, spent = _state(self.pid)
        sign = (self._heard, self._board[:], spent)
        if sign != self._sign or state == _RUNS:
            self._silent, self._sign = 0.0, sign
        else:
            self._silent += step
        return self._silent

    def call(self) -> LibraryCall | None:
        """Return the child's current step, or the step in which it died; None if no step is known."""
        words = self._board[:].rstrip(b"\0").decode(errors="replace").split()
        with contextlib.suppress(ValueError):  # read while it was being written
            since, there_since, where, name = words
            return LibraryCall(where, name, float(since), float(there_since))
        return None

    def is_stopped(self) -> bool:
        """Tell whether a signal has stopped the child, so that it does nothing until another signal continues it."""
        return is_stopped(self.pid)

    def end(self) -> None:
        """Kill the child. A child in an uninterruptible system call may take long to die: see `bury`."""
        self.ended = True
        with contextlib.suppress(OSError):
            self._process.kill()
        self._epoll.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def code(self) -> int | None:
        """Return the exit code of the child, negative for a signal; None while it has not ended."""
        return self._process.poll()


def bury(children: Iterable[SamplerChild], patience: float = 0.0) -> list[SamplerChild]:
    """Reap killed children; wait up to `patience` seconds for each, and return those that have not ended."""
    left = []
    for child in children:
        try:
            child._process.wait(patience)
        except subprocess.TimeoutExpired:
            left.append(child)
    return left


def _state(pid: int) -> tuple[bytes, tuple[bytes, ...]]:
    """Return the letter of a process's state, and the two fields with the processor time that the process has used so
    far.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            fields = file.read().rpartition(b")")[2].split()
    except OSError:
        return b"", ()
    return fields[0], tuple(fields[11:13])
