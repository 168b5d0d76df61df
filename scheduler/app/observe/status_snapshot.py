"""The status of a run that its scheduler records in the journal, so that readers need not read all events."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scheduler.core.model import UNFINISHED, State
from scheduler.core.tasks.redaction import without_secrets
from scheduler.errors import StateError
from scheduler.runtime.clock import since_boot, wall
from scheduler.store.run.journal_reader import JournalReader, last_status

if TYPE_CHECKING:
    from scheduler.app.run.session import RunSession
    from scheduler.core.brain import Brain
    from scheduler.core.ports import Sample
    from scheduler.store.run.catalog import RunInfo

EVERY = 0.5
JOINS = 2.0
"""Seconds between two checks for devices that have joined."""
RECENT = 1.5
"""Seconds for which a status that a running scheduler has recorded counts as recent."""
MANY = 500
"""The number of ended attempts, and of tasks, that readers read without a noticeable delay."""


def status_of(meta: Mapping[str, str], brain: Brain, ended: float | None) -> dict[str, Any]:
    """Return the number of tasks per state, whether the run is over or paused, and when a task last ended."""
    follows = meta.get("door") == "followed" and not brain.draining
    over = not follows and not any(brain.state_counts[state] for state in UNFINISHED)
    ended = ended or float(meta.get("accepted", "0"))
    return {"states": states(brain), "over": over, "ended": ended, **pause_of(brain)}


def pause_of(brain: Brain) -> dict[str, Any]:
    """Return whether a run is paused, by `pause` or by -j 0, and when the pause ends by itself."""
    paused, until = brain.rules.pause(wall())
    return {"paused": paused, "paused_until": until}


def states(brain: Brain) -> dict[str, int]:
    """Return the number of tasks per state."""
    return {str(state): number for state in State if (number := brain.state_counts[state])}


def facts_of(info: RunInfo, states: Mapping[str, int]) -> dict[str, Any]:
    """Return the facts of a run that are part of its results, with the number of its tasks per state."""
    meta = info.meta
    return {
        "number": info.number,
        "name": meta.get("name", ""),
        "file": without_secrets(meta.get("file", "")),
        "alive": info.alive,
        "accepted": float(meta.get("accepted", "0")),
        "directory": meta.get("directory", ""),
        "host": meta.get("host", ""),
        "devices": json.loads(meta.get("labels", "{}")),
        "states": dict(states),
    }


def recorded_status(info: RunInfo, journal: JournalReader | None) -> dict[str, Any] | None:
    """Return the recorded status; None if there is none, or if rows or events were added since.

    `journal` may be None if `info.kept` is True, which means that the recorded status is up to date.
    """
    said = last_status(info.meta)
    up_to, at = said.pop("up_to", None), said.pop("at", 0.0)
    recent = info.alive and 0 <= since_boot() - at < RECENT
    return said if recent or journal is None or up_to == journal.reach() else None


class StatusRecorder:
    """The observer of a run that records its status in the journal, for runs with many events."""

    def __init__(self, session: RunSession) -> None:
        self._session = session
        self._due = 0.0
        self._known = 0

    def see(self, sample: Sample) -> None:
        """Ignore what a task uses."""

    def draw(self) -> float:
        """Record the status if that is due. If the disk is full, readers read all events instead."""
        now, changes = since_boot(), self._session.brain.changes
        brain = self._session.brain
        many = self._session.history.ended > MANY or len(brain.task_table) > MANY
        if now >= self._due and changes != self._known and many:
            with contextlib.suppress(StateError):
                if self.write(at=now):
                    self._due, self._known = now + EVERY, changes
        return EVERY

    def write(self, **more: float) -> bool:
        """Record the status, unless something else must be written first; raise StateError if writing fails."""
        session = self._session
        said = status_of(session.meta, session.brain, session.history.last)
        return session.store.journal.put_status({**said, **more}, lax=bool(more))


class DeviceNamesRecorder:
    """The observer of a run that records the names of devices that join it, such as new MIG instances."""

    def __init__(self, session: RunSession) -> None:
        self._session = session
        self._known: dict[str, str] = json.loads(session.meta.get("labels", "{}"))

    def see(self, sample: Sample) -> None:
        """Ignore what a task uses."""

    def draw(self) -> float:
        """Record names that are new. If the disk is full, views show the UUIDs of these devices."""
        labels = self._session.devices.labels
        if not labels.keys() <= self._known.keys():
            journal = self._session.store.journal
            known = {**self._known, **labels}
            with contextlib.suppress(StateError), journal.transaction():
                journal.put_meta({"labels": json.dumps(known)})
                self._known = known
        return JOINS
