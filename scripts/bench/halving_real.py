"""Successive halving for real, on host RAM with the sample script: `python scripts/bench/halving_real.py [--jobs 2]`.

A sweep of 27 trials of 27 epochs of scheduler_files/train_mlp.py, once with all trials trained to their end and once
with --keep-best 1/3 at the epochs 3 and 9. Printed: the time for which tasks ran, the makespan, how many trials reached
their end, and the best validation loss with its parameters.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
from datetime import datetime
from itertools import product
from pathlib import Path

from measuring import ROOT, environ, scheduler

RATES = ("0.0003", "0.001", "0.003", "0.01", "0.03", "0.1", "0.2", "0.3", "1")
WIDTHS = ("8", "16", "32")
EPOCHS = 27
WAYS = {"all": (), "1/3 at 3,9": ("--keep-best", "1/3", "--by", "val_loss", "--at", "3,9")}


def write_list(folder: Path) -> None:
    """Write the sweep in a random order, because the first trials are judged by few others."""
    rows = list(product(RATES, WIDTHS))
    random.Random(7).shuffle(rows)
    text = "".join(f"{rate},{width}\n" for rate, width in rows)
    (folder / "sweep.csv").write_text("lr,width\n" + text, encoding="utf-8")


def told(folder: Path, flags: tuple[str, ...], jobs: int) -> str:
    """Run the sweep and return its line."""
    env = environ(folder, OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")
    script = ROOT / "scheduler_files/train_mlp.py"
    training = f"{sys.executable} {script} --lr {{lr}} --width {{width}} --epochs {EPOCHS} --steps 120 --id 1"
    run = [scheduler(), "run", "sweep.csv", "--new", "--devices", "host", "-j", str(jobs), *flags, "--"]
    subprocess.run([*run, *training.split()], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
    best = _json(folder, env, "results", "--best", "val_loss", "--json")
    rows = _json(folder, env, "results", "--json")["tasks"]
    ran = sum(row["ran_s"] or 0.0 for row in rows)
    makespan = max(_moment(row["ended"]) for row in rows) - min(_moment(row["started"]) for row in rows)
    ended = sum(row["state"] == "succeeded" for row in rows)
    first = best["tasks"][0]
    return (
        f"{ran:6.0f} s of tasks, makespan {makespan:4.0f} s, {ended} of {len(rows)} to the end; "
        f"best val_loss {first['best']:.4f}: lr={first['lr']} width={first['width']}"
    )


def _json(folder: Path, env: dict[str, str], *words: str) -> dict[str, list[dict[str, float]]]:
    done = subprocess.run([scheduler(), *words], cwd=folder, env=env, check=True, capture_output=True, text=True)
    found: dict[str, list[dict[str, float]]] = json.loads(done.stdout)
    return found


def _moment(text: object) -> float:
    return datetime.fromisoformat(str(text)).timestamp()


def main() -> None:
    """Print a line for each way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="tasks at once")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="halving-", ignore_cleanup_errors=True) as name:
        write_list(Path(name))
        for way, flags in WAYS.items():
            print(f"{way:12}", told(Path(name), flags, args.jobs), flush=True)


if __name__ == "__main__":
    main()
