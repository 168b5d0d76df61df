"""A folder of Python tasks, as users write them, and the programs that run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.support.killing import ROOT, Home

DROPINS = ROOT / "dropins/src"

TASK = """\
import os
from gpu_task_scheduler.gpu_task import GPUTask

class MyGPUTask(GPUTask):
    def main(self):
        print(self._config)
        with open(os.path.join(self._work_dir, "result"), "a") as file:
            file.write(f"{self._config['a']}\\n")
"""
"""A task that appends its parameter to a file each time it runs."""
MAIN = """\
from config import config
from my_gpu_task import MyGPUTask
from gpu_task_scheduler.gpu_task_scheduler import GPUTaskScheduler

scheduler = GPUTaskScheduler(config = config, gpu_task_class = MyGPUTask)
scheduler.start()
"""


class Project(Home):
    """The folder; scripts run in it find the older import names beside ours."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        kept = ("SLURM_", "CUDA_", "NVIDIA_", "MPLBACKEND")
        self.env = {name: text for name, text in self.env.items() if not name.startswith(kept)}
        self.env["PYTHONPATH"] = f"{ROOT}{os.pathsep}{DROPINS}"

    def put(self, **files: str) -> None:
        """Write modules."""
        for name, text in files.items():
            (self.root / f"{name}.py").write_text(text)

    def config(self, *, gpu: object = ("0",), test: object = None, **said: Any) -> None:
        """Write config.py, with the usual class and script."""
        listed = list(gpu) if isinstance(gpu, tuple) else gpu
        config = {"scheduler_config": {"gpu": listed, **said}, "test_config": test or [{"a": [1]}]}
        self.put(config=f"config = {config!r}\n", my_gpu_task=TASK, main=MAIN)

    def script(self, name: str = "main.py", *arguments: str, code: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a script to its end."""
        ours, self.command = self.command, [sys.executable]
        try:
            return self.call(name, *arguments, code=code)
        finally:
            self.command = ours

    def results(self, file: str = "result") -> dict[str, str]:
        """Return the text of a file of each result folder, by the folder's name."""
        return {path.parent.name: path.read_text() for path in sorted(self.root.glob(f"results/*/{file}"))}
