"""Joins what is needed to list all runs of a user, on every machine that shares the state, and to remove ended ones."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

from scheduler.errors import NoSuchRun, SchedulerError, StateError, StillRunning
from scheduler.paths import Places
from scheduler.settings import Settings
from scheduler.store.removing import finish
from scheduler.store.removing import remove as remove_run
from scheduler.store.runs import RunInfo, Runs
from scheduler.wiring.reading import places, telling_facts


def runs(settings: Settings) -> list[dict[str, Any]]:
    """The facts of every run, this state's newest first, then those in the states of other machines."""
    here = places(settings)
    facts = list(_facts(here))
    for other in here.of_other_machines():
        facts += [{**one, "state": str(other.root)} for one in _facts(other)]
    return facts


def _facts(home: Places) -> Iterator[dict[str, Any]]:
    """One that cannot be read hides no other."""
    found = Runs(home)
    for number in reversed(found.numbers()):
        try:
            yield telling_facts(found.info(number))
        except NoSuchRun:
            continue
        except SchedulerError as exc:
            yield {"number": number, "trouble": str(exc)}


def remove(settings: Settings, words: Sequence[str]) -> list[dict[str, Any]]:
    """Remove these runs, if all of them are over; what was freed. Raises before anything is removed."""
    home = places(settings)
    found = Runs(home)
    infos = [found.find(word) for word in words]
    for info in infos:
        _must_be_over(info)
    return [_remove(home, info) for info in infos]


def remove_old(settings: Settings, age: float) -> list[dict[str, Any]]:
    """Remove every run that ended longer ago than `age` seconds; others are left as they are."""
    home = places(settings)
    gone = []
    for info in list(Runs(home).all()):
        facts = telling_facts(info)
        if facts["over"] and not info.alive and time.time() - facts["ended"] > age:
            gone.append(_remove(home, info))
    finish(home)
    return gone


def _remove(home: Places, info: RunInfo) -> dict[str, Any]:
    freed = remove_run(home, info.number, lambda: _must_be_over(info))
    return {"number": info.number, "file": info.what, "freed_bytes": freed}


def _must_be_over(info: RunInfo) -> None:
    facts = telling_facts(info)
    if facts["over"]:
        return
    if info.alive:
        raise StillRunning(f"run {info.number} is alive, so nothing was removed: scheduler stop {info.number} ends it")
    left = ", ".join(f"{number:,} {state}" for state, number in facts["states"].items())
    where = f" on {info.elsewhere}" if info.elsewhere else ""
    raise StateError(
        f"run {info.number} is not over ({left}), so nothing was removed: scheduler resume {info.number}{where} ends it"
    )
