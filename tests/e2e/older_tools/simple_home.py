"""A home on a machine with stand-in GPUs, where the older tools' commands are on PATH under their own names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.gpu_home import GpuHome
from tests.support.killing import Started

OURS = {"simple_gpu_scheduler": "simple-gpu-scheduler", "simple_hypersearch": "simple-hypersearch"}
TRAIN = """\
import os, sys
with open("trained", "a") as file:
    file.write(" ".join([os.environ["CUDA_VISIBLE_DEVICES"], *sys.argv]) + "\\n")
"""


class SimpleHome(GpuHome):
    """A home that runs lines of a document in its folder, as if they were typed."""

    def __init__(self, root: Path, **machine: Any) -> None:
        super().__init__(root, **{"gpus": 3, **machine})
        programs = root / "bin"
        programs.mkdir()
        for name, verb in OURS.items():
            write_program(programs / name, f'exec {sys.executable} -m scheduler {verb} "$@"')
        for name in ("python", "python3"):
            write_program(programs / name, f'exec {sys.executable} "$@"')
        for name in ("train_model.py", "train_dnn.py"):
            (root / name).write_text(TRAIN)
        self.env["PATH"] = f"{programs}:{self.env['PATH']}"

    def bash(self, script: str, code: int | None = 0, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run a script of a document to its end."""
        piped = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.starting(script, **{**piped, **how}) as process:
            out, err = process.communicate(timeout=120)
        assert "Traceback" not in (err or ""), err
        assert code in (None, process.returncode), f"exit {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(script, process.returncode, out, err)

    def starting(self, script: str, **how: Any) -> Started:
        """Start a script of a document, and return its process."""
        words = ["bash", "-o", "pipefail", "-c", script]
        return Started(
            words, **{"cwd": self.root, "env": self.env, "encoding": "utf-8", "errors": "surrogateescape", **how}
        )

    def feed(self, lines: str, *gpus: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Have these lines run on these GPUs."""
        (self.root / "lines").write_bytes(lines.encode("utf-8", "surrogateescape"))
        said = " ".join(f"'{gpu}'" for gpu in gpus or ("0", "1", "2"))
        return self.bash(f"simple_gpu_scheduler --gpus {said} < lines", code)

    def lines_of(self, name: str) -> list[str]:
        """Return a file's lines; none where there is no file."""
        path = self.root / name
        return path.read_text(errors="surrogateescape").splitlines() if path.exists() else []


def write_program(path: Path, line: str) -> None:
    path.write_text(f"#!/bin/sh\n{line}\n")
    path.chmod(0o755)
