"""Classes and functions of the user's as something that another process can find, and as a command."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import Any

from scheduler.core.placeholders import literal
from scheduler.errors import ConfigError
from scheduler.launcher import MAIN
from scheduler.values import dataclass

LONGEST = 200
"""A value in a command is there to be read and to tell tasks apart; above this its beginning and a digest do."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where another process finds a class or a function."""

    module: str
    file: str
    """Empty: the module is looked for by its name."""
    package: str
    name: str

    def said(self) -> dict[str, Any]:
        """As the launcher reads it."""
        where = {"module": self.module, "file": self.file, "package": self.package, "name": self.name}
        return {**where, "path": sys.path, "argv": sys.argv}


def target_class(what: object) -> Target:
    """Where a class is found; raises ConfigError with the reason why it is not."""
    if not isinstance(what, type):
        raise ConfigError(f"{what!r} is no class: give the class itself, not an object of it")
    return _target(what, "class")


def target_function(what: object) -> Target:
    """Where a function is found; raises ConfigError with the reason why it is not."""
    if not isinstance(what, FunctionType):
        raise ConfigError(f"{what!r} is no plain function of a module: write one with def that calls it")
    return _target(what, "function")


def _target(what: type | FunctionType, kind: str) -> Target:
    """By its file, else by its module's name."""
    name = what.__qualname__
    if "<lambda>" in name:
        raise ConfigError("a lambda has no name by which another process could find it: write a function with def")
    if "<locals>" in name:
        inside = name.partition(".<locals>")[0]
        raise ConfigError(f"{name} is defined inside {inside}, where no other process finds it: move it to the module")
    module = sys.modules.get(what.__module__)
    file = getattr(module, "__file__", None) or ""
    if what.__module__ in ("__main__", MAIN):
        return _of_main(module, file, name, kind)
    package = getattr(module, "__package__", None) or ""
    by_file = file.endswith(".py")
    return Target(what.__module__, os.path.abspath(file) if by_file else "", package if by_file else "", name)


def _of_main(module: Any, file: str, name: str, kind: str) -> Target:
    """What was run as a script; there is none in a notebook, on a prompt, or behind `python -c`."""
    if not os.path.isfile(file):
        raise ConfigError(
            f"the {kind} {name} was typed into a notebook or a prompt, where no other process finds it: "
            "put it into a .py file and import it"
        )
    spec = getattr(module, "__spec__", None)
    return Target(spec.name if spec else MAIN, os.path.abspath(file), getattr(module, "__package__", "") or "", name)


def pickled(value: object, where: str) -> bytes:
    """A value as another process can read it; raises ConfigError that names it."""
    try:
        return pickle.dumps(value)
    except Exception as exc:  # objects of the user's raise whatever they like
        raise ConfigError(f"{where} cannot be handed to another process: {_which(value)}{exc}") from exc


def _which(value: object) -> str:
    """The key whose value cannot be pickled, where that can be told."""
    if not isinstance(value, dict):
        return ""
    for key, one in value.items():
        try:
            pickle.dumps(one)
        except Exception:  # noqa: BLE001  # as above
            return f"the value of {key!r}: "
    return ""


def words(
    python: str, launcher: str, given: str, where: Target, varied: Mapping[str, Any], rest: object
) -> Sequence[str]:
    """The command of one task: whatever stands behind `given` only says what it is, to people and to profiles.

    `rest` is what is not varied; it may hold anything, so only a digest of it is shown.
    """
    said = [f"--{key}={literal(_short(str(value)))}" for key, value in varied.items()]
    if rest:
        said.append(f"--rest={_digest(repr(rest))}")
    return [*(literal(word) for word in (python, launcher, given, where.file or where.module)), where.name, *said]


def _short(text: str) -> str:
    text = "".join(character if character.isprintable() else "?" for character in text)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}~{_digest(text)}"


def _digest(text: str) -> str:
    from hashlib import blake2b

    return blake2b(text.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


def plain(name: str) -> str:
    """A name in which nothing is to be filled in."""
    return literal(name)
