"""A cache of the requests of equal tasks; entries are dropped when more is learned about them."""

from __future__ import annotations

from scheduler.core.placement.request import ResourceRequest


class RequestCache:
    """Requests by terms, task class and number of GPUs."""

    def __init__(self) -> None:
        self._firm: dict[int, dict[tuple[int, int], ResourceRequest]] = {}
        """Requests that follow from observations of their own class only, by class."""
        self._loose: dict[tuple[int, int, int], ResourceRequest] = {}
        """Requests that may depend on observations of other classes."""

    def find(self, terms: int, kind: int, gpus: int) -> ResourceRequest | None:
        """Return a cached request if it is still valid."""
        firm = self._firm.get(kind)
        return (firm.get((terms, gpus)) if firm else None) or self._loose.get((terms, kind, gpus))

    def keep(self, terms: int, kind: int, gpus: int, need: ResourceRequest, *, firm: bool) -> None:
        """Cache a request; `firm`: only observations of its own class can change it."""
        if firm:
            self._firm.setdefault(kind, {})[terms, gpus] = need
        else:
            self._loose[terms, kind, gpus] = need

    def learned(self, kind: int) -> None:
        """Drop the requests that an observation of a class may change."""
        self._firm.pop(kind, None)
        self._loose.clear()

    def grown(self) -> None:
        """Drop the requests that a new class may change."""
        self._loose.clear()
