"""The ids of probes: a probe has its own id, so that its command does not touch the files of its task."""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.core.model import Placement, Purpose
from scheduler.core.ports import Key, RunStore
from scheduler.errors import StateError
from scheduler.values import replace


class ProbeIds:
    """The ids of a run's probes; a probe keeps its id from its placement to the end of its attempt."""

    def __init__(self, run_store: RunStore, *, same_id: bool) -> None:
        """Create the table of probe ids. `run_store` provides new ids; with `same_id`, a probe has the id of its
        task.
        """
        self._run_store = run_store
        self._same_id = same_id
        self._living: dict[Key, int] = {}

    def named(self, placements: Sequence[Placement]) -> list[Placement]:
        """Give an id to each probe among the placements; if one cannot have an id, give none and raise StateError."""
        named: list[Placement] = []
        try:
            for placement in placements:
                named.append(self._named(placement))  # noqa: PERF401 - those before the one that fails are needed
        except StateError:
            for placement in named:
                if placement.told:
                    self._run_store.end_probe(placement.task, placement.told)
            raise
        return named

    def _named(self, placement: Placement) -> Placement:
        if placement.purpose is not Purpose.PROBE:
            return placement
        own = placement.task if self._same_id else self._run_store.probe_id(placement.task)
        return replace(placement, told=own)

    def placed(self, placement: Placement) -> None:
        """Note the id of a placed attempt, if it is a probe."""
        if placement.told:
            self._living[placement.task, placement.attempt] = placement.told

    def ended(self, key: Key) -> None:
        """Remove the files of an ended attempt, if it was a probe with its own id."""
        told = self._living.pop(key, 0)
        if told:
            self._run_store.end_probe(key[0], told)
