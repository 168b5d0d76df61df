"""The runs of a user on every machine that shares the state directory: listing them, and removing ended ones."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from scheduler.app.observe.run_facts import facts_of_run, facts_of_runs, places
from scheduler.errors import Newer, StateError, StillRunning
from scheduler.runtime.paths import RunPaths, StatePaths
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import RunCatalog, RunInfo
from scheduler.store.run.removal import claims, finish
from scheduler.store.run.removal import remove as remove_run
from scheduler.units import count

MOST_NAMED = 8
"""The most processes that one sentence names."""


def runs(settings: Settings) -> list[dict[str, Any]]:
    """Return the facts of every run: of this machine newest first, then of other machines."""
    here = places(settings)
    facts = list(facts_of_runs(RunCatalog(here)))
    for other in here.of_other_machines():
        facts += [{**one, "state": str(other.root)} for one in facts_of_runs(RunCatalog(other))]
    return facts


def remove(settings: Settings, words: Sequence[str]) -> list[dict[str, Any]]:
    """Remove these runs and return what was freed. If one of them has not ended, raise StillRunning or StateError, and
    remove nothing.

    A run that cannot be read is removed if it is named by its number, and none of its attempts is alive.
    """
    home = places(settings)
    found = RunCatalog(home)
    infos = [_found(found, word) for word in words]
    for info in infos:
        if isinstance(info, RunInfo):
            _must_be_over(info)
        else:
            _must_be_idle(info)
    return [_remove(home, info) if isinstance(info, RunInfo) else _remove_unread(home, info) for info in infos]


def _found(runs_: RunCatalog, word: str) -> RunInfo | RunPaths:
    """Return a run, or only its paths if its journal cannot be read."""
    try:
        info = runs_.find(word)
        return info.places if info.lost and not info.alive else info
    except Newer:
        raise
    except StateError:
        run = runs_.places.run(int(word[1:])) if word[:1] == "r" and word[1:].isdecimal() else None
        if run is None or not run.root.is_dir():
            raise
        return run


def _remove_unread(home: StatePaths, run: RunPaths) -> dict[str, Any]:
    return {"number": run.number, "file": "", "freed_bytes": remove_run(home, run.number, lambda: _must_be_idle(run))}


def _must_be_idle(run: RunPaths) -> None:
    shims = sorted(shim for *_, shim in claims(run) if shim)
    if shims:
        pids = " ".join(map(str, shims[:MOST_NAMED]))
        raise StillRunning(
            f"run {run.number} cannot be read and {count(len(shims), 'attempt')} of it still run, so nothing was "
            f"removed: kill {pids} ends them"
        )


def remove_old(settings: Settings, age: float) -> list[dict[str, Any]]:
    """Remove every run that ended more than `age` seconds ago; keep the others."""
    home = places(settings)
    gone = []
    for info in list(RunCatalog(home).all()):
        if info.lost:
            continue  # the time of its end is unknown
        try:
            facts = facts_of_run(info)
        except StateError:
            continue
        if facts["over"] and not info.alive and time.time() - facts["ended"] > age:
            gone.append(_remove(home, info))
    finish(home)
    return gone


def _remove(home: StatePaths, info: RunInfo) -> dict[str, Any]:
    freed = remove_run(home, info.number, lambda: _must_be_over(info))
    return {"number": info.number, "file": info.what, "freed_bytes": freed}


def _must_be_over(info: RunInfo) -> None:
    facts = facts_of_run(info)
    if facts["over"]:
        return
    if info.alive:
        raise StillRunning(f"run {info.number} is alive, so nothing was removed: scheduler stop r{info.number} ends it")
    left = ", ".join(f"{number:,} {state}" for state, number in facts["states"].items())
    where = f" on {info.elsewhere}" if info.elsewhere else ""
    raise StateError(
        f"run {info.number} is not over ({left}), so nothing was removed: "
        f"scheduler resume r{info.number}{where} ends it"
    )
