"""What `doctor` says of everything but GPUs: the host, where this process lives, its files, its settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from scheduler.paths import tilde
from scheduler.settings import PREFIX
from scheduler.units import GIB, count, duration, size
from scheduler.view.examined import (
    Host,
    House,
    Leases,
    Limit,
    Program,
    Promises,
    Setting,
    SettingsFound,
    State,
    Surroundings,
    TaskPython,
)
from scheduler.view.findings import Finding, absent, broken, ok, wrong

LITTLE_SHARED = GIB
"""Below this, a few workers that load data fill /dev/shm."""
LITTLE_SPACE = GIB
FEW, ENOUGH = 1024, 4096
"""Below so few open files or processes, a run of some tasks stumbles."""


def host_findings(host: Host) -> Iterator[Finding]:
    """RAM and cores, and who limits them."""
    limited = "" if host.memory.source == "RAM" else f" of {size(host.ram)} (limited by {host.memory.source})"
    yield ok("memory", f"{size(host.memory.value)}{limited}, {size(host.free)} free")
    yield ok("swap", f"{size(host.swap)}, not counted: promises are of RAM alone" if host.swap else "none")
    all_of_them = host.cores.value == host.all_cores
    yield ok("cores", f"{host.cores.value:g}" if all_of_them else _some_cores(host))
    yield _kernel_kills(host)
    yield _shared(host)


def _some_cores(host: Host) -> str:
    source = "the affinity of this shell" if host.cores.source == "sched_getaffinity" else host.cores.source
    return f"{host.cores.value:g} of {host.all_cores} (limited by {source})"


def _kernel_kills(host: Host) -> Finding:
    groups = f"cgroup {host.cgroups}" if host.cgroups else "no cgroups"
    if not host.counts_kills:
        return absent("kernel kills", f"not counted by this kernel: who it kills for memory just fails ({groups})")
    return ok("kernel kills", f"counted: who is killed for memory is told so ({host.kills:,} since boot; {groups})")


def _shared(host: Host) -> Finding:
    cure = "a container gets more with --shm-size=8g or --ipc=host; else mount -o remount,size=8G /dev/shm as root"
    if host.shared is None:
        return wrong("/dev/shm", "is not there: programs that load data with several workers crash", cure)
    says = f"{size(host.shared)}, {size(host.shared_free)} free"
    if host.shared < LITTLE_SHARED:
        return wrong("/dev/shm", f"{says}: programs that load data with several workers crash when it is full", cure)
    return ok("/dev/shm", says)


def surroundings_findings(place: Surroundings) -> Iterator[Finding]:
    """A container, what logging out does, the limits of the shell."""
    yield ok("container", _container(place))
    if place.wsl:
        yield ok("WSL", "the kernel is that of the Windows Subsystem for Linux: GPU memory is seen by device alone")
    yield _logging_out(place)
    for limit in place.limits:
        yield from _limit(limit)


def _container(place: Surroundings) -> str:
    pids = "its pids are the machine's own" if place.first_namespace else "with pids of its own"
    if place.container:
        return f"{place.container}, by {place.sign}; {pids}"
    return "none" if place.first_namespace else "none that is known, but a pid namespace of its own"


def _logging_out(place: Surroundings) -> Finding:
    if not place.unit:
        return ok("logging out", "ends nothing that is started here: it belongs to no login session")
    own = "systemd-run --user --scope scheduler run ..."
    linger = "" if place.lingers else "loginctl enable-linger, then "
    if place.ends_us and place.is_session:
        says = f"ends what is started here ({place.unit}; KillUserProcesses=yes by {place.kills_by})"
        return wrong("logging out", says, f"{linger}start it beside the session: {own}")
    if place.ends_us:
        says = (
            f"for the last time ends what is started here, as it belongs to {place.unit} and {place.user} lingers not"
        )
        return wrong("logging out", says, "loginctl enable-linger")
    why = f"KillUserProcesses=no by {place.kills_by}" if place.is_session else f"{place.user} lingers"
    return ok("logging out", f"leaves running what is started here ({place.unit}; {why})")


def _limit(limit: Limit) -> Iterator[Finding]:
    """Numbers of files and processes hurt when they are low, the other limits by being there."""
    countable = limit.name in ("open files", "processes")
    if limit.soft is None:
        return
    if not countable:
        says = f"{limit.soft:,}: tasks inherit it, and fail or are killed beyond it"
        yield wrong(limit.name, says, f"{limit.raise_by} unlimited, before the scheduler is started")
        return
    used = "" if limit.used is None else f", {limit.used:,} now"
    if limit.soft >= FEW:
        yield ok(limit.name, f"at most {limit.soft:,}{used} ({limit.raise_by})")
        return
    yield wrong(limit.name, f"at most {limit.soft:,}{used}: a run with many tasks meets that", _more(limit))


def _more(limit: Limit) -> str:
    if not limit.raise_by.startswith("ulimit"):
        return f"whoever set {limit.raise_by} raises it; a container gets more with --pids-limit"
    most = ENOUGH if limit.hard is None else min(ENOUGH, limit.hard)
    if limit.soft is not None and most > limit.soft:
        return f"{limit.raise_by} {most}, before the scheduler is started"
    return "an administrator raises it: /etc/security/limits.conf, or the service that starts this"


def python_findings(python: TaskPython) -> Iterator[Finding]:
    """What `-1` means."""
    active = f"the active {python.environment_kind} {tilde(python.environment)}"
    whose = _where("python", python.said_by) if python.said_by else "it runs the scheduler"
    says = f"{tilde(python.path)} ({whose}{f'; {active}' if python.inside else ''})"
    if not python.runs:
        yield broken("python for -1", f"{says} is no program", "--python EXE, or SCHEDULER_PYTHON", stops=False)
    elif python.environment and not python.inside and not python.said_by:
        yield wrong(
            "python for -1",
            f"{says}, not that of {active}",
            f"--python {tilde(python.environment)}/bin/python, or SCHEDULER_PYTHON",
        )
    else:
        yield ok("python for -1", says)


def program_findings(program: Program) -> Iterator[Finding]:
    """What runs here."""
    yield ok("scheduler", f"{program.version} in {tilde(program.place)}")
    yield ok("python", f"{program.python_version}, {tilde(program.python)}")


# Files


def state_findings(state: State) -> Iterator[Finding]:
    """Where runs are kept."""
    path, elsewhere = tilde(state.path), "another place on a local disk: --state DIR, or SCHEDULER_STATE"
    if state.trouble:
        yield broken("state", f"{path} {state.trouble}", elsewhere)
        return
    held = count(state.runs, "run") if state.there else "made by the first run"
    passes = "overlay, which goes with its container" if state.file_system == "overlay" else state.file_system
    says = f"{path} ({held}; {passes or 'unknown file system'}, {size(state.free)} free)"
    if state.network:
        yield wrong("state", f"{says}: on a network file system locks and journals cannot be trusted", elsewhere)
    elif state.file_system in ("tmpfs", "ramfs"):
        yield wrong("state", f"{says}: that is memory, and a reboot takes every run away", elsewhere)
    elif state.free < LITTLE_SPACE:
        yield wrong("state", f"{says}: logs and journals soon find no room", f"make room, or {elsewhere}")
    else:
        yield ok("state", says)
    if state.why:
        yield ok("state", state.why)


def lease_findings(leases: Leases, label: Callable[[str], str]) -> Iterator[Finding]:
    """Where promises meet, and who has made some."""
    if leases.trouble:
        yield broken("leases", leases.trouble, leases.cure)
    elif leases.strangers:
        yield _of_a_stranger(leases)
    elif not leases.there:
        yield ok("leases", f"{leases.path}, made by the first run of anybody")
    else:
        only = "; only you can promise there" if leases.private else ""
        yield ok("leases", f"{leases.path} (mode {leases.mode}, of {leases.owner}{only})")
    if not leases.promises:
        yield ok("promises", "nothing is promised to anybody now")
    for promises in leases.promises:
        yield ok("promises", _promised(promises, label))
    if leases.unreadable:
        who = ", ".join(leases.unreadable)
        says = f"some of {who} cannot be read here, damaged or of a newer version: nothing starts beside them"
        yield wrong("promises", says, "let everybody on this machine use the same version of the scheduler")


def _of_a_stranger(leases: Leases) -> Finding:
    says = f"{leases.path} (mode {leases.mode}) belongs to {leases.owner}, who can take promises of others away"
    return wrong("leases", says, "as root, while nothing runs: scheduler devices init")


def _promised(promises: Promises, label: Callable[[str], str]) -> str:
    devices = sorted(promises.promised.items(), key=lambda item: label(item[0]))
    said = ", ".join(f"{size(bytes_)} of {label(device)}" for device, bytes_ in devices)
    return f"{promises.user}: {count(promises.leases, 'task')}, {said}"


def house_findings(house: House) -> Iterator[Finding]:
    """What root says of the machine, and what of it holds for this user."""
    if house.trouble:
        yield broken("machine", house.trouble, house.cure, stops=house.stops)
        return
    if not house.there:
        yield ok("machine", f"no {house.path}: no caps, every GPU is offered, only root closes devices for others")
        return
    yield ok("machine", f"{house.path}{f' offers the GPUs {house.devices}' if house.devices else ''}")
    said = [_capped(name, cap) for name, cap in house.caps.items() if cap is not None]
    yield ok("caps", f"you may hold {', '.join(said)} at a time ({house.caps_by})" if said else "none for you")
    for what, who in house.may.items():
        yield ok(what, f"{who}{', you too' if what in house.may_i else ''}")
    if house.unknown:
        says = f"{house.path} names {', '.join(house.unknown)}, whom this machine does not know"
        yield wrong("machine", says, "correct the names there, or take them out")


def _capped(name: str, cap: int) -> str:
    match name:
        case "gpus":
            return count(cap, "GPU")
        case "tasks":
            return count(cap, "task")
        case "memory":
            return f"{size(cap)} of GPU memory"
    return f"{size(cap)} of RAM"


# Settings


def settings_findings(found: SettingsFound) -> Iterator[Finding]:
    """Those that are not defaults."""
    if found.trouble:
        cure = "correct it or take it out; this page was made with the defaults"
        yield broken("settings", found.trouble, cure)
        return
    other = [setting for setting in found.settings if setting.source != "default"]
    for setting in other:
        yield ok(setting.name, f"{_written(setting)} ({_where(setting.name, setting.source)})")
    usual = [f"{one.name} {_written(one)}" for one in found.settings if one.source == "default" and _is_told(one.value)]
    yield ok("defaults", ", ".join(usual))


def _least(share: float, bytes_: int) -> str:
    """What is to stay free of a disk, as it is written."""
    return ",".join([size(bytes_)] * bool(bytes_) + [f"{share * 100:g}%"] * bool(share)) or "off"


def _where(name: str, source: str) -> str:
    return PREFIX + name.upper() if source == "environment" else source


def _is_told(value: Any) -> bool:
    """Whether a default says anything by itself."""
    return value not in ("", None)


def _written(setting: Setting) -> str:
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
