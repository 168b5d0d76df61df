"""Refuses at the door what no device here could ever hold, or this user may never have."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from scheduler.core import packing
from scheduler.core.fields import BY_COLUMN, Form
from scheduler.core.house import Caps
from scheduler.core.model import Budget, Terms
from scheduler.core.rules import Rules
from scheduler.errors import InputError
from scheduler.store import houserules
from scheduler.units import count, size

Check = Callable[[Terms, int | None], None]
"""Looks at a row's terms; raises InputError with file and row."""


def checker(what: str, budgets: Sequence[Budget], rules: Rules, form: Form | None = None) -> Check:
    """Looks at the rows of a list of that form; raises UsageError where root's file makes no sense."""
    caps = houserules.read(os.environ, os.getuid()).caps

    def check(terms: Terms, row: int | None) -> None:
        try:
            _check_places(what, terms, row, budgets, rules)
            _check_caps(what, terms, row, any(budget.device.is_gpu for budget in budgets), caps)
            if not any(budget.device.is_slot for budget in budgets):
                _check_size(what, terms, row, budgets)
        except InputError as exc:
            raise _of_a_flag(exc, form) from exc

    return check


def _of_a_flag(exc: InputError, form: Form | None) -> InputError:
    """The same, said of the flag where that is what all rows without such a cell have it from."""
    column = exc.column or ""
    if form is None or column in form.known or column not in form.defaults:
        return exc
    return InputError(f"{BY_COLUMN[column.lower()].flag} {form.defaults[column]}", exc.message)


def _check_places(what: str, terms: Terms, row: int | None, budgets: Sequence[Budget], rules: Rules) -> None:
    """As many GPUs, and the ones that it names."""
    if terms.gpus is not None and any(b.device.is_slot for b in budgets):
        raise InputError(what, "this run has slots, each as many GPUs as its name lists: leave it out", row, "GPUs")
    gpus = [b.device for b in budgets if b.device.is_gpu]
    if (terms.gpus or 0) > len(gpus):
        here = f"this run has {count(len(gpus), 'GPU')}" if gpus else "this machine has none: 0 = host only"
        raise InputError(what, f"wants {count(terms.gpus or 0, 'GPU')}, {here}", row, "GPUs")
    if (terms.gpus or 0) > 1 and rules.mps and (rules.mps_alone or any(device.single for device in gpus)):
        said = "runs outside of MPS, and these GPUs take nobody else (--mps-exclusive, or their compute mode)"
        raise InputError(what, f"a task on {terms.gpus} GPUs {said}: run it in a list of its own", row, "GPUs")
    for name, column in ((terms.device, "Device"), (terms.prefer, "Prefer")):
        if name and not any(packing.is_called(b.device, name) for b in budgets):
            labels = ", ".join(b.device.label for b in budgets)
            raise InputError(what, f"there is no device {name!r} in this run; there is: {labels}", row, column)


def _check_size(what: str, terms: Terms, row: int | None, budgets: Sequence[Budget]) -> None:
    """With the numbers by which it is too large."""
    refusal = packing.never_fits(terms, budgets)
    if refusal is None:
        return
    gpus = sum(budget.device.is_gpu for budget in budgets)
    raise InputError(
        what,
        f"wants {size(refusal.wanted)}, the largest device ({refusal.device}) has {size(refusal.total)}: "
        f"lower it{' or give it more GPUs' if gpus > (terms.gpus or 1) else ''}",
        row,
        "Memory" if terms.memory is not None and refusal.wanted == terms.memory else "HostMemory",
    )


def _check_caps(what: str, terms: Terms, row: int | None, some: bool, caps: Caps) -> None:
    """What one user may never hold, with who says so; `some`: whether there are GPUs."""
    gpus = packing.gpus_of(terms, some)
    if caps.gpus is not None and gpus > caps.gpus:
        said = f"wants {count(gpus, 'GPU')}, one user may have {caps.gpus} at a time ({caps.source})"
        raise InputError(what, said, row, "GPUs")
    host = (terms.host_memory if gpus else packing.declared(terms)) or 0
    for wanted, most, name in (
        ((terms.memory or 0) * gpus, caps.memory, "GPU memory"),
        (host, caps.host_memory, "RAM"),
    ):
        if most is not None and wanted > most:
            said = f"wants {size(wanted)} of {name}, one user may hold {size(most)} at a time ({caps.source})"
            raise InputError(what, said, row, "HostMemory" if wanted == terms.host_memory else "Memory")
