"""The devices of a run: the GPUs of the machine, those that this shell may use, and those that `--devices` names."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scheduler.errors import DeviceError, UsageError
from scheduler.runtime.settings import Settings
from scheduler.units import size
from scheduler.values import replace

SLOTS = "slots:"
"""The prefix of a list of slots; semicolons separate them, since a slot may have several GPUs (`slots:0;0;1,2`)."""

if TYPE_CHECKING:
    from scheduler.app.run.options import RunOptions
    from scheduler.cluster.devices import ClusterDevices
    from scheduler.devices.gpu.allocation import AllowedGpus
    from scheduler.devices.gpu.inventory import InstalledGpu
    from scheduler.devices.gpu.nvml_devices import NvmlDevices
    from scheduler.devices.pool import DevicePool
    from scheduler.devices.selection import ChosenDevices

    RunDevices = DevicePool | ClusterDevices


def find_devices(
    said: str, settings: Settings, environ: Mapping[str, str] | None = None, *, expect: bool = False
) -> DevicePool:
    """Return the devices that `--devices` names; raise UsageError, or DeviceError if the GPUs cannot be read.

    `environ` says which GPUs may be used and how tasks start (default: this process's environment). With `expect`, the
    choice of all GPUs includes GPUs that cannot be read now, if other GPUs can be read; no task starts on a GPU before
    it answers.
    """
    pool = _find(said, settings, os.environ if environ is None else environ, expect=expect)
    try:
        _check_buffer(pool, settings.buffer)
    except UsageError:
        pool.close()
        raise
    if settings.ignored:
        pool.notes.append(settings.ignored)
    if pool.gpus is not None:
        _name_processes(pool.gpus, settings)
    return pool


def find_run_devices(options: RunOptions, settings: Settings, environ: Mapping[str, str] | None = None) -> RunDevices:
    """Return the devices of a new run: of this machine, or of the nodes that `--on` names. Raise the errors that
    `find_devices` raises.
    """
    if not settings.on:
        if settings.source.get("node_fence") == "flag":
            raise UsageError("--node-fence is for the machines of --on: this run has none, so leave it out")
        return find_devices(options.devices, settings, environ, expect=options.mps == "off")
    from scheduler.app.cluster.nodes import connect

    return connect(options, settings, os.environ if environ is None else environ)


def _name_processes(gpus: NvmlDevices, settings: Settings) -> None:
    """Attribute the processes on the GPUs to the present leases, so that no task seems to be unmanaged."""
    from scheduler.core.leases import trees, unnamed_shims
    from scheduler.store.machine.lease_directory import find_directory
    from scheduler.store.machine.lease_records import living

    leases = living(find_directory(settings.leases or None))
    gpus.watch({}, trees(leases), unnamed_shims(leases))


def _check_buffer(pool: DevicePool, buffer: int) -> None:
    """Refuse a buffer that leaves no memory for tasks; slots have no memory."""
    largest = max(pool.discover(), key=lambda device: device.total, default=None)
    if largest is not None and 0 < largest.total <= buffer:
        said = f"the largest device ({largest.label}) has {size(largest.total)}, so nothing is left to reserve"
        raise UsageError(f"--buffer {size(buffer)}: {said}: lower it")


def _find(said: str, settings: Settings, environ: Mapping[str, str], *, expect: bool) -> DevicePool:
    from scheduler.devices.gpu.allocation import AllowedGpus
    from scheduler.devices.host.host_memory import HostDevices
    from scheduler.devices.pool import DevicePool
    from scheduler.devices.selection import choose

    if said.startswith(SLOTS):
        return _slots(said, settings, environ)
    words = {item.partition(":")[0].strip() for item in said.split(",")}
    if words == {"host"}:
        chosen = choose(said, AllowedGpus(()), ())
        _check_budgets(said, chosen, settings)
        return DevicePool(HostDevices(chosen.host_cap, environ=environ), environ=environ)
    return _with_gpus(said, settings, environ, expect=expect)


def check_slots(choices: RunOptions) -> None:
    """Refuse `--slots` and `--max-per-device` on devices that are slots, because the number of slots is the limit."""
    if choices.devices.startswith(SLOTS) and (choices.slots or choices.max_per_device):
        flag = "--slots" if choices.slots else "--max-per-device"
        raise UsageError(
            f"--devices {choices.devices}: a slot takes one task; leave {flag} out, and list a slot twice for two tasks"
        )


def _slots(said: str, settings: Settings, environ: Mapping[str, str]) -> DevicePool:
    """Return one slot, for one task, for each item of the list; an item need not name a GPU that is visible here."""
    from scheduler.devices.gpu.allocation import cuda_numbers, within
    from scheduler.devices.gpu.nvml_devices import NvmlDevices
    from scheduler.devices.host.cgroups import device_rules
    from scheduler.devices.host.host_memory import HostDevices
    from scheduler.devices.slots import SlotPool, read_slots

    gpus = NvmlDevices()
    try:
        node = gpus.node()
        seen = within(node.gpus, device_rules())
        slots = read_slots([item.strip() for item in said.removeprefix(SLOTS).split(";")], seen, cuda_numbers(seen))
        named = {key for slot in slots for key in slot.cards}
        _check_offered(said, seen, named)
        usable = {gpu.uuid for gpu in node.gpus if not gpu.unusable and gpu.uuid in named}
        if usable:
            gpus.use(usable)
            gpus.discover()
        else:
            gpus.close()
        notes = [f"{node.why}: the tasks' use of the GPUs is not measured"] if node.broken else []
        host = HostDevices(environ=environ)
        return SlotPool(host, gpus if usable else None, slots, usable, notes=notes, environ=environ)
    except BaseException:
        gpus.close()
        raise


def _with_gpus(said: str, settings: Settings, environ: Mapping[str, str], *, expect: bool) -> DevicePool:
    from scheduler.devices.gpu.allocation import allowed, cuda_numbers, within
    from scheduler.devices.gpu.nvml_devices import NvmlDevices
    from scheduler.devices.host.cgroups import device_rules
    from scheduler.devices.host.host_memory import HostDevices
    from scheduler.devices.pool import DevicePool
    from scheduler.devices.selection import ALL, AUTO, choose

    gpus = NvmlDevices()
    try:
        node = gpus.node()
        if node.broken:
            raise DeviceError(f"{node.why}; or run on the host's RAM alone: --devices host")
        rules, seen = device_rules(), node.gpus
        may = offered(allowed(seen, environ, rules), seen)
        try:
            chosen = choose(said, may, seen)
        except UsageError as exc:
            raise UsageError("; ".join([str(exc), *(sentence for _, sentence in node.errors)])) from exc
        _check_budgets(said, chosen, settings)
        notes = [*may.notes]
        if chosen.host_only:
            gpus.close()
            if may.source:
                notes.append(f"no GPU may be used ({may.source}): everything runs on the host's RAM")
            return DevicePool(HostDevices(chosen.host_cap, environ=environ), notes=notes, environ=environ)
        return DevicePool(
            HostDevices(chosen.host_cap, environ=environ),
            _use(gpus, chosen, expect=expect and said.strip() in ("", ALL, AUTO) and not may.source),
            ordinals=cuda_numbers(within(seen, rules)),
            visible=settings.visible,
            source=may.source,
            notes=notes,
            environ=environ,
        )
    except BaseException:
        gpus.close()
        raise


def limit_memory(pool: DevicePool, options: RunOptions) -> None:
    """Limit the GPU memory of tasks outside of MPS as `--fence` says; raise UsageError if that is impossible."""
    if not options.fence:
        return
    gpus = [device for device in pool.discover() if device.is_gpu]
    if pool.gpus is None or not gpus or any(device.is_slot for device in pool.discover()):
        raise UsageError(f"--fence {options.fence}: this run has no GPU of its own to limit: leave --fence out")
    if options.fence == "torch":
        from scheduler.devices.torch_fence import TorchFence

        pool.fence = TorchFence(pool.gpus.discover, pool.gpus.note)
        return
    from scheduler.devices.dmem_fence import DmemFence, regions, why_not

    mine = {device.key for device in gpus}
    buses = {gpu.uuid: gpu.bus_id for gpu in pool.gpus.node().gpus if gpu.uuid in mine}
    if any(device.is_instance for device in gpus):
        raise UsageError("--fence dmem: the kernel knows no MIG instances: name whole GPUs, or use --fence torch")
    why = why_not(buses)
    if why:
        raise UsageError(f"--fence dmem: {why}; or use --fence torch")
    pool.fence = DmemFence(regions(buses))


def cap_power(pool: DevicePool, options: RunOptions, settings: Settings, *, check_only: bool = False) -> None:
    """Limit the power of the run's GPUs as `--power-cap` says; raise UsageError if that is impossible."""
    if options.power_cap is None:
        return
    from scheduler.devices.power_cap import PowerCaps
    from scheduler.store.machine.lease_directory import find_directory

    mine = {device.key for device in pool.discover()}
    gpus = pool.gpus.node().gpus if pool.gpus is not None else ()
    cards = {gpu.parent or gpu.uuid: f"GPU {gpu.index}" for gpu in gpus if gpu.uuid in mine}
    if not cards:
        raise UsageError("--power-cap: this run has no GPU: leave it out")
    named = [(label, uuid) for uuid, label in cards.items()]
    caps = PowerCaps(find_directory(settings.leases or None), options.power_cap, os.environ)
    try:
        caps.check(named)
        if not check_only:
            caps.set(named)
            pool.power = caps
    except DeviceError as exc:
        raise UsageError(f"--power-cap: {exc}") from exc


def offered(may: AllowedGpus, node: Sequence[InstalledGpu]) -> AllowedGpus:
    """Return the GPUs that the site's rules offer to schedulers."""
    from scheduler.devices.gpu.allocation import AllowedGpus
    from scheduler.devices.selection import choose
    from scheduler.store.machine import site_config

    rules = site_config.read(os.environ, os.getuid())
    if not rules.devices:
        return may
    try:
        chosen = {share.gpu.uuid for share in choose(rules.devices, AllowedGpus(tuple(node)), node).shares}
    except UsageError as exc:
        raise UsageError(f"{rules.path}, devices: {exc}") from exc
    left = tuple(gpu for gpu in may.gpus if gpu.uuid in chosen)
    if len(left) == len(may.gpus):
        return may
    source = f"{may.source}, devices in {rules.path}" if may.source else f"devices in {rules.path}"
    return replace(may, gpus=left, source=source)


def _check_offered(said: str, seen: Sequence[InstalledGpu], named: set[str]) -> None:
    """Refuse slots on GPUs that the site's rules do not offer."""
    from scheduler.devices.gpu.allocation import AllowedGpus, labels

    may = offered(AllowedGpus(tuple(seen)), seen)
    beyond = [gpu for gpu in seen if gpu.uuid in named and gpu not in may.gpus]
    if beyond:
        raise UsageError(f"--devices {said}: {labels(beyond)} may not be used here ({may.source})")


def _use(gpus: NvmlDevices, chosen: ChosenDevices, *, expect: bool) -> NvmlDevices:
    """Use the chosen GPUs; with `expect`, also use GPUs of the machine that cannot be read now."""
    caps = {share.gpu.uuid: share.cap for share in chosen.shares if share.cap is not None}
    gpus.use([share.gpu.uuid for share in chosen.shares], caps, chosen.divisible)
    if expect:
        gpus.expect_unread()
    gpus.discover()
    return gpus


def _check_budgets(said: str, chosen: ChosenDevices, settings: Settings) -> None:
    caps = [chosen.host_cap, *(share.cap for share in chosen.shares)]
    for cap in caps:
        if cap is not None and cap <= settings.buffer:
            raise UsageError(
                f"--devices {said}: {size(cap)} is not more than the buffer of {size(settings.buffer)}: "
                "raise the budget or lower --buffer"
            )
