"""The link to one node: the program that reaches it, and its channel."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

from scheduler.cluster.frames import BadFrame, Channel, Message
from scheduler.errors import UsageError
from scheduler.runtime.paths import COPIED, PACKAGE
from scheduler.runtime.processes import start_link
from scheduler.values import dataclass

MODULE = "scheduler.app.cluster.agent"
SSH, LOCAL = "ssh", "local"
KINDS = (SSH, LOCAL)
NEXT = ("ray", "slurm")
"""Kinds that are planned."""
SSH_OPTIONS = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=3", "-o", "ServerAliveInterval=5")
_REMOTE = (
    'p={python}; if [ -x "$p" ]; then cd / && exec "$p" -m {module}; fi; '
    'p=$(command -v scheduler) && p=$(sed -n "1s/^#.//p" "$p") && [ -x "$p" ] && cd / && exec "$p" -m {module}; '
    "echo no {python} there, and no scheduler on PATH >&2; exit 127"
)
"""Starts the agent with the head's interpreter, or with that of the `scheduler` on the node's PATH."""
_LONGEST_WORDS = 4096
_IN_MESSAGES = tuple(PACKAGE / "core" / name for name in ("events.py", "leases.py", "model.py", "ports.py"))
"""Modules whose values travel."""


@dataclass(frozen=True, slots=True)
class NodeName:
    """A node as `--on` names it."""

    kind: str
    name: str
    """Its name for users, with which the labels of its devices begin."""

    @property
    def argv(self) -> list[str]:
        """The command that starts an agent there and carries its input and output."""
        if self.kind == LOCAL:
            return [sys.executable, "-m", MODULE]
        remote = _REMOTE.format(python=shlex.quote(sys.executable), module=MODULE)
        return ["ssh", *SSH_OPTIONS, "--", self.name, f"exec sh -c {shlex.quote(remote)}"]


def code_digest() -> str:
    """Return a digest of the code on which head and agent must agree: what travels, and what runs tasks."""
    found = blake2b(digest_size=10)
    for path in sorted([*(PACKAGE / "cluster").glob("*.py"), *(PACKAGE / name for name in COPIED), *_IN_MESSAGES]):
        found.update(path.read_bytes())
    return found.hexdigest()


def read_nodes(said: Sequence[str]) -> tuple[NodeName, ...]:
    """Return the nodes that values of `--on` name. Raise UsageError."""
    nodes: list[NodeName] = []
    for word in said:
        nodes += _read(word)
    names = [node.name for node in nodes]
    twice = next((name for name in names if names.count(name) > 1), "")
    if twice:
        raise UsageError(f"--on names {twice} twice: name each machine once")
    return tuple(nodes)


def _read(word: str) -> list[NodeName]:
    kind, _, hosts = word.partition(":")
    if kind in NEXT:
        raise UsageError(f"--on {word}: {kind} is not supported yet; name the machines: --on ssh:HOST,HOST")
    if kind not in KINDS or (kind == LOCAL and hosts):
        raise UsageError(f"--on {word}: write ssh:HOST,HOST,... or local")
    if kind == LOCAL:
        return [NodeName(LOCAL, LOCAL)]
    names = [name.strip() for name in hosts.split(",")]
    for name in names:
        if not name or name.startswith("-") or any(letter.isspace() or not letter.isprintable() for letter in name):
            raise UsageError(f"--on {word}: {name!r} is no host: write ssh:HOST,HOST,...")
    return [NodeName(SSH, name) for name in names]


class NodeLink:
    """One connection to an agent. When it has ended, or is given up, a new one is made."""

    def __init__(self, node: NodeName) -> None:
        """Start the program that reaches the node; raise OSError if it cannot be started."""
        self._errors = os.memfd_create("errors", os.MFD_CLOEXEC)
        try:
            self._child = start_link(node.argv, self._errors)
        except OSError:
            os.close(self._errors)
            raise
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._channel = Channel(self._child.stdout.fileno(), self._child.stdin.fileno())
        self._noise = ""

    def fileno(self) -> int:
        """Return the descriptor that is readable when `receive` has something to do."""
        return self._channel.fileno()

    @property
    def ended(self) -> bool:
        """True once nothing more can come."""
        return self._channel.ended

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; if the link has ended, it is lost."""
        self._channel.send(message)

    def receive(self) -> list[Message]:
        """Return the messages that have arrived."""
        try:
            return self._channel.receive()
        except BadFrame as exc:
            self._noise = f"it wrote {str(exc)!r} where an agent answers: does its shell print something at each login?"
            self._channel.ended = True
            return []

    def why_ended(self) -> str:
        """Return what the program said when it ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(0.5)
        lines = os.pread(self._errors, _LONGEST_WORDS, max(0, os.fstat(self._errors).st_size - _LONGEST_WORDS))
        words = lines.decode(errors="replace").strip().splitlines()
        return self._noise or (words[-1].strip() if words else f"the link ended (exit {self._child.poll()})")

    def close(self, patience: float = 0.0) -> None:
        """End the program, after `patience` seconds for it to end by itself once its input has ended."""
        self._channel.close()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(patience)
        self._child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._child.wait(0.2)
        os.close(self._errors)
