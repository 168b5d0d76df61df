"""How long the light verbs take, beside a bare start of the same Python: `python scripts/bench/light.py`."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VERBS = (["--help"], ["status"], ["results"], ["list"], ["profiles"], ["logs", "0"], ["wait"], ["runs"])
BOUND = 0.060
TURNS = 20


def main() -> int:
    """Print the median of each, interleaved; 1 where one of the first three is above its bound."""
    with tempfile.TemporaryDirectory(prefix="light-") as name:
        folder = Path(name)
        (folder / "jobs.csv").write_text("Command\n" + "true\n" * 20, encoding="utf-8")
        environ = {**os.environ, "SCHEDULER_STATE": f"{folder}/state", "SCHEDULER_LEASES": f"{folder}/leases"}
        scheduler = str(Path(sys.executable).with_name("scheduler"))
        subprocess.run([scheduler, "run", "jobs.csv"], cwd=folder, env=environ, stdout=subprocess.DEVNULL, check=True)
        commands = [[sys.executable, "-c", "pass"], *([scheduler, *verb] for verb in VERBS)]
        times: list[list[float]] = [[] for _ in commands]
        for _ in range(TURNS):
            for command, taken in zip(commands, times, strict=True):
                started = time.perf_counter()
                subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.DEVNULL, check=True)
                taken.append(time.perf_counter() - started)
    medians = [statistics.median(taken) for taken in times]
    for command, median in zip(commands, medians, strict=True):
        shown = " ".join(command[1:]) if command[0] == scheduler else "bare python"
        print(f"{shown:<12} {median * 1000:6.1f} ms   {median / medians[0]:5.1f} times a bare start")
    return 0 if max(medians[1:4]) < BOUND else 1


if __name__ == "__main__":
    sys.exit(main())
