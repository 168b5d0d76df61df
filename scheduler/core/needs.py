"""What equal tasks ask for, worked out once until more is known."""

from __future__ import annotations

from scheduler.core.packing import Need


class Needs:
    """Needs by terms, kind and number of GPUs."""

    def __init__(self) -> None:
        self._firm: dict[int, dict[tuple[int, int], Need]] = {}
        """By kind: they follow from what was seen of that kind alone."""
        self._loose: dict[tuple[int, int, int], Need] = {}
        """They may follow from what is known of others."""

    def find(self, terms: int, kind: int, gpus: int) -> Need | None:
        """A need that was kept and still holds."""
        firm = self._firm.get(kind)
        return (firm.get((terms, gpus)) if firm else None) or self._loose.get((terms, kind, gpus))

    def keep(self, terms: int, kind: int, gpus: int, need: Need, *, firm: bool) -> None:
        """Remember a need; `firm`: nothing but its own kind can change it."""
        if firm:
            self._firm.setdefault(kind, {})[terms, gpus] = need
        else:
            self._loose[terms, kind, gpus] = need

    def learned(self, kind: int) -> None:
        """Something was learned of a kind."""
        self._firm.pop(kind, None)
        self._loose.clear()

    def grown(self) -> None:
        """There are more kinds to compare with."""
        self._loose.clear()
