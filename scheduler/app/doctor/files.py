"""The checks of files and settings: the program, its Python, the state directory, leases, the site's rules."""

from __future__ import annotations

import grp
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler import units
from scheduler.core.leases import Lease
from scheduler.core.tasks.redaction import notifier
from scheduler.errors import UsageError
from scheduler.runtime import site_file
from scheduler.runtime.paths import (
    NETWORK_FILE_SYSTEMS,
    PACKAGE,
    StatePaths,
    file_system,
    nearest,
    tilde,
    why_not_writable,
)
from scheduler.runtime.settings import PREFIX, READERS, Settings
from scheduler.runtime.users import user_name
from scheduler.store.disks import why_locks_fail
from scheduler.store.machine import site_config
from scheduler.store.machine.lease_directory import distrust
from scheduler.store.machine.site_config import SiteConfig
from scheduler.store.run.catalog import RunCatalog
from scheduler.store.run.counter import why_locked
from scheduler.ui.verbs.doctor import Finding, broken, ok, wrong
from scheduler.units import GIB, count, duration, size

LITTLE_SPACE = GIB


def program(version: str) -> Iterator[Finding]:
    """Yield the findings about the scheduler and the Python that runs it."""
    yield ok("scheduler", f"{version} in {tilde(PACKAGE)}")
    yield ok("python", f"{'.'.join(map(str, sys.version_info[:3]))}, {tilde(sys.executable)}")


def python(path: str, source: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the finding about the Python that an Executable of `-1` means; `source` is empty if no setting names that
    Python.
    """
    virtual, conda = environ.get("VIRTUAL_ENV", ""), environ.get("CONDA_PREFIX", "")
    active = virtual or conda
    found = shutil.which(path) or ""
    inside = bool(active) and Path(active) in Path(os.path.abspath(found)).parents
    kind = f"the active {'virtual' if virtual else 'conda'} environment {tilde(active)}"
    whose = _where("python", source) if source else "the one that runs the scheduler"
    says = f"{tilde(path)} ({whose}{f'; {kind}' if inside else ''})"
    if not found:
        yield broken("python for -1", f"{says} is not a program", "--python EXE, or SCHEDULER_PYTHON", stops=False)
    elif active and not inside and not source:
        cure = f"--python {tilde(active)}/bin/python, or SCHEDULER_PYTHON"
        yield wrong("python for -1", f"{says}, not that of {kind}", cure)
    else:
        yield ok("python for -1", says)


def state(home: StatePaths, settings: Settings) -> Iterator[Finding]:
    """Yield the findings about the state directory, where runs are kept."""
    path, elsewhere = tilde(home.root), "use a directory on a local disk: --state DIR, or SCHEDULER_STATE"
    trouble = why_not_writable(home.root) or why_locks_fail(home.root)
    if trouble:
        yield broken("state", f"{path} {trouble}", elsewhere)
        return
    there = nearest(home.root)
    status, (share, least) = os.statvfs(there), settings.disk_min
    free, kept = status.f_bavail * status.f_frsize, max(least, round(share * status.f_blocks * status.f_frsize))
    runs = count(len(RunCatalog(home).numbers()), "run") if there == home.root else "created by the first run"
    yield place(path, runs, file_system(home.root), free, kept, elsewhere)
    locked = why_locked(home.counter)
    if locked:
        yield broken("state", *locked.rsplit(": ", 1))
    if home.why:
        yield ok("state", home.why)


def place(path: str, runs: str, kind: str, free: int, kept: int, elsewhere: str) -> Finding:
    """Return the finding about a directory: its file system, its free bytes, and the bytes that must stay free."""
    shown = "overlay, deleted with its container" if kind == "overlay" else kind or "unknown file system"
    says = f"{path} ({runs}; {shown}, {size(free)} free)"
    if kind in NETWORK_FILE_SYSTEMS:
        return wrong("state", f"{says}: locks and journals are not reliable on a network file system", elsewhere)
    if kind in ("tmpfs", "ramfs"):
        return wrong("state", f"{says}: it is in memory, a reboot deletes all runs", elsewhere)
    if free < kept:
        says += f", below the minimum of {size(kept)}: no task starts until there is space"
        return wrong("state", says, "free space, or lower disk_min")
    if free < LITTLE_SPACE:
        return wrong("state", f"{says}: little space for logs and journals", f"free space, or {elsewhere}")
    return ok("state", says)


def leases(directory: Path) -> Iterator[Finding]:
    """Yield the finding about the lease directory."""
    there = os.path.lexists(directory)
    trouble, _, cure = _why_unsafe(directory, there=there).rpartition(": ")
    if trouble:
        yield broken("leases", trouble, cure)
    elif there:
        yield lease_directory(directory, os.lstat(directory))
    else:
        yield ok("leases", f"{directory}, created by the first run of any user")


def lease_directory(directory: Path, status: os.stat_result) -> Finding:
    """Return the finding about a lease directory that can be used."""
    owner = user_name(status.st_uid)
    says = f"mode {stat.S_IMODE(status.st_mode):04o}"
    if status.st_uid not in (0, os.getuid()):
        says = f"{directory} ({says}) belongs to {owner}, who can remove the leases of other users"
        return wrong("leases", says, "as root, while no task runs: scheduler devices init")
    only = "" if status.st_mode & 0o022 else "; only you can reserve there"
    return ok("leases", f"{directory} ({says}, owner {owner}{only})")


def _why_unsafe(directory: Path, *, there: bool) -> str:
    """Return why a lease directory is unsafe, and what to do about it; empty if it is safe."""
    if there:
        return distrust(directory)
    why = why_not_writable(directory)
    cure = f"name another with {PREFIX}LEASES, the same one for all users of this machine"
    return f"{directory} {why}: {cure}" if why else ""


def reservations(found: Sequence[Lease], label: Callable[[str], str]) -> Iterator[Finding]:
    """Yield the reserved memory by user."""
    if not found:
        yield ok("reservations", "no task has a reservation now")
    by_user: dict[str, list[Lease]] = {}
    for lease in found:
        by_user.setdefault(user_name(lease.uid), []).append(lease)
    for user, held in sorted(by_user.items()):
        reserved: dict[str, int] = {}
        for device, bytes_ in (item for lease in held for item in lease.reserved.items()):
            reserved[label(device)] = reserved.get(label(device), 0) + bytes_
        amounts = ", ".join(f"{size(bytes_)} of {device}" for device, bytes_ in sorted(reserved.items()))
        yield ok("reservations", f"{user}: {count(len(held), 'task')}, {amounts}")
    unreadable = sorted({lease.unreadable for lease in found if lease.unreadable})
    if unreadable:
        damaged = "cannot be read (damaged, or of a newer version): no task starts on the devices that they may hold"
        cure = "use the same version of the scheduler for all users of this machine"
        yield wrong("reservations", f"some leases of {', '.join(unreadable)} {damaged}", cure)


def site(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings about the site's rules, and about those that apply to this user."""
    file = site_file.path(environ)
    try:
        found = site_file.read(environ)
        config = site_config.parse(found, os.getuid())
    except UsageError as exc:
        yield broken("machine", str(exc), f"root corrects {file}")
        return
    why, _, cure = found.why_not.rpartition(": ")
    if why:
        yield broken("machine", why, cure, stops=False)
    elif not found.there:
        says = "no quotas, all GPUs are offered, only root can disable devices for all users"
        yield ok("machine", f"no {found.path}: {says}")
    else:
        yield from site_rules(config, os.getuid())


def site_rules(config: SiteConfig, uid: int) -> Iterator[Finding]:
    """Yield the findings about valid rules, as they apply to one user."""
    yield ok("machine", f"{config.path}{f' offers the GPUs {config.devices}' if config.devices else ''}")
    caps = config.caps
    quotas = [
        *([count(caps.gpus, "GPU")] if caps.gpus is not None else []),
        *([f"{size(caps.memory)} of GPU memory"] if caps.memory is not None else []),
        *([f"{size(caps.host_memory)} of RAM"] if caps.host_memory is not None else []),
        *([count(caps.tasks, "task")] if caps.tasks is not None else []),
    ]
    yield ok("quota", f"you may hold {', '.join(quotas)} at a time ({caps.source})" if quotas else "none for you")
    for what, people in (config.may or {}).items():
        yield ok(what, f"{_who(people)}{', you too' if config.allows(uid, what) else ''}")
    if config.unknown:
        says = f"{config.path} names {', '.join(config.unknown)}, unknown on this machine"
        yield wrong("machine", says, "correct or remove these names")


def _who(people: site_config.UserSet | None) -> str:
    if people is None:
        return "all users"
    return ", ".join(["root", *sorted(map(user_name, people.users)), *sorted(map(_group, people.groups))])


def _group(gid: int) -> str:
    try:
        return f"@{grp.getgrgid(gid).gr_name}"
    except KeyError:
        return f"@{gid}"


def settings_used(settings: Settings, trouble: str) -> Iterator[Finding]:
    """Yield the settings that differ from their defaults, and one line that lists the defaults."""
    if trouble:
        yield broken("settings", trouble, "correct or remove it; this page uses the defaults")
        return
    all_ = settings_data(settings)
    for one in all_:
        if one["source"] != "default":
            yield ok(one["name"], f"{_written(one)} ({_where(one['name'], one['source'])})")
    usual = (one for one in all_ if one["source"] == "default" and one["value"] not in ("", None))
    yield ok("defaults", ", ".join(f"{one['name']} {_written(one)}" for one in usual))


def settings_data(settings: Settings) -> list[dict[str, Any]]:
    """Return all settings with value, unit and source as JSON values; secrets are left out."""
    return [
        {
            "name": name,
            "value": notifier(settings.notify) if name == "notify" else getattr(settings, name),
            "unit": _UNITS.get(reader, "bytes" if name == "log_max" else ""),
            "source": settings.source.get(name, "default"),
        }
        for name, reader in READERS.items()
    ]


_UNITS = {units.parse_size: "bytes", units.parse_duration: "seconds"}


def _written(setting: Mapping[str, Any]) -> str:
    """Return a value in the form in which the setting is written."""
    value: Any = setting["value"]
    if setting["unit"] == "bytes":
        return size(value)
    if setting["unit"] == "seconds":
        return duration(value)
    if setting["name"] == "margin":
        return f"{value[0] * 100:g}% + {size(value[1])}"
    if setting["name"] == "disk_min":
        share, bytes_ = value
        return ",".join([size(bytes_)] * bool(bytes_) + [f"{share * 100:g}%"] * bool(share)) or "off"
    return str(value)


def _where(name: str, source: str) -> str:
    return PREFIX + name.upper() if source == "environment" else source
