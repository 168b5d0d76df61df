"""Discovery of the MPS daemons that tasks would find by themselves; no daemon is started or queried."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from scheduler.devices.host.cgroups import text
from scheduler.devices.mps.control import DIRECTORY, PROGRAM, DaemonSilent, MpsControl
from scheduler.runtime.paths import open_plain
from scheduler.values import dataclass

USUAL = Path("/tmp/nvidia-mps")
"""The directory in which CUDA looks for a daemon if no variable names another directory."""
_LONGEST_NAME = 15
"""The number of characters to which the kernel truncates the name of a process."""
_LONGEST_PID = 32
SERVER = b"nvidia-cuda-mps-server"


@dataclass(frozen=True, slots=True)
class FoundDaemon:
    """A running control daemon."""

    directory: Path
    pid: int
    uid: int


def find_program(environ: Mapping[str, str]) -> str:
    """Return the path of the control program; empty if it is not on PATH."""
    found = shutil.which(PROGRAM, path=environ.get("PATH"))
    return os.path.abspath(found) if found else ""


def find_daemons(environ: Mapping[str, str], usual: Path = USUAL) -> list[FoundDaemon]:
    """Return the daemons that CUDA would find in its usual directory, or in the directory that the environment
    names.
    """
    said = environ.get(DIRECTORY, "")
    directories = dict.fromkeys([usual, *([Path(said)] if said else [])])
    return [daemon for directory in directories if (daemon := find_daemon(directory)) is not None]


def find_daemon(directory: Path) -> FoundDaemon | None:
    """Return the daemon that listens in a directory; None if there is none. The daemon is found by the pid that it
    wrote to a file or, without such a file, by its socket.

    A killed daemon leaves its pid file and its socket behind, and another process may have its pid by now.
    """
    pid = _written(directory / f"{PROGRAM}.pid")
    if not pid.isdecimal():
        try:
            pid = str(MpsControl(PROGRAM, directory).owner()[0])
        except DaemonSilent:
            return None
    if not is_daemon(int(pid)):
        return None
    try:
        return FoundDaemon(directory, int(pid), os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return None


def _written(path: Path) -> str:
    """Return the pid in a file as a string; empty if the file cannot be read. Any user may have written the file."""
    try:
        with open_plain(path) as file:
            return file.read(_LONGEST_PID).decode("ascii", "replace").strip()
    except OSError:
        return ""


def is_daemon(pid: int) -> bool:
    """Tell whether a running process has this pid and the name of an MPS daemon."""
    stat = text(Path("/proc", str(pid), "stat"))
    state = stat.rpartition(")")[2].split()[:1]
    return f"({PROGRAM[:_LONGEST_NAME]})" in stat and state not in (["Z"], ["X"])


def find_servers(pids: Iterable[int]) -> list[int]:
    """Return those of the processes that are MPS servers, of any user."""
    return [pid for pid in pids if SERVER in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
