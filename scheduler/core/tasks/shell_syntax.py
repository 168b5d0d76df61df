"""The search for shell syntax in a command that no shell reads: `>`, `|`, `&&`, `$NAME` outside of quotes."""

from __future__ import annotations

import re

from scheduler.core.tasks.fields import BadCell
from scheduler.patterns import lazy_pattern

_MAYBE = lazy_pattern(r"[<>|&;$`]")
_QUOTED = lazy_pattern(r"\\.|'[^']*'|\"(?:\\.|[^\"\\])*\"", re.DOTALL)
_OPERATOR = lazy_pattern(r"(?:\|\|?|&&?|;;?|\d?>>?(?:&\d|[^>=].*)?|\d?<<?<?(?:[^<=].*)?|&>>?.*)\Z", re.DOTALL)
_END = lazy_pattern(r".+;\Z", re.DOTALL)
_EXPANDED = lazy_pattern(r"\$(?:[A-Za-z_]\w*|\{[^{}]*\}|\([^)]*\)?)|`[^`]*`?")
_HIDDEN = "\1"
"""The character that replaces a quoted character, because a quoted character is not syntax."""


def syntax_in(text: str) -> str:
    """Return the first word of a command that only a shell would understand; empty if there is none.

    An operator counts at the beginning of a word, and `;` also at its end. So `a>b` and `http://x?a&b` contain no shell
    syntax.
    """
    if not _MAYBE.search(text):
        return ""
    for word in _QUOTED.sub(lambda match: _HIDDEN * len(match[0]), text).split():
        if _OPERATOR.match(word) or _END.match(word):
            return word.replace(_HIDDEN, "")
        if expanded := _EXPANDED.search(word):
            return expanded[0]
    return ""


def refuse_shell_syntax(text: str) -> None:
    """Raise BadCell for a command that only a shell would understand."""
    if found := syntax_in(text):
        raise BadCell(
            "Command",
            f"{found} is shell syntax, and a command is not read by a shell: for a shell write sh -c '...', to pass "
            f"{found} to the program put it in single quotes",
        )
