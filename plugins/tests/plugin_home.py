"""Homes for programs of other tools that find the plug-ins as if `pip` had installed them."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from tests.support.killing import ROOT, Home

PROJECT = tomllib.loads((ROOT / "plugins/pyproject.toml").read_text())["project"]
PATIENCE = 120.0


def write_metadata(folder: Path) -> Path:
    """Write what `pip` writes about an installed distribution: tools find its entry points there."""
    made = folder / f"{PROJECT['name'].replace('-', '_')}-{PROJECT['version']}.dist-info"
    made.mkdir(parents=True)
    (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {PROJECT['name']}\nVersion: {PROJECT['version']}\n")
    groups = [(f"[{group}]", *(f"{name} = {at}" for name, at in PROJECT["entry-points"][group].items()))
              for group in PROJECT["entry-points"]]  # fmt: skip
    (made / "entry_points.txt").write_text("".join(line + "\n" for group in groups for line in group))
    return folder


def without_slurm(path: str, root: Path) -> str:
    """Return the search path without the programs of Slurm, which submitit prefers wherever it finds them."""
    kept = []
    for folder in map(Path, path.split(os.pathsep)):
        if not (folder / "srun").exists():
            kept.append(str(folder))
            continue
        made = root / "programs" / str(len(kept))
        made.mkdir(parents=True)
        for program in folder.iterdir():
            if program.name not in ("srun", "sbatch", "salloc", "scancel", "sacct", "squeue", "sinfo", "scontrol"):
                (made / program.name).symlink_to(program)
        kept.append(str(made))
    return os.pathsep.join(kept)


class PluginHome(Home):
    """A home whose programs find the plug-ins; its queue stays until the end of the tests."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        paths = [ROOT, ROOT / "plugins/src", write_metadata(root / "site")]
        self.env |= {"PYTHONPATH": os.pathsep.join(map(str, paths)), "SCHEDULER_QUEUE_IDLE": "1h"}
        self.env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{without_slurm(self.env['PATH'], root)}"

    def program(self, text: str, *words: str, name: str = "program.py", code: int | None = 0, **how: Any) -> str:
        """Write a program, run it to its end, and return what it printed."""
        (self.root / name).write_text(text)
        return self.python(name, *words, code=code, **how).stdout

    def python(self, *words: str, code: int | None = 0, env: dict[str, str] | None = None, **how: Any) -> Any:
        """Run Python to its end; `code` is what its exit code has to be."""
        given = {"cwd": self.root, "env": {**self.env, **(env or {})}, "timeout": PATIENCE, **how}
        done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, **given)
        assert code in (None, done.returncode), f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done
