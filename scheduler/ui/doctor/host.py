"""The findings of `doctor` about everything but GPUs: host, environment, files, settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scheduler.runtime.paths import tilde
from scheduler.runtime.settings import PREFIX
from scheduler.ui.doctor.lines import Finding, absent, broken, ok, wrong
from scheduler.ui.doctor.report import (
    EnvironmentReport,
    HostReport,
    LeasesReport,
    ProgramReport,
    SettingReport,
    SettingsReport,
    SiteReport,
    StateReport,
    TaskPython,
    UlimitReport,
    UserLeases,
)
from scheduler.units import GIB, count, duration, size

LITTLE_SHARED = GIB
"""Size below which a few data loading workers fill /dev/shm."""
LITTLE_SPACE = GIB
FEW, ENOUGH = 1024, 4096
"""Numbers of open files or processes: below FEW a run can fail, ENOUGH is what the cure sets."""


def host_findings(host: HostReport) -> Iterator[Finding]:
    """Yield the findings about RAM, cores and their limits."""
    limited = "" if host.memory.source == "RAM" else f" of {size(host.ram)} (limited by {host.memory.source})"
    yield ok("memory", f"{size(host.memory.value)}{limited}, {size(host.free)} free")
    yield ok("swap", f"{size(host.swap)}, not used for reservations" if host.swap else "none")
    all_of_them = host.cores.value == host.all_cores
    yield ok("cores", f"{host.cores.value:g}" if all_of_them else _some_cores(host))
    yield _kernel_kills(host)
    yield _shared(host)


def _some_cores(host: HostReport) -> str:
    source = "the affinity of this shell" if host.cores.source == "sched_getaffinity" else host.cores.source
    return f"{host.cores.value:g} of {host.all_cores} (limited by {source})"


def _kernel_kills(host: HostReport) -> Finding:
    groups = f"cgroup {host.cgroups}" if host.cgroups else "no cgroups"
    if not host.counts_kills:
        return absent(
            "kernel kills", f"not reported by this kernel: a task that it kills for memory counts as failed ({groups})"
        )
    return ok(
        "kernel kills",
        f"reported: a task that the kernel kills for memory counts as oom ({host.kills:,} since boot; {groups})",
    )


def _shared(host: HostReport) -> Finding:
    cure = "a container gets more with --shm-size=8g or --ipc=host; else mount -o remount,size=8G /dev/shm as root"
    if host.shared is None:
        return wrong("/dev/shm", "does not exist: programs with several data loading workers crash", cure)
    says = f"{size(host.shared)}, {size(host.shared_free)} free"
    if host.shared < LITTLE_SHARED:
        return wrong("/dev/shm", f"{says}: programs with several data loading workers crash when it is full", cure)
    return ok("/dev/shm", says)


def environment_findings(place: EnvironmentReport) -> Iterator[Finding]:
    """Yield the findings about container, logging out and the limits of the shell."""
    yield ok("container", _container(place))
    if place.wsl:
        yield ok("WSL", "Windows Subsystem for Linux: GPU memory is visible only per device")
    yield _logging_out(place)
    for limit in place.limits:
        yield from _limit(limit)


def _container(place: EnvironmentReport) -> str:
    pids = "in the pid namespace of the machine" if place.first_namespace else "in a pid namespace of its own"
    if place.container:
        return f"{place.container}, recognised by {place.sign}; {pids}"
    return "none" if place.first_namespace else "unknown: there is a separate pid namespace"


def _logging_out(place: EnvironmentReport) -> Finding:
    if not place.unit:
        return ok("logging out", "ends no run that is started here: this process belongs to no login session")
    own = "systemd-run --user --scope scheduler run ..."
    linger = "" if place.lingers else "loginctl enable-linger, then "
    if place.ends_us and place.is_session:
        says = f"ends runs that are started here ({place.unit}; KillUserProcesses=yes by {place.kills_by})"
        return wrong("logging out", says, f"{linger}start it outside of the session: {own}")
    if place.ends_us:
        says = f"the last logout of {place.user} ends runs that are started here ({place.unit}; lingering is off)"
        return wrong("logging out", says, "loginctl enable-linger")
    why = f"KillUserProcesses=no by {place.kills_by}" if place.is_session else f"lingering is on for {place.user}"
    return ok("logging out", f"does not end runs that are started here ({place.unit}; {why})")


def _limit(limit: UlimitReport) -> Iterator[Finding]:
    """Yield a finding about a limit: one of files or processes must not be low, others should not exist."""
    countable = limit.name in ("open files", "processes")
    if limit.soft is None:
        return
    if not countable:
        says = f"{limit.soft:,}: tasks inherit it, and fail or are killed above it"
        yield wrong(limit.name, says, f"{limit.raise_by} unlimited, before the start of the scheduler")
        return
    used = "" if limit.used is None else f", {limit.used:,} now"
    if limit.soft >= FEW:
        yield ok(limit.name, f"at most {limit.soft:,}{used} ({limit.raise_by})")
        return
    yield wrong(limit.name, f"at most {limit.soft:,}{used}: too few for many tasks", _more(limit))


def _more(limit: UlimitReport) -> str:
    if not limit.raise_by.startswith("ulimit"):
        return f"an administrator raises {limit.raise_by}; a container gets more with --pids-limit"
    most = ENOUGH if limit.hard is None else min(ENOUGH, limit.hard)
    if limit.soft is not None and most > limit.soft:
        return f"{limit.raise_by} {most}, before the start of the scheduler"
    return "an administrator raises it: /etc/security/limits.conf, or the unit of the service"


def python_findings(python: TaskPython) -> Iterator[Finding]:
    """Yield the finding about the Python that `-1` stands for."""
    active = f"the active {python.environment_kind} {tilde(python.environment)}"
    whose = _where("python", python.said_by) if python.said_by else "the one that runs the scheduler"
    says = f"{tilde(python.path)} ({whose}{f'; {active}' if python.inside else ''})"
    if not python.runs:
        yield broken("python for -1", f"{says} is not a program", "--python EXE, or SCHEDULER_PYTHON", stops=False)
    elif python.environment and not python.inside and not python.said_by:
        yield wrong(
            "python for -1",
            f"{says}, not that of {active}",
            f"--python {tilde(python.environment)}/bin/python, or SCHEDULER_PYTHON",
        )
    else:
        yield ok("python for -1", says)


def program_findings(program: ProgramReport) -> Iterator[Finding]:
    """Yield the findings about the scheduler and its Python."""
    yield ok("scheduler", f"{program.version} in {tilde(program.place)}")
    yield ok("python", f"{program.python_version}, {tilde(program.python)}")


# Files


def state_findings(state: StateReport) -> Iterator[Finding]:
    """Yield the findings about the state directory."""
    path, elsewhere = tilde(state.path), "use a directory on a local disk: --state DIR, or SCHEDULER_STATE"
    if state.trouble:
        yield broken("state", f"{path} {state.trouble}", elsewhere)
        return
    held = count(state.runs, "run") if state.there else "created by the first run"
    passes = "overlay, deleted with its container" if state.file_system == "overlay" else state.file_system
    says = f"{path} ({held}; {passes or 'unknown file system'}, {size(state.free)} free)"
    if state.network:
        yield wrong("state", f"{says}: locks and journals are not reliable on a network file system", elsewhere)
    elif state.file_system in ("tmpfs", "ramfs"):
        yield wrong("state", f"{says}: it is in memory, a reboot deletes all runs", elsewhere)
    elif state.free < state.kept:
        says += f", below the minimum of {size(state.kept)}: no task starts until there is space"
        yield wrong("state", says, "free space, or lower disk_min")
    elif state.free < LITTLE_SPACE:
        yield wrong("state", f"{says}: little space for logs and journals", f"free space, or {elsewhere}")
    else:
        yield ok("state", says)
    if state.locked:
        yield broken("state", *state.locked.rsplit(": ", 1))
    if state.why:
        yield ok("state", state.why)


def lease_findings(leases: LeasesReport, label: Callable[[str], str]) -> Iterator[Finding]:
    """Yield the findings about the lease directory and the reservations in it."""
    if leases.trouble:
        yield broken("leases", leases.trouble, leases.cure)
    elif leases.other_owner:
        yield _of_another_user(leases)
    elif not leases.there:
        yield ok("leases", f"{leases.path}, created by the first run of any user")
    else:
        only = "; only you can reserve there" if leases.private else ""
        yield ok("leases", f"{leases.path} (mode {leases.mode}, owner {leases.owner}{only})")
    if not leases.reservations:
        yield ok("reservations", "no task has a reservation now")
    for reservations in leases.reservations:
        yield ok("reservations", _reserved(reservations, label))
    if leases.unreadable:
        who = ", ".join(leases.unreadable)
        says = f"some leases of {who} cannot be read (damaged, or of a newer version): no task starts beside them"
        yield wrong("reservations", says, "use the same version of the scheduler for all users of this machine")


def _of_another_user(leases: LeasesReport) -> Finding:
    says = f"{leases.path} (mode {leases.mode}) belongs to {leases.owner}, who can remove the leases of other users"
    return wrong("leases", says, "as root, while no task runs: scheduler devices init")


def _reserved(reservations: UserLeases, label: Callable[[str], str]) -> str:
    devices = sorted(reservations.reserved.items(), key=lambda item: label(item[0]))
    amounts = ", ".join(f"{size(bytes_)} of {label(device)}" for device, bytes_ in devices)
    return f"{reservations.user}: {count(reservations.leases, 'task')}, {amounts}"


def site_findings(site: SiteReport) -> Iterator[Finding]:
    """Yield the findings about the site configuration, and what of it applies to this user."""
    if site.trouble:
        yield broken("machine", site.trouble, site.cure, stops=site.stops)
        return
    if not site.there:
        yield ok(
            "machine", f"no {site.path}: no quotas, all GPUs are offered, only root can disable devices for all users"
        )
        return
    yield ok("machine", f"{site.path}{f' offers the GPUs {site.devices}' if site.devices else ''}")
    quotas = [_quota(name, cap) for name, cap in site.caps.items() if cap is not None]
    yield ok("quota", f"you may hold {', '.join(quotas)} at a time ({site.caps_by})" if quotas else "none for you")
    for what, who in site.may.items():
        yield ok(what, f"{who}{', you too' if what in site.may_i else ''}")
    if site.unknown:
        says = f"{site.path} names {', '.join(site.unknown)}, unknown on this machine"
        yield wrong("machine", says, "correct or remove these names")


def _quota(name: str, cap: int) -> str:
    match name:
        case "gpus":
            return count(cap, "GPU")
        case "tasks":
            return count(cap, "task")
        case "memory":
            return f"{size(cap)} of GPU memory"
    return f"{size(cap)} of RAM"


# Settings


def settings_findings(found: SettingsReport) -> Iterator[Finding]:
    """Yield the settings that are not defaults, and the defaults in one line."""
    if found.trouble:
        cure = "correct or remove it; this page uses the defaults"
        yield broken("settings", found.trouble, cure)
        return
    other = [setting for setting in found.settings if setting.source != "default"]
    for setting in other:
        yield ok(setting.name, f"{_written(setting)} ({_where(setting.name, setting.source)})")
    usual = [
        f"{one.name} {_written(one)}" for one in found.settings if one.source == "default" and _is_shown(one.value)
    ]
    yield ok("defaults", ", ".join(usual))


def _least(share: float, bytes_: int) -> str:
    """Write how much of a disk stays free, as the setting is written."""
    return ",".join([size(bytes_)] * bool(bytes_) + [f"{share * 100:g}%"] * bool(share)) or "off"


def _where(name: str, source: str) -> str:
    return PREFIX + name.upper() if source == "environment" else source


def _is_shown(value: Any) -> bool:
    """Tell whether the value of a default is shown."""
    return value not in ("", None)


def _written(setting: SettingReport) -> str:
    value: Any = setting.value
    if setting.unit == "bytes":
        return size(value)
    if setting.unit == "seconds":
        return duration(value)
    if setting.name == "margin":
        return f"{value[0] * 100:g}% + {size(value[1])}"
    if setting.name == "disk_min":
        return _least(*value)
    return str(value)
