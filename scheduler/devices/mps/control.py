"""The client of an MPS control daemon, through NVIDIA's own program.

This module uses the standard library only, because `terminate_client` runs a copy of this module in the run's
directory.
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
from collections.abc import Mapping
from pathlib import Path

from scheduler.runtime.processes import answer

PROGRAM = "nvidia-cuda-mps-control"
DIRECTORY, LOG_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
PERCENTAGE, LIMIT = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
PATIENCE = 5.0
"""Seconds within which a daemon must answer; a real daemon takes 0.002 s."""
LONGEST = 106
"""The most bytes that the path of a socket may have; with a longer path, a real daemon exits at once without giving a
reason.
"""
HEALTHY = "get_default_active_thread_percentage"
"""A command that every healthy daemon answers."""


class DaemonSilent(Exception):
    """A daemon that does not exist, or that does not answer; the message says which of the two."""


class MpsControl:
    """One daemon, identified by the directory of its pipes; `environ` is added to the program's environment."""

    def __init__(self, program: str, directory: str | Path, environ: Mapping[str, str] | None = None) -> None:
        self.program = program
        self.directory = str(directory)
        base = os.environ if environ is None else environ
        self._env = {**base, DIRECTORY: self.directory}

    def ask(self, command: str, patience: float = PATIENCE) -> str:
        """Return the answer to one command, without surrounding blanks. Raise DaemonSilent if there is no answer within
        `patience` seconds.

        The exit code is 0 even if the daemon refuses a command: after a change, query the value to confirm it.
        """
        try:
            code, said = answer([self.program], command + "\n", patience, self._env)
        except subprocess.TimeoutExpired as exc:
            raise DaemonSilent(f"the MPS daemon in {self.directory} did not answer within {patience:g} s") from exc
        except OSError as exc:
            raise DaemonSilent(f"{self.program} cannot be started: {(exc.strerror or str(exc)).lower()}") from exc
        if code:
            raise DaemonSilent(f"no MPS daemon answers in {self.directory} ({said.strip() or f'exit {code}'})")
        return said.strip()

    def percentage(self) -> float:
        """Return the percentage of the GPU's threads that tasks get unless they request less. Raise DaemonSilent if the
        answer is not a number.
        """
        said = self.ask(HEALTHY)
        try:
            return float(said)
        except ValueError:
            raise DaemonSilent(f"the MPS daemon in {self.directory} answers {said[:200]!r} to {HEALTHY}") from None

    def servers(self) -> list[int]:
        """Return the pids of the daemon's servers; the daemon has one server for each user who has run a task."""
        return _numbers(self.ask("get_server_list"))

    def clients(self, server: int) -> list[int]:
        """Return the pids of the processes that use a server."""
        return _numbers(self.ask(f"get_client_list {server}"))

    def is_faulty(self, server: int) -> bool | None:
        """Tell whether a server accepts no clients because of a fault; None if this daemon is too old to tell."""
        said = self.ask(f"get_server_status {server}")
        return None if "Unknown command" in said else "FAULT" in said.upper()

    def terminate(self, server: int, client: int, patience: float) -> bool:
        """End all work of a client on its GPU, and wait for at most `patience` seconds; afterwards, a signal to the
        client does no harm. Return whether this succeeded.
        """
        return self.ask(f"terminate_client {server} {client}", patience).splitlines()[-1:] == ["0"]

    def quit(self, patience: float = PATIENCE) -> None:
        """Ask the daemon to end after its servers have ended, for which they get `patience` seconds."""
        self.ask(f"quit -t {max(1, int(patience) - 1)}", patience)

    def owner(self) -> tuple[int, int]:
        """Return (pid, uid) of the process that listens on the daemon's socket. Raise DaemonSilent if there is none."""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as end:
                end.settimeout(1.0)
                end.connect(f"{self.directory}/control")
                said = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        except OSError as exc:
            raise DaemonSilent(f"no MPS daemon listens in {self.directory}") from exc
        pid, uid, _ = struct.unpack("3i", said)
        return pid, uid


def _numbers(said: str) -> list[int]:
    """Return the pids in an answer; empty if the answer is a sentence, even a sentence that contains a number."""
    return [int(line) for line in said.splitlines() if line.strip().isdecimal()]
