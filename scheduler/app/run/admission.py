"""The check of a list before it is accepted: it refuses tasks that fit on no device or exceed the user's quota."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from scheduler.app.run.devices import SLOTS
from scheduler.app.run.options import RunOptions
from scheduler.core.config import BATCHES, SchedulingConfig
from scheduler.core.model import DeviceBudget, Profiling, Spec, Terms
from scheduler.core.placement import fit, node_choice
from scheduler.core.placement.device_capacity import is_called, listed, may_use, unknown_name
from scheduler.core.placement.request import declared, gpus_of
from scheduler.core.site_policy import NO_CAPS, Caps
from scheduler.core.tasks import command
from scheduler.core.tasks.fields import BY_COLUMN, RowForm
from scheduler.core.tasks.launchers import CHOOSING, LauncherCalls
from scheduler.core.tasks.row_source import InputRow
from scheduler.errors import InputError, UsageError
from scheduler.runtime.settings import Settings
from scheduler.runtime.shim import hostname
from scheduler.store.machine import site_config
from scheduler.units import count, size

Screen = Callable[[RowForm, Iterable[Sequence[InputRow]]], Iterable[Sequence[InputRow]]]
Check = Callable[[Terms, int | None], None]
"""A check of a row's terms; it raises InputError with file and row."""
UNUSED = ("max_load", "max_gpu_load", "margin", "settle", "memory_args", "ignore_args", "profile_id", "order")
"""Settings that have no effect with `--profile sequential`, which packs tasks by their own peaks and the buffer, batch
by batch."""


def checker(what: str, budgets: Sequence[DeviceBudget], rules: SchedulingConfig, form: RowForm | None = None) -> Check:
    """Return a check for the rows of a list; raise UsageError if the site's rules are invalid."""
    far = any(budget.device.node for budget in budgets)  # each node has rules of its own
    caps = NO_CAPS if far else site_config.read(os.environ, os.getuid()).caps
    some = any(budget.device.is_gpu for budget in budgets)

    def check(terms: Terms, row: int | None) -> None:
        try:
            if far and terms.guest:
                said = f"holds devices for a process of {hostname()}, and this queue runs on nodes: use another --queue"
                raise InputError(what, said, row, "LeaseFor")
            _check_places(what, terms, row, budgets, rules)
            _check_epochs(what, terms, row, rules)
            _check_caps(what, terms, row, some, caps)
            if not any(budget.device.is_slot for budget in budgets):
                _check_size(what, terms, row, budgets)
        except InputError as exc:
            raise _of_a_flag(exc, form) from exc

    return check


def launcher_screen(what: str, usual: int, budgets: Sequence[DeviceBudget]) -> Screen:
    """Return a function that passes on the batches of a list, and refuses launchers that choose GPUs by themselves.

    `usual` is the number of GPUs of a task that does not declare it. In a run without GPUs, or with slots, nothing is
    refused.
    """
    devices = [budget.device for budget in budgets]
    if not any(device.is_gpu for device in devices) or any(device.is_slot for device in devices):
        return lambda form, batches: batches

    def screened(form: RowForm, batches: Iterable[Sequence[InputRow]]) -> Iterator[Sequence[InputRow]]:
        every = _may_choose([*form.template, *form.defaults.values()])
        for batch in batches:
            for row, cells, terms, _ in batch:
                gpus = usual if terms.gpus is None else terms.gpus
                if gpus and form.adapts and (every or _may_choose(cells)):
                    _check_launcher(what, form.spec(cells, row), gpus)
            yield batch

    return screened


def _may_choose(texts: Sequence[str]) -> bool:
    return any(name in text for text in texts for name in CHOOSING)


def _check_launcher(what: str, spec: Spec, gpus: int) -> None:
    """Refuse a command whose launcher would not use exactly the GPUs of its task."""
    try:
        said = LauncherCalls(command.argv(spec, 0, spec.terms.epochs, "")).fault(gpus)
    except LookupError:  # a placeholder that only the result of a parent fills
        return
    if said:
        column = "Command" if spec.is_whole else "Filename"
        raise InputError(what, f"{said} (--no-launcher-args leaves it)", spec.row, column)


def _of_a_flag(exc: InputError, form: RowForm | None) -> InputError:
    """Return the error with the flag in place of the column, if the value comes from a flag."""
    column = exc.column or ""
    if form is None or column in form.known or column not in form.defaults:
        return exc
    return InputError(f"{BY_COLUMN[column.lower()].flag} {form.defaults[column]}", exc.message)


def _check_places(
    what: str, terms: Terms, row: int | None, budgets: Sequence[DeviceBudget], rules: SchedulingConfig
) -> None:
    """Refuse a task that requests more GPUs than there are, or devices that do not exist."""
    if terms.gpus is not None and any(b.device.is_slot for b in budgets):
        raise InputError(
            what, "this run has slots, and the name of a slot lists its GPUs: leave this column out", row, "GPUs"
        )
    gpus = [b.device for b in budgets if b.device.is_gpu]
    whole = [device for device in gpus if not device.is_instance]
    if 1 < (terms.gpus or 0) <= len(gpus) and len(whole) < (terms.gpus or 0):
        said = f"a process sees one MIG instance only, and this run has {count(len(whole), 'whole GPU')}"
        raise InputError(what, f"needs {count(terms.gpus or 0, 'GPU')}; {said}", row, "GPUs")
    if (terms.gpus or 0) > len(gpus):
        here = f"this run has {count(len(gpus), 'GPU')}" if gpus else "this machine has none: 0 = host only"
        raise InputError(what, f"needs {count(terms.gpus or 0, 'GPU')}; {here}", row, "GPUs")
    if fault := node_choice.fault_of_nodes(terms, [b.device for b in budgets]):
        raise InputError(what, fault.text, row, fault.column)
    if (terms.gpus or 0) > 1 and rules.mps and (rules.mps_alone or any(device.single for device in gpus)):
        said = "runs outside of MPS, but these GPUs take only MPS clients (--mps-exclusive, or their compute mode)"
        raise InputError(what, f"a task on {terms.gpus} GPUs {said}: run it in a list of its own", row, "GPUs")
    for name, column in ((terms.device, "Device"), (terms.prefer, "Prefer")):
        if name and (unknown := unknown_name(name, [b.device for b in budgets])):
            labels = listed([b.device.label for b in budgets], "device")
            raise InputError(what, f"there is no device {unknown!r} in this run; there is: {labels}", row, column)
    called = [device for device in gpus if not terms.device or is_called(device, terms.device)]
    if (terms.gpus or 0) > len(called):
        names = f"{terms.device!r} names {count(len(called), 'GPU')} of this run"
        raise InputError(what, f"needs {count(terms.gpus or 0, 'GPU')}; {names}", row, "Device")
    if terms.is_bound and not any(may_use(b.device, terms) for b in budgets):
        raise InputError(what, f"the device {terms.device!r} is not on {terms.node}", row, "Device")


def _check_epochs(what: str, terms: Terms, row: int | None, rules: SchedulingConfig) -> None:
    """Refuse a task without a number of epochs if each task is profiled for some epochs first."""
    if rules.policy == BATCHES and terms.epochs is None:
        said = f"--profile sequential trains each task for {count(rules.profile_epochs, 'epoch')} first, and this one"
        raise InputError(what, f"{said} has no number of epochs: fill its column Epochs", row, "Epochs")


def _check_size(what: str, terms: Terms, row: int | None, budgets: Sequence[DeviceBudget]) -> None:
    """Refuse a task that is larger than every device; the error gives the numbers."""
    refusal = fit.never_fits(terms, budgets)
    if refusal is None:
        return
    gpus = sum(budget.device.is_gpu for budget in budgets)
    bound = any(b.device.node and b.cap is not None for b in budgets if b.device.label == refusal.device)
    quota = " for one user, by a quota or --devices" if bound else ""
    raise InputError(
        what,
        f"needs {size(refusal.wanted)}; the largest device ({refusal.device}) has {size(refusal.total)}{quota}: "
        f"lower it{' or give it more GPUs' if gpus > (terms.gpus or 1) else ''}",
        row,
        "Memory" if terms.memory is not None and refusal.wanted == terms.memory else "HostMemory",
    )


def _check_caps(what: str, terms: Terms, row: int | None, some: bool, caps: Caps) -> None:
    """Refuse a task that exceeds the user's quota, and say where the quota is set; `some` is True if there are GPUs."""
    gpus = gpus_of(terms, some)
    if caps.gpus is not None and gpus > caps.gpus:
        said = f"needs {count(gpus, 'GPU')}; one user may have {caps.gpus} at a time ({caps.source})"
        raise InputError(what, said, row, "GPUs")
    host = (terms.host_memory if gpus else declared(terms)) or 0
    for wanted, most, name in (
        ((terms.memory or 0) * gpus, caps.memory, "GPU memory"),
        (host, caps.host_memory, "RAM"),
    ):
        if most is not None and wanted > most:
            said = f"needs {size(wanted)} of {name}; one user may hold {size(most)} at a time ({caps.source})"
            raise InputError(what, said, row, "HostMemory" if wanted == terms.host_memory else "Memory")


def check_sequential(options: RunOptions, settings: Settings) -> None:
    """Refuse flags that cannot be combined with `--profile sequential`; settings from other sources are only
    ignored.
    """
    if settings.profile != Profiling.SEQUENTIAL:
        return
    exact = {"order": "batch", "profile_id": "same"}
    given = [name for name in UNUSED if settings.source.get(name) == "flag"]
    said = [name for name in given if getattr(settings, name) != exact.get(name)]
    flags = [f"--{name.replace('_', '-')}" for name in said]
    flags += ["--slots"] if options.slots is not None else []
    flags += [f"--devices {options.devices}"] if options.devices.startswith(SLOTS) else []
    if flags:
        raise UsageError(
            f"{flags[0]} does not go with --profile sequential, which packs each batch by peak plus buffer alone: "
            "leave one of the two out"
        )
