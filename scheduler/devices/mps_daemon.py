"""Whether NVIDIA's MPS is here: its control program, and a daemon that runs; nothing is started or asked."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from scheduler.devices.cgroups import text

PROGRAM = "nvidia-cuda-mps-control"
USUAL = Path("/tmp/nvidia-mps")
"""Where CUDA looks for a daemon, as long as no variable says otherwise."""
DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
_LONGEST_NAME = 15
"""The kernel keeps no more of a process's name."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A control daemon that runs."""

    directory: Path
    pid: int
    uid: int


def find_program(environ: Mapping[str, str]) -> str:
    """Where the control program lies; empty where it is not on PATH."""
    return shutil.which(PROGRAM, path=environ.get("PATH")) or ""


def find_daemons(environ: Mapping[str, str], usual: Path = USUAL) -> list[Daemon]:
    """The daemons that CUDA would find by itself, and by what the shell says."""
    said = environ.get(DIRECTORY, "")
    directories = dict.fromkeys([usual, *([Path(said)] if said else [])])
    return [daemon for directory in directories if (daemon := _daemon(directory)) is not None]


def _daemon(directory: Path) -> Daemon | None:
    """By the pid that it wrote down, which a killed one leaves behind, and some other process may have by now."""
    pid = text(directory / f"{PROGRAM}.pid")
    if not pid.isdecimal() or text(Path("/proc", pid, "comm")) != PROGRAM[:_LONGEST_NAME]:
        return None
    try:
        return Daemon(directory, int(pid), os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return None
