"""The form of values in messages. Both ends of a link have the same version, so old forms need not be read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, Protocol, TypeVar

from scheduler.core.events import Event, decode, encode
from scheduler.core.leases import Lease, RoomCall, RoomOffer
from scheduler.core.model import Device, DeviceBudget, Purpose, UnmanagedUse, Waiter, WaitTicket, Warn
from scheduler.core.ports import Launch, Sample, Watched
from scheduler.values import dataclass, field, names_of, replace

T = TypeVar("T")


class _Part(Protocol):
    """A writer and reader of the value of one field."""

    def to_dict(self, value: Any) -> Any:
        """Return the field's value as JSON values."""

    def from_dict(self, data: Any) -> Any:
        """Return what `to_dict` wrote."""


class Form(Generic[T]):
    """The form of values of one class: an object with their fields. A field that JSON can hold unchanged, and None,
    need no part."""

    def __init__(self, cls: Callable[..., T], **parts: _Part) -> None:
        self._cls, self._parts = cls, parts

    def to_dict(self, value: T) -> dict[str, Any]:
        """Return a value as JSON values."""
        said = {}
        for name in names_of(type(value)):
            field, part = getattr(value, name), self._parts.get(name)
            said[name] = field if part is None or field is None else part.to_dict(field)
        return said

    def from_dict(self, data: Mapping[str, Any]) -> T:
        """Return the value that `to_dict` wrote."""
        return self._cls(**{
            name: self._parts[name].from_dict(field) if name in self._parts and field is not None else _plain(field)
            for name, field in data.items()
        })  # fmt: skip


def _plain(field: Any) -> Any:
    """Return a field's value in the type that the class has: a tuple in place of a list from JSON."""
    return tuple(field) if isinstance(field, list) else field


class _Read:
    """A field that JSON can hold, and that a function restores."""

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read

    def to_dict(self, value: Any) -> Any:
        """Return the field's value unchanged."""
        return value

    def from_dict(self, data: Any) -> Any:
        """Return the field's value, restored by the function."""
        return self._read(data)


class Many:
    """A sequence of values with one form."""

    def __init__(self, form: _Part) -> None:
        self._form = form

    def to_dict(self, value: Sequence[Any]) -> list[Any]:
        """Return the values, each in its form."""
        return [self._form.to_dict(one) for one in value]

    def from_dict(self, data: Sequence[Any]) -> tuple[Any, ...]:
        """Return the values that `to_dict` wrote."""
        return tuple(self._form.from_dict(one) for one in data)


def _tuples(rows: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(tuple(row) if isinstance(row, list) else row for row in rows)


def _call(data: Sequence[Any]) -> tuple[str, int, int]:
    run, task, attempt = data
    return str(run), int(task), int(attempt)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The facts about its node with which an agent answers the head's first message."""

    host: str
    machine: str
    boot: str
    uid: int
    usual: int
    driver: str
    reads: str
    budgets: tuple[DeviceBudget, ...]
    """The state of the node's devices at the time of the answer."""
    notes: tuple[str, ...] = ()
    limits: Mapping[str, str] = field(default_factory=dict)
    features: tuple[str, ...] = ()
    """The node's features, which rows may request."""

    @property
    def identity(self) -> tuple[str, str]:
        """The ids that distinguish the node's machine from others."""
        return self.machine, self.host


_ROWS = _Read(_tuples)
OFFER = Form(RoomOffer)
CALL = Form(RoomCall, attempts=Many(_Read(_call)))
DEVICE = Form(Device)
BUDGET = Form(DeviceBudget, device=DEVICE, unmanaged=Many(Form(UnmanagedUse)), strayed=_ROWS)
LEASE = Form(Lease, offer=OFFER)
TICKET = Form(WaitTicket, call=CALL)
WAITER = Form(Waiter, ticket=TICKET)
SAMPLE = Form(Sample, readings=_ROWS)
WATCHED = Form(Watched)
FACTS = Form(NodeFacts, budgets=Many(BUDGET))
LAUNCH = Form(Launch, purpose=_Read(Purpose), warn=Form(Warn))


class ReportChanges:
    """The reports of one link: each contains what has changed since the one before it.

    Temperature, power, load and small amounts of memory change all the time, and are reported once a second.
    """

    PAUSE = 1.0
    """Seconds between two reports of small changes."""
    LITTLE = 16 << 20
    """The number of bytes from which a change of free memory counts as large."""

    def __init__(self) -> None:
        self._budgets: dict[str, DeviceBudget] = {}
        self._others: dict[str, Any] = {}
        self._told = -1e9

    def of(self, now: float, budgets: Sequence[DeviceBudget], **others: Any) -> dict[str, Any]:
        """Return what to report now; each value in `others` is reported as a whole if it has changed."""
        said = {name: value for name, value in others.items() if value != self._others.get(name)}
        self._others = others
        found = {budget.device.key: budget for budget in budgets}
        whole = found.keys() != self._budgets.keys()
        every = whole or now - self._told >= self.PAUSE
        known = self._budgets
        changed = [one for key, one in found.items() if whole or self._has_changed(one, known[key], every=every)]
        self._told = now if every else self._told
        self._budgets |= {one.device.key: one for one in changed}
        if whole:
            self._budgets, said["whole"] = found, True
        if changed:
            said["budgets"] = [BUDGET.to_dict(one) for one in changed]
        return said

    def _has_changed(self, one: DeviceBudget, before: DeviceBudget, *, every: bool) -> bool:
        if every or abs(one.free - before.free) >= self.LITTLE:
            return one != before
        return one != replace(
            before, free=one.free, least=one.least, busy=one.busy, age=one.age, celsius=one.celsius, watts=one.watts
        )


def event_to_dict(event: Event) -> list[Any]:
    """Return the name of an event, and its data in the form of the journal."""
    return [event.kind, encode(event)]


def event_from_dict(data: Sequence[Any]) -> Event:
    """Return the event that `event_to_dict` wrote."""
    return decode(*data)
