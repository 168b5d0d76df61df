"""Placeholders, which are replaced in a command by the cells of a row.

`{name}` is replaced by the row's cell in the column `name`, in each word of a command separately, so that a cell with
blanks or quotes stays inside one argument. `{epochs}` and `{id}` stay in the text until an attempt is launched, because
a probe has other values; `{{epochs}}` and `{{id}}` are literal. `{prep.result.path}`, a value from the result of the
parent `prep`, also stays in the text until the launch. If there is only one parent, `{result.path}` is enough.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from scheduler.patterns import lazy_pattern

LATER = ("epochs", "id")
Results = Callable[[str], str | None]
"""A function that returns the value for a placeholder such as `prep.result.path`, or None for any other name. If the
result does not contain the value, the function raises LookupError with a sentence for users."""

_OF_RESULT = r"(?:[^{}]*\.)?result\.[^{}]+"
_AT_LAUNCH = rf"epochs|id|{_OF_RESULT}"
_LATER = lazy_pattern(rf"\{{\{{(?P<literal>{_AT_LAUNCH})\}}\}}|\{{(?P<name>{_AT_LAUNCH})\}}")
_RESULT = lazy_pattern(rf"{_OF_RESULT}\Z")
_NAMED = lazy_pattern(r"\{\{(?P<literal>[^{}]*)\}\}|\{(?P<name>[^{}]*)\}")
_TOKEN = lazy_pattern(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")
_MARK = lazy_pattern(f"\0({_AT_LAUNCH})\0")
"""The marker for a placeholder that is filled in later. No argument can contain its NUL."""


def takes(text: str, name: str) -> bool:
    """Tell whether a text contains `{epochs}` or `{id}`."""
    return "{" + name in text and any(match["name"] == name for match in _LATER.finditer(text))


def launched(word: str, epochs: str, task: str, results: Results | None = None) -> str:
    """Return a word with the values of an attempt filled in; `results` returns values from the results of the task's
    parents.
    """
    if "{" not in word:
        return word

    def value(match: re.Match[str]) -> str:
        name: str | None = match["name"]
        if name is None:
            return match[0][1:-1]
        if name in LATER:
            return epochs if name == "epochs" else task
        found = results(name) if results is not None else None
        return match[0] if found is None else found

    return _LATER.sub(value, word)


def is_result(name: str) -> bool:
    """Tell whether a placeholder with this name is filled from the result of a parent."""
    return _RESULT.match(name) is not None


def split_result(name: str) -> tuple[str, str]:
    """Return the parent and the key in the name of a placeholder: for `prep.result.path` `prep` and `path`; for
    `result.path` the parent is empty.
    """
    if name.startswith("result."):
        return "", name.removeprefix("result.")
    parent, _, key = name.partition(".result.")
    return parent, key


def parents_named(text: str) -> list[str]:
    """Return the placeholders in a text that are filled from results of parents."""
    if "result." not in text:
        return []
    return [match["name"] for match in _LATER.finditer(text) if match["name"] and match["name"] not in LATER]


def filled(word: str, cells: Mapping[str, str]) -> str:
    """Return a word of a list with the row's columns filled in. `{{x}}` becomes `{x}`, and all other braces stay as
    they are.
    """

    def cell(match: re.Match[str]) -> str:
        if match["literal"] is not None:
            return match[0] if match["literal"] in LATER or is_result(match["literal"]) else match[0][1:-1]
        name = match["name"].lower()
        return literal(cells[name]) if name in cells else match[0]

    return _NAMED.sub(cell, word)


def filled_template(word: str, cells: Mapping[str, str]) -> str:
    """Return a word of a table's command with the row's columns filled in. `{{` and `}}` become braces, anything else
    in braces is a column.
    """

    def part(match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0][0]
        name = match["name"].lower()
        return cells.get(name, f"\0{match['name'] if is_result(match['name']) else name}\0")

    if "{" not in word and "}" not in word:
        return word
    text = literal(_TOKEN.sub(part, word))
    return _MARK.sub(r"{\1}", text) if "\0" in text else text


def literal(text: str) -> str:
    """Return a text escaped so that no placeholder in it is filled in later."""
    return _LATER.sub(lambda match: "{" + match[0] + "}", text) if "{" in text else text


def names(template: Sequence[str]) -> list[str]:
    """Return the columns that the command of a table names, in lower case; raise ValueError for a single brace."""
    return list(dict.fromkeys(name for word in template for name in _names(word)))


def _names(word: str) -> Iterator[str]:
    for match in _TOKEN.finditer(word):
        if match["name"] is not None:
            yield match["name"] if is_result(match["name"]) else match["name"].lower()
        elif match[0] in ("{", "}"):
            raise ValueError(f"{word!r} has a single {match[0]}: write {match[0] * 2} for a literal brace")


def unknown(template: Sequence[str], columns: Collection[str]) -> str:
    """Return the first placeholder in the command of a table that is not a column; empty if there is none."""
    known = {*columns, "id"}
    return next((name for name in names(template) if name not in known and not is_result(name)), "")
