"""Calls of Python code as words of a command, from which the scheduler learns which arguments change the memory of
calls.
"""

from __future__ import annotations

import functools
import inspect
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_batch_scheduler_plugins._core import describe, literal, target_words, varied_word

PLAIN = (str, int, float, bool, type(None))
"""The types of attribute values that are shown."""


def words_of_call(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Return the words that show a call: the file of its code, its name, and its arguments by name.

    For a callable object, its plain attributes are shown too. Overrides in a list (`lr=0.1`) become separate words.
    """
    call = describe(function, args, kwargs)
    named = {**_state(function), **call.varied}
    lists = [value for value in (*args, *kwargs.values()) if _are_overrides(value)]
    shown = [varied_word(name, str(value)) for name, value in named.items()]
    return [*shlex.split(target_words(call.target)), *shown, *(literal(one) for value in lists for one in value)]


def name_of_call(function: Any) -> str:
    """Return the name of the function or class that a call runs."""
    return describe(function, (), {}).target.name.rpartition(".")[2]


def _state(function: Any) -> dict[str, Any]:
    """Return the plain attributes of a callable object, or of the object whose method is called."""
    while isinstance(function, functools.partial):
        function = function.func
    holder = function.__self__ if inspect.ismethod(function) else function
    if inspect.isroutine(holder) or isinstance(holder, type):
        return {}
    state = getattr(holder, "__dict__", {})
    return {name: value for name, value in state.items() if not name.startswith("_") and isinstance(value, PLAIN)}


def _are_overrides(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(one, str) and "=" in one for one in value)
