"""Values: dataclasses that mypy keeps frozen, at no cost at run time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(*, frozen=False, eq=True, slots=False):
        """Return a dataclass decorator like the standard one; mypy alone checks that frozen classes are never assigned
        to.

        A truly frozen class takes three times as long to define, mostly to compile its own methods, and each value
        takes three times as long to create, of which every start of a task creates a dozen. The constructor is
        compiled when the first value is created: light verbs load seventy classes and create values of few.
        """

        def made(cls):
            if "__repr__" not in vars(cls):
                cls.__repr__ = _repr
            made = dataclasses.dataclass(cls, repr=False, eq=False, init=False, slots=slots)
            made.__init__ = _constructor(made)
            return _compared(made, hashed=frozen) if eq else made

        return made


def _constructor(cls: Any) -> Callable[..., None]:
    """Return a constructor of the class that puts the compiled one in its place when it is first called."""

    def init(self: object, *args: object, **values: object) -> None:
        cls.__init__ = _compiled(cls)
        cls.__init__(self, *args, **values)

    init.__name__, init.__qualname__ = "__init__", f"{cls.__qualname__}.__init__"
    return init


def _compiled(cls: Any) -> Callable[..., None]:
    """Return the constructor of a class, which sets field by field like that of the standard library.

    A field with `init=False` is set by the class's own `__post_init__`.
    """
    names: dict[str, Any] = {"MISSING": dataclasses.MISSING}
    params, lines = ["self"], []
    for field in dataclasses.fields(cls):
        name, default = field.name, ""
        given = name
        if field.default is not dataclasses.MISSING:
            names[f"default_{name}"], default = field.default, f"=default_{name}"
        elif field.default_factory is not dataclasses.MISSING:
            names[f"make_{name}"], default = field.default_factory, "=MISSING"
            given = f"make_{name}() if {name} is MISSING else {name}"
        if field.init:
            params.append(name + default)
            lines.append(f" self.{name} = {given}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec("\n".join([f"def __init__({', '.join(params)}):", *lines, " return"]), names)
    compiled: Callable[..., None] = names["__init__"]
    compiled.__qualname__ = f"{cls.__qualname__}.__init__"
    return compiled


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
