"""The link to one node: the program that reaches it, and its channel."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol

from scheduler.cluster import slurm
from scheduler.cluster.frames import BadFrame, Channel, Message
from scheduler.cluster.ray_cluster import RayCluster
from scheduler.runtime.paths import COPIED, PACKAGE
from scheduler.runtime.processes import start_link
from scheduler.values import dataclass

MODULE = "scheduler.app.cluster.agent"
SSH, SLURM, LOCAL = "ssh", "slurm", "local"
SSH_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=3", "-o", "ServerAliveInterval=5")
_REMOTE = (
    'p={python}; if [ -x "$p" ]; then cd / && exec "$p" -m {module}; fi; '
    'p=$(command -v scheduler) && p=$(sed -n "1s/^#.//p" "$p") && [ -x "$p" ] && cd / && exec "$p" -m {module}; '
    "echo no {python} there, and no scheduler on PATH >&2; exit 127"
)
"""The command that starts the agent with the head's interpreter, or with that of the `scheduler` on the node's PATH."""
_LONGEST_WORDS = 4096
_IN_MESSAGES = tuple(PACKAGE / "core" / name for name in ("events.py", "leases.py", "model.py", "ports.py"))
"""Modules that define values which are sent in messages."""


@dataclass(frozen=True, slots=True)
class NodeName:
    """A node as `--on` names it."""

    kind: str
    name: str
    """The node's name for users, with which the labels of its devices begin."""
    cluster: RayCluster | None = None
    """The cluster to which the node belongs, and which carries the links to the node."""
    features: tuple[str, ...] = ()
    """The features that Slurm lists for the node."""
    ends: float = 0.0
    """The time at which the node's allocation ends, in seconds since the epoch; 0: the time is unknown, or it never
    ends."""

    def open(self) -> Transport:
        """Start an agent on the node, and the program or connection that carries its input and output. Raise OSError if
        that is impossible.
        """
        if self.cluster is not None:
            return self.cluster.open(self.name, ["sh", "-c", _remote()])
        return ProgramTransport(self.argv, tied=self.kind != SLURM)

    @property
    def argv(self) -> list[str]:
        """The command that starts an agent on the node and carries its input and output."""
        if self.kind == LOCAL:
            return [sys.executable, "-m", MODULE]
        if self.kind == SLURM:
            return slurm.step(self.name, _remote())
        return ["ssh", *SSH_OPTIONS, "--", self.name, f"exec sh -c {shlex.quote(_remote())}"]


def _remote() -> str:
    return _REMOTE.format(python=shlex.quote(sys.executable), module=MODULE)


class Transport(Protocol):
    """A program or a connection that carries the bytes of a link."""

    @property
    def ends(self) -> tuple[int, int]:
        """The descriptors to read from and to write to."""

    def why_ended(self) -> str:
        """Return the last message of the transport before its end, or an empty string."""

    def close(self, patience: float) -> None:
        """End the input of the agent, wait up to `patience` seconds until it has ended, then end the transport."""


class ProgramTransport:
    """A program that reaches a node, such as ssh, with its standard input and output.

    A `tied` program is killed when this process dies. srun must not be killed, because its helper would then cancel the
    step with all its tasks.
    """

    def __init__(self, argv: Sequence[str], *, tied: bool = True) -> None:
        """Start the program; raise OSError if it cannot be started."""
        self._errors = os.memfd_create("errors", os.MFD_CLOEXEC)
        try:
            self._child = start_link(argv, self._errors, tied=tied)
        except OSError:
            os.close(self._errors)
            raise

    @property
    def ends(self) -> tuple[int, int]:
        """The descriptors to read from and to write to."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        return self._child.stdout.fileno(), self._child.stdin.fileno()

    def why_ended(self) -> str:
        """Return the last line that the program wrote to its standard error, or its exit code."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(0.5)
        lines = os.pread(self._errors, _LONGEST_WORDS, max(0, os.fstat(self._errors).st_size - _LONGEST_WORDS))
        words = lines.decode(errors="replace").strip().splitlines()
        return words[-1].strip() if words else f"the link ended (exit {self._child.poll()})"

    def close(self, patience: float) -> None:
        """End the program's input, wait up to `patience` seconds until it has ended by itself, then kill it."""
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)  # srun together with its helper
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(0.2)
        os.close(self._errors)


def code_digest() -> str:
    """Return a digest of the code that must be equal on head and node: the code that defines messages, and the code
    that runs tasks.
    """
    found = blake2b(digest_size=10)
    for path in sorted([*(PACKAGE / "cluster").glob("*.py"), *(PACKAGE / name for name in COPIED), *_IN_MESSAGES]):
        found.update(path.read_bytes())
    return found.hexdigest()


class NodeLink:
    """One connection to an agent. It is replaced by a new one when it has ended or was given up."""

    def __init__(self, node: NodeName) -> None:
        """Start the transport to the node; raise OSError if it cannot be started."""
        self._transport = node.open()
        self._channel = Channel(*self._transport.ends)
        self._noise = ""

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has something to do."""
        return self._channel.fileno()

    @property
    def ended(self) -> bool:
        """True once nothing more can come."""
        return self._channel.ended

    @property
    def unsent(self) -> int:
        """The number of bytes that the other end has not accepted yet."""
        return self._channel.unsent

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; if the link has ended, the message is lost."""
        self._channel.send(message)

    def receive(self) -> list[Message]:
        """Return the messages that have arrived."""
        try:
            return self._channel.receive()
        except BadFrame as exc:
            self._noise = f"it wrote {str(exc)!r} instead of an answer: does its shell print something at each login?"
            self._channel.ended = True
            return []

    def why_ended(self) -> str:
        """Return why the link ended, in the words of the other end or of the transport."""
        return self._noise or self._transport.why_ended()

    def close(self, patience: float = 0.0) -> None:
        """End the link; first wait up to `patience` seconds until the agent has ended by itself."""
        self._channel.close()
        self._transport.close(patience)
