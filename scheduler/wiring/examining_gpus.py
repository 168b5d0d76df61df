"""Looks at the GPUs for `doctor`: the driver, which of them may be used, and who holds what of them."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from importlib import metadata

from scheduler.core.model import Budget, Foreign
from scheduler.core.packing import kept_for_strangers
from scheduler.core.rules import Rules
from scheduler.devices import node as words
from scheduler.devices.allocation import ORDER, Allowed, Seen, allowed, cuda_numbers, within
from scheduler.devices.cgroups import device_rules
from scheduler.devices.nvml import NvmlDevices
from scheduler.errors import DeviceError, UsageError
from scheduler.paths import tilde
from scheduler.settings import Settings
from scheduler.store.leases import find_directory, living
from scheduler.view.examined import Foreigner, Gpu, Gpus
from scheduler.wiring.choices import Choices, rules
from scheduler.wiring.finding import offered, seen_by

LONGEST_DOUBT = 4.0
"""Seconds until it is settled whether memory is seen by process; a look takes one of them."""
_MIG = "is in MIG mode"
_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


def examine_gpus(settings: Settings) -> Gpus:
    """Everything about the GPUs; waits for the driver no longer than a run would."""
    devices = NvmlDevices()
    try:
        node = devices.node()
        seen, device_list = seen_by(node), device_rules()
        may, refused = _allowed(seen, device_list)
        shims = {lease.shim for lease in living(find_directory(settings.leases or None)) if lease.shim}
        budgets = _look(devices, may, shims)
        keeps = rules(Choices(), settings)
        found = [_gpu(gpu, may, budgets.get(gpu.uuid), keeps) for gpu in node.gpus]
        found = [_with_holders(gpu, devices, shims) for gpu in found]
    finally:
        devices.close()
    why, cure = words.apart(node.why)
    module, module_trouble, module_cure = _module()
    return Gpus(
        driver=node.driver,
        cuda=node.cuda,
        module=module,
        module_trouble=module_trouble,
        module_cure=module_cure,
        why=why,
        cure=cure if node.broken else "",
        broken=node.broken,
        gpus=tuple(sorted([*found, *_erring(node.errors)], key=lambda gpu: gpu.index)),
        allowed_by=may.source,
        refused=refused,
        notes=tuple(note for note in may.notes if _MIG not in note),  # its own line says so
        cuda_numbers=_cuda_numbers(within(seen, device_list)),
        by_bus=os.environ.get(ORDER) == "PCI_BUS_ID" or len({gpu.model for gpu in seen}) <= 1,
        told=settings.visible,
        first_namespace=node.first_namespace,
        policy=settings.foreign,
        calm=settings.foreign_calm,
    )


def _allowed(seen: list[Seen], device_list: str) -> tuple[Allowed, str]:
    """Which may be used, or why nobody can tell."""
    try:
        return offered(allowed(seen, os.environ, device_list), seen), ""
    except (DeviceError, UsageError) as exc:
        return Allowed(()), str(exc)


def _look(devices: NvmlDevices, may: Allowed, shims: Collection[int]) -> Mapping[str, Budget]:
    """What is free on each that may be used, by UUID; what runs under one of the shims is nobody's foreigner."""
    if not may.gpus:
        return {}
    devices.use([gpu.uuid for gpu in may.gpus])
    devices.watch({}, frozenset(shims))
    try:
        devices.discover()
    except DeviceError:  # each of them is closed or in MIG mode, which is told of each
        return {}
    end = time.monotonic() + LONGEST_DOUBT
    while not devices.is_sure() and time.monotonic() < end:
        select.select([devices], [], [], 0.1)
        devices.collect()
    return {budget.device.key: budget for budget in devices.snapshot()}


def _gpu(gpu: words.Gpu, may: Allowed, budget: Budget | None, keeps: Rules) -> Gpu:
    left_out = any(note.startswith(f"{gpu.label} {_MIG}") for note in may.notes)
    found = Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        total=gpu.total,
        compute_mode=_MODES[gpu.compute_mode] if gpu.compute_mode < len(_MODES) else str(gpu.compute_mode),
        mig=gpu.mig,
        accounting=gpu.accounting,
        allowed=left_out or gpu.uuid in {one.uuid for one in may.gpus},
    )
    if budget is None:
        return found
    if budget.closed:
        trouble, cure = words.apart(budget.closed)
        return replace(found, trouble=trouble, cure=cure)
    kept = kept_for_strangers(budget, keeps)
    return replace(found, free=budget.free, foreign=_foreigners(budget.foreign), kept=kept)


def _with_holders(gpu: Gpu, devices: NvmlDevices, shims: Collection[int]) -> Gpu:
    """By what its memory is seen, and how much of it tasks with a promise hold."""
    if gpu.free is None:
        return gpu
    held = sum(devices.used_by(shim).get(gpu.uuid, 0) for shim in shims)
    return replace(gpu, reads=devices.reads(gpu.uuid), promised_held=held)


def _erring(errors: Iterable[tuple[int, str]]) -> list[Gpu]:
    """GPUs of which nothing is known but that they do not answer."""
    apart = [(index, *words.apart(sentence.removeprefix(f"GPU {index} "))) for index, sentence in errors]
    return [Gpu(index, trouble=trouble, cure=cure) for index, trouble, cure in apart]


def _foreigners(foreign: Iterable[Foreign]) -> tuple[Foreigner, ...]:
    """By user, the one with the most first."""
    by_user: dict[str, list[Foreign]] = {}
    for one in foreign:
        by_user.setdefault(one.user, []).append(one)
    found = [
        Foreigner(user, sum(one.bytes for one in held), min(one.calm for one in held)) for user, held in by_user.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _cuda_numbers(reachable: Iterable[Seen]) -> dict[int, int]:
    gpus = list(reachable)
    numbers = cuda_numbers(gpus)
    return {gpu.index: numbers[gpu.uuid] for gpu in gpus}


def _module() -> tuple[str, str, str]:
    """Where pynvml lies and whose it is, what is wrong with it, and the cure of that."""
    found = words.find_pynvml()
    if found.path is None:
        return "", *words.apart(found.hint)
    try:
        whose = f"nvidia-ml-py {metadata.version('nvidia-ml-py')}"
    except metadata.PackageNotFoundError:
        whose = tilde(found.path)
    return whose, *(words.apart(found.hint) if found.hint else ("", ""))
