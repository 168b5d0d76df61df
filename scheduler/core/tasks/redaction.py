"""The removal of secrets from commands and texts, used by every view. Secrets are found by known names or forms."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from shlex import join
from typing import Any

from scheduler.patterns import lazy_pattern

SECRET = ("TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH")
HIDDEN = "***"
_PLAIN = "=:@hidden@:="
"""The text in place of a secret while words are joined: no shell would quote it."""
_PARTS = ("token", "key", "secret", "password", "passwd", "passphrase", "credential")
_WORDS = frozenset({"pass", "pwd", "pw", "auth", "authorization"})
_HARMLESS = lazy_pattern(r"tokens|tokeni[sz]|key(?:point|frame|board|word|hole)s?|monkey|donkey|turkey|hockey|whiskey")
"""Words that look like names of secrets but are not; most come from machine learning."""
_HINT = lazy_pattern(
    r"token|key|secret|pass|pw|credential|auth|://|hf_|sk-|gh[po]_|github_|glpat-|xox|akia|eyj", re.IGNORECASE
)
"""A pattern that matches every text with a secret, so that other texts need no further search."""

# The patterns below are compiled when they are first used: most texts have no such hint.
_VALUE = r"""('[^']*'|"[^"]*"|[^\s'"]+)"""
_VARIABLE = rf"(?<![\w.-])([A-Za-z_][\w.-]*)=(?!=){_VALUE}"
_FLAG = rf"(?<![\w-])(--?[A-Za-z][\w.-]*)(=|\s+){_VALUE}"
_FIELD = r"""(["'])([A-Za-z_][\w.-]*)\1(\s*:\s*)("[^"]*"|'[^']*')"""
_HEADER = r"(?i)(\bauthorization:\s*(?:bearer|basic|token)\s+)[^\s'\"]+"
_ADDRESS = r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)"
_SHAPE = r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_.-]{12,}"
_BOUNDARY = lazy_pattern(r"[-_.]|(?<=[a-z])(?=[A-Z])")
_NAMED = r"(?s)(-{0,2}[A-Za-z_][\w.-]*)=(.*)"


def looks_secret(name: str) -> bool:
    """Tell whether the value of a variable with this name must not be written anywhere."""
    return any(part in name.upper() for part in SECRET)


def hides(name: str) -> bool:
    """Tell whether values of a flag, argument or column with this name are hidden, because one of its words means a
    secret.
    """
    words = (word.lower() for word in _BOUNDARY.split(name))
    return any(word in _WORDS or any(part in _HARMLESS.sub("", word) for part in _PARTS) for word in words)


def without_secrets(text: str) -> str:
    """Return a command or a reason with `***` in place of each secret: variables, flags, addresses and tokens."""
    if not _HINT.search(text):
        return text
    text = re.sub(_VARIABLE, _variable, text)
    text = re.sub(_FLAG, _flag, text)
    text = re.sub(_FIELD, lambda m: f'{m[1]}{m[2]}{m[1]}{m[3]}"{HIDDEN}"' if hides(m[2]) else m[0], text)
    text = re.sub(_HEADER, rf"\g<1>{HIDDEN}", text)
    return re.sub(_SHAPE, HIDDEN, re.sub(_ADDRESS, rf"\g<1>{HIDDEN}", text))


def notifier(text: str) -> str:
    """Return a notification command or web hook without the secret part of its address."""
    if not text.startswith(("http://", "https://")):
        return without_secrets(text)
    scheme, _, rest = text.partition("://")
    host, slash, _ = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{f'/{HIDDEN}' if slash else ''}"


def shown(argv: Sequence[str], *, secrets: bool = False) -> str:
    """Return a command as one line for a shell, without its secrets unless `secrets` is True."""
    if secrets or not any(map(_HINT.search, argv)):
        return join(argv)
    words = [_word(before, word) for before, word in pairwise(["", *argv])]
    return join(word.replace(HIDDEN, _PLAIN) for word in words).replace(_PLAIN, HIDDEN)


def masked(row: Mapping[str, Any], ours: frozenset[str], texts: Sequence[str]) -> dict[str, Any]:
    """Return a row of results without secrets. Only the columns `texts`, and columns that are not in `ours`, can
    contain a secret.
    """
    able = [*(row.keys() - ours), *(name for name in texts if name in row)]
    return {**row, **{name: _cell(name, row[name]) for name in able}}


def _cell(name: str, value: Any) -> Any:
    if not isinstance(value, str) or not value:
        return value
    return HIDDEN if hides(name) and not name.startswith("result.") else without_secrets(value)


def _word(before: str, word: str) -> str:
    """Return one word of a command without secrets. `before` is the preceding word, which may be the flag whose value
    this word is.
    """
    named = re.fullmatch(_NAMED, word)
    is_line = not word.startswith("-") and " " in word
    if named and not is_line and _is_hidden(named[1].lstrip("-")):
        return f"{named[1]}={HIDDEN}"
    is_value = before.startswith("-") and "=" not in before and hides(before.lstrip("-"))
    return HIDDEN if is_value and not word.startswith("--") else without_secrets(word)


def _is_hidden(name: str) -> bool:
    return hides(name) or (name.isupper() and looks_secret(name))


def _variable(match: re.Match[str]) -> str:
    return f"{match[1]}={HIDDEN}" if _is_hidden(match[1]) else match[0]


def _flag(match: re.Match[str]) -> str:
    value = match[3]
    if value.startswith("--") or not hides(match[1].lstrip("-")):
        return match[0]
    return f"{match[1]}{match[2]}{HIDDEN}"
