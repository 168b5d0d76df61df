"""Policies, which decide which tasks start now: pure functions of a Brain and a Machine, one module each."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, cast

from scheduler.errors import UsageError

if TYPE_CHECKING:
    from scheduler.core.model import Decision, Machine
    from scheduler.core.run_state import RunState

Policy = Callable[["RunState", "Machine"], "Decision"]
"""A function that returns a decision; it depends on its arguments only, and has no side effects. Each policy module
defines one as `decide`."""


def names() -> list[str]:
    """Return the names of all policies, as users write them."""
    return sorted(module.name.replace("_", "-") for module in iter_modules(__path__))


def named(name: str) -> Policy:
    """Return the policy with this name; raise UsageError if there is none."""
    if name not in names():
        raise UsageError(f"there is no policy {name!r}; there are: {', '.join(names())}")
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return cast(Policy, module.decide)
