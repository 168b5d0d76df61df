"""Grids of parameters: all combinations of their values, in order or shuffled, and the commands made from them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, product
from math import prod

from scheduler.patterns import lazy_pattern

Values = Mapping[str, Sequence[str]]
"""Each parameter with its values, in the order in which they were given."""

_SAFE = lazy_pattern(r"[\w@%+=:,./{}\- ]*", re.ASCII)


class BadPattern(ValueError):
    """The error of a pattern into which the parameters cannot be filled."""


def combinations(values: Values) -> Iterator[dict[str, str]]:
    """Yield all combinations; the last parameter varies fastest."""
    return (dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


def shuffled(values: Values, shuffle: Callable[[list[int]], None]) -> Iterator[dict[str, str]]:
    """Yield each combination once; `shuffle` brings the list of their numbers into a random order, in place."""
    numbers = list(range(prod(map(len, values.values()))))
    shuffle(numbers)
    return numbered(values, numbers)


def numbered(values: Values, numbers: Iterable[int]) -> Iterator[dict[str, str]]:
    """Yield the combinations with these numbers, counted from 0; the last parameter varies fastest."""
    return (_combination(values, number) for number in numbers)


def _combination(values: Values, number: int) -> dict[str, str]:
    chosen: list[tuple[str, str]] = []
    for name in reversed(list(values)):
        number, place = divmod(number, len(values[name]))
        chosen.append((name, values[name][place]))
    return dict(reversed(chosen))


def first(found: Iterable[dict[str, str]], most: int | None) -> Iterator[dict[str, str]]:
    """Return the first `most` combinations; all of them if `most` is None."""
    return islice(found, most)


def command(pattern: str, values: Mapping[str, str]) -> str:
    """Return the pattern with the values filled in as `str.format_map` does; raise BadPattern if that is impossible."""
    try:
        return pattern.format_map(values)
    except KeyError as exc:
        name = exc.args[0]
        raise BadPattern(
            f"the command asks for {{{name}}}, which no -p gives: add -p {name} VALUE ..., or write {{{{{name}}}}} "
            f"for literal braces"
        ) from exc
    except (ValueError, IndexError, AttributeError, TypeError) as exc:
        raise BadPattern(f"the command {pattern!r} cannot be filled ({_why(exc)})") from exc


def _why(exc: Exception) -> str:
    said = str(exc).lower()
    if "positional" in said or "format string contains" in said:
        return "{} names no parameter: write {NAME}, and {{}} for literal braces"
    if "format code" in said or "format specifier" in said:
        return f"{said}; values are texts: leave out what follows the colon"
    return f"{said}; write {{{{ and }}}} for literal braces"


def needs_no_shell(text: str) -> bool:
    """Tell whether a shell would only split this command at blanks."""
    return bool(_SAFE.fullmatch(text)) and "=" not in text.split(None, 1)[0] and "{" not in text
