"""NVIDIA's real control program of MPS, where this machine has it: it runs without a GPU, as an ordinary user."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

VARIABLE = "REAL_MPS"
"""The variable that names its folder; `.ci/run` unpacks Debian's package nvidia-cuda-mps there."""
MISSING = f"NVIDIA's own nvidia-cuda-mps-control is not here: {VARIABLE} names its folder, or it is on PATH"


def find() -> str:
    """Return the path of the program; empty where it is not installed."""
    said = os.environ.get(VARIABLE, "")
    found = shutil.which("nvidia-cuda-mps-control", path=said or None)
    return found if found and _is_binary(Path(found)) else ""


def _is_binary(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"
