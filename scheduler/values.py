"""Values: dataclasses that mypy keeps frozen, which nothing watches over at run time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
    from dataclasses import replace as replace
else:

    def dataclass(*, frozen=False, **how):
        """As in the standard library; a frozen one is assigned to like any other.

        There such a class takes twice as long to make, and light verbs load sixty of them; each value takes three times
        as long, and every start of a task makes a dozen.
        """

        def made(cls):
            if "__repr__" not in vars(cls):
                cls.__repr__ = _repr
            return dataclasses.dataclass(cls, repr=False, unsafe_hash=frozen, **how)

        return made

    def replace(value, **changes):
        """As in the standard library, for values with slots that are as they were given."""
        new = object.__new__(type(value))
        for name in value.__slots__:
            setattr(new, name, changes[name] if name in changes else getattr(value, name))
        return new


def _repr(self: object) -> str:
    names = [field.name for field in dataclasses.fields(self) if field.repr]  # type: ignore[arg-type]  # it is one
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
