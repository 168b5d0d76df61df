"""Policies, which decide who starts now: pure functions of a Brain and a Machine, one file each, found by its name."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, cast

from scheduler.errors import UsageError

if TYPE_CHECKING:
    from scheduler.core.model import Decision, Machine
    from scheduler.core.placement.scheduling_state import SchedulingState

Policy = Callable[["SchedulingState", "Machine"], "Decision"]
"""A function without side effects and with equal results for equal arguments; its file names it `decide`."""


def names() -> list[str]:
    """Return all policies, as users write them."""
    return sorted(module.name.replace("_", "-") for module in iter_modules(__path__))


def named(name: str) -> Policy:
    """Return the policy of a name; raise UsageError if there is none."""
    if name not in names():
        raise UsageError(f"there is no policy {name!r}; there are: {', '.join(names())}")
    module = import_module(f"{__name__}.{name.replace('-', '_')}")
    return cast(Policy, module.decide)
