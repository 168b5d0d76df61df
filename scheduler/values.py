"""Values: dataclasses that mypy keeps frozen, at little cost at run time.

The standard library's `dataclasses` is not loaded for them. With `inspect`, which it needs, it takes 4 ms of every
command. It takes several milliseconds more to make the classes that a light verb loads.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import TYPE_CHECKING, Any

_MISSING: Any = object()
"""The default of a field that has none."""
_RENEWED = frozenset({"__dict__", "__weakref__"})
"""Attributes that Python makes anew for a class with slots."""


class _Field(dict[str, Any]):
    """The options of a field that has more than a default value."""


class _StandardFields:
    """The fields of a class as the standard library has them, for its own functions; made when first asked for."""

    def __get__(self, value: object, cls: Any) -> dict[str, Field[Any]]:
        import dataclasses

        kinds: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            kinds |= getattr(base, "__annotations__", {})
        fields: dict[str, Any] = cls.__value_fields__
        content = {name: default for name, default in fields.items() if default is not _MISSING}
        content |= {name: dataclasses.field(**default) for name, default in content.items() if type(default) is _Field}
        content |= {"__module__": cls.__module__, "__annotations__": {name: kinds[name] for name in fields}}
        plain: Any = dataclasses.dataclass(type(cls.__name__, (), content), init=False, repr=False, eq=False)
        made: dict[str, Field[Any]] = plain.__dataclass_fields__
        return made


if TYPE_CHECKING:
    from dataclasses import Field
    from dataclasses import dataclass as dataclass
    from dataclasses import field as field
    from dataclasses import replace as replace
else:

    def dataclass(*, slots, frozen=False, eq=True):
        """Return a dataclass decorator like the standard one; mypy alone checks that frozen classes are never assigned
        to.

        A truly frozen class takes three times as long to define, mostly to compile its own methods. Each of its values
        takes three times as long to create, and every start of a task creates a dozen values. The constructor is
        compiled when the first value is created: light verbs load seventy classes and create values of only a few.
        """
        assert slots, "values have slots"
        return lambda cls: _made(cls, hashed=frozen, eq=eq)

    def field(**options):
        """Return a field that is more than a default value; the options are those of the standard one."""
        return _Field(options)

    def replace(value, /, **changes):
        """Return a copy of a value with other values of some fields."""
        cls = type(value)
        for name in cls.__match_args__:
            if name not in changes:
                changes[name] = getattr(value, name)
        return cls(**changes)


def names_of(cls: type) -> tuple[str, ...]:
    """Return the names of the fields that a class of values is constructed of."""
    names: tuple[str, ...] = cls.__match_args__  # type: ignore[attr-defined]  # mypy knows it of dataclasses alone
    return names


def _made(cls: Any, *, hashed: bool, eq: bool) -> Any:
    """Return the class with slots in the place of its fields, and the methods of a value."""
    own = {name: vars(cls).get(name, _MISSING) for name, of in cls.__annotations__.items() if "ClassVar" not in of}
    inherited: dict[str, object] = getattr(cls, "__value_fields__", {})
    fields = inherited | own
    content = {name: value for name, value in vars(cls).items() if name not in own and name not in _RENEWED}
    content.setdefault("__repr__", _repr)
    content["__slots__"] = tuple([name for name in own if name not in inherited])
    content["__value_fields__"] = fields
    content["__match_args__"] = tuple([name for name, default in fields.items() if _is(default, "init")])
    content["__dataclass_fields__"] = _StandardFields()
    made = type(cls)(cls.__name__, cls.__bases__, content)
    made.__init__ = _constructor(made)
    return _compared(made, hashed) if eq else made


def _is(default: object, what: str) -> bool:
    """Tell whether a field takes part in the constructor (init), in what is shown (repr) or in equality (compare)."""
    return type(default) is not _Field or default.get(what, True)


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
    names: dict[str, Any] = {"MISSING": _MISSING}
    params, lines = ["self"], []
    for name, default in cls.__value_fields__.items():
        given = param = name
        options = default if type(default) is _Field else {"default": default}
        if "default_factory" in options:
            names[f"make_{name}"], param = options["default_factory"], f"{name}=MISSING"
            given = f"make_{name}() if {name} is MISSING else {name}"
        elif options.get("default", _MISSING) is not _MISSING:
            names[f"default_{name}"], param = options["default"], f"{name}=default_{name}"
        if _is(default, "init"):
            params.append(param)
            lines.append(f" self.{name} = {given}")
    if hasattr(cls, "__post_init__"):
        lines.append(" self.__post_init__()")
    exec("\n".join([f"def __init__({', '.join(params)}):", *lines, " return"]), names)
    compiled: Callable[..., None] = names["__init__"]
    compiled.__qualname__ = f"{cls.__qualname__}.__init__"
    return compiled


def _compared(cls: Any, hashed: bool) -> Any:
    """Return the class with equality by all fields; its values have a hash if they never change."""
    fields = [name for name, default in cls.__value_fields__.items() if _is(default, "compare")]
    said: Callable[[object], object] = attrgetter(*fields) if fields else type

    def eq(self: object, other: object) -> bool:
        return said(self) == said(other) if type(other) is type(self) else NotImplemented

    def hash_(self: object) -> int:
        return hash(said(self))

    cls.__eq__ = eq
    cls.__hash__ = hash_ if hashed else None
    return cls


def _repr(self: Any) -> str:
    names = [name for name, default in self.__value_fields__.items() if _is(default, "repr")]
    return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"
