"""One sampler child of the GPUs, as its parent holds it: started, told, read, and killed without waiting for it."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from scheduler.devices.nvml_sampler import BOARD
from scheduler.processes import isolated_python, start_child
from scheduler.values import dataclass

_START = "import sys; sys.path.insert(0, sys.argv[1]); from scheduler.devices.nvml_sampler import main; main()"
INIT = "init"


@dataclass(frozen=True, slots=True)
class Call:
    """What a child is doing in the library."""

    where: str
    """A UUID, an index while the GPUs are being found, or `init`."""
    name: str
    since: float
    """When the call began, on the monotonic clock."""
    there_since: float
    """When the calls about this device began."""


class NvmlChild:
    """A process that may hang or crash at any moment; nothing here waits for it."""

    def __init__(
        self, code: Path, module: Path, begin: Mapping[str, Any], env: Mapping[str, str] | None = None
    ) -> None:
        board = os.memfd_create("board")
        try:
            os.ftruncate(board, BOARD)
            self._board = mmap.mmap(board, BOARD, prot=mmap.PROT_READ)
            command = [*isolated_python(), "-c", _START, str(code), str(module), str(board), json.dumps(begin)]
            self._process = start_child(command, env=env, pass_fds=(board,))
        finally:
            os.close(board)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._stdin, False)
        os.set_blocking(self._stdout, False)
        self._unsent = b""
        self._order = b""
        self._pending = b""
        self.ended = False

    def fileno(self) -> int:
        """Readable when it said something or ended."""
        return self._stdout

    def order(self, order: Mapping[str, Any]) -> None:
        """Send an order; one that has not been sent yet is replaced."""
        self._order = json.dumps(order).encode() + b"\n"
        self.push()

    def push(self) -> None:
        """Send what its pipe did not take so far: a child that hangs does not read."""
        while self._unsent or self._order:
            if not self._unsent:
                self._unsent, self._order = self._order, b""
            try:
                self._unsent = self._unsent[os.write(self._stdin, self._unsent) :]
            except OSError:  # full, or it ended, which reading will tell
                return

    def answers(self) -> list[dict[str, Any]]:
        """What it said since the last call; `ended` is set once nothing more can come."""
        lines: list[bytes] = []
        while (got := self._read()) is not None:
            *whole, self._pending = (self._pending + got).split(b"\n")
            lines += whole
        return [json.loads(line) for line in lines]

    def _read(self) -> bytes | None:
        try:
            got = os.read(self._stdout, 1 << 18)
        except BlockingIOError:
            return None
        if not got:
            self.ended = True
            return None
        return got

    def call(self) -> Call | None:
        """The call it is in, or was in when it died; None where it is or was not in the library."""
        words = self._board[:].rstrip(b"\0").decode(errors="replace").split()
        with contextlib.suppress(ValueError):  # read while it was being written
            since, there_since, where, name = words
            return Call(where, name, float(since), float(there_since))
        return None

    def end(self) -> None:
        """Kill it. It may take its time to die (in a system call that cannot be interrupted): see `bury`."""
        self.ended = True
        with contextlib.suppress(OSError):
            self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def code(self) -> int | None:
        """How it ended; None while it has not."""
        return self._process.poll()


def bury(children: Iterable[NvmlChild], patience: float = 0.0) -> list[NvmlChild]:
    """Take leave of those that died; the others are returned."""
    left = []
    for child in children:
        try:
            child._process.wait(patience)
        except subprocess.TimeoutExpired:
            left.append(child)
    return left
