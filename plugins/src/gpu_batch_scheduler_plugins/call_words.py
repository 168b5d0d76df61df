"""Calls of Python code as words of a command, by which the scheduler learns which arguments change their memory."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from gpu_batch_scheduler_plugins._core import literal, varied_word

PLAIN = (str, int, float, bool, bytes, type(None))
"""Types whose values are shown as they are."""
MOST = 8
"""The largest number of members of a list or dictionary that are shown; a longer one is shown by its length."""


def words_of_call(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the words that show a call: the file of its code, its name, and its arguments by name.

    The words are for users and profiles only. An object is shown by its type and its shape or length.
    """
    code, own, args, kwargs = _unwrapped(function, args, kwargs)
    named = {**own, **_by_name(code, args, kwargs)}
    return [*_place(code), *(word for name, value in named.items() for word in _argument(str(name), value))]


def name_of_call(function: Callable[..., Any]) -> str:
    """Return the name of the code that a call runs."""
    return _name(_unwrapped(function, (), {})[0])


def _unwrapped(
    function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], Sequence[Any], Mapping[str, Any]]:
    """Return the code that a call runs, the values that it carries with it, and its arguments."""
    while isinstance(function, functools.partial):
        function, args, kwargs = function.func, (*function.args, *args), {**function.keywords, **kwargs}
    holder = getattr(function, "__self__", None)
    if inspect.ismethod(function) and not isinstance(holder, type):
        return function, _state(holder), args, kwargs
    if inspect.isroutine(function) or isinstance(function, type):
        return function, {}, args, kwargs
    return type(function), _state(function), args, kwargs


def _state(holder: object) -> dict[str, Any]:
    state = getattr(holder, "__dict__", {})
    return {name: value for name, value in state.items() if not name.startswith("_") and isinstance(value, PLAIN)}


def _by_name(code: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by their names; by their positions where the code does not tell its own."""
    try:
        call = getattr(code, "__call__", code) if isinstance(code, type) else code  # noqa: B004  # the method itself
        bound = inspect.signature(call).bind_partial(*((None, *args) if isinstance(code, type) else args), **kwargs)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(args, 1)}, **kwargs}
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        kind = bound.signature.parameters[name].kind
        if kind is inspect.Parameter.VAR_KEYWORD:
            named.update(value)
        elif kind is inspect.Parameter.VAR_POSITIONAL:
            named.update({f"{name}{place}": one for place, one in enumerate(value, 1)})
        else:
            named[name] = value
    if isinstance(code, type):
        named.pop("self", None)
    return named


def _name(code: Any) -> str:
    return str(getattr(code, "__qualname__", None) or type(code).__name__).replace("<locals>.", "")


def _place(code: Any) -> list[str]:
    """Return the file of the code and its name; its module instead of a file that does not exist."""
    module = sys.modules.get(getattr(code, "__module__", None) or "")
    file = getattr(module, "__file__", None) or ""
    if file.endswith(".py") and os.path.isfile(file):
        return [literal(os.path.abspath(file)), _name(code)]
    return [f"{getattr(code, '__module__', None) or 'builtins'}.{_name(code)}"]


def _argument(name: str, value: Any) -> Iterator[str]:
    """Yield the words of one argument; overrides such as `lr=0.1` in a list are words of their own."""
    if isinstance(value, list | tuple) and value and all(isinstance(one, str) and "=" in one for one in value):
        yield from map(literal, value)
    else:
        yield varied_word(name, _shown(value))


def _shown(value: Any) -> str:
    if isinstance(value, PLAIN):
        return str(value)
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return f"{type(value).__name__}{tuple(shape)}"
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return _of_members(value)
    return type(value).__name__


def _of_members(value: Any) -> str:
    """Return the members of a short collection of plain values, else its type and length."""
    members = [*value.items()] if isinstance(value, Mapping) else [*value]
    plain = [one for pair in members for one in (pair if isinstance(pair, tuple) else (pair,))]
    if len(members) > MOST or not all(isinstance(one, PLAIN) for one in plain):
        return f"{type(value).__name__}({len(members)})"
    shown = [":".join(map(str, one)) if isinstance(one, tuple) else str(one) for one in members]
    return ",".join(sorted(shown) if isinstance(value, set | frozenset) else shown)
