"""Classes and functions of the user, as commands by which another process finds and calls them."""

from __future__ import annotations

import os
import pickle
import shlex
import sys
from collections.abc import Mapping
from functools import lru_cache
from types import FunctionType
from typing import Any

from scheduler.core.tasks.placeholders import literal
from scheduler.errors import ConfigError
from scheduler.runtime.task_launcher import MAIN
from scheduler.values import dataclass, field

LONGEST = 200
"""The most characters of a value in a command; of a longer value, the command has the beginning and a digest."""
DEEPEST = 20
"""The depth up to which a fingerprint includes nested lists and dictionaries; it is limited because a list may contain
itself.
"""


@dataclass(frozen=True, slots=True)
class CallTarget:
    """The place at which another process finds a class or a function."""

    module: str
    file: str
    """The path of the module's file; empty if the module is imported by its name."""
    package: str
    name: str

    def to_dict(self) -> dict[str, Any]:
        """Return the place in the JSON form that the launcher reads."""
        where = {"module": self.module, "file": self.file, "package": self.package, "name": self.name}
        return {**where, "path": sys.path, "argv": sys.argv}


@dataclass(frozen=True, slots=True)
class PythonCall:
    """One call of a Python class or function, as a task."""

    target: CallTarget
    name: str
    varied: Mapping[str, Any]
    """The arguments that are shown to users, and by which the memory of calls is learned."""
    pickled: bytes = b""
    """The pickle of the values that only this call has."""
    rest: Mapping[Any, str] = field(default_factory=dict)
    """The fingerprints of the values that the call gets in addition to the varied arguments."""
    said: Mapping[str, Any] = field(default_factory=dict)
    """The arguments that only this call has, in a form that the launcher reads as JSON."""


def target_class(what: object) -> CallTarget:
    """Return where another process finds a class; raise ConfigError with the reason if it cannot be found."""
    if not isinstance(what, type):
        raise ConfigError(f"{what!r} is not a class: give the class itself, not an instance")
    return _target(what, "class")


def target_function(what: object) -> CallTarget:
    """Return where another process finds a function; raise ConfigError with the reason if it cannot be found."""
    if not isinstance(what, FunctionType):
        raise ConfigError(f"{what!r} is not a plain function of a module: write one with def that calls it")
    return _target(what, "function")


def _target(what: type | FunctionType, kind: str) -> CallTarget:
    """Return the place of a class or function, with the path of its module's file or, without a file, the module's
    name.
    """
    name = what.__qualname__
    if "<lambda>" in name:
        raise ConfigError("a lambda has no name by which another process can find it: write a function with def")
    if "<locals>" in name:
        inside = name.partition(".<locals>")[0]
        raise ConfigError(
            f"{name} is defined inside {inside}, where other processes cannot find it: move it out of there"
        )
    module = sys.modules.get(what.__module__)
    file = getattr(module, "__file__", None) or ""
    if what.__module__ in ("__main__", MAIN):
        return _of_main(module, file, name, kind)
    package = getattr(module, "__package__", None) or ""
    by_file = file.endswith(".py")
    return CallTarget(what.__module__, os.path.abspath(file) if by_file else "", package if by_file else "", name)


def _of_main(module: Any, file: str, name: str, kind: str) -> CallTarget:
    """Return the place of a class or function in the script that was run; raise ConfigError for a notebook, a prompt or
    `python -c`, which have no file.
    """
    if not os.path.isfile(file):
        raise ConfigError(
            f"the {kind} {name} was defined in a notebook or at a prompt, where other processes cannot find it: "
            "put it into a .py file and import it"
        )
    spec = getattr(module, "__spec__", None)
    return CallTarget(
        spec.name if spec else MAIN, os.path.abspath(file), getattr(module, "__package__", "") or "", name
    )


def pickled(value: object, where: str) -> bytes:
    """Return the pickle of a value for another process; if it cannot be pickled, raise ConfigError that names the value
    by `where`.
    """
    try:
        return pickle.dumps(value)
    except Exception as exc:  # objects of the user raise anything
        raise ConfigError(f"{where} cannot be passed to another process: {_which(value)}{exc}") from exc


def _which(value: object) -> str:
    """Return the key whose value cannot be pickled, as the beginning of a sentence; empty if the key is unknown."""
    if not isinstance(value, dict):
        return ""
    for key, one in value.items():
        try:
            pickle.dumps(one)
        except Exception:  # noqa: BLE001  # as above
            return f"the value of {key!r}: "
    return ""


@lru_cache(4)
def target_words(where: CallTarget) -> str:
    """Return the part of a command that names the target, for users and profiles only."""
    return shlex.join([literal(where.file or where.module), where.name])


def varied_word(key: str, text: str) -> str:
    """Return the word of a command that shows a varied value, for users and profiles only."""
    return f"--{key}={literal(_short(text))}"


def rest_word(rest: Mapping[Any, str]) -> str:
    """Return the last word of a command, a digest of the constant values, from their fingerprints."""
    return f" --rest={_digest(repr(rest))}" if rest else ""


def fingerprint(value: object, depth: int = 0) -> str:
    """Return a string that is equal for equal values, even in other processes, as far as their types allow this.

    Plain values are written out; any other object is represented by its pickle, never by its address or its `==`.
    """
    if depth < DEEPEST and type(value) in (list, tuple, dict, set, frozenset):
        parts = value.items() if isinstance(value, dict) else value
        texts = [fingerprint(part, depth + 1) for part in parts]  # type: ignore[attr-defined]  # checked above
        return f"{type(value).__name__}({','.join(sorted(texts) if isinstance(value, set | frozenset) else texts)})"
    if value is None or type(value) in (str, bytes, int, float, bool, complex, range):
        return repr(value)
    return _digest(pickled(value, "a value").decode("latin-1"))


def _short(text: str) -> str:
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}~{_digest(text)}"


def _digest(text: str) -> str:
    from hashlib import blake2b

    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()
