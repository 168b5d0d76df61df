"""Joins what is needed to offer runs and tasks to somebody who is typing."""

from __future__ import annotations

from contextlib import closing

from scheduler.settings import Settings
from scheduler.store.journal import Journal
from scheduler.wiring.addressing import LAST
from scheduler.wiring.reading import all_runs

MOST_RUNS = 20
"""The latest runs; nobody picks among more on Tab."""


def runs(settings: Settings) -> list[str]:
    """Numbers and names."""
    found = all_runs(settings)[:MOST_RUNS]
    return [str(info.number) for info in found] + [name for info in found if (name := info.meta.get("name", ""))]


def tasks(settings: Settings, most: int, begun: str) -> list[str]:
    """The latest ids, behind what was typed of a list before; and the word for the latest of all."""
    listed = begun.rpartition(",")[0]
    listed += "," if listed else ""
    found: list[int] = []
    for info in all_runs(settings)[:MOST_RUNS]:
        with closing(Journal.read(info.places.journal)) as journal:
            last = journal.last()
            found += journal.within(last - most + 1, last) if last is not None else []
        if len(found) >= most:
            break
    return [f"{listed}{task}" for task in sorted(found)[-most:]] + [LAST]
