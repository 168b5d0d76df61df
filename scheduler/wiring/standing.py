"""How a run stands, in few words that its scheduler keeps in the journal: whoever looks need not read its events."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scheduler.clocks import since_boot
from scheduler.core.model import UNFINISHED, State
from scheduler.errors import StateError
from scheduler.store.journal import Journal, stood

if TYPE_CHECKING:
    from scheduler.core.brain import Brain
    from scheduler.core.ports import Sample
    from scheduler.store.runs import RunInfo
    from scheduler.wiring.running import Session

EVERY = 0.5
RECENT = 1.5
"""What a living scheduler said so many seconds ago is good enough."""
MANY = 500
"""So many ends are read before anybody notices."""


def standing(meta: Mapping[str, str], brain: Brain, ended: float | None) -> dict[str, Any]:
    """How many tasks are in each state, whether the run is over, and when something last ended in it."""
    follows = meta.get("door") == "followed" and not brain.draining
    over = not follows and not any(brain.roll.counts[state] for state in UNFINISHED)
    return {"states": states(brain), "over": over, "ended": ended or float(meta.get("accepted", "0"))}


def states(brain: Brain) -> dict[str, int]:
    """How many tasks are in each state."""
    return {str(state): number for state in State if (number := brain.roll.counts[state])}


def told(info: RunInfo, journal: Journal) -> dict[str, Any] | None:
    """What its scheduler left; None where there is nothing, or there were more rows or events since."""
    said = stood(info.meta)
    up_to, at = said.pop("up_to", None), said.pop("at", 0.0)
    recent = info.alive and 0 <= since_boot() - at < RECENT
    return said if recent or up_to == journal.reach() else None


class Standing:
    """Looks on at a run, and keeps that up to date where much has happened in it."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._due = 0.0
        self._known = 0

    def see(self, sample: Sample) -> None:
        """What a task holds does not matter here."""

    def draw(self) -> float:
        """Write it down, where that is due; on a full disk whoever looks reads all events."""
        now, changes = since_boot(), self._session.brain.changes
        if now >= self._due and changes != self._known and self._session.fold.ended > MANY:
            with contextlib.suppress(StateError):
                if self.write(at=now):
                    self._due, self._known = now + EVERY, changes
        return EVERY

    def write(self, **more: float) -> bool:
        """Write it down, if nothing else has to be written before; raises StateError where that cannot be."""
        session = self._session
        said = standing(session.meta, session.brain, session.fold.last)
        return session.book.journal.stand({**said, **more}, lax=bool(more))
