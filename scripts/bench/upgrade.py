"""Upgrade and downgrade with living tasks: `python scripts/bench/upgrade.py OLD NEW [--turns 6] [--tasks 12]`.

OLD and NEW are commits. A run begins with OLD; again and again its scheduler is killed while tasks live, and the other
version resumes it. Each task notes its begins and ends by itself, and those notes and its exit code are compared with
what each version reports at the end. The exit code is 1 where a task was lost, ran twice, or is reported wrongly.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TASK = "echo begin $SCHEDULER_TASK_ID >>notes; sleep {seconds}; echo end $SCHEDULER_TASK_ID >>notes; exit {code}"


class Machine:
    """A state, a folder with a list, and two versions of the program on them."""

    def __init__(self, root: Path, commits: list[str]) -> None:
        self.root, self.notes = root, root / "notes"
        self.notes.touch()
        (root / "leases").mkdir(mode=0o700)
        for commit in commits:
            self._check_out(commit)

    def _check_out(self, commit: str) -> None:
        """Put the files of a commit into a folder of their own."""
        target = self.root / commit
        target.mkdir()
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x"], cwd=target, input=archive.stdout, check=True)

    def start(self, commit: str, *words: str) -> subprocess.Popen[str]:
        """Start a command of one version."""
        kept = {name: text for name, text in os.environ.items() if not name.startswith("SCHEDULER_")}
        own = {"PYTHONPATH": str(self.root / commit), "HOME": str(self.root)}
        places = {"SCHEDULER_STATE": str(self.root / "state"), "SCHEDULER_LEASES": str(self.root / "leases")}
        return subprocess.Popen(
            [sys.executable, "-m", "scheduler", *words],
            cwd=self.root, env={**kept, **own, **places}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def counted(self) -> Counter[str]:
        """Return how often each task noted its begin and its end."""
        return Counter(self.notes.read_text().splitlines())

    def living(self) -> int:
        """Return the number of tasks that have begun and not ended."""
        kinds = Counter(line.split()[0] for line in self.notes.read_text().splitlines())
        return kinds["begin"] - kinds["end"]


def played(machine: Machine, commits: list[str], turns: int, codes: list[int]) -> list[str]:
    """Play a run with alternating versions; return what is wrong."""
    wrong: list[str] = []
    words = ["run", "jobs.csv", "--devices", "host", "--slots", "3"]
    for turn in range(turns + 1):
        scheduler = machine.start(commits[turn % 2], *words)
        words = ["resume", "r1"]
        if turn == turns:
            said = scheduler.communicate(timeout=120)[0]
            wrong += (
                [f"turn {turn}: {said.splitlines()[-1]}"] if "Traceback" in said or scheduler.returncode != 1 else []
            )
            break
        began, before = time.monotonic(), len(machine.notes.read_text().splitlines())
        while time.monotonic() - began < 20 and scheduler.poll() is None:
            if machine.living() == 3 and len(machine.notes.read_text().splitlines()) >= before + 2:
                break
            time.sleep(0.01)
        if scheduler.poll() is not None:
            wrong.append(f"turn {turn}: the scheduler ended with {scheduler.returncode} before it was killed")
        scheduler.send_signal(signal.SIGKILL)
        scheduler.communicate()
    noted = machine.counted()
    wrong += [
        f"{line}: {noted[line]} times"
        for task in range(len(codes))
        for line in (f"begin {task}", f"end {task}")
        if noted[line] != 1
    ]
    for commit in commits:
        told = json.loads(machine.start(commit, "results", "r1", "--json").communicate(timeout=60)[0])["tasks"]
        wrong += [
            f"{commit} reports {one['id']}: {one['exit_code']}" for one in told if one["exit_code"] != codes[one["id"]]
        ]
    return wrong


def main() -> int:
    """Print what was done and what is wrong; 1 where something is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", metavar="OLD")
    parser.add_argument("new", metavar="NEW")
    parser.add_argument("--turns", type=int, default=6, help="kills of the scheduler (default 6)")
    parser.add_argument("--tasks", type=int, default=24, help="tasks of the list (default 24)")
    args = parser.parse_args()
    codes = [7 if task % 5 == 4 else 0 for task in range(args.tasks)]
    with tempfile.TemporaryDirectory(prefix="upgrade") as folder:
        machine = Machine(Path(folder), [args.old, args.new])
        rows = [f"\"sh -c '{TASK.format(seconds=1.2, code=code)}'\"" for code in codes]
        (machine.root / "jobs.csv").write_text("\n".join(["Command", *rows, ""]))
        wrong = played(machine, [args.old, args.new], args.turns, codes)
    print(f"{args.turns} kills, {args.tasks} tasks, {args.old} and {args.new} in turns: {len(wrong)} wrong")
    print(*wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
