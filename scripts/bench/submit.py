"""How long `scheduler submit` takes, beside a bare start of Python, `pueue add` and `tsp`, and what waiting tasks cost:
`python scripts/bench/submit.py [--submits N] [--waiting N]`.

The peers are measured where they are installed. Each bound is for a machine that does nothing else; the ratios to the
bare start hold on a busy one as well.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from measuring import environ, in_turns, kept, median_and_spread, scheduler, seconds_of

LIVING, STARTING = 50, 10
"""The numbers of measured submits to a living scheduler, and of those that must start it."""
MOST_LIVING, MOST_STARTING = 150.0, 400.0
"""The most milliseconds by the clock, as medians."""
MOST_PROCESSES, MOST_MIB = 2, 80
"""The most processes and the most memory of a queue whose tasks all wait."""
CALM = 3.0
"""Seconds after the last submission before processes are counted."""
DEVNULL = subprocess.DEVNULL


def main() -> int:
    """Print all figures; return 1 if a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--submits", type=int, default=1000, help="submits in the loop (default 1000)")
    parser.add_argument("--waiting", type=int, default=200, help="tasks that wait while processes are counted")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="submit-") as name:
        folder = Path(name)
        env = {**environ(folder), "SCHEDULER_QUEUE_IDLE": "1h"}
        try:
            good = _one_by_one(folder, env)
            good = _waiting(folder, args.waiting) and good
        finally:
            _end(env)
        _loops(folder, args.submits)
    return 0 if good else 1


def _one_by_one(folder: Path, env: Mapping[str, str]) -> bool:
    """Measure single submits in turns with a bare start."""
    submit = [scheduler(), "submit", "--", "true"]

    def bare(_: int) -> tuple[float, float]:
        return seconds_of([sys.executable, "-c", "pass"], cwd=folder, env=env)

    def living(_: int) -> tuple[float, float]:
        return seconds_of(submit, cwd=folder, env=env)

    def starting(turn: int) -> tuple[float, float]:
        own = {**env, "SCHEDULER_STATE": str(folder / f"start{turn}")}
        try:
            return seconds_of(submit, cwd=folder, env=own)
        finally:
            _end(own)

    living(0)  # starts the scheduler
    found = in_turns(LIVING, {"bare python": bare, "submit, scheduler lives": living})
    found |= in_turns(STARTING, {"submit, scheduler is started": starting})
    base = statistics.median(wall for wall, _ in found["bare python"])
    for what, both in found.items():
        wall, core = ([1000 * one for one in column] for column in zip(*both, strict=True))
        ratio = statistics.median(wall) / 1000 / base
        print(f"{what:<30} {median_and_spread(wall):>26} ms, {median_and_spread(core):>24} ms of a core, x{ratio:.1f}")
    lives, starts = (
        round(1000 * statistics.median(wall for wall, _ in found[what]), 1)
        for what in ("submit, scheduler lives", "submit, scheduler is started")
    )
    return kept("ms, scheduler lives", lives, MOST_LIVING) & kept("ms, scheduler is started", starts, MOST_STARTING)


def _waiting(folder: Path, tasks: int) -> bool:
    """Count the processes of a queue in which all tasks wait for room that another run has."""
    (place := folder / "waiting").mkdir()
    env = {**environ(place), "SCHEDULER_QUEUE_IDLE": "1h"}
    other = {**env, "SCHEDULER_STATE": f"{place}/other"}
    most = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') * 6 // 10 >> 20}MiB"
    (place / "hold.csv").write_text(f"Command,HostMemory\nsleep 1000,{most}\n", encoding="ascii")
    try:
        subprocess.run([scheduler(), "run", "-d", "hold.csv"], cwd=place, env=other, check=True, stdout=DEVNULL)
        lines = "".join(f"sleep {1000 + number}\n" for number in range(tasks))
        words = [scheduler(), "submit", "--stdin", "--host-memory", most]
        subprocess.run(words, cwd=place, env=env, input=lines, text=True, check=True, stdout=DEVNULL)
        time.sleep(CALM)
        listed = [scheduler(), "list", "queue", "--state", "waiting", "--json"]
        said = subprocess.run(listed, cwd=place, env=env, check=True, capture_output=True, text=True).stdout
        waiting, found = len(json.loads(said)["tasks"]), _processes(env)
    finally:
        _end(env)
        subprocess.run([scheduler(), "stop", "--abandon"], cwd=place, env=other, check=False, stdout=DEVNULL)
        subprocess.run([scheduler(), "wait"], cwd=place, env=other, check=False, stdout=DEVNULL)
    print(f"{waiting} waiting tasks: {len(found)} processes, {sum(found) / 1024:.1f} MiB PSS")
    few = kept("processes", len(found), MOST_PROCESSES)
    return kept("MiB PSS", round(sum(found) / 1024, 1), MOST_MIB) and few and waiting == tasks


def _loops(folder: Path, submits: int) -> None:
    """Measure many submits one after the other with each tool, in one run."""
    base = 0.0
    for tool, add, env, end in _tools(folder):
        command = " ".join(map(str, add))
        try:
            began = time.perf_counter()
            subprocess.run(
                ["sh", "-c", f"i=0; while [ $i -lt {submits} ]; do {command} >/dev/null || exit 1; i=$((i+1)); done"],
                cwd=folder, env=env, check=True,
            )  # fmt: skip
            took = time.perf_counter() - began
            base = base or took
            held = f", scheduler holds {sum(_processes(env)) >> 10} MiB" if tool == "scheduler submit" else ""
            print(
                f"{submits} x {tool:<20} {took:8.1f} s, {1000 * took / submits:6.1f} ms each, x{took / base:.2f}{held}"
            )
        finally:
            end()


def _tools(folder: Path) -> list[tuple[str, Sequence[str], dict[str, str], Callable[[], object]]]:
    """Return each tool that is here: its name, its command, its environment, and what ends it."""
    env = {**environ(folder / "loop"), "SCHEDULER_QUEUE_IDLE": "1h"}
    (folder / "loop").mkdir()
    tools: list[tuple[str, Sequence[str], dict[str, str], Callable[[], object]]] = [
        ("scheduler submit", [scheduler(), "submit", "--", "true"], env, lambda: _end(env))
    ]
    if tsp := shutil.which("tsp"):
        (place := folder / "tsp").mkdir()
        own = {**env, "TS_SOCKET": str(place / "socket"), "TMPDIR": str(place), "TS_MAXFINISHED": "10"}
        tools.append(("tsp", [tsp, "-n", "true"], own, lambda: _end_tsp(tsp, own, place)))
    if (pueue := shutil.which("pueue")) and (daemon := shutil.which("pueued")):
        own_p = {**env, "XDG_CONFIG_HOME": str(folder), "XDG_DATA_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
        subprocess.run([daemon, "-d"], env=own_p, check=True, stdout=subprocess.DEVNULL)
        tools.append(
            (
                "pueue add",
                [pueue, "add", "true"],
                own_p,
                lambda: subprocess.run([pueue, "shutdown"], env=own_p, check=False),
            )
        )
    return tools


def _processes(env: Mapping[str, str]) -> list[int]:
    """Return the memory (PSS), in KiB, of each process of a queue that belongs to the scheduler."""
    found, mark = [], f"SCHEDULER_STATE={env['SCHEDULER_STATE']}".encode()
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
                found.append(next(int(line.split()[1]) for line in lines if line.startswith("Pss:")))
        except (OSError, StopIteration):
            continue
    return found


def _end_tsp(tsp: str, env: Mapping[str, str], place: Path) -> None:
    """End the server of task-spooler, which writes a file at its end."""
    subprocess.run([tsp, "-K"], env=env, check=False)
    for _ in range(50):
        shutil.rmtree(place, ignore_errors=True)
        time.sleep(0.1)
        if not place.exists():
            return


def _end(env: Mapping[str, str]) -> None:
    """Give the queue up, and wait until its scheduler has ended."""
    for words in (("stop", "queue", "--abandon"), ("wait", "queue")):
        subprocess.run([scheduler(), *words], env=env, check=False, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
