"""Policies: who starts now, as pure functions of a Brain and a Machine; one file each, found by its name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, cast

from scheduler.errors import UsageError

if TYPE_CHECKING:
    from scheduler.core.brain import Brain
    from scheduler.core.model import Decision, Machine

Policy = Callable[["Brain", "Machine"], "Decision"]
"""Changes nothing, and says the same of the same; the file of one has it under the name `decide`."""


def names() -> list[str]:
    """Every policy there is, as people write it."""
    return sorted(module.name.replace("_", "-") for module in iter_modules(__path__))


def named(name: str) -> Policy:
    """The policy of that name; raises UsageError."""
    if name not in names():
        raise UsageError(f"there is no policy {name!r}; there are: {', '.join(names())}")
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return cast(Policy, module.decide)
