"""The requests of tasks: bytes on each device, cores and load."""

from __future__ import annotations

from scheduler.core.model import EstimateSource, Purpose, Terms
from scheduler.values import dataclass, field


@dataclass(frozen=True, slots=True)
class MemoryRequest:
    """The bytes that a task requests on one of its devices; None means unknown."""

    bytes: int | None
    """The bytes with the margin; None: unknown."""
    bare: int = 0
    """The declared or measured part of `bytes`. The rest is margin, and less of it is reserved where the device is too
    small."""
    retried: bool = False
    """True if the task has run out of memory before: only a few such attempts are made."""
    had: int = 0
    """The reservation of the attempt that ran out of memory; 0: none did."""
    wanted: int = 0
    """The use plus the last request of the attempt that ran out of memory; 0: unknown."""
    least: int = 0
    """A lower bound of the bytes that the task is expected to need, though it never used so many itself: a similar task
    needed this much, or ran out of memory or failed with this much."""
    shown: int = 0
    """The part of `least` that was measured in attempts of the task, its class or similar tasks. A GPU that cannot hold
    this part is not used while a larger one may take the task."""
    enough: int = 0
    """The bytes with which a task of unknown memory may start if all others on the GPU have settled; 0: all of
    `bytes`."""
    shared: int = 0
    """The fewest bytes with which a task of known memory may start where other tasks share its margin; 0: all of
    `bytes`."""
    is_plain: bool = field(init=False, repr=False, compare=False)
    """True if the request is a number of bytes without further conditions."""

    def __post_init__(self) -> None:
        plain = self.bytes is not None and not (self.retried or self.had or self.least or self.enough)
        object.__setattr__(self, "is_plain", plain)  # each device that a pass examines asks for it

    @property
    def is_expected(self) -> bool:
        """True if no part of the request was declared or measured: it is unknown, or estimated from other classes."""
        return self.bytes is None or (self.least > 0 and not self.bare and not self.retried)

    @property
    def starts_with(self) -> int:
        """The fewest bytes with which the task may start; 0 if that is unknown."""
        return self.enough or self.shared or self.bytes or 0


@dataclass(frozen=True, slots=True)
class ResourceRequest:
    """The request of a task: bytes of RAM, bytes on each of its GPUs in order, cores and load."""

    host: MemoryRequest
    cores: float
    source: EstimateSource
    gpus: tuple[MemoryRequest, ...] = ()
    busy: float = 0.0
    alone: bool = False
    purpose: Purpose = Purpose.RUN
    visible: int = 0
    """The number of GPUs that the task may see though it is known to use none; `gpus` is then empty."""

    @property
    def unknown(self) -> bool:
        """True if the memory that the task needs on its GPUs, or on the host if it has none, is unknown."""
        return any(ask.bytes is None for ask in self.gpus or (self.host,))

    @property
    def is_guessed(self) -> bool:
        """True if the task's need on GPUs is unknown, and neither the task nor similar tasks have shown a part of this
        need.
        """
        return self.source is EstimateSource.MEASURED and bool(self.gpus) and not any(ask.shown for ask in self.gpus)


def gpus_of(terms: Terms, some: bool) -> int:
    """Return the number of GPUs of a task: the number in its row, else one if `some` says that there is a GPU."""
    if terms.gpus is not None:
        return terms.gpus
    return 1 if some else 0


def declared(terms: Terms, gpus: int = 0) -> int | None:
    """Return the bytes that the row declares for each GPU of the task, or for the host if it has none."""
    if gpus or terms.memory is not None:
        return terms.memory
    return terms.host_memory


class RequestCache:
    """A cache of requests; equal tasks (terms, class, number of GPUs) share one. Entries are dropped when more is
    learned.
    """

    def __init__(self) -> None:
        self._firm: dict[int, dict[tuple[int, int], ResourceRequest]] = {}
        """Requests that follow only from observations of their own class, by class."""
        self._loose: dict[tuple[int, int, int], ResourceRequest] = {}
        """Requests that may also depend on observations of other classes."""

    def find(self, terms: int, kind: int, gpus: int) -> ResourceRequest | None:
        """Return the cached request of equal tasks; None if there is none."""
        firm = self._firm.get(kind)
        return (firm.get((terms, gpus)) if firm else None) or self._loose.get((terms, kind, gpus))

    def keep(self, terms: int, kind: int, gpus: int, need: ResourceRequest, *, firm: bool) -> None:
        """Cache a request. `firm` is True if only observations of the class `kind` can change the request."""
        if firm:
            self._firm.setdefault(kind, {})[terms, gpus] = need
        else:
            self._loose[terms, kind, gpus] = need

    def learned(self, kind: int) -> None:
        """Drop the requests that may have changed because something was learned about a class."""
        self._firm.pop(kind, None)
        self._loose.clear()

    def grown(self) -> None:
        """Drop the requests that may have changed because of another class."""
        self._loose.clear()
