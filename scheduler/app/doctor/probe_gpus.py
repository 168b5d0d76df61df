"""The examination of the GPUs for `doctor`: driver, permission to use them, and the users of their memory."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata

from scheduler.app.run.devices import offered
from scheduler.app.run.options import RunOptions, rules
from scheduler.core.config import SchedulingConfig
from scheduler.core.model import DeviceBudget, UnmanagedUse
from scheduler.core.placement.device_capacity import kept_for_unmanaged
from scheduler.devices.gpu import inventory as words
from scheduler.devices.gpu.allocation import ORDER, AllowedGpus, allowed, cuda_numbers, within
from scheduler.devices.gpu.nvml_devices import NvmlDevices
from scheduler.devices.host.cgroups import device_rules
from scheduler.errors import DeviceError, UsageError
from scheduler.runtime.paths import tilde
from scheduler.runtime.settings import Settings
from scheduler.store.machine.leases import find_directory, living
from scheduler.ui.doctor.report import GpuReport, GpusReport, UnmanagedUser

LONGEST_DOUBT = 4.0
"""Seconds within which it becomes clear whether memory is seen by process; a read takes one second."""
_MIG = "is in MIG mode"
_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")


def examine_gpus(settings: Settings) -> GpusReport:
    """Return the findings on the GPUs; wait for the driver no longer than a run would."""
    devices = NvmlDevices()
    try:
        node = devices.node()
        seen, device_list = node.gpus, device_rules()
        may, refused = _allowed(seen, device_list)
        shims = {lease.shim for lease in living(find_directory(settings.leases or None)) if lease.shim}
        budgets = _look(devices, may, shims)
        keeps = rules(RunOptions(), settings)
        found = [_gpu(gpu, may, budgets.get(gpu.uuid), keeps) for gpu in node.gpus]
        found = [_with_holders(gpu, devices, shims) for gpu in found]
    finally:
        devices.close()
    why, cure = words.apart(node.why)
    module, module_trouble, module_cure = _module()
    return GpusReport(
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
        policy=settings.unmanaged,
        calm=settings.unmanaged_calm,
    )


def _allowed(seen: Sequence[words.InstalledGpu], device_list: str) -> tuple[AllowedGpus, str]:
    """Return the GPUs that may be used, or why that is unknown."""
    try:
        return offered(allowed(seen, os.environ, device_list), seen), ""
    except (DeviceError, UsageError) as exc:
        return AllowedGpus(()), str(exc)


def _look(devices: NvmlDevices, may: AllowedGpus, shims: Collection[int]) -> Mapping[str, DeviceBudget]:
    """Return the free memory of each allowed GPU by UUID; processes under shims are not unmanaged."""
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


def _gpu(gpu: words.InstalledGpu, may: AllowedGpus, budget: DeviceBudget | None, keeps: SchedulingConfig) -> GpuReport:
    left_out = any(note.startswith(f"{gpu.label} {_MIG}") for note in may.notes)
    found = GpuReport(
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
    kept = kept_for_unmanaged(budget, keeps)
    return replace(found, free=budget.free, unmanaged=_unmanaged_users(budget.unmanaged), kept=kept)


def _with_holders(gpu: GpuReport, devices: NvmlDevices, shims: Collection[int]) -> GpuReport:
    """Return how memory is read on a GPU, and how much of it tasks with a reservation use."""
    if gpu.free is None:
        return gpu
    held = sum(devices.used_by(shim).get(gpu.uuid, 0) for shim in shims)
    return replace(gpu, reads=devices.reads(gpu.uuid), reserved_held=held)


def _erring(errors: Iterable[tuple[int, str]]) -> list[GpuReport]:
    """Return the GPUs that do not answer."""
    apart = [(index, *words.apart(sentence.removeprefix(f"GPU {index} "))) for index, sentence in errors]
    return [GpuReport(index, trouble=trouble, cure=cure) for index, trouble, cure in apart]


def _unmanaged_users(unmanaged: Iterable[UnmanagedUse]) -> tuple[UnmanagedUser, ...]:
    """Return the unmanaged memory by user, the largest first."""
    by_user: dict[str, list[UnmanagedUse]] = {}
    for one in unmanaged:
        by_user.setdefault(one.user, []).append(one)
    found = [
        UnmanagedUser(user, sum(one.bytes for one in held), min(one.calm for one in held))
        for user, held in by_user.items()
    ]
    return tuple(sorted(found, key=lambda one: -one.bytes))


def _cuda_numbers(reachable: Iterable[words.InstalledGpu]) -> dict[int, int]:
    gpus = list(reachable)
    numbers = cuda_numbers(gpus)
    return {gpu.index: numbers[gpu.uuid] for gpu in gpus}


def _module() -> tuple[str, str, str]:
    """Return where the module pynvml is and which package it belongs to, with a problem and its fix."""
    found = words.find_pynvml()
    if found.path is None:
        return "", *words.apart(found.hint)
    try:
        whose = f"nvidia-ml-py {metadata.version('nvidia-ml-py')}"
    except metadata.PackageNotFoundError:
        whose = tilde(found.path)
    return whose, *(words.apart(found.hint) if found.hint else ("", ""))
