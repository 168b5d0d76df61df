"""The named arguments (slots) of a command, and what their names say: whether an argument is a label or content."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from scheduler.patterns import lazy_pattern

Slots = tuple[tuple[str, str], ...]

_NUMBER = lazy_pattern(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_REDIRECTION = lazy_pattern(r"(?:\d*|&)(?:>>|>\||>&|>|<<<|<<|<>|<&|<)(?P<target>.*)", re.DOTALL)
_KEY = lazy_pattern(r"[A-Za-z_+~][\w.@/+~-]*")
_WORD = lazy_pattern(r"[A-Z]?[a-z]+|[A-Z]+")

_LABELS = frozenset({
    "output", "out", "log", "name", "run", "exp", "experiment", "save", "dir", "tag", "checkpoint", "ckpt", "result",
    "results", "wandb", "id", "port", "seed",
})  # fmt: skip
_CONTENTS = frozenset({
    "model", "arch", "architecture", "backbone", "net", "network", "encoder", "decoder", "data", "dataset", "config",
    "cfg", "conf", "train", "input", "in", "load", "resume", "pretrained", "init", "task",
})  # fmt: skip
"""Words in a name that mean content, even together with words that mean a label: --model_name, --data_dir."""
_CONTENT_FILES = (".yaml", ".yml", ".json", ".jsonnet", ".toml", ".cfg", ".ini", ".gin", ".py")


def slots(words: Sequence[str]) -> Slots:
    """Return the arguments of a command with their names: options and `key=value` have names, others are named by
    position.

    A flag has the value "", and the second occurrence of an option gets the name `--opt#2`. Redirections and a `| tee
    file` at the end are left out.
    """
    times: Counter[str] = Counter()
    found = []
    for name, value in _named(list(_without_redirections(words))):
        times[name] += 1
        found.append((name if times[name] == 1 else f"{name}#{times[name]}", value))
    return tuple(found)


def is_number(text: str) -> bool:
    """Tell whether a string is a plain number."""
    return _NUMBER.fullmatch(text) is not None


def plain_name(name: str) -> str:
    """Return a slot's name as users write it: without dashes, with `-` and `_` treated as equal."""
    return name.split("#")[0].lstrip("-+~").replace("-", "_")


def labels(name: str) -> bool:
    """Tell whether a slot with this name usually only labels a run or its output."""
    said = _words_of(name)
    return bool(said & _LABELS) and not said & _CONTENTS


def is_content(name: str) -> bool:
    """Tell whether a slot with this name usually selects a model or data."""
    return bool(_words_of(name) & _CONTENTS)


def is_content_file(value: str) -> bool:
    """Tell whether a value looks like the name of a file that configures a program."""
    return value.endswith(_CONTENT_FILES)


def _words_of(name: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(name)}


def _without_redirections(words: Sequence[str]) -> Iterator[str]:
    targets = 0
    for at, word in enumerate(words):
        if targets:
            targets -= 1
        elif match := _REDIRECTION.fullmatch(word):
            targets = 0 if match["target"] else 1
        elif word == "|" and words[at + 1 : at + 2] == ["tee"]:
            return
        else:
            yield word


def _named(words: Sequence[str]) -> Iterable[tuple[str, str]]:
    at = position = 0
    while at < len(words):
        word = words[at]
        at += 1
        name, equals, value = word.partition("=")
        if _is_option(word):
            if not equals and at < len(words) and not _is_option(words[at]):
                value = words[at]
                at += 1
            yield name, value
        elif equals and _KEY.fullmatch(name):
            yield name, value
        else:
            position += 1
            yield str(position), word


def _is_option(word: str) -> bool:
    return len(word) > 1 and word[0] == "-" and not is_number(word)
