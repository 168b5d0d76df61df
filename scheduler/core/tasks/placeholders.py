"""Placeholders, which are replaced in a command by the cells of a row.

`{name}` is replaced by the row's cell of that column, in each word of a command by itself, so that a cell with blanks
or quotes stays inside one argument. `{epochs}` and `{id}` are filled in later, when an attempt is launched, because a
probe has other values: until then they stay in the text, while `{{epochs}}` and `{{id}}` are literal.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

LATER = ("epochs", "id")

_LATER = re.compile(r"\{\{(?P<literal>epochs|id)\}\}|\{(?P<name>epochs|id)\}")
_NAMED = re.compile(r"\{\{(?P<literal>[^{}]*)\}\}|\{(?P<name>[^{}]*)\}")
_TOKEN = re.compile(r"\{\{|\}\}|\{(?P<name>[^{}]*)\}|[{}]")
_MARK = re.compile("\0(epochs|id)\0")
"""The marker for a placeholder that is filled in later: no argument can contain a NUL."""


def takes(text: str, name: str) -> bool:
    """Tell whether a text contains `{epochs}` or `{id}`."""
    return "{" + name in text and any(match["name"] == name for match in _LATER.finditer(text))


def launched(word: str, epochs: str, task: str) -> str:
    """Return a word with the values of an attempt filled in."""
    if "{" not in word:
        return word
    values = {"epochs": epochs, "id": task}
    return _LATER.sub(lambda match: values[match["name"]] if match["name"] else match[0][1:-1], word)


def filled(word: str, cells: Mapping[str, str]) -> str:
    """Return a word of a list with its columns filled in; `{{x}}` becomes `{x}`, and all other braces stay as they
    are.
    """

    def cell(match: re.Match[str]) -> str:
        if match["literal"] is not None:
            return match[0] if match["literal"] in LATER else match[0][1:-1]
        name = match["name"].lower()
        return literal(cells[name]) if name in cells else match[0]

    return _NAMED.sub(cell, word)


def filled_template(word: str, cells: Mapping[str, str]) -> str:
    """Return a word of a table's command, filled in: `{{` and `}}` become braces, anything else in braces is a
    column.
    """

    def part(match: re.Match[str]) -> str:
        if match["name"] is None:
            return match[0][0]
        name = match["name"].lower()
        return cells.get(name, f"\0{name}\0")

    if "{" not in word and "}" not in word:
        return word
    text = literal(_TOKEN.sub(part, word))
    return _MARK.sub(r"{\1}", text) if "\0" in text else text


def literal(text: str) -> str:
    """Return a text in which no placeholder is filled in later."""
    return _LATER.sub(lambda match: "{" + match[0] + "}", text) if "{" in text else text


def names(template: Sequence[str]) -> list[str]:
    """Return the columns that a table's command names, in lower case; raise ValueError for a single brace."""
    return list(dict.fromkeys(name for word in template for name in _names(word)))


def _names(word: str) -> Iterator[str]:
    for match in _TOKEN.finditer(word):
        if match["name"] is not None:
            yield match["name"].lower()
        elif match[0] in ("{", "}"):
            raise ValueError(f"{word!r} has a {match[0]} of its own: write {match[0] * 2} for a brace")


def unknown(template: Sequence[str], columns: Collection[str]) -> str:
    """Return the first placeholder of a table's command that is not a column; empty if there is none."""
    known = {*columns, "id"}
    return next((name for name in names(template) if name not in known), "")
