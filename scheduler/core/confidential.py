"""What looks like a secret, by its name or by its shape, and texts without it."""

from __future__ import annotations

import re

SECRET = ("TOKEN", "KEY", "SECRET", "PASS", "CREDENTIAL", "AUTH")
HIDDEN = "***"
_WORDS = frozenset({
    "token", "key", "apikey", "secret", "password", "passwd", "passphrase", "pass", "pwd", "pw",
    "credential", "credentials", "auth", "authorization",
})  # fmt: skip
_VARIABLE = re.compile(r"(?<![\w.-])([A-Z][A-Z0-9_]*)=('[^']*'|\"[^\"]*\"|[^\s'\"]+)")
_FLAG = re.compile(r"(?<![\w-])(--?[A-Za-z][\w.-]*)(=|\s+)('[^']*'|\"[^\"]*\"|[^\s'\"]+)")
_ADDRESS = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s/:@]*:)[^\s/@]+(?=@)")
_SHAPE = re.compile(r"\b(?:hf_|sk-|ghp_|gho_|github_pat_|glpat-|xox[abp]-|AKIA|eyJ)[A-Za-z0-9_.-]{12,}")
_BOUNDARY = re.compile(r"[-_.]|(?<=[a-z])(?=[A-Z])")


def looks_secret(name: str) -> bool:
    """Whether a variable of this name should not be written down."""
    return any(part in name.upper() for part in SECRET)


def without_secrets(text: str) -> str:
    """A command or a reason with `***` where a variable, a flag, an address or a token says what nobody should read."""
    text = _VARIABLE.sub(_variable, text)
    text = _FLAG.sub(_flag, text)
    return _SHAPE.sub(HIDDEN, _ADDRESS.sub(rf"\g<1>{HIDDEN}", text))


def notifier(text: str) -> str:
    """A command or a web hook that is told of runs; whoever knows the address of a hook can write there."""
    if not text.startswith(("http://", "https://")):
        return without_secrets(text)
    scheme, _, rest = text.partition("://")
    host, slash, _ = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{f'/{HIDDEN}' if slash else ''}"


def is_secret_column(name: str) -> bool:
    """Whether the cells of a column are hidden: one of the words of its name is a secret's."""
    return any(word.lower() in _WORDS for word in _BOUNDARY.split(name))


def _variable(match: re.Match[str]) -> str:
    return f"{match[1]}={HIDDEN}" if looks_secret(match[1]) else match[0]


def _flag(match: re.Match[str]) -> str:
    value = match[3]
    if value.startswith("-") or not is_secret_column(match[1].lstrip("-")):
        return match[0]
    return f"{match[1]}{match[2]}{HIDDEN}"
