"""What `scheduler` alone says besides its verbs: the state of the latest run."""

from __future__ import annotations

import sys

from scheduler.errors import StateError
from scheduler.settings import read_settings
from scheduler.wiring import reading


def main() -> int:
    """Print one line about the latest run."""
    try:
        info = reading.find_run(read_settings({}), None)
    except StateError as exc:
        sys.stdout.write(f"{exc}\n")
        return 0
    telling = reading.Telling(info)
    states = ", ".join(f"{number:,} {state}" for state, number in telling.run_facts()["states"].items())
    telling.close()
    sys.stdout.write(f"latest run {info.number}  {info.what}: {'running' if info.alive else 'not running'}; {states}\n")
    return 0
