"""The checks of GPUs (driver, each GPU, permissions, users of their memory) and of MPS."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from scheduler.app.run.devices import offered
from scheduler.app.run.options import RunOptions, rules
from scheduler.core.config import SchedulingConfig
from scheduler.core.leases import Lease, trees, unnamed_shims
from scheduler.core.model import DeviceBudget
from scheduler.core.placement.device_capacity import kept_for_unmanaged
from scheduler.devices.gpu import inventory
from scheduler.devices.gpu.allocation import ORDER, AllowedGpus, allowed, cuda_numbers, whole, within
from scheduler.devices.gpu.inventory import GpuInventory, InstalledGpu, instances_of
from scheduler.devices.gpu.nvml_devices import NvmlDevices
from scheduler.devices.gpu.telemetry import SLOWED, reasons
from scheduler.devices.host.cgroups import device_rules
from scheduler.devices.mps.daemon_discovery import USUAL, FoundDaemon
from scheduler.errors import DeviceError, UsageError
from scheduler.runtime.paths import tilde
from scheduler.runtime.settings import Settings
from scheduler.runtime.users import user_name
from scheduler.store.machine.lease_directory import find_directory
from scheduler.store.machine.lease_records import living
from scheduler.ui.text import short
from scheduler.ui.verbs.doctor import Finding, absent, broken, ok, wrong
from scheduler.units import count, duration, ranges, size
from scheduler.values import dataclass, replace

LONGEST_DOUBT = 4.0
"""Seconds to wait until it is clear whether memory is visible per process; one read takes a second."""
_MIG = "is in MIG mode"
_MODES = ("default", "exclusive thread", "prohibited", "exclusive process")
_UUID, _MODEL = 12, 28
"""The number of characters of a UUID that are shown, if they distinguish the GPU from the others; and the number of
characters of a model name that are shown."""


@dataclass(frozen=True, slots=True)
class ExaminedGpu:
    """One GPU, allowed or not, with its measurements."""

    installed: InstalledGpu
    allowed: bool = False
    budget: DeviceBudget | None = None
    """The free memory of the GPU; None if the free memory was not read, because the GPU must not or cannot be used."""
    kept: int = 0
    """Bytes kept free for the growth of unmanaged memory."""
    reads: str = ""
    """`process` if memory is visible per process, `device` if only per device; empty if the GPU was not read."""
    reserved_used: int = 0
    """Bytes used by tasks that have a reservation."""
    trouble: str = ""
    """Why the GPU cannot be read, as a sentence with the cure."""

    @property
    def index(self) -> int:
        """The number that nvidia-smi gives to the GPU."""
        return self.installed.index

    @property
    def mode(self) -> str:
        """The compute mode as a word."""
        mode = self.installed.compute_mode
        return _MODES[mode] if mode < len(_MODES) else str(mode)

    @property
    def usable(self) -> bool:
        """True if a run would use the GPU now."""
        return self.allowed and not self.trouble and not self.installed.unusable

    def unmanaged(self) -> dict[str, int]:
        """Return the unmanaged bytes by user, the largest first; the name is empty for bytes whose process is not
        visible.
        """
        found: dict[str, int] = {}
        for one in self.budget.unmanaged if self.budget is not None else ():
            found[one.user] = found.get(one.user, 0) + one.bytes
        return dict(sorted(found.items(), key=lambda item: -item[1]))

    def to_dict(self) -> dict[str, Any]:
        """Return the GPU as JSON values."""
        return {
            "index": self.index,
            "instance": None if self.installed.part < 0 else self.installed.part,
            "uuid": self.installed.uuid,
            "model": self.installed.model,
            "total_bytes": self.installed.total,
            "free_bytes": self.budget.free if self.budget is not None else None,
            "allowed": self.allowed,
            "usable": self.usable,
            "reserved_used_bytes": self.reserved_used,
            "unmanaged_bytes": sum(self.unmanaged().values()),
            "kept_bytes": self.kept,
        }


@dataclass(frozen=True, slots=True)
class ExaminedGpus:
    """The NVIDIA driver, its GPUs, and which of them this user may use."""

    node: GpuInventory
    gpus: Sequence[ExaminedGpu]
    may: AllowedGpus
    settings: Settings
    refused: str = ""
    """Why the allowed GPUs are unknown; empty if they are known."""
    module: str = ""
    """The package that provides pynvml, or the path of the module."""
    module_trouble: str = ""
    """The problem with pynvml, as a sentence with the cure; empty if there is none."""
    cuda_numbers: Mapping[int, int] | None = None
    """CUDA's number of each GPU, by the GPU's number in nvidia-smi, if CUDA orders GPUs by PCI bus id."""
    by_bus: bool = True
    """True if CUDA orders the GPUs by PCI bus id in this environment."""

    @property
    def usable(self) -> list[ExaminedGpu]:
        """The GPUs that a run would use now."""
        return [gpu for gpu in self.gpus if gpu.usable]


# Looking


def look(settings: Settings) -> ExaminedGpus:
    """Examine the GPUs; wait for the driver no longer than a run would."""
    devices = NvmlDevices()
    try:
        node, device_list = devices.node(), device_rules()
        may, refused = _allowed(node.gpus, device_list)
        leases = living(find_directory(settings.leases or None))
        budgets = _read(devices, may, leases)
        config = rules(RunOptions(), settings)
        gpus = [_examined(gpu, may, budgets.get(gpu.uuid), config) for gpu in node.gpus]
        gpus = [_with_reserved(gpu, devices, trees(leases)) if gpu.budget is not None else gpu for gpu in gpus]
    finally:
        devices.close()
    failing = [ExaminedGpu(InstalledGpu(index, "", "", "", 0), trouble=said) for index, said in node.errors]
    module, module_trouble = _module()
    reachable = within(node.gpus, device_list)
    numbers = cuda_numbers(reachable)
    return ExaminedGpus(
        node,
        sorted([*gpus, *failing], key=lambda gpu: (gpu.index, gpu.installed.part)),
        may,
        settings,
        refused,
        module,
        module_trouble,
        {gpu.index: numbers[gpu.uuid] for gpu in whole(reachable)},
        os.environ.get(ORDER) == "PCI_BUS_ID" or len({gpu.model for gpu in whole(node.gpus)}) <= 1,
    )


def _allowed(seen: Sequence[InstalledGpu], device_list: str) -> tuple[AllowedGpus, str]:
    """Return the GPUs that may be used, and why they are unknown; the reason is empty if they are known."""
    try:
        return offered(allowed(seen, os.environ, device_list), seen), ""
    except (DeviceError, UsageError) as exc:
        return AllowedGpus(()), str(exc)


def _read(devices: NvmlDevices, may: AllowedGpus, leases: Sequence[Lease]) -> Mapping[str, DeviceBudget]:
    """Return the free memory of each allowed GPU by UUID; processes of tasks do not count as unmanaged."""
    if not may.gpus:
        return {}
    devices.use([gpu.uuid for gpu in may.gpus])
    devices.watch({}, trees(leases), unnamed_shims(leases))
    try:
        devices.discover()
    except DeviceError:  # all are disabled or in MIG mode, as their own lines say
        return {}
    end = time.monotonic() + LONGEST_DOUBT
    while not devices.is_sure() and time.monotonic() < end:
        select.select([devices], [], [], 0.1)
        devices.collect()
    return {budget.device.key: budget for budget in devices.snapshot()}


def _examined(
    gpu: InstalledGpu, may: AllowedGpus, budget: DeviceBudget | None, config: SchedulingConfig
) -> ExaminedGpu:
    is_left_out = any(note.startswith(f"{gpu.label} {_MIG}") for note in may.notes)
    mine = {uuid for one in may.gpus for uuid in (one.uuid, one.parent)}
    found = ExaminedGpu(gpu, allowed=is_left_out or gpu.uuid in mine)
    if budget is None:
        return found
    if budget.closed:
        return replace(found, trouble=budget.closed)
    return replace(found, budget=budget, kept=kept_for_unmanaged(budget, config))


def _with_reserved(gpu: ExaminedGpu, devices: NvmlDevices, known: Collection[int]) -> ExaminedGpu:
    """Return the GPU with its fields `reads` and `reserved_used` filled in."""
    uuid = gpu.installed.uuid
    used = sum(devices.used_by(shim).get(uuid, 0) for shim in known)
    return replace(gpu, reads=devices.reads(uuid), reserved_used=used)


def _module() -> tuple[str, str]:
    """Return the package that provides pynvml, or the module's path, and the problem with it."""
    found = inventory.find_pynvml()
    if found.path is None:
        return "", found.hint
    try:
        return f"nvidia-ml-py {metadata.version('nvidia-ml-py')}", found.hint
    except metadata.PackageNotFoundError:
        return tilde(found.path), found.hint


# Sentences


def numbers(gpus: Sequence[ExaminedGpu]) -> str:
    """Write the numbers of several GPUs: `GPU 0-3, 6, 7.0, 7.1`."""
    cards = ranges(gpu.index for gpu in gpus if not gpu.installed.parent)
    return f"GPU {', '.join([*([cards] if cards else []), *(g.installed.word for g in gpus if g.installed.parent)])}"


def findings(found: ExaminedGpus) -> Iterator[Finding]:
    """Yield all findings about GPUs except those about MPS."""
    for part in (_driver, _each_gpu, _permission, _order, _memory_use, _modes, _health, _unmanaged):
        yield from part(found)


def _driver(found: ExaminedGpus) -> Iterator[Finding]:
    """Yield the findings about the driver and pynvml."""
    node = found.node
    why, cure = inventory.apart(node.why)
    trouble, module_cure = inventory.apart(found.module_trouble)
    if found.gpus:
        yield ok("driver", f"{node.driver}, CUDA {node.cuda}; read through {found.module}")
    elif node.broken:
        yield broken("driver", why, f"{cure}; or run without GPUs: --devices host")
    elif trouble and why == trouble:
        yield absent("driver", f"not checked: {why}; runs use no GPU", module_cure)
        return
    else:
        yield absent("driver", f"{why}: runs use no GPU")
    if trouble and trouble != why:
        yield wrong("pynvml", trouble, module_cure)


def _each_gpu(found: ExaminedGpus) -> Iterator[Finding]:
    """Yield a finding for each GPU, in aligned columns."""
    length = unique_length([gpu.installed.uuid for gpu in found.gpus])
    rows = [[*(cell(gpu) for cell in _CELLS), gpu.installed.uuid[:length]] for gpu in found.gpus]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for gpu, row in zip(found.gpus, rows, strict=True):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield _gpu(gpu, "  ".join(cells).rstrip(), found)


_CELLS: tuple[Callable[[ExaminedGpu], str], ...] = (
    lambda gpu: short(gpu.installed.model.removeprefix("NVIDIA "), _MODEL),
    lambda gpu: size(gpu.installed.total) if gpu.installed.total else "",
    lambda gpu: f"{size(gpu.budget.free)} free" if gpu.budget is not None else "",
)


def unique_length(uuids: Sequence[str]) -> int:
    """Return how many characters of these UUIDs are shown: enough to distinguish all of them."""
    longest = max(map(len, uuids), default=_UUID)
    return next((n for n in range(_UUID, longest) if len({uuid[:n] for uuid in uuids}) == len(set(uuids))), longest)


def _gpu(gpu: ExaminedGpu, row: str, found: ExaminedGpus) -> Finding:
    what, smi = gpu.installed.label, f"nvidia-smi -i {gpu.index}"
    if said := gpu.trouble or gpu.installed.unreadable:
        trouble, cure = inventory.apart(said.removeprefix(f"{what} "))
        return broken(what, row, cure, trouble, stops=found.node.broken)
    if not gpu.allowed:
        return absent(what, row, note="" if found.refused else "not allowed for this shell")
    if gpu.installed.mig:
        parts = instances_of(gpu.installed, found.node.gpus)
        without = wrong(what, row, f"{smi} -mig 0 as root turns MIG off", "in MIG mode without an instance: not used")
        return ok(what, row, f"in MIG mode: {count(len(parts), 'instance')}") if parts else without
    if gpu.mode == "prohibited":
        return wrong(what, row, f"{smi} -c DEFAULT as root allows it", "compute mode prohibited: not used")
    shared = f"{gpu.installed.sharers} instances have this memory in common: each gets an equal part of it"
    single = "one task at a time" if gpu.mode == "exclusive process" else ""
    return ok(what, row, shared if gpu.installed.sharers > 1 else single)


def _permission(found: ExaminedGpus) -> Iterator[Finding]:
    """Yield the findings about which GPUs may be used, and which setting says so."""
    if not found.gpus:
        return
    mine = [gpu for gpu in found.gpus if gpu.allowed]
    computing = [gpu for gpu in mine if not gpu.installed.mig]
    source = found.may.source
    if found.refused:
        why, _, cure = found.refused.rpartition(": ")
        yield broken("allowed", why, cure)
    elif computing and all(gpu.mode == "prohibited" for gpu in computing):
        cure = "allow one, or run --devices host"
        yield broken("allowed", "only GPUs in compute mode prohibited: a run is refused", cure)
    elif not mine:
        yield absent("allowed", f"none, by {source}: runs use no GPU")
    elif source:
        yield ok("allowed", f"{numbers(mine)} of {len(found.gpus)}, by {source}")
    else:
        yield ok("allowed", "all: no variable and no cgroup limits this shell")
    for note in found.may.notes:
        if _MIG not in note:  # the GPU's own line says so
            yield wrong("allowed", note, "set CUDA_VISIBLE_DEVICES to whole GPUs of this machine, or unset it")


def _order(found: ExaminedGpus) -> Iterator[Finding]:
    """Yield a finding if CUDA may number the GPUs differently from nvidia-smi."""
    by_index = found.settings.visible == "index"
    given = "tasks get CUDA's numbers (--visible index)" if by_index else "tasks get UUIDs, valid for both"
    pairs = sorted((found.cuda_numbers or {}).items(), key=lambda item: item[1])
    if pairs != sorted(pairs):
        said = ", ".join(f"{number} is GPU {index}" for index, number in pairs)
        yield ok("CUDA's order", f"differs from nvidia-smi (in PCI bus order, CUDA's {said}): {given}")
    elif not found.by_bus:
        why = "the models differ, and CUDA puts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID"
        yield ok("CUDA's order", f"may differ from nvidia-smi ({why}): {given}")


def _memory_use(found: ExaminedGpus) -> Iterator[Finding]:
    """Yield the finding about whether memory is visible per process."""
    looked_at = [gpu for gpu in found.gpus if gpu.reads]
    if not looked_at:
        return
    coarse = [gpu for gpu in looked_at if gpu.reads == "device"]
    separate = "this is a separate pid namespace, and the driver reports the machine's pids"
    inside = "" if found.node.first_namespace else separate
    if coarse:
        why = inside or "the driver does not report the memory of each process"
        says = f"visible only per device on {numbers(coarse)} ({why}): needs are measured on the whole GPU"
        yield absent("memory use", says, "start the container with --pid=host" if inside else "")
        return
    unused = not any(gpu.unmanaged() or gpu.reserved_used for gpu in looked_at)
    doubt = " (not certain while the GPUs are unused)" if unused else ""
    yield ok("memory use", "visible per process" + (f"; {inside}, so that can change" if inside else doubt))


def _modes(found: ExaminedGpus) -> Iterator[Finding]:
    """Yield the findings about compute mode and accounting of the usable GPUs."""
    usable = found.usable
    if not usable:
        return
    by_mode = {gpu.mode: [one for one in usable if one.mode == gpu.mode] for gpu in usable}
    yield ok("compute mode", ", ".join(f"{mode} on {numbers(gpus)}" for mode, gpus in by_mode.items()))
    cards = [gpu for gpu in usable if not gpu.installed.parent]  # MIG switches accounting off
    off = [gpu for gpu in cards if not gpu.installed.accounting]
    if not off:
        if not cards:
            return
        yield ok("accounting", "on: the driver reports the exact peak of each task")
        return
    where, which = "off", ""
    if len(off) < len(cards):
        where, which = f"off on {numbers(off)}", f" -i {','.join(str(gpu.index) for gpu in off)}"
    cure = f"nvidia-smi{which} -am 1 as root gives exact peaks; with -pm 1 it stays on after the last process"
    yield absent("accounting", f"{where}: memory is sampled, short peaks can be missed", cure)


def _health(found: ExaminedGpus) -> Iterator[Finding]:
    """Yield the findings about errors of the memory and about lowered clocks of the usable GPUs."""
    cards = [gpu for gpu in found.gpus if gpu.allowed and not gpu.trouble and not gpu.installed.parent]
    well = [gpu for gpu in cards if gpu.installed.uncorrected is not None]
    for gpu in cards:
        said = gpu.installed
        ills = [f"{count(said.uncorrected or 0, 'uncorrectable memory error')} since the driver was loaded"] * bool(
            said.uncorrected
        )
        ills += ["a broken part of its memory is replaced at the next reset"] * said.pending
        ills += ["a broken row of its memory cannot be replaced: it should be exchanged"] * said.worn
        if ills:
            well = [one for one in well if one is not gpu]
            cure = f"nvidia-smi -i {gpu.index} --gpu-reset as root while no process uses it"
            yield wrong("health", f"{said.label}: {'; '.join(ills)}", cure)
        slow = [word for word in reasons(said.throttled & SLOWED) or () if word]
        if slow:
            lowered = f"its clocks are lowered at the moment ({', '.join(slow)}), so tasks take longer"
            yield ok("health", f"{said.label}: {lowered}")
    if well:
        yield ok("health", f"no uncorrectable memory error on {numbers(well)}")


def _unmanaged(found: ExaminedGpus) -> Iterator[Finding]:
    """Yield the findings about GPU memory of processes that belong to no task."""
    held = [gpu for gpu in found.usable if gpu.unmanaged()]
    if found.usable and not held:
        yield ok("unmanaged", "no unmanaged process uses GPU memory")
    for gpu in held:
        words = (f"{size(bytes_)} used by {user or 'an unknown user'}" for user, bytes_ in gpu.unmanaged().items())
        yield ok("unmanaged", f"{gpu.installed.label}: {', '.join(words)}{_consequence(gpu, found.settings)}")


def _consequence(gpu: ExaminedGpu, settings: Settings) -> str:
    """Return what a run does about the unmanaged memory of a GPU."""
    if not gpu.kept or gpu.budget is None:
        return " (--unmanaged ignore)" if settings.unmanaged == "ignore" else ""
    if settings.unmanaged == "avoid":
        return "; not used (--unmanaged avoid)"
    wait = settings.unmanaged_calm - min(one.calm for one in gpu.budget.unmanaged)
    young = f"; a run starts nothing there for {duration(wait)}" if wait > 0 else ""
    return f", {size(gpu.kept)} more kept free for it{young}"


def mps(
    program: str, daemons: Sequence[FoundDaemon], left: Sequence[Path], variables: Mapping[str, str]
) -> Iterator[Finding]:
    """Yield the findings about MPS: its program, running daemons, unused daemons, and variables of the shell."""
    where = f"its control program is {program}" if program else "nvidia-cuda-mps-control is not on PATH"
    turns = "" if any(one.directory == USUAL for one in daemons) else ": tasks on one GPU compute in turns"
    if program:
        yield ok("MPS", f"only used with --mps{turns} ({where})")
    else:
        yield absent("MPS", f"cannot be used{turns} ({where})")
    for place in left:
        yield wrong("MPS", f"an unused daemon is left in {place}", "scheduler doctor --clean")
    for one in daemons:
        runs = f"a daemon of {user_name(one.uid)} runs in {one.directory} (process {one.pid})"
        if one.directory == USUAL:
            joins = "tasks find it and join it, and a crash of one can end the others"
            yield wrong("MPS", f"{runs}: {joins}", "echo quit | nvidia-cuda-mps-control, as that user")
        else:
            yield ok("MPS", f"{runs}: tasks join it only with --mps=join")
    if variables:
        said = ", ".join(f"{name}={value}" for name, value in variables.items())
        yield ok("MPS", f"removed from the environment of tasks: {said}")
