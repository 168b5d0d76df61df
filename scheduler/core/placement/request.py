"""The requests of tasks: bytes on each device, cores and load."""

from __future__ import annotations

from scheduler.core.model import EstimateSource, Purpose, Terms
from scheduler.values import dataclass, field


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """The bytes that a task requests on one of its devices; None means unknown."""

    bytes: int | None
    bare: int = 0
    """The declared or measured part; the rest is margin, of which a part may be left out where the device is too
    small."""
    retried: bool = False
    """True if the task ran out of memory before; the number of its attempts is limited."""
    had: int = 0
    """The reservation when it ran out of memory."""
    wanted: int = 0
    """The sum of its use and its last request when it ran out of memory."""
    least: int = 0
    """The bytes that it is expected to need at least, though it never used them. A similar task needed this much, or
    ran out of memory or failed with this much."""
    shown: int = 0
    """The part of `least` that the task, its class or similar tasks have shown. A GPU that cannot hold this part is
    left out while a larger one may take the task."""
    enough: int = 0
    """The bytes with which a task of unknown memory starts if no other such task has still to settle; 0: all of
    `bytes`."""
    shared: int = 0
    """The fewest bytes with which a task of known memory starts beside others that share its margin; 0: all of
    `bytes`."""
    is_plain: bool = field(init=False, repr=False, compare=False)
    """True if it is a number of bytes without further conditions."""

    def __post_init__(self) -> None:
        plain = self.bytes is not None and not (self.retried or self.had or self.least or self.enough)
        object.__setattr__(self, "is_plain", plain)  # each device that a pass examines asks for it

    @property
    def is_expected(self) -> bool:
        """True if nothing of it was declared or measured: it is unknown, or estimated from other classes."""
        return self.bytes is None or (self.least > 0 and not self.bare and not self.retried)

    @property
    def starts_with(self) -> int:
        """The fewest bytes with which the task may start; 0 if that is unknown."""
        return self.enough or self.shared or self.bytes or 0


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """The request of a task: bytes of RAM, bytes on each of its GPUs in its own order, cores, load."""

    host: MemoryRequest
    cores: float
    source: EstimateSource
    gpus: tuple[MemoryRequest, ...] = ()
    busy: float = 0.0
    alone: bool = False
    purpose: Purpose = Purpose.RUN
    visible: int = 0
    """The number of GPUs that it may see though it is known to use none; `gpus` is then empty."""

    @property
    def unknown(self) -> bool:
        """True if its need on the devices where it runs is unknown."""
        return any(ask.bytes is None for ask in self.gpus or (self.host,))


def gpus_of(terms: Terms, some: bool) -> int:
    """Return a task's number of GPUs: as its row says, else one if the machine has any."""
    if terms.gpus is not None:
        return terms.gpus
    return 1 if some else 0


def declared(terms: Terms, gpus: int = 0) -> int | None:
    """Return the bytes that the row declares for each GPU of the task, or for the host if it has none."""
    if gpus or terms.memory is not None:
        return terms.memory
    return terms.host_memory


class RequestCache:
    """The requests of equal tasks by terms, task class and number of GPUs; dropped when more is learned about them."""

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
