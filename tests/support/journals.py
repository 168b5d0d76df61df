"""Journals changed from outside, with the checksums that a scheduler of another machine or boot would have written."""

from __future__ import annotations

from pathlib import Path

from scheduler.core.events import Event
from scheduler.store.run.journal import Journal


def put_facts(path: Path, **facts: str) -> None:
    """Replace facts about the run in a journal that no scheduler has open."""
    journal = Journal.open(path)
    with journal.transaction():
        journal.put_meta(facts)
    journal.close()


def append_event(path: Path, event: Event, at: float = 0.0) -> None:
    """Append one event to a journal that no scheduler has open."""
    journal = Journal.open(path)
    journal.record([event], at)
    journal.close()
