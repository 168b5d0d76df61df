"""Starting a queue's scheduler from a user's program, which must not be forked: it may have threads and a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scheduler.errors import SchedulerError, StateError, describe_os_error
from scheduler.runtime.paths import StatePaths, find_places
from scheduler.runtime.processes import answer
from scheduler.runtime.settings import Settings, read_settings

PATIENCE = 120.0
"""Seconds within which the new scheduler must be ready. If another process is starting the queue, the new scheduler
waits up to a minute for that process."""
_SITE = Path(__file__).resolve().parents[3]
_CODE = (
    "import sys; sys.path.insert(0, sys.argv[1]); from scheduler.app.queue import background_start; "
    "background_start.main(*sys.argv[2:])"
)


def start_apart(home: StatePaths, name: str, settings: Settings) -> Sequence[str]:
    """Start a queue's scheduler in a new interpreter unless the queue has one; return hints about the start.

    Raise SchedulerError if the scheduler cannot be started.
    """
    words = [sys.executable, "-c", _CODE, str(_SITE), name, settings.state, settings.on]
    try:
        code, text = answer(words, patience=PATIENCE, cwd=_directory())
    except OSError as exc:
        raise StateError(f"the queue {name} cannot be started: {describe_os_error(exc)}") from exc
    except subprocess.TimeoutExpired:
        raise StateError(f"the queue {name} has not started within {PATIENCE:g} s: see {home.runs}") from None
    try:
        told = json.loads(text.splitlines()[-1])
        trouble, hints = str(told["trouble"]), [str(hint) for hint in told["hints"]]
    except (ValueError, LookupError, TypeError):
        raise StateError(f"the queue {name} could not be started (exit {code}): {_last_line(text)}") from None
    if trouble:
        error = SchedulerError(trouble)
        error.exit_code = code
        raise error
    return hints


def main(name: str, state: str, on: str) -> None:
    """Start the queue's scheduler in the background, and print an error and hints about the start as JSON."""
    from scheduler.app.queue.standing_queue import ensure_started

    trouble, hints, code = "", list[str](), 0
    try:
        settings = read_settings({"state": state or None, "on": on or None})
        hints += ensure_started(find_places(state or None), name, settings)
    except SchedulerError as exc:
        trouble, code = str(exc), exc.exit_code
    sys.stdout.write(json.dumps({"trouble": trouble, "hints": hints}) + "\n")
    raise SystemExit(code)


def _directory() -> str:
    """Return this process's directory, or the root if that directory was removed."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return "/"


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1] if lines else "it printed nothing"
