"""The happenings of one wait of the loop: which kinds there are, and which of them the disk knows already."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.events import Event, Exited, Observed, Started
from scheduler.core.model import Outcome
from scheduler.core.ports import Happening, Request, Sample

WITHOUT_RECORD = (Outcome.LOST, Outcome.UNSTARTED)
"""Outcomes that an exit record cannot contain, and whose lease no shim has removed."""


def sort(happenings: Sequence[Happening]) -> tuple[list[Sample], list[Started | Exited | Observed], list[Request]]:
    samples: list[Sample] = []
    moves: list[Started | Exited | Observed] = []
    requests: list[Request] = []
    for happening in happenings:
        if isinstance(happening, Sample):
            samples.append(happening)
        elif isinstance(happening, Request):
            requests.append(happening)
        else:
            moves.append(happening)
    return samples, moves, requests


def is_on_disk(event: Event) -> bool:
    """Tell whether a claim or an exit record contains the event too; these files stay until the journal is on disk."""
    return isinstance(event, Started) or (isinstance(event, Exited) and event.outcome not in WITHOUT_RECORD)
