"""A pipeline (preprocess, twelve trainings, evaluate) in three forms: its scheduler is killed again and again; its
first step fails, so that the others are skipped, and is retried.

By hand: `python -m tests.support.pipeline [--kills 20] [--form list|submits|python]`
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.killing import Home
from tests.support.waiting import wait_until

TRAININGS = 12
STEPS = TRAININGS + 2
PATIENCE = 60.0
STEP = """test $1 != prep || test -e mended || exit 3
echo begin $1 >> done.txt
until test $(wc -l < kills.txt) -ge $2; do sleep 0.02; done
echo end $1 >> done.txt
"""
"""The first step fails until something was mended. A step notes that it begins and ends; in between it waits until the
scheduler was killed so many times."""
PYTHON = """import scheduler
from scheduler import Task
scheduler.run([Task(name=name, command=command, after=after) for name, command, after in {rows!r}],
              devices="host", slots=4)
"""

Row = tuple[str, str, str]


def rows(kills: int) -> list[Row]:
    """Return name, command and parents of each step; the steps end one after the other while the kills go on."""
    said = [("evaluate", "evaluate", "train")]
    said += [("train", f"train{n}", "prep") for n in range(TRAININGS)]
    said += [("prep", "prep", "")]
    order = ["prep", *(f"train{n}" for n in range(TRAININGS)), "evaluate"]
    last = {step: kills * (place + 1) // STEPS for place, step in enumerate(order)}
    return [(name, f"sh step.sh {step} {last[step]}", after) for name, step, after in said]


def as_list(home: Home, steps: list[Row]) -> None:
    """Start the steps as a CSV file."""
    home.call("run", "-d", home.write("jobs.csv", "Name,Command,After", *steps), "--devices", "host", "--slots", "4")


def as_submits(home: Home, steps: list[Row]) -> None:
    """Submit the steps one by one, parents first."""
    for name, command, after in reversed(steps):
        home.call("submit", "--name", name, *(("--after", after) if after else ()), "--", *command.split(), code=0)


def in_python(home: Home, steps: list[Row]) -> None:
    """Start the steps from a Python program."""
    (home.root / "pipeline.py").write_text(PYTHON.format(rows=steps))
    python = Home(home.root, (sys.executable,))
    python.env = home.env
    python.start("pipeline.py")


FORMS: dict[str, Callable[[Home, list[Row]], None]] = {"list": as_list, "submits": as_submits, "python": in_python}


def run(home: Home, form: str, kills: int, seed: int) -> list[str]:
    """Run the pipeline while its scheduler is killed; return what is wrong with the result."""
    chance = random.Random(seed)
    (home.root / "step.sh").write_text(STEP)
    (home.root / "kills.txt").touch()
    (home.root / "mended").touch()
    FORMS[form](home, rows(kills))
    for _ in range(kills):
        wait_until(lambda: (home.root / "done.txt").exists() and scheduler_of(home), PATIENCE)
        time.sleep(chance.random() * 0.3)
        os.kill(home.scheduler(1), signal.SIGKILL)
        with open(home.root / "kills.txt", "a") as file:
            file.write("killed\n")
        wait_until(lambda: not scheduler_of(home), PATIENCE)
        home.call("resume", "-d", "r1", code=0)
    wait_until(lambda: is_over(home), PATIENCE, pause=0.2)
    return wrong(home)


def run_failing(home: Home, form: str) -> list[str]:
    """Run the pipeline with a first step that fails, retry it; return what is wrong."""
    (home.root / "step.sh").write_text(STEP)
    (home.root / "kills.txt").touch()
    if form == "submits":  # no parent may fail before all are there
        home.call("submit", "--name", "before", "--", "true", code=0)
        home.call("pause", "queue", code=0)
    FORMS[form](home, rows(0))
    if form == "submits":
        home.call("unpause", "queue", code=0)
    wait_until(lambda: home.call("list", "r1").returncode == 0, PATIENCE)  # a Python program has to begin first
    wait_until(lambda: is_over(home), PATIENCE, pause=0.2)
    steps = [task for task in home.tasks("r1") if task["name"] != "before"]
    states = sorted(task["state"] for task in steps)
    found = [] if states == ["failed"] + ["skipped"] * (STEPS - 1) else [f"states after the failure: {states}"]
    prep = next(task["id"] for task in steps if task["name"] == "prep")
    for task in steps:
        said = home.call("why", str(task["id"])).stdout
        if task["id"] != prep and f"task {prep}" not in said:
            found.append(f"the reason names no parent: {said}")
    (home.root / "mended").touch()
    home.call("retry", str(prep), code=0)
    if not scheduler_of(home):
        home.call("resume", "-d", "r1", code=0)
    wait_until(lambda: home.states("r1").count("succeeded") == STEPS + (form == "submits"), PATIENCE, pause=0.2)
    return found + wrong(home)


def is_over(home: Home) -> bool:
    """Tell whether all tasks have ended."""
    return not {"waiting", "blocked", "running"} & {*home.states("r1")}


def scheduler_of(home: Home) -> int:
    """Return the process that holds the run; 0 if there is none."""
    try:
        return home.scheduler(1)
    except (ValueError, OSError):
        return 0


def wrong(home: Home) -> list[str]:
    """Return what is wrong: steps that are missing, ran twice or out of order, and states."""
    lines = (home.root / "done.txt").read_text().splitlines()
    steps = ["prep", *(f"train{n}" for n in range(TRAININGS)), "evaluate"]
    notes = [f"{word} {step}" for step in steps for word in ("begin", "end")]
    found = [f"{note}: {lines.count(note)} times" for note in notes if lines.count(note) != 1]
    if lines[:2] != ["begin prep", "end prep"] or lines[-2:] != ["begin evaluate", "end evaluate"]:
        found.append(f"order: {lines}")
    return found + [f"state {state}" for state in home.states("r1") if state != "succeeded"]


def main() -> int:
    """Run the pipeline in each form; return 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--form", choices=FORMS, action="append")
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    bad = False
    for form in args.form or FORMS:
        for what, course in (
            (f"{args.kills} kills, seed {args.seed}", lambda home, form=form: run(home, form, args.kills, args.seed)),
            ("failed first step", lambda home, form=form: run_failing(home, form)),
        ):
            with tempfile.TemporaryDirectory() as root:
                home = Home(Path(root))
                try:
                    found = course(home)
                finally:
                    home.end()
            sys.stdout.write(f"{form}: {STEPS} steps, {what}: {found or 'each step once, in order'}\n")
            sys.stdout.flush()
            bad = bad or bool(found)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
