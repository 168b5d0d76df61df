"""Values: dataclasses that mypy keeps frozen, at no cost at run time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen=False, eq=True, **how):
        """Return a dataclass decorator like the standard one; mypy alone checks that frozen classes are never assigned
        to.

        A truly frozen class takes three times as long to define, mostly to compile its own methods, and light verbs
        load sixty of them; each value takes three times as long to create, and every start of a task creates a dozen.
        """

        def made(cls):
            if "__repr__" not in vars(cls):
                cls.__repr__ = _repr
            made = dataclasses.dataclass(cls, repr=False, eq=False, **how)
            return _compared(made, hashed=frozen) if eq else made

        return made


def _compared(cls: Any, hashed: bool) -> Any:
    """Return the class with equality by all fields; its values have a hash if they never change."""
    fields = [field.name for field in dataclasses.fields(cls) if field.compare]
    said: Callable[[object], object] = attrgetter(*fields) if fields else type

    def eq(self: object, other: object) -> bool:
        return said(self) == said(other) if type(other) is type(self) else NotImplemented

    def hash_(self: object) -> int:
        return hash(said(self))

    cls.__eq__ = eq
    cls.__hash__ = hash_ if hashed else None
    return cls


def _repr(self: object) -> str:
    names = [field.name for field in dataclasses.fields(self) if field.repr]  # type: ignore[arg-type]  # it is one
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
