"""Which daemons of NVIDIA's MPS run here: those that tasks would find by themselves; nothing is started or asked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

from scheduler.devices.cgroups import text
from scheduler.devices.mps_control import DIRECTORY, PROGRAM, Control, Silent
from scheduler.paths import open_plain
from scheduler.values import dataclass

USUAL = Path("/tmp/nvidia-mps")
"""Where CUDA looks for a daemon, as long as no variable says otherwise."""
_LONGEST_NAME = 15
"""The kernel keeps no more of a process's name."""
_LONGEST_PID = 32
SERVER = b"nvidia-cuda-mps-server"


@dataclass(frozen=True, slots=True)
class Daemon:
    """A control daemon that runs."""

    directory: Path
    pid: int
    uid: int


def find_program(environ: Mapping[str, str]) -> str:
    """Where the control program lies; empty where it is not on PATH."""
    found = shutil.which(PROGRAM, path=environ.get("PATH"))
    return os.path.abspath(found) if found else ""


def find_daemons(environ: Mapping[str, str], usual: Path = USUAL) -> list[Daemon]:
    """The daemons that CUDA would find by itself, and by what the shell says."""
    said = environ.get(DIRECTORY, "")
    directories = dict.fromkeys([usual, *([Path(said)] if said else [])])
    return [daemon for directory in directories if (daemon := find_daemon(directory)) is not None]


def find_daemon(directory: Path) -> Daemon | None:
    """Who listens in a directory: by the pid that it wrote down, or, as older ones write none, by its socket.

    A killed one leaves both behind, and some other process may have its pid by now.
    """
    pid = _written(directory / f"{PROGRAM}.pid")
    if not pid.isdecimal():
        try:
            pid = str(Control(PROGRAM, directory).owner()[0])
        except Silent:
            return None
    if not is_daemon(int(pid)):
        return None
    try:
        return Daemon(directory, int(pid), os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return None


def _written(path: Path) -> str:
    """The pid that stands there: anybody may have put anything into a directory of everybody's."""
    try:
        with open_plain(path) as file:
            return file.read(_LONGEST_PID).decode("ascii", "replace").strip()
    except OSError:
        return ""


def is_daemon(pid: int) -> bool:
    """Whether a process of this pid has the name of a daemon, and is not dead."""
    stat = text(Path("/proc", str(pid), "stat"))
    state = stat.rpartition(")")[2].split()[:1]
    return f"({PROGRAM[:_LONGEST_NAME]})" in stat and state not in (["Z"], ["X"])


def find_servers(pids: Iterable[int]) -> list[int]:
    """Which of these processes are servers of MPS, whosever."""
    return [pid for pid in pids if SERVER in _command_line(pid)]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
