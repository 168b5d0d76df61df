"""Finds the devices of a run: which GPUs there are, which of them this shell may use, which of those were asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.errors import DeviceError, UsageError
from scheduler.settings import Settings
from scheduler.units import size

SLOTS = "slots:"
"""How a list of slots begins; they are separated by semicolons, as one may be of several GPUs (`slots:0;0;1,2`)."""

if TYPE_CHECKING:
    from scheduler.devices.allocation import Allowed, Seen
    from scheduler.devices.choice import Chosen
    from scheduler.devices.node import Node
    from scheduler.devices.nvml import NvmlDevices
    from scheduler.devices.pool import Pool
    from scheduler.wiring.choices import Choices


def find_devices(said: str, settings: Settings, environ: Mapping[str, str] | None = None) -> Pool:
    """The devices that `--devices` means here; raises UsageError, and DeviceError where GPUs are there but broken.

    `environ` is what says which GPUs may be used and how tasks start, where that isn't this process's.
    """
    pool = _find(said, settings, os.environ if environ is None else environ)
    try:
        _check_buffer(pool, settings.buffer)
    except UsageError:
        pool.close()
        raise
    if settings.ignored:
        pool.notes.append(settings.ignored)
    return pool


def _check_buffer(pool: Pool, buffer: int) -> None:
    """Refuse to keep everything free; slots have no memory."""
    largest = max(pool.discover(), key=lambda device: device.total, default=None)
    if largest is not None and 0 < largest.total <= buffer:
        said = f"the largest device ({largest.label}) has {size(largest.total)}, so nothing is left to promise"
        raise UsageError(f"--buffer {size(buffer)}: {said}: lower it")


def _find(said: str, settings: Settings, environ: Mapping[str, str]) -> Pool:
    from scheduler.devices.allocation import Allowed
    from scheduler.devices.choice import choose
    from scheduler.devices.host import HostDevices
    from scheduler.devices.pool import Pool

    if said.startswith(SLOTS):
        return _slots(said, settings, environ)
    words = {item.partition(":")[0].strip() for item in said.split(",")}
    if words == {"host"}:
        chosen = choose(said, Allowed(()), ())
        _check_budgets(said, chosen, settings)
        return Pool(HostDevices(chosen.host_cap, environ=environ), environ=environ)
    return _with_gpus(said, settings, environ)


def check_slots(choices: Choices) -> None:
    """Refuse counts on devices whose count is their number of slots."""
    if choices.devices.startswith(SLOTS) and (choices.slots or choices.max_per_device):
        flag = "--slots" if choices.slots else "--max-per-device"
        raise UsageError(
            f"--devices {choices.devices}: a slot takes one task; leave {flag} out, and list it twice for two"
        )


def _slots(said: str, settings: Settings, environ: Mapping[str, str]) -> Pool:
    """One place for one task for each item; items need not name GPUs that anybody here can see."""
    from scheduler.devices.allocation import cuda_numbers, within
    from scheduler.devices.cgroups import device_rules
    from scheduler.devices.host import HostDevices
    from scheduler.devices.nvml import NvmlDevices
    from scheduler.devices.slots import SlotPool, read_slots

    gpus = NvmlDevices()
    try:
        node = gpus.node()
        seen = within(seen_by(node), device_rules())
        slots = read_slots([item.strip() for item in said.removeprefix(SLOTS).split(";")], seen, cuda_numbers(seen))
        named = {key for slot in slots for key in slot.cards}
        _check_offered(said, seen, named)
        usable = {gpu.uuid for gpu in node.gpus if not gpu.unusable and gpu.uuid in named}
        if usable:
            gpus.use(usable)
            gpus.discover()
        else:
            gpus.close()
        notes = [f"{node.why}: what tasks take of the GPUs is not seen"] if node.broken else []
        host = HostDevices(environ=environ)
        return SlotPool(host, gpus if usable else None, slots, usable, notes=notes, environ=environ)
    except BaseException:
        gpus.close()
        raise


def _with_gpus(said: str, settings: Settings, environ: Mapping[str, str]) -> Pool:
    from scheduler.devices.allocation import allowed, cuda_numbers, within
    from scheduler.devices.cgroups import device_rules
    from scheduler.devices.choice import choose
    from scheduler.devices.host import HostDevices
    from scheduler.devices.nvml import NvmlDevices
    from scheduler.devices.pool import Pool

    gpus = NvmlDevices()
    try:
        node = gpus.node()
        if node.broken:
            raise DeviceError(f"{node.why}; or run on the host's RAM alone: --devices host")
        rules, seen = device_rules(), seen_by(node)
        may = offered(allowed(seen, environ, rules), seen)
        chosen = choose(said, may, seen)
        _check_budgets(said, chosen, settings)
        notes = [*may.notes]
        if chosen.host_only:
            gpus.close()
            if may.source:
                notes.append(f"no GPU may be used ({may.source}): everything runs on the host's RAM")
            return Pool(HostDevices(chosen.host_cap, environ=environ), notes=notes, environ=environ)
        return Pool(
            HostDevices(chosen.host_cap, environ=environ),
            _use(gpus, chosen),
            ordinals=cuda_numbers(within(seen, rules)),
            visible=settings.visible,
            source=may.source,
            notes=notes,
            environ=environ,
        )
    except BaseException:
        gpus.close()
        raise


def offered(may: Allowed, node: Sequence[Seen]) -> Allowed:
    """What of it root offers: a machine may have GPUs that are for something else."""
    from scheduler.devices.allocation import Allowed
    from scheduler.devices.choice import choose
    from scheduler.store import houserules

    rules = houserules.read(os.environ, os.getuid())
    if not rules.devices:
        return may
    try:
        chosen = {share.gpu.uuid for share in choose(rules.devices, Allowed(tuple(node)), node).shares}
    except UsageError as exc:
        raise UsageError(f"{rules.path}, devices: {exc}") from exc
    left = tuple(gpu for gpu in may.gpus if gpu.uuid in chosen)
    if len(left) == len(may.gpus):
        return may
    source = f"{may.source}, devices in {rules.path}" if may.source else f"devices in {rules.path}"
    return replace(may, gpus=left, source=source)


def _check_offered(said: str, seen: Sequence[Seen], named: set[str]) -> None:
    """Refuse slots on GPUs that root does not offer."""
    from scheduler.devices.allocation import Allowed, labels

    may = offered(Allowed(tuple(seen)), seen)
    beyond = [gpu for gpu in seen if gpu.uuid in named and gpu not in may.gpus]
    if beyond:
        raise UsageError(f"--devices {said}: {labels(beyond)} may not be used here ({may.source})")


def seen_by(node: Node) -> list[Seen]:
    """The node's GPUs, as far as it matters who may use them."""
    from scheduler.devices.allocation import Seen

    return [Seen(gpu.index, gpu.uuid, gpu.model, gpu.bus_id, gpu.total, gpu.mig, gpu.minor) for gpu in node.gpus]


def _use(gpus: NvmlDevices, chosen: Chosen) -> NvmlDevices:
    caps = {share.gpu.uuid: share.cap for share in chosen.shares if share.cap is not None}
    gpus.use([share.gpu.uuid for share in chosen.shares], caps)
    gpus.discover()
    return gpus


def _check_budgets(said: str, chosen: Chosen, settings: Settings) -> None:
    caps = [chosen.host_cap, *(share.cap for share in chosen.shares)]
    for cap in caps:
        if cap is not None and cap <= settings.buffer:
            raise UsageError(
                f"--devices {said}: {size(cap)} leaves nothing beside the buffer of {size(settings.buffer)}: "
                "raise the budget or lower --buffer"
            )
