"""Looks at everything that `doctor` tells of; each part by itself, so that one that fails hides none of the others."""

from __future__ import annotations

import grp
import os
import shutil
import stat
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from scheduler import machinefile, units
from scheduler.core.confidential import notifier
from scheduler.core.promises import Lease
from scheduler.devices import cgroups, mps_daemon, surroundings
from scheduler.devices.host import HostDevices, available
from scheduler.devices.mps_home import homes_left
from scheduler.devices.task_environment import MPS_VARIABLES
from scheduler.errors import UsageError
from scheduler.paths import NETWORK_FILE_SYSTEMS, PACKAGE, file_system, nearest, why_not_writable
from scheduler.people import user_name
from scheduler.processes import hostname
from scheduler.settings import PREFIX, READERS, Settings, read_settings
from scheduler.shim import oom_kills
from scheduler.store import houserules
from scheduler.store.leases import distrust, find_directory, living
from scheduler.store.runs import Runs
from scheduler.view import examined
from scheduler.view.examined import Examined, Failed
from scheduler.wiring.choices import this_python
from scheduler.wiring.examining_gpus import examine_gpus
from scheduler.wiring.reading import places

T = TypeVar("T")
"""What one part of the page is made of."""


def examine(flags: Mapping[str, str | None], version: str) -> Examined:
    """Look at this machine with the settings that a command line with these flags has; changes nothing."""
    settings, trouble = _settings(flags)
    return Examined(
        hostname=hostname(),
        program=_part(lambda: _program(version)),
        gpus=_part(lambda: examine_gpus(settings)),
        mps=_part(lambda: _mps(settings)),
        host=_part(_host),
        surroundings=_part(_surroundings),
        python=_part(lambda: _python(settings)),
        state=_part(lambda: _state(settings)),
        leases=_part(lambda: _leases(settings)),
        house=_part(_house),
        settings=_part(lambda: _all_settings(settings, trouble)),
    )


def _part(look: Callable[[], T]) -> T | Failed:
    try:
        return look()
    except Exception as exc:  # noqa: BLE001 - the page goes on without this part, and tells of it with its traceback
        cure = f"pip install {exc.name}" if isinstance(exc, ModuleNotFoundError) else ""
        return Failed(f"{type(exc).__name__}: {exc}", traceback.format_exc(), cure)


def _settings(flags: Mapping[str, str | None]) -> tuple[Settings, str]:
    """The settings, and why they are no more than defaults and places where something in them makes no sense."""
    try:
        return read_settings(flags), ""
    except UsageError as exc:
        state = flags.get("state") or os.environ.get(PREFIX + "STATE", "")
        return Settings(state=state, leases=os.environ.get(PREFIX + "LEASES", "")), str(exc)


def _all_settings(settings: Settings, trouble: str) -> examined.SettingsFound:
    known = [field.name for field in fields(settings) if field.name in READERS]
    found = [
        examined.Setting(name, _shown(name, getattr(settings, name)), _unit(name), settings.source.get(name, "default"))
        for name in known
    ]
    return examined.SettingsFound(tuple(found), trouble)


def _shown(name: str, value: Any) -> Any:
    """A value without what nobody should read."""
    return notifier(value) if name == "notify" else value


def _house() -> examined.House:
    file = machinefile.path(os.environ)
    try:
        found = machinefile.read(os.environ)
        rules = houserules.parse(found, os.getuid())
    except UsageError as exc:
        return examined.House(str(file), True, str(exc), f"root corrects {file}", stops=True)
    why, _, cure = found.why_not.rpartition(": ")
    caps = rules.caps
    return examined.House(
        path=found.path,
        there=found.there,
        trouble=why,
        cure=cure,
        devices=rules.devices,
        caps={
            "gpus": caps.gpus, "memory": caps.memory, "host_memory": caps.host_memory, "tasks": caps.tasks,
        },
        caps_by=caps.source,
        may={what: _who(people) for what, people in (rules.may or {}).items()},
        may_i=tuple(what for what in rules.may or {} if rules.allows(os.getuid(), what)),
        unknown=rules.unknown,
    )  # fmt: skip


def _who(people: houserules.People | None) -> str:
    if people is None:
        return "everybody"
    return ", ".join(["root", *sorted(map(user_name, people.users)), *sorted(map(_group, people.groups))])


def _group(gid: int) -> str:
    try:
        return f"@{grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"@{gid}"


def _unit(name: str) -> str:
    kinds = {units.parse_size: "bytes", READERS["log_max"]: "bytes", units.parse_duration: "seconds"}
    return kinds.get(READERS[name], "")


def _program(version: str) -> examined.Program:
    return examined.Program(version, str(PACKAGE), sys.executable, ".".join(map(str, sys.version_info[:3])))


def _mps(settings: Settings) -> examined.Mps:
    daemons, program = mps_daemon.find_daemons(os.environ), mps_daemon.find_program(os.environ)
    root = find_directory(settings.leases or None)
    return examined.Mps(
        program=program,
        daemons=tuple(
            examined.MpsDaemon(str(one.directory), one.pid, user_name(one.uid), one.directory == mps_daemon.USUAL)
            for one in daemons
        ),
        variables={name: os.environ[name] for name in MPS_VARIABLES if name in os.environ},
        left=tuple(str(home.root) for home in homes_left(root, program, os.environ) if home.is_left()),
    )


def _host() -> examined.Host:
    host = HostDevices()
    memory, cores = (examined.Limited(limit.value, limit.source) for limit in host.limits())
    shared = surroundings.shared_memory()
    return examined.Host(
        memory=memory,
        ram=available()[0],
        free=host.snapshot()[0].free,
        cores=cores,
        all_cores=os.cpu_count() or 1,
        cgroups=surroundings.cgroup_version(),
        swap=surroundings.swap(),
        counts_kills=surroundings.counts_kills(),
        kills=oom_kills(),
        shared=shared[0] if shared else None,
        shared_free=shared[1] if shared else 0,
    )


def _surroundings() -> examined.Surroundings:
    user = user_name(os.getuid())
    login = surroundings.login(user)
    kind, sign = surroundings.container()
    return examined.Surroundings(
        container=kind,
        sign=sign,
        first_namespace=surroundings.in_first_pid_namespace(),
        wsl=surroundings.in_wsl(),
        user=user,
        unit=login.unit,
        is_session=login.is_session,
        kills=login.kills,
        kills_by=login.source,
        lingers=login.lingers,
        ends_us=login.ends_us,
        limits=tuple(_limits()),
    )


def _limits() -> Iterable[examined.Limit]:
    for one in surroundings.ulimits():
        yield examined.Limit(one.name, f"ulimit {one.flag}", one.soft, one.hard)
    for folder, limit, now in cgroups.process_limits():
        yield examined.Limit("processes", f"pids.max of the cgroup {folder}", limit, limit, now)


def _python(settings: Settings) -> examined.TaskPython:
    path = this_python(settings)
    virtual, conda = os.environ.get("VIRTUAL_ENV", ""), os.environ.get("CONDA_PREFIX", "")
    active = virtual or conda
    found = shutil.which(path) or ""
    return examined.TaskPython(
        path=path,
        said_by=settings.source.get("python", ""),
        runs=bool(found),
        environment=active,
        environment_kind="virtual environment" if virtual else "conda environment" if conda else "",
        inside=bool(active) and Path(active) in Path(os.path.abspath(found)).parents,
    )


def _state(settings: Settings) -> examined.State:
    home = places(settings)
    there = nearest(home.root)
    status = os.statvfs(there)
    kind, trouble = file_system(home.root), why_not_writable(home.root)
    return examined.State(
        path=str(home.root),
        there=there == home.root,
        file_system=kind,
        network=kind in NETWORK_FILE_SYSTEMS,
        why=home.why,
        free=status.f_bavail * status.f_frsize,
        trouble=trouble,
        runs=0 if trouble else len(Runs(home).numbers()),
    )


def _leases(settings: Settings) -> examined.Leases:
    directory = find_directory(settings.leases or None)
    there = os.path.lexists(directory)
    status = os.lstat(directory if there else nearest(directory))
    trouble, _, cure = _why_unsafe(directory).rpartition(": ")
    found = list(living(directory))
    return examined.Leases(
        path=str(directory),
        there=there,
        mode=f"{stat.S_IMODE(status.st_mode):04o}" if there else "",
        owner=user_name(status.st_uid) if there else "",
        trouble=trouble,
        cure=cure,
        private=there and not status.st_mode & 0o022,
        strangers=there and status.st_uid not in (0, os.getuid()),
        promises=tuple(_promises(found)),
        unreadable=tuple(sorted({lease.unreadable for lease in found if lease.unreadable})),
    )


def _why_unsafe(directory: Path) -> str:
    """A sentence that ends with its cure."""
    if os.path.lexists(directory):
        return distrust(directory)
    why = why_not_writable(directory)
    return f"{directory} {why}: name another with {PREFIX}LEASES, the same for everybody on this machine" if why else ""


def _promises(leases: Iterable[Lease]) -> Iterable[examined.Promises]:
    """By user."""
    by_user: dict[str, list[Lease]] = {}
    for lease in leases:
        by_user.setdefault(user_name(lease.uid), []).append(lease)
    for user, held in sorted(by_user.items()):
        promised: dict[str, int] = {}
        for lease in held:
            for device, bytes_ in lease.promised.items():
                promised[device] = promised.get(device, 0) + bytes_
        yield examined.Promises(user, len(held), promised)
