"""Environments made for tests: an installed scheduler, conda environments, programs that record their start."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.support.killing import ROOT

CONSOLE = """\
#!{python}
import sys
from gpu_batch_scheduler import console
sys.exit(console())
"""
"""The script that pip writes for the command."""
PYTHON = """\
#!/bin/sh
export FAKE_PYTHON="$0"
exec "{python}" "$@"
"""


def installed(prefix: Path, *, before: str = "") -> Path:
    """Make an installation in an environment of its own; return its command. `before` is prepended to its sys.path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True)
    (site,) = prefix.glob("lib/python*/site-packages")
    (site / "ours.pth").write_text(
        "\n".join([*filter(None, [before]), str(ROOT), sysconfig.get_path("purelib")]) + "\n"
    )
    return program(prefix / "bin/scheduler", CONSOLE.format(python=prefix / "bin/python"))


def program(path: Path, text: str) -> Path:
    """Write an executable file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def conda_environment(prefix: Path, *, python: bool = True) -> Path:
    """Make a folder that conda accepts as an environment; its python writes its own name to FAKE_PYTHON."""
    (prefix / "conda-meta").mkdir(parents=True)
    (prefix / "bin").mkdir()
    if python:
        program(prefix / "bin/python", PYTHON.format(python=sys.executable))
    return prefix


def virtual_environment(prefix: Path) -> Path:
    """Make a folder that is accepted as a virtual environment, with such a python."""
    program(prefix / "bin/python", PYTHON.format(python=sys.executable))
    (prefix / "pyvenv.cfg").write_text(f"home = {os.path.dirname(sys.executable)}\n")
    return prefix
