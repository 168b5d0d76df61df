"""The happenings that one wait of the run loop returns: their kinds, and which of them a file already records."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.events import Event, Exited, Observed, Started
from scheduler.core.model import Outcome
from scheduler.core.ports import Happening, Request, Sample

WITHOUT_RECORD = (Outcome.LOST, Outcome.UNSTARTED)
"""Outcomes of attempts that left no exit record; no shim has removed the lease of such an attempt."""


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
    """Tell whether a claim or an exit record contains what the event says. These files are kept until the journal with
    the event is on disk.
    """
    return isinstance(event, Started) or (isinstance(event, Exited) and event.outcome not in WITHOUT_RECORD)
