"""The table of the arguments of one script's task classes: which change together, and which only label rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from operator import itemgetter

from scheduler.core.profiling.family.arguments import (
    Slots,
    is_content,
    is_content_file,
    is_number,
    labels,
    plain_name,
)
from scheduler.values import dataclass, field

Key = tuple[int, ...]
"""The values of some arguments in one class, as codes (see `Codes`)."""
Codes = tuple[int, ...]
"""The values of one class, a number for each slot. The values of a slot are numbered in the order in which they first
appear."""

MOST_SLOTS = 100
"""The number of argument names with a slot of their own; all further names share one slot. Otherwise a table with a new
name in every row would grow with the square of the number of rows."""
REST = "..."
LABELS_FROM = 8
"""Once there are this many rows, a string argument with a different value in every row counts as a label, whatever its
name."""
NAMED_LABELS_FROM = 3
"""Once there are this many rows, a string argument with a different value in every row counts as a label if its name
suggests one."""


class Role(StrEnum):
    """The role of a slot whose values differ between classes."""

    LEARNED = "learned"
    """Peaks show whether the argument matters."""
    UNIQUE = "unique"
    """The argument is left out: it is a string with a different value in every row."""
    LABEL = "label"
    """The argument is left out: every row has a different value and the name suggests a label, or the value is composed
    of other values."""
    IGNORED = "ignored"
    """The user says that the argument does not matter."""
    NEEDED = "needed"
    """The user says that the argument matters."""


LEFT_OUT = (Role.UNIQUE, Role.LABEL)
"""The roles of slots that are left out when classes are compared."""
SPLITTING = frozenset({Role.LEARNED, Role.NEEDED})


@dataclass(frozen=True, slots=True)
class ArgumentGroup:
    """Slots of one role whose values always change together; the first slot stands for all of them."""

    slots: tuple[int, ...]
    role: Role
    numbers: bool


@dataclass(slots=True)
class _Column:
    """The values of one slot in all classes."""

    name: str
    texts: list[str | None] = field(default_factory=list)
    """The values of the slot by code; None stands for classes that do not have the slot."""
    codes: dict[str | None, int] = field(default_factory=dict)
    numbers: bool = True
    content: bool = False
    within: set[int] = field(default_factory=set)
    """The slots whose values are, in every class, a part of the value of this slot."""

    def code(self, text: str | None) -> int:
        code = self.codes.get(text)
        if code is None:
            code = self.codes[text] = len(self.texts)
            self.texts.append(text)
            self.numbers = self.numbers and text is not None and is_number(text)
        return code


class _Function:
    """The test of whether the value of one slot follows from the values of other slots. Each test continues where the
    last one stopped.
    """

    def __init__(self, domain: tuple[int, ...]) -> None:
        self.domain = domain
        self._of = itemgetter(*domain)
        self._values: dict[object, int] = {}
        self._read = 0
        self._holds = True

    def holds(self, slot: int, table: list[Codes]) -> bool:
        while self._holds and self._read < len(table):
            row = table[self._read]
            self._holds = self._values.setdefault(self._of(row), row[slot]) == row[slot]
            self._read += 1
        return self._holds


class ArgumentTable:
    """The argument values of all classes of a script. The cost of adding a class is proportional to its number of
    slots.
    """

    def __init__(self, ignore: Iterable[str] = (), only: Iterable[str] = ()) -> None:
        self.columns: list[_Column] = []
        self.table: list[Codes] = []
        self.rows = 0
        self._ignore = {plain_name(name) for name in ignore}
        self._only = {plain_name(name) for name in only}
        self._index: dict[str, int] = {}
        self._together: list[list[int]] = [[]]
        """Groups of slots that have equal codes in every class; the first group contains the slots that never
        varied."""
        self._functions: dict[int, _Function] = {}

    def add(self, slots: Slots) -> None:
        """Add one task class."""
        said = self._folded(slots)
        for name in said:
            if name not in self._index:
                self._new_column(name)
        texts = [said.get(column.name) for column in self.columns]
        codes = tuple(column.code(text) for column, text in zip(self.columns, texts, strict=True))
        self._note_what_is_within(texts)
        self._split(codes)
        self.table.append(codes)

    def bundles(self) -> tuple[ArgumentGroup, ...]:
        """Return the slots whose values differ, grouped: slots of one role that always change together form one
        group.
        """
        roles = self._roles()
        found = []
        for together in self._together[1:]:
            by_role: dict[Role, list[int]] = {}
            for slot in together:
                by_role.setdefault(roles[slot], []).append(slot)
            found += [self._bundle(slots, role) for role, slots in by_role.items()]
        return tuple(sorted(found, key=lambda bundle: bundle.slots))

    def _bundle(self, slots: list[int], role: Role) -> ArgumentGroup:
        return ArgumentGroup(tuple(slots), role, all(self.columns[slot].numbers for slot in slots))

    def values(self, slot: int) -> int:
        """Return the number of different values of a slot."""
        return len(self.columns[slot].texts)

    def _folded(self, slots: Slots) -> dict[str, str]:
        new = [name for name, _ in slots if name not in self._index]
        if len(self._index) + len(new) <= MOST_SLOTS:
            return dict(slots)
        over = set(new[max(0, MOST_SLOTS - len(self._index)) :])
        rest = " ".join(f"{name}={value}" for name, value in slots if name in over)
        return {**{name: value for name, value in slots if name not in over}, REST: rest}

    def _new_column(self, name: str) -> None:
        """Add a column for a slot that no earlier class had, with None as its only value."""
        slot = self._index[name] = len(self.columns)
        column = _Column(name, content=is_content(name))
        self.columns.append(column)
        self._together[0].append(slot)
        if self.table:
            column.code(None)
            self.table = [(*codes, 0) for codes in self.table]

    def _note_what_is_within(self, texts: list[str | None]) -> None:
        if not self.table:
            for slot, column in enumerate(self.columns):
                column.within = set(range(len(texts))) - {slot}
        for column, text in zip(self.columns, texts, strict=True):
            column.content = column.content or is_content_file(text or "")
            column.within = {at for at in column.within if (part := texts[at]) and part in (text or "")}

    def _split(self, codes: Codes) -> None:
        """Split the groups of slots that do not change together in this class."""
        split: list[list[int]] = [[]]
        for number, together in enumerate(self._together):
            by_code: dict[int, list[int]] = {}
            for slot in together:
                by_code.setdefault(codes[slot], []).append(slot)
            if number == 0:
                split[0] = by_code.pop(0, [])
            split += by_code.values()
        self._together = split

    def _roles(self) -> dict[int, Role]:
        varying = [slot for together in self._together[1:] for slot in together]
        roles = {slot: self._role(slot) for slot in varying}
        if not SPLITTING & set(roles.values()):
            roles = {slot: Role.LEARNED if role is Role.UNIQUE else role for slot, role in roles.items()}
        for slot in self._composed(roles):
            roles[slot] = Role.LABEL
        return roles

    def _role(self, slot: int) -> Role:
        column = self.columns[slot]
        name, values = plain_name(column.name), len(column.texts)
        only = self._only if any(plain_name(column.name) in self._only for column in self.columns) else set()
        if only or name in self._ignore:  # `only` does not apply to a script that has none of its arguments
            return Role.NEEDED if name in only - self._ignore else Role.IGNORED
        if labels(column.name):
            every = values == len(self.table) >= NAMED_LABELS_FROM
            return Role.LABEL if every else Role.LEARNED
        every = values == self.rows >= LABELS_FROM
        return Role.UNIQUE if every and not column.numbers and not column.content else Role.LEARNED

    def _composed(self, roles: Mapping[int, Role]) -> list[int]:
        """Return the string slots that contain at least two other values and are determined by all other slots
        together.
        """
        learned = {slot for slot, role in roles.items() if role in SPLITTING}
        texts = [slot for slot in learned if roles[slot] is Role.LEARNED and not self.columns[slot].numbers]
        composed = [slot for slot in texts if len(self.columns[slot].within & learned) > 1]
        domain = tuple(sorted(learned.difference(composed)))
        return [
            slot
            for slot in composed
            if len(self.columns[slot].within.intersection(domain)) > 1 and self._follows(slot, domain)
        ]

    def _follows(self, slot: int, domain: tuple[int, ...]) -> bool:
        known = self._functions.get(slot)
        if known is None or known.domain != domain:
            known = self._functions[slot] = _Function(domain)
        return known.holds(slot, self.table)
