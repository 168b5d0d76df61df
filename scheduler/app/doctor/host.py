"""The checks of the host: RAM, cores, /dev/shm, container, logout, and the limits of the shell."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from scheduler.devices.host.host_environment import LoginPolicy, Ulimit
from scheduler.devices.host.host_memory import HostLimit
from scheduler.ui.verbs.doctor import Finding, absent, ok, wrong
from scheduler.units import GIB, duration, size

LITTLE_SHARED = GIB
"""Size below which a few data loading workers fill /dev/shm."""
FEW, ENOUGH = 1024, 4096
"""Limits on open files or processes: below FEW a run can fail; ENOUGH is the limit that the advice sets."""
_SHARED_CURE = "a container gets more with --shm-size=8g or --ipc=host; else mount -o remount,size=8G /dev/shm as root"


def memory(limit: HostLimit, ram: int, free: int) -> Iterator[Finding]:
    """Yield the finding about RAM and its limit."""
    limited = "" if limit.source == "RAM" else f" of {size(ram)} (limited by {limit.source})"
    yield ok("memory", f"{size(limit.value)}{limited}, {size(free)} free")


def swap(bytes_: int) -> Iterator[Finding]:
    """Yield the finding about swap."""
    yield ok("swap", f"{size(bytes_)}, not used for reservations" if bytes_ else "none")


def cores(limit: HostLimit, all_cores: int) -> Iterator[Finding]:
    """Yield the finding about cores and their limit."""
    source = "the affinity of this shell" if limit.source == "sched_getaffinity" else limit.source
    limited = "" if limit.value == all_cores else f" of {all_cores} (limited by {source})"
    yield ok("cores", f"{limit.value:g}{limited}")


def kernel_kills(version: str, counted: bool, kills: int) -> Iterator[Finding]:
    """Yield the finding about whether the kernel reports out-of-memory kills; `version` is the version of the control
    groups.
    """
    groups = f"cgroup {version}" if version else "no cgroups"
    if counted:
        says = "reported: a task that the kernel kills for memory counts as oom"
        yield ok("kernel kills", f"{says} ({kills:,} since boot; {groups})")
    else:
        says = "not reported by this kernel: a task that it kills for memory counts as failed"
        yield absent("kernel kills", f"{says} ({groups})")


def shared_memory(total: int | None, free: int = 0) -> Iterator[Finding]:
    """Yield the finding about /dev/shm; `total` is None if it does not exist."""
    crash = "programs with several data loading workers crash"
    if total is None:
        yield wrong("/dev/shm", f"does not exist: {crash}", _SHARED_CURE)
    elif total < LITTLE_SHARED:
        yield wrong("/dev/shm", f"{size(total)}, {size(free)} free: {crash} when it is full", _SHARED_CURE)
    else:
        yield ok("/dev/shm", f"{size(total)}, {size(free)} free")


def container(kind: str, sign: str, first_namespace: bool, wsl: bool) -> Iterator[Finding]:
    """Yield the findings about a container and WSL."""
    pids = "in the pid namespace of the machine" if first_namespace else "in a pid namespace of its own"
    unknown = "none" if first_namespace else "unknown: there is a separate pid namespace"
    yield ok("container", f"{kind}, recognised by {sign}; {pids}" if kind else unknown)
    if wsl:
        yield ok("WSL", "Windows Subsystem for Linux: GPU memory is visible only per device")


def logging_out(user: str, login: LoginPolicy) -> Iterator[Finding]:
    """Yield the finding about what happens to runs at logout."""
    if not login.unit:
        yield ok("logging out", "ends no run that is started here: this process belongs to no login session")
    elif login.ends_us and login.is_session:
        says = f"ends runs that are started here ({login.unit}; KillUserProcesses=yes by {login.source})"
        linger = "" if login.lingers else "loginctl enable-linger, then "
        own = "systemd-run --user --scope scheduler run ..."
        yield wrong("logging out", says, f"{linger}start it outside of the session: {own}")
    elif login.ends_us:
        says = f"the last logout of {user} ends runs that are started here ({login.unit}; lingering is off)"
        yield wrong("logging out", says, "loginctl enable-linger")
    else:
        why = f"KillUserProcesses=no by {login.source}" if login.is_session else f"lingering is on for {user}"
        yield ok("logging out", f"does not end runs that are started here ({login.unit}; {why})")


def limits(ulimits: Iterable[Ulimit], groups: Iterable[tuple[str, int, int]]) -> Iterator[Finding]:
    """Yield the findings about limits that tasks inherit.

    The limits on open files and processes must not be low; other limits should not be set. `groups` are the control
    groups with a process limit: name, limit and current number of processes.
    """
    for one in ulimits:
        if one.soft is not None:
            yield _ulimit(one, one.soft)
    for folder, most, now in groups:
        what = f"pids.max of the cgroup {folder}"
        if most >= FEW:
            yield ok("processes", f"at most {most:,}, {now:,} now ({what})")
        else:
            cure = f"an administrator raises {what}; a container gets more with --pids-limit"
            yield wrong("processes", f"at most {most:,}, {now:,} now: too few for many tasks", cure)


def _ulimit(one: Ulimit, soft: int) -> Finding:
    first = "before the start of the scheduler"
    if one.name not in ("open files", "processes"):
        shown = {"processor time": duration(soft)}.get(one.name, size(soft))
        says = f"at most {shown}: tasks inherit it, and fail or are killed above it"
        return wrong(one.name, says, f"ulimit {one.flag} unlimited, {first}")
    if soft >= FEW:
        return ok(one.name, f"at most {soft:,} (ulimit {one.flag})")
    most = ENOUGH if one.hard is None else min(ENOUGH, one.hard)
    administrator = "an administrator raises it: /etc/security/limits.conf, or the unit of the service"
    cure = f"ulimit {one.flag} {most}, {first}" if most > soft else administrator
    return wrong(one.name, f"at most {soft:,}: too few for many tasks", cure)
