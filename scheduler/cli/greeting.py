"""The page of `scheduler` without a verb: the GPUs that were found, the latest run, and five lines to try."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from scheduler.app.observe.machine_status import MachineMonitor
from scheduler.errors import SchedulerError
from scheduler.runtime.settings import read_settings
from scheduler.ui.text import clean
from scheduler.units import size

TRY = {
    "scheduler run --sample": "a sweep of ten small trainings, over within a minute",
    "scheduler results --best val_loss": "its best learning rate",
    "scheduler run jobs.csv": "your own list: a CSV with one command per row, in a column Command",
    'scheduler grid "python train.py --lr {lr}" -p lr 0.1 0.01 --run': "",
    "scheduler submit -- python train.py": "one task into your queue, from any terminal",
}
"""The commands to try first, with a phrase about the effect of each; the phrase may be empty."""
_WIDTH = 38


def main() -> int:
    """Print the page."""
    lines = ["scheduler runs lists of training jobs, several per GPU, packed by measured memory.", "", *_machine(), ""]
    lines += ["to try:", *(f"  {command:<{_WIDTH}}{does}".rstrip() for command, does in TRY.items())]
    lines += ["", "scheduler --help lists all verbs, scheduler VERB --help describes one."]
    sys.stdout.writelines(line + "\n" for line in lines)
    return 0


def _machine() -> list[str]:
    """Return the lines about the devices and the latest run; if the stored state is damaged, only these lines are
    missing.
    """
    try:
        with closing(MachineMonitor(read_settings({}))) as monitor:
            facts = monitor.facts()
    except SchedulerError as exc:
        return [f"hint    {exc}"]
    return [_gpus(facts), *_latest(facts)]


def _gpus(facts: Mapping[str, Any]) -> str:
    gpus = facts["gpus"]
    if gpus:
        sizes = Counter(size(gpu["total"]) for gpu in gpus)
        return "GPUs    " + ", ".join(f"{number} x {total}" for total, number in sizes.items())
    trouble = f"GPUs    {clean(facts['gpus_trouble'])}; " if facts["gpus_trouble"] else "GPUs    none found: "
    return f"{trouble}tasks share the host's RAM, {size(facts['host']['total'])}"


def _latest(facts: Mapping[str, Any]) -> list[str]:
    if not facts["runs"]:
        return []
    run = facts["runs"][0]
    states = ", ".join(f"{number:,} {state}" for state, number in run.get("states", {}).items()) or "no tasks yet"
    goes_on = "running" if run.get("alive") else "not running"
    return [f"latest  run {run['number']}  {clean(run.get('file', ''))}: {goes_on}; {states}"]
