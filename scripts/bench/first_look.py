"""How long `status` and `top --plain` take on a machine with four stand-in GPUs, beside a living scheduler and
without one: `python scripts/bench/first_look.py [--goes N]`. Needs a C compiler.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import ROOT, environ, in_turns, kept, median_and_spread, scheduler, seconds_of

sys.path.insert(0, str(ROOT))

from tests.support.standin.box import Box

BARE = "bare python"
LOOKS = {"status": ["status"], "top --plain": ["top", "--plain"], "top --all --plain": ["top", "--all", "--plain"]}
BOUNDS = {"beside a scheduler": 150, "without one": 400}
"""The most milliseconds by the clock, as medians, on a machine that does nothing else."""


def main() -> int:
    """Print the medians of each look; return 1 if one is above its bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--goes", type=int, default=15)
    goes = parser.parse_args().goes
    with tempfile.TemporaryDirectory(prefix="first-look-") as name, Box(Path(name) / "box") as box:
        folder = Path(name)
        env = {**environ(folder), **box.env}
        (folder / "jobs.csv").write_text("Command\n" + "sleep 1000\n" * 20, encoding="utf-8")
        commands = ["run", "-d", "-j", "8", "--memory", "1GiB", "jobs.csv"]
        subprocess.run([scheduler(), *commands], cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL)
        try:
            time.sleep(5)  # its scheduler measures the devices once a second
            good = [_look("beside a scheduler", goes, folder, env)]
        finally:
            subprocess.run([scheduler(), "stop", "--now"], env=env, check=True, stdout=subprocess.DEVNULL)
            with contextlib.suppress(subprocess.CalledProcessError):  # a stopped run has not succeeded
                subprocess.run([scheduler(), "wait"], env=env, check=True, stdout=subprocess.DEVNULL)
        good.append(_look("without one", goes, folder, env))
    return 0 if all(good) else 1


def _look(where: str, goes: int, folder: Path, env: dict[str, str]) -> bool:
    """Measure all looks in turns; tell whether they keep their bound."""
    commands = {name: [scheduler(), *words] for name, words in LOOKS.items()} | {BARE: [sys.executable, "-c", "pass"]}
    turns = {name: lambda _, words=words: seconds_of(words, cwd=folder, env=env) for name, words in commands.items()}
    good = True
    print(where)
    for name, both in in_turns(goes, turns).items():
        wall, core = ([1000 * one for one in column] for column in zip(*both, strict=True))
        print(f"  {name:<18} {median_and_spread(wall):>24} ms, {median_and_spread(core):>24} ms of a core")
        if name != BARE:
            good &= kept(f"ms, {name} {where}", round(statistics.median(wall), 1), BOUNDS[where])
    return good


if __name__ == "__main__":
    sys.exit(main())
