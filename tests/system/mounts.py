"""Scripts that mount what they like: each has mounts of its own, which nobody else sees and which end with it."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.system.killing import ROOT

_APART = ["unshare", "--mount", "--propagation", "private"]


@functools.cache
def can_mount() -> bool:
    """Whether this user may, here."""
    return os.getuid() == 0 and subprocess.run([*_APART, "true"], check=False, capture_output=True).returncode == 0


needs_mounts = pytest.mark.skipif(not can_mount(), reason="needs root and mount namespaces")


def folders(where: Path, *names: str) -> list[Path]:
    """New folders, to mount on or to leave something beside that."""
    made = [where / name for name in names]
    for folder in made:
        folder.mkdir()
    return made


def run_apart(script: str, *words: str | Path, timeout: float = 300) -> str:
    """What a script in Python writes that is run with these words; it has to come to its end without an error."""
    command = [*_APART, sys.executable, "-c", script, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=timeout)
    assert done.returncode == 0, done.stderr
    return done.stdout
