"""Scripts with mounts of their own, which no other process sees and which end with the script."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.killing import ROOT

_APART = ["unshare", "--mount", "--propagation", "private"]


@functools.cache
def can_mount() -> bool:
    """Tell whether this user can mount file systems here."""
    return os.getuid() == 0 and subprocess.run([*_APART, "true"], check=False, capture_output=True).returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs root and mount namespaces")


def folders(where: Path, *names: str) -> list[Path]:
    """Return new folders to mount on."""
    made = [where / name for name in names]
    for folder in made:
        folder.mkdir()
    return made


def run_apart(script: str, *words: str | Path, timeout: float = 300) -> str:
    """Run a Python script in mount and user namespaces of its own; return its output."""
    command = [*_APART, sys.executable, "-c", script, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout
