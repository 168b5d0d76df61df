"""NVIDIA MPS for the tasks of a run: its daemons, or the reason why MPS cannot be used."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from scheduler.app.run.options import RunOptions
from scheduler.core.model import Device
from scheduler.devices.mps.control import DIRECTORY, PROGRAM, DaemonSilent, MpsControl
from scheduler.devices.mps.daemon import MpsHome, homes_left
from scheduler.devices.mps.daemon_discovery import (
    USUAL,
    FoundDaemon,
    find_daemons,
    find_program,
    find_servers,
)
from scheduler.devices.mps.sharing import MpsGpu, MpsSharing
from scheduler.devices.pool import DevicePool
from scheduler.devices.power_cap import restore_left
from scheduler.errors import DeviceError, UsageError
from scheduler.runtime.settings import Settings
from scheduler.runtime.users import user_name
from scheduler.store.machine.lease_directory import find_directory
from scheduler.store.machine.lease_records import living
from scheduler.units import size

VOLTA = 7
"""The lowest major compute capability of GPUs that may use MPS. On older GPUs, MPS has no limits per client, and the
failure of one client ends all clients."""
_AGAIN = "do without (--mps=off)"
_JOIN = "--mps=join joins it"


def share(pool: DevicePool, choices: RunOptions, settings: Settings) -> None:
    """Make the pool share its GPUs under MPS as requested. Raise UsageError if that is impossible, unless `auto` was
    requested.
    """
    clean_left(settings, pool)
    if choices.mps == "off":
        return
    try:
        mps = _checked(pool, choices, settings)
        mps.begin()
    except (DeviceError, DaemonSilent) as exc:
        _do_without(pool, choices, str(exc))
        return
    pool.mps = mps


def could_share(pool: DevicePool, choices: RunOptions, settings: Settings) -> bool:
    """Tell whether the tasks could share GPUs under MPS, without starting anything."""
    if choices.mps == "off":
        return False
    try:
        _checked(pool, choices, settings).close()
    except (DeviceError, DaemonSilent) as exc:
        _do_without(pool, choices, str(exc))
        return False
    return True


def why_not(pool: DevicePool, settings: Settings, otherwise: str) -> str:
    """Return why our own daemon could not share these GPUs; empty if it could.

    `otherwise` replaces the advice to use --mps=off.
    """
    try:
        _checked(pool, RunOptions(mps="on"), settings).close()
    except (DeviceError, DaemonSilent) as exc:
        return str(exc).replace(_AGAIN, otherwise)
    return ""


def clean_left(settings: Settings, pool: DevicePool | None = None) -> list[str]:
    """End unused daemons of this user's killed schedulers, and restore power limits; return a sentence about each of
    them.
    """
    said = []
    for home in homes_left(find_directory(settings.leases or None), find_program(os.environ), os.environ):
        try:
            if home.clean():
                said.append(f"an unused MPS daemon was ended ({home.root})")
        except (DeviceError, OSError) as exc:
            said.append(f"what is left of an MPS daemon in {home.root} could not be cleaned: {exc}")
    said += restore_left(find_directory(settings.leases or None), os.environ)
    if pool is not None:
        pool.notes += said
    return said


def _do_without(pool: DevicePool, choices: RunOptions, why: str) -> None:
    if choices.mps != "auto":
        flag = "--mps=join" if choices.mps == "join" else "--mps"
        raise UsageError(f"{flag}: {why}")
    pool.notes.append(f"MPS is not used: {why}")


def _checked(pool: DevicePool, choices: RunOptions, settings: Settings) -> MpsSharing:
    """Return how the GPUs would be shared; raise DeviceError with the reason if they cannot be shared."""
    gpus = [device for device in pool.discover() if device.is_gpu]
    if not gpus or pool.gpus is None:
        raise DeviceError(f"this run has no GPU, and MPS shares GPUs: {_AGAIN}")
    if any(device.is_slot for device in pool.discover()):
        raise DeviceError(
            "the task of a slot gets its GPUs under the names in the list, which MPS does not know: use no slots"
        )
    if settings.visible == "index":
        raise DeviceError("under MPS tasks know their GPUs by UUID only: leave --visible index out")
    _check_age(pool)
    program = find_program(os.environ)
    if not program:
        raise DeviceError(f"{PROGRAM} is not on PATH: install NVIDIA's MPS (it comes with the driver), or {_AGAIN}")
    if choices.mps == "join":
        return _joined(gpus, program)
    root = find_directory(settings.leases or None)
    homes = {device.key: MpsHome(root, device.key, program, os.environ) for device in gpus}
    _check_no_other_daemon(pool, gpus, homes)
    for home in homes.values():
        home.check()
    if choices.mps_exclusive:
        _check_exclusive(pool, homes)
        _check_leases(gpus, homes, settings)
    mine = {device.key: MpsGpu(device.label, homes[device.key].control, homes[device.key]) for device in gpus}
    return MpsSharing(mine, exclusive=choices.mps_exclusive)


def _check_age(pool: DevicePool) -> None:
    assert pool.gpus is not None
    mine = {device.key for device in pool.discover()}
    for gpu in pool.gpus.node().gpus:
        if gpu.uuid in mine and gpu.capability and gpu.capability[0] < VOLTA:
            capability = ".".join(map(str, gpu.capability))
            raise DeviceError(
                f"{gpu.label} ({gpu.model}) has compute capability {capability}, MPS with limits needs 7.0 (Volta): "
                f"leave it out with --devices, or {_AGAIN}"
            )


def _joined(gpus: Sequence[Device], program: str) -> MpsSharing:
    """Return the sharing through the MPS daemon that tasks would find without this scheduler."""
    daemon = next(reversed(find_daemons(os.environ)), None)
    if daemon is None:
        places = " or ".join(dict.fromkeys([str(USUAL), os.environ.get(DIRECTORY) or str(USUAL)]))
        raise DeviceError(f"no MPS daemon runs in {places}: name its directory with {DIRECTORY}, or use --mps")
    control = MpsControl(program, daemon.directory)
    percentage = control.percentage()
    if percentage < 1:
        raise DeviceError(f"{_named(daemon)} gives tasks {percentage:g}% of the threads: ask {user_name(daemon.uid)}")
    return MpsSharing({device.key: MpsGpu(device.label, control) for device in gpus})


def _check_no_other_daemon(pool: DevicePool, gpus: Sequence[Device], homes: Mapping[str, MpsHome]) -> None:
    """Refuse to start a daemon if another one runs on this machine, or if an MPS server of another user uses these
    GPUs.
    """
    daemons = [one for one in find_daemons(os.environ) if one.directory not in [h.pipes for h in homes.values()]]
    if daemons:
        raise DeviceError(f"{_named(daemons[0])} runs here already: {_JOIN}, or {_AGAIN}")
    for budget in pool.snapshot():
        pids = [unmanaged_process.pid for unmanaged_process in budget.unmanaged if unmanaged_process.pid]
        for pid in find_servers(pids):
            if (uid := _uid(pid)) != os.getuid():
                who = f"an MPS server of {user_name(uid)} (process {pid})"
                raise DeviceError(f"{who} uses {budget.device.label}: two would only take turns there; {_AGAIN}")
    for device in gpus:
        if device.single and not homes[device.key].mode.is_changed():
            raise DeviceError(
                f"{device.label} is in compute mode EXCLUSIVE_PROCESS, as a site's MPS daemon has it: "
                f"--mps=join joins that one, named with {DIRECTORY}"
            )


def _check_exclusive(pool: DevicePool, homes: Mapping[str, MpsHome]) -> None:
    for budget in pool.snapshot():
        home = homes.get(budget.device.key)
        if home is None:
            continue
        if budget.device.is_instance:
            raise DeviceError(
                f"--mps-exclusive: {budget.device.label} is a MIG instance, and the compute mode is that of the whole "
                "GPU: leave --mps-exclusive out"
            )
        why = home.mode.why_not()
        if why:
            raise DeviceError(why)
        others = [
            unmanaged_process
            for unmanaged_process in budget.unmanaged
            if unmanaged_process.pid not in find_servers([unmanaged_process.pid])
        ]
        if others:
            raise DeviceError(
                f"--mps-exclusive: {budget.device.label} is used by {others[0].user or 'an unknown user'} "
                f"(process {others[0].pid}), which would lose access: leave --mps-exclusive or this GPU out"
            )


def _check_leases(gpus: Sequence[Device], homes: Mapping[str, MpsHome], settings: Settings) -> None:
    """Refuse GPUs on which another run has a reservation, even if that run does not use them yet.

    If another run of this user has made them exclusive, its tasks there are clients of the same daemon.
    """
    for lease in living(find_directory(settings.leases or None)):
        for device in gpus:
            reserved = lease.reserved.get(device.key, 0)
            if reserved and not (lease.uid == os.getuid() and homes[device.key].mode.is_changed()):
                who = f"run {lease.run.partition('-')[0]} of {user_name(lease.uid)}"
                raise DeviceError(
                    f"--mps-exclusive: {who} has leased {size(reserved)} of {device.label}, and would lose access: "
                    "wait for it, or leave --mps-exclusive out"
                )


def _named(daemon: FoundDaemon) -> str:
    return f"an MPS daemon of {user_name(daemon.uid)} (process {daemon.pid}, {Path(daemon.directory)})"


def _uid(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return os.getuid()
