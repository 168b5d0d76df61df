"""The varied parameters of a configuration; an iterator among their values is read once and replaced by a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from itertools import islice
from math import prod
from typing import Any

from scheduler.errors import ConfigError

Axes = dict[str, list[Any]]
"""The values of each parameter, in the order in which they were written."""
MOST = 1_000_000
"""The number of values above which an iterator counts as endless."""
_SHAPE = "test_config is a list of dictionaries, each of names and lists of values"


def read_axes(config: MutableMapping[str, Any]) -> list[Axes]:
    """Return the values of each dictionary of `test_config`.

    An iterator can be read only once, so it is replaced in the configuration by a list of its values: a second
    scheduler with that configuration then finds equal values. Nothing else in the configuration changes. Raise
    ConfigError if it is invalid.
    """
    said = config.get("test_config", [{}])
    if isinstance(said, (str, bytes, Mapping)) or not isinstance(said, Iterable):
        raise ConfigError(_SHAPE)
    if isinstance(said, Iterator):
        said = config["test_config"] = _read(said, "test_config")
    dictionaries = list(said)
    if not all(isinstance(one, Mapping) for one in dictionaries):
        raise ConfigError(_SHAPE)
    return [_axes(one) for one in dictionaries]


def number_of(axes: Axes) -> int:
    """Return the number of combinations of the values in a dictionary."""
    return prod(len(values) for values in axes.values())


def _axes(one: Mapping[str, Any]) -> Axes:
    found: Axes = {}
    for key, values in list(one.items()):
        found[key] = _values(key, values)
        if isinstance(values, Iterator):
            if not isinstance(one, MutableMapping):
                raise ConfigError(f"test_config: the values of {key!r} can be read only once: write a list of them")
            one[key] = found[key]
    return found


def _values(key: str, values: Any) -> list[Any]:
    """Return the values of a parameter as a list; a string counts as a list of its letters, as in the older tool."""
    try:
        each = iter(values)
    except TypeError:
        shown = f"{text_of(values, f'test_config: {key!r}'):.60}"
        raise ConfigError(f"test_config: {key!r} is {shown}, which is no list of values: write [{shown}]") from None
    return _read(each, f"test_config: {key!r}", endless=not hasattr(values, "__len__"))


def _read(values: Iterator[Any], what: str, *, endless: bool = True) -> list[Any]:
    """Return all values of an iterator; with `endless`, the iterator may never end, so raise ConfigError after MOST
    values.
    """
    found: list[Any] = []
    try:
        found.extend(islice(values, MOST + 1) if endless else values)
    except Exception as exc:  # the user's own code
        raise ConfigError(f"{what} failed after {len(found)} values with {type(exc).__name__}: {exc}") from exc
    if endless and len(found) > MOST:
        raise ConfigError(f"{what} gives more than {MOST} values: write a list of the values that you want")
    return found


def text_of(value: Any, what: str) -> str:
    """Return a user's object as a string; raise ConfigError if that fails."""
    try:
        return str(value)
    except Exception as exc:  # the user's own code
        raise ConfigError(f"{what} has no text: str() raised {type(exc).__name__}: {exc}") from exc
