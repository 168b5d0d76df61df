"""The examination for `doctor`: each part on its own, so that one that fails hides no other."""

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

from scheduler import units
from scheduler.app.doctor.probe_gpus import examine_gpus
from scheduler.app.observe.run_reader import places
from scheduler.app.run.options import this_python
from scheduler.core.leases import Lease
from scheduler.core.tasks.redaction import notifier
from scheduler.devices.host import cgroups, host_environment
from scheduler.devices.host.host_memory import HostDevices, available
from scheduler.devices.mps import daemon_discovery
from scheduler.devices.mps.daemon import homes_left
from scheduler.devices.task_env import MPS_VARIABLES
from scheduler.errors import UsageError
from scheduler.runtime import site_file
from scheduler.runtime.paths import (
    NETWORK_FILE_SYSTEMS,
    PACKAGE,
    file_system,
    nearest,
    why_not_writable,
)
from scheduler.runtime.settings import PREFIX, READERS, Settings, read_settings
from scheduler.runtime.shim import hostname, oom_kills
from scheduler.runtime.users import user_name
from scheduler.store.disks import why_locks_fail
from scheduler.store.machine import site_config
from scheduler.store.machine.leases import distrust, find_directory, living
from scheduler.store.run.catalog import RunCatalog
from scheduler.store.run.counter import why_locked
from scheduler.ui.doctor import report
from scheduler.ui.doctor.report import DoctorReport, ProbeFailed

T = TypeVar("T")
"""The findings of one part of the page."""


def examine(flags: Mapping[str, str | None], version: str) -> DoctorReport:
    """Look at this machine with the settings that a command line with these flags has; changes nothing."""
    settings, trouble = _settings(flags)
    return DoctorReport(
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


def _part(look: Callable[[], T]) -> T | ProbeFailed:
    try:
        return look()
    except Exception as exc:  # noqa: BLE001 - the page goes on without this part, and tells of it with its traceback
        cure = f"pip install {exc.name}" if isinstance(exc, ModuleNotFoundError) else ""
        return ProbeFailed(f"{type(exc).__name__}: {exc}", traceback.format_exc(), cure)


def _settings(flags: Mapping[str, str | None]) -> tuple[Settings, str]:
    """Return the settings; if they are invalid, the defaults with the places and the error."""
    try:
        return read_settings(flags), ""
    except UsageError as exc:
        state = flags.get("state") or os.environ.get(PREFIX + "STATE", "")
        return Settings(state=state, leases=os.environ.get(PREFIX + "LEASES", "")), str(exc)


def _all_settings(settings: Settings, trouble: str) -> report.SettingsReport:
    known = [field.name for field in fields(settings) if field.name in READERS]
    found = [
        report.SettingReport(
            name, _shown(name, getattr(settings, name)), _unit(name), settings.source.get(name, "default")
        )
        for name in known
    ]
    return report.SettingsReport(tuple(found), trouble)


def _shown(name: str, value: Any) -> Any:
    """Return the value of a setting without secrets."""
    return notifier(value) if name == "notify" else value


def _house() -> report.SiteReport:
    file = site_file.path(os.environ)
    try:
        found = site_file.read(os.environ)
        rules = site_config.parse(found, os.getuid())
    except UsageError as exc:
        return report.SiteReport(str(file), True, str(exc), f"root corrects {file}", stops=True)
    why, _, cure = found.why_not.rpartition(": ")
    caps = rules.caps
    return report.SiteReport(
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


def _who(people: site_config.UserSet | None) -> str:
    if people is None:
        return "all users"
    return ", ".join(["root", *sorted(map(user_name, people.users)), *sorted(map(_group, people.groups))])


def _group(gid: int) -> str:
    try:
        return f"@{grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"@{gid}"


def _unit(name: str) -> str:
    kinds = {units.parse_size: "bytes", READERS["log_max"]: "bytes", units.parse_duration: "seconds"}
    return kinds.get(READERS[name], "")


def _program(version: str) -> report.ProgramReport:
    return report.ProgramReport(version, str(PACKAGE), sys.executable, ".".join(map(str, sys.version_info[:3])))


def _mps(settings: Settings) -> report.MpsReport:
    daemons, program = daemon_discovery.find_daemons(os.environ), daemon_discovery.find_program(os.environ)
    root = find_directory(settings.leases or None)
    return report.MpsReport(
        program=program,
        daemons=tuple(
            report.MpsDaemonReport(
                str(one.directory), one.pid, user_name(one.uid), one.directory == daemon_discovery.USUAL
            )
            for one in daemons
        ),
        variables={name: os.environ[name] for name in MPS_VARIABLES if name in os.environ},
        left=tuple(str(home.root) for home in homes_left(root, program, os.environ) if home.is_left()),
    )


def _host() -> report.HostReport:
    host = HostDevices()
    memory, cores = (report.LimitReport(limit.value, limit.source) for limit in host.limits())
    shared = host_environment.shared_memory()
    return report.HostReport(
        memory=memory,
        ram=available()[0],
        free=host.snapshot()[0].free,
        cores=cores,
        all_cores=os.cpu_count() or 1,
        cgroups=host_environment.cgroup_version(),
        swap=host_environment.swap(),
        counts_kills=host_environment.counts_kills(),
        kills=oom_kills(),
        shared=shared[0] if shared else None,
        shared_free=shared[1] if shared else 0,
    )


def _surroundings() -> report.EnvironmentReport:
    user = user_name(os.getuid())
    login = host_environment.login(user)
    kind, sign = host_environment.container()
    return report.EnvironmentReport(
        container=kind,
        sign=sign,
        first_namespace=host_environment.in_first_pid_namespace(),
        wsl=host_environment.in_wsl(),
        user=user,
        unit=login.unit,
        is_session=login.is_session,
        kills=login.kills,
        kills_by=login.source,
        lingers=login.lingers,
        ends_us=login.ends_us,
        limits=tuple(_limits()),
    )


def _limits() -> Iterable[report.UlimitReport]:
    for one in host_environment.ulimits():
        yield report.UlimitReport(one.name, f"ulimit {one.flag}", one.soft, one.hard)
    for folder, limit, now in cgroups.process_limits():
        yield report.UlimitReport("processes", f"pids.max of the cgroup {folder}", limit, limit, now)


def _python(settings: Settings) -> report.TaskPython:
    path = this_python(settings)
    virtual, conda = os.environ.get("VIRTUAL_ENV", ""), os.environ.get("CONDA_PREFIX", "")
    active = virtual or conda
    found = shutil.which(path) or ""
    return report.TaskPython(
        path=path,
        said_by=settings.source.get("python", ""),
        runs=bool(found),
        environment=active,
        environment_kind="virtual environment" if virtual else "conda environment" if conda else "",
        inside=bool(active) and Path(active) in Path(os.path.abspath(found)).parents,
    )


def _state(settings: Settings) -> report.StateReport:
    home = places(settings)
    there = nearest(home.root)
    status = os.statvfs(there)
    kind, trouble = file_system(home.root), why_not_writable(home.root) or why_locks_fail(home.root)
    share, least = settings.disk_min
    return report.StateReport(
        path=str(home.root),
        there=there == home.root,
        file_system=kind,
        network=kind in NETWORK_FILE_SYSTEMS,
        why=home.why,
        free=status.f_bavail * status.f_frsize,
        kept=max(least, round(share * status.f_blocks * status.f_frsize)),
        trouble=trouble,
        runs=0 if trouble else len(RunCatalog(home).numbers()),
        locked="" if trouble else why_locked(home.counter),
    )


def _leases(settings: Settings) -> report.LeasesReport:
    directory = find_directory(settings.leases or None)
    there = os.path.lexists(directory)
    status = os.lstat(directory if there else nearest(directory))
    trouble, _, cure = _why_unsafe(directory).rpartition(": ")
    found = list(living(directory))
    return report.LeasesReport(
        path=str(directory),
        there=there,
        mode=f"{stat.S_IMODE(status.st_mode):04o}" if there else "",
        owner=user_name(status.st_uid) if there else "",
        trouble=trouble,
        cure=cure,
        private=there and not status.st_mode & 0o022,
        other_owner=there and status.st_uid not in (0, os.getuid()),
        reservations=tuple(_reservations(found)),
        unreadable=tuple(sorted({lease.unreadable for lease in found if lease.unreadable})),
    )


def _why_unsafe(directory: Path) -> str:
    """Return why a directory is unsafe, with the fix; empty if it is safe."""
    if os.path.lexists(directory):
        return distrust(directory)
    why = why_not_writable(directory)
    return (
        f"{directory} {why}: name another with {PREFIX}LEASES, the same one for all users of this machine"
        if why
        else ""
    )


def _reservations(leases: Iterable[Lease]) -> Iterable[report.UserLeases]:
    """Return the reserved memory by user."""
    by_user: dict[str, list[Lease]] = {}
    for lease in leases:
        by_user.setdefault(user_name(lease.uid), []).append(lease)
    for user, held in sorted(by_user.items()):
        reserved: dict[str, int] = {}
        for lease in held:
            for device, bytes_ in lease.reserved.items():
                reserved[device] = reserved.get(device, 0) + bytes_
        yield report.UserLeases(user, len(held), reserved)
