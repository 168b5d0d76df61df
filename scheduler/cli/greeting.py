"""The last line of `scheduler` without a verb: the state of the latest run."""

from __future__ import annotations

import sys

from scheduler.app.observe import run_facts, run_reader
from scheduler.errors import StateError
from scheduler.runtime.settings import read_settings


def main() -> int:
    """Print one line about the latest run."""
    try:
        info = run_facts.find_run(read_settings({}), None)
    except StateError as exc:
        sys.stdout.write(f"{exc}\n")
        return 0
    reader = run_reader.RunReader(info)
    states = ", ".join(f"{number:,} {state}" for state, number in reader.run_facts()["states"].items())
    reader.close()
    sys.stdout.write(f"latest run {info.number}  {info.what}: {'running' if info.alive else 'not running'}; {states}\n")
    return 0
