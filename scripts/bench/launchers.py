"""Launchers side by side: `python scripts/bench/launchers.py --bin FOLDER [--goes 10] [--by-hand] [--json FILE]`.

Seven jobs of two processes each run at once on four stand-in GPUs with real torch on the CPU (gloo): two of torchrun,
two of accelerate, two of DeepSpeed, one of Lightning, none with a port. FOLDER holds the programs of an environment
with them (torch, accelerate, deepspeed, lightning). No job ends before all have met, so all live at the same moment.
Printed are the jobs that failed and the ports. `--by-hand` starts the same seven by hand at once instead, without a
scheduler, to show what it prevents. The exit code is 1 where a job failed under the scheduler.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.gpu_home import GpuHome  # noqa: E402  # found through the line above

MEET = Path(__file__).parent / "programs/meet.py"
PATIENCE, PATIENCE_BY_HAND = 240.0, 90.0
"""Seconds that a job waits for the others."""
CPU_SLOTS = "LOCAL_SIZE=4 DS_ACCELERATOR=cpu"
"""The variables by which DeepSpeed finds four devices on a machine whose GPUs are stand-ins."""
JOBS: Sequence[tuple[str, str]] = (
    ("torchrun --nproc-per-node 2 meet.py", ""),
    ("torchrun --nproc-per-node 2 meet.py", ""),
    ("accelerate launch --multi_gpu --num_processes 2 meet.py", ""),
    ("accelerate launch --multi_gpu --num_processes 2 meet.py", ""),
    ("deepspeed meet.py", CPU_SLOTS),
    ("deepspeed --num_gpus 2 meet.py", CPU_SLOTS),
    ("python meet.py --lightning", ""),
)


@dataclass
class Go:
    """The seven jobs, once."""

    seconds: float
    failed: list[str]
    """The commands of the jobs that failed."""
    met: int
    """The number of jobs whose processes have met."""
    ports: list[int]


def environment(folder: Path, programs: str, patience: float) -> dict[str, str]:
    """Return the variables of every job."""
    (folder / "gate").mkdir()
    (folder / "meet.py").write_text(MEET.read_text())
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    met = {"MEET_GATE": str(folder / "gate"), "MEET_JOBS": str(len(JOBS)), "MEET_PATIENCE": str(patience)}
    return {**met, "PATH": path, "OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "hf")}


def scheduled(folder: Path, programs: str) -> Go:
    """Run the seven jobs as one list."""
    home = GpuHome(folder, gpus=4)
    home.env |= environment(folder, programs, PATIENCE)
    same = {"GPUs": 2, "Memory": "1GiB", "HostMemory": "900MiB", "CPUs": 0.2}
    home.jobs(*[{"Command": command, "Env": env, **same} for command, env in JOBS])
    began = time.monotonic()
    try:
        with home.start("run", "jobs.csv", stderr=subprocess.DEVNULL) as run:
            run.wait(2 * PATIENCE)
        seconds = time.monotonic() - began
        rows = json.loads(home.call("results", "r1", "--json").stdout)["tasks"]
        failed = [row["command"] for row in rows if row["state"] != "succeeded"]
        for row in rows:
            if row["state"] != "succeeded":
                print(row["command"], Path(row["log"]).read_text()[-1500:], file=sys.stderr)
        return Go(seconds, failed, *met(folder))
    finally:
        with contextlib.redirect_stdout(io.StringIO()):  # it prints the run's log
            home.end()


def by_hand(folder: Path, programs: str) -> Go:
    """Start the seven jobs at once, without a scheduler."""
    env = {**os.environ, **environment(folder, programs, PATIENCE_BY_HAND)}
    began = time.monotonic()
    started = []
    for at, (command, more) in enumerate(JOBS):
        own = {**env, **dict(word.split("=", 1) for word in more.split()), "SCHEDULER_TASK_ID": str(at)}
        words = command.split()
        with open(folder / f"{at}.log", "w") as log:
            started.append(
                subprocess.Popen(
                    words, cwd=folder, env=own, stdout=log, stderr=log, executable=f"{programs}/{words[0]}"
                )
            )
    failed = [command for (command, _), process in zip(JOBS, started, strict=True) if process.wait(2 * PATIENCE)]
    return Go(time.monotonic() - began, failed, *met(folder))


def met(folder: Path) -> tuple[int, list[int]]:
    """Return how many jobs have met, and at which ports."""
    found = os.listdir(folder / "gate")
    return len(found), sorted(int(name.rpartition(".")[2]) for name in found)


def main() -> int:
    """Run the jobs some times, print each, and the sum."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--goes", type=int, default=10)
    parser.add_argument("--by-hand", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_args()
    goes = []
    for number in range(args.goes):
        with tempfile.TemporaryDirectory() as folder:
            goes.append((by_hand if args.by_hand else scheduled)(Path(folder), os.path.abspath(args.bin)))
        go = goes[-1]
        said = f"{go.met} of {len(JOBS)} met, {len(go.failed)} failed, {go.seconds:.0f} s, ports {go.ports}"
        print(f"go {number + 1}: {said}", flush=True)
        for command in go.failed:
            print(f"  failed: {command}", flush=True)
    failed = sum(len(go.failed) for go in goes)
    print(f"{len(goes)} goes of {len(JOBS)} jobs: {failed} failed")
    if args.json:
        Path(args.json).write_text(json.dumps([asdict(go) for go in goes], indent=1) + "\n")
    return int(bool(failed) and not args.by_hand)


if __name__ == "__main__":
    sys.exit(main())
