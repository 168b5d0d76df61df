"""The words that describe a call of a function: its name, and the words by which its memory is learned.

The task gets the function and its values as a pickle; these words are for users and profiles only.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import CodeType
from typing import Any

from scheduler.inputs.python_calls import CallTarget, PythonCall

_PLAIN = (str, int, float, bool, type(None))
_NAME = 60


def describe(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> PythonCall:
    """Return a call without its pickled values. Never raise: an unusual function or value is only shown less
    exactly.
    """
    plain, args, kwargs = _unwrapped(function, args, kwargs)
    values = {name: told(value) for name, value in _named(plain, args, kwargs).items()}
    target = _place(plain)
    last = target.name.rpartition(".")[2]
    text = ",".join(f"{name}-{value}" for name, value in values.items())
    return PythonCall(target, f"{last} {text}".strip()[:_NAME], values)


def describe_chunk(function: Callable[..., Any], calls: int) -> PythonCall:
    """Return several calls of a function, made one after another in one task, as one call without pickled values."""
    target = _place(_unwrapped(function, (), {})[0])
    return PythonCall(target, f"{target.name.rpartition('.')[2]} x {calls}"[:_NAME], {"calls": calls})


def told(value: object) -> object:
    """Return the form in which a value is shown: a plain value unchanged, any other value as its type and its size."""
    if isinstance(value, _PLAIN):
        return value
    name = type(value).__name__
    try:
        shape = getattr(value, "shape", None)
        if isinstance(shape, tuple):
            return f"{name}{'x'.join(map(str, shape))}"
        return f"{name}{len(value)}"  # type: ignore[arg-type]  # most have a length, and the others raise
    except Exception:  # noqa: BLE001  # objects of the user raise anything
        return name


def _unwrapped(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """Return the function that a partial function finally calls, with all the arguments that the partial
    function adds.
    """
    while isinstance(function, functools.partial):
        args, kwargs = [*function.args, *args], {**function.keywords, **kwargs}
        function = function.func
    return function, args, kwargs


def _named(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments by the names of the function's parameters; an argument without a name gets its position as
    its name.
    """
    names: Sequence[str] = ()
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        names = code.co_varnames[: code.co_argcount]
        if inspect.ismethod(function):
            names = names[1:]
    given = {names[i] if i < len(names) else f"argument{i + 1}": value for i, value in enumerate(args)}
    return {**given, **kwargs}


@functools.lru_cache(256)
def _place_of(module_name: str, qualname: str, code: CodeType | None) -> CallTarget:
    """Return the place of a function by the file of its module; a function without a file is identified by its code."""
    module = sys.modules.get(module_name)
    file = getattr(module, "__file__", None) or ""
    by_file = file.endswith(".py") and os.path.isfile(file)
    if by_file:
        return CallTarget(module_name, os.path.abspath(file), "", qualname)
    known = f":{_digest(code)}" if code is not None else ""
    return CallTarget(f"{module_name}{known}", "", "", qualname)


def _place(function: Callable[..., Any]) -> CallTarget:
    """Return where a function is defined; for any other callable object, return where its class is defined."""
    code = getattr(function, "__code__", None)
    named = function if isinstance(getattr(function, "__qualname__", None), str) else type(function)
    module = getattr(named, "__module__", None)  # the wrapper of a slot, such as `Class.__call__`, has none
    return _place_of(str(module), named.__qualname__, code if isinstance(code, CodeType) else None)


def _digest(code: CodeType) -> str:
    """Return a string that is equal for equal code, even in other processes."""
    from hashlib import blake2b

    digest = blake2b(digest_size=6)
    todo = [code]
    for each in todo:
        digest.update(each.co_code + " ".join(each.co_names).encode())
        todo += [const for const in each.co_consts if isinstance(const, CodeType)]
        digest.update(repr([const for const in each.co_consts if isinstance(const, _PLAIN)]).encode())
    return digest.hexdigest()
