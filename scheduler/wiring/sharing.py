"""Joins what makes a run's tasks share GPUs under NVIDIA's MPS, or says why they cannot."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from scheduler.core.model import Device
from scheduler.devices.mps import Gpu, Mps
from scheduler.devices.mps_control import DIRECTORY, PROGRAM, Control, Silent
from scheduler.devices.mps_daemon import USUAL, Daemon, find_daemons, find_program, find_servers
from scheduler.devices.mps_home import Home, homes_left
from scheduler.devices.pool import Pool
from scheduler.errors import DeviceError, UsageError
from scheduler.people import user_name
from scheduler.settings import Settings
from scheduler.store.leases import find_directory, living
from scheduler.units import size
from scheduler.wiring.choices import Choices

VOLTA = 7
"""Older GPUs know neither limits for each client nor an end that spares the others."""
_AGAIN = "do without (--mps=off)"
_JOIN = "--mps=join joins it"


def share(pool: Pool, choices: Choices, settings: Settings) -> None:
    """Have the pool share its GPUs as was asked for; raises UsageError where that cannot be, unless it was `auto`."""
    clean_left(settings, pool)
    if choices.mps == "off":
        return
    try:
        mps = _checked(pool, choices, settings)
        mps.begin()
    except (DeviceError, Silent) as exc:
        _do_without(pool, choices, str(exc))
        return
    pool.mps = mps


def could_share(pool: Pool, choices: Choices, settings: Settings) -> bool:
    """The same for a plan: nothing is started."""
    if choices.mps == "off":
        return False
    try:
        _checked(pool, choices, settings).close()
    except (DeviceError, Silent) as exc:
        _do_without(pool, choices, str(exc))
        return False
    return True


def why_not(pool: Pool, settings: Settings, otherwise: str) -> str:
    """Why tasks could not share these GPUs by a daemon of our own, and what to do `otherwise`; empty: they could."""
    try:
        _checked(pool, Choices(mps="on"), settings).close()
    except (DeviceError, Silent) as exc:
        return str(exc).replace(_AGAIN, otherwise)
    return ""


def clean_left(settings: Settings, pool: Pool | None = None) -> list[str]:
    """End the daemons that killed schedulers of this user left and nobody uses; a sentence for each."""
    said = []
    for home in homes_left(find_directory(settings.leases or None), find_program(os.environ), os.environ):
        try:
            if home.clean():
                said.append(f"an MPS daemon that nobody used any more was ended ({home.root})")
        except (DeviceError, OSError) as exc:
            said.append(f"what is left of an MPS daemon in {home.root} could not be cleaned: {exc}")
    if pool is not None:
        pool.notes += said
    return said


def _do_without(pool: Pool, choices: Choices, why: str) -> None:
    if choices.mps != "auto":
        flag = "--mps=join" if choices.mps == "join" else "--mps"
        raise UsageError(f"{flag}: {why}")
    pool.notes.append(f"MPS is not used: {why}")


def _checked(pool: Pool, choices: Choices, settings: Settings) -> Mps:
    """What could share; raises DeviceError with the reason why nothing can."""
    gpus = [device for device in pool.discover() if device.is_gpu]
    if not gpus or pool.gpus is None:
        raise DeviceError(f"this run has no GPU, and MPS shares GPUs: {_AGAIN}")
    if any(device.is_slot for device in pool.discover()):
        raise DeviceError(
            "a slot's task is told its GPUs as the list spells them, which MPS does not know: list no slots"
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
    homes = {device.key: Home(root, device.key, program, os.environ) for device in gpus}
    _check_nobody_else(pool, gpus, homes)
    for home in homes.values():
        home.check()
    if choices.mps_exclusive:
        _check_exclusive(pool, homes)
        _check_leases(gpus, homes, settings)
    mine = {device.key: Gpu(device.label, homes[device.key].control, homes[device.key]) for device in gpus}
    return Mps(mine, exclusive=choices.mps_exclusive)


def _check_age(pool: Pool) -> None:
    assert pool.gpus is not None
    mine = {device.key for device in pool.discover()}
    for gpu in pool.gpus.node().gpus:
        if gpu.uuid in mine and gpu.capability and gpu.capability[0] < VOLTA:
            capability = ".".join(map(str, gpu.capability))
            raise DeviceError(
                f"{gpu.label} ({gpu.model}) has compute capability {capability}, MPS with limits needs 7.0 (Volta): "
                f"leave it out with --devices, or {_AGAIN}"
            )


def _joined(gpus: Sequence[Device], program: str) -> Mps:
    """On the daemon that tasks would find by themselves."""
    daemon = next(reversed(find_daemons(os.environ)), None)
    if daemon is None:
        places = " or ".join(dict.fromkeys([str(USUAL), os.environ.get(DIRECTORY) or str(USUAL)]))
        raise DeviceError(f"no MPS daemon runs in {places}: name its directory with {DIRECTORY}, or use --mps")
    control = Control(program, daemon.directory)
    percentage = control.percentage()
    if percentage < 1:
        raise DeviceError(f"{_named(daemon)} gives tasks {percentage:g}% of the threads: ask {user_name(daemon.uid)}")
    return Mps({device.key: Gpu(device.label, control) for device in gpus})


def _check_nobody_else(pool: Pool, gpus: Sequence[Device], homes: Mapping[str, Home]) -> None:
    """Refuse to start a daemon beside somebody else's."""
    daemons = [one for one in find_daemons(os.environ) if one.directory not in [h.pipes for h in homes.values()]]
    if daemons:
        raise DeviceError(f"{_named(daemons[0])} runs here already: {_JOIN}, or {_AGAIN}")
    for budget in pool.snapshot():
        pids = [stranger.pid for stranger in budget.foreign if stranger.pid]
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


def _check_exclusive(pool: Pool, homes: Mapping[str, Home]) -> None:
    for budget in pool.snapshot():
        home = homes.get(budget.device.key)
        if home is None:
            continue
        why = home.mode.why_not()
        if why:
            raise DeviceError(why)
        others = [stranger for stranger in budget.foreign if stranger.pid not in find_servers([stranger.pid])]
        if others:
            raise DeviceError(
                f"--mps-exclusive: {budget.device.label} is used by {others[0].user or 'somebody'} "
                f"(process {others[0].pid}), who would be locked out: leave it out"
            )


def _check_leases(gpus: Sequence[Device], homes: Mapping[str, Home], settings: Settings) -> None:
    """Refuse GPUs on which another run was promised something, whether it uses them yet or not.

    Where a run of ours made them exclusive before, our own tasks there are clients of the same daemon.
    """
    for lease in living(find_directory(settings.leases or None)):
        for device in gpus:
            promised = lease.promised.get(device.key, 0)
            if promised and not (lease.uid == os.getuid() and homes[device.key].mode.is_changed()):
                who = f"run {lease.run.partition('-')[0]} of {user_name(lease.uid)}"
                raise DeviceError(
                    f"--mps-exclusive: {who} has leased {size(promised)} of {device.label}, and would be locked out: "
                    "wait for it, or leave --mps-exclusive out"
                )


def _named(daemon: Daemon) -> str:
    return f"an MPS daemon of {user_name(daemon.uid)} (process {daemon.pid}, {Path(daemon.directory)})"


def _uid(pid: int) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return os.getuid()
