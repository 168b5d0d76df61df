"""Runs and task ids for Tab completion."""

from __future__ import annotations

from contextlib import closing

from scheduler.app.observe.run_facts import all_runs
from scheduler.runtime.settings import Settings
from scheduler.store.run.catalog import LAST
from scheduler.store.run.journal_reader import JournalReader

MOST_RUNS = 20
"""The number of latest runs that are offered."""


def runs(settings: Settings) -> list[str]:
    """Return the numbers and names of the latest runs."""
    found = all_runs(settings)[:MOST_RUNS]
    return [f"r{info.number}" for info in found] + [name for info in found if (name := info.meta.get("name", ""))]


def tasks(settings: Settings, most: int, begun: str) -> list[str]:
    """Return completions of a list of task ids: the latest ids after the part already typed, and the word `last`."""
    listed = begun.rpartition(",")[0]
    listed += "," if listed else ""
    found: list[int] = []
    for info in all_runs(settings)[:MOST_RUNS]:
        with closing(JournalReader.read(info.places.journal)) as journal:
            last = journal.last()
            found += journal.within(last - most + 1, last) if last is not None else []
        if len(found) >= most:
            break
    return [f"{listed}{task}" for task in sorted(found)[-most:]] + [LAST]
