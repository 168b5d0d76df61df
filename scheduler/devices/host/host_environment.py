"""The environment of this process: its container, pid namespace and login session, and the limits of its shell."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from scheduler.devices.host.cgroups import text
from scheduler.patterns import lazy_pattern

ROOT = Path("/")
SHARED = Path("/dev/shm")
_FIRST_PID_NAMESPACE = 0xEFFFFFFC
"""The kernel's number of the first pid namespace."""
_VARIABLES = {
    "APPTAINER_CONTAINER": "Apptainer",
    "SINGULARITY_CONTAINER": "Singularity",
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
}
_FILES = {"run/.containerenv": "Podman", ".dockerenv": "Docker"}
_GROUPS = {
    "kubepods": "Kubernetes",
    "docker": "Docker",
    "libpod": "Podman",
    "lxc": "LXC",
    "containerd": "containerd",
}
_LOGIND = ("etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd", "lib/systemd")
"""The directories of logind's configuration; earlier directories override later ones."""
_ENTRY = lazy_pattern(r"^(#?)(\w+)=(.*)$", re.MULTILINE)
_SESSION, _MANAGER = re.compile(r"/(session-\w+\.scope)"), re.compile(r"/(user@\d+\.service)")
_ULIMITS = (
    ("open files", "-n", resource.RLIMIT_NOFILE),
    ("processes", "-u", resource.RLIMIT_NPROC),
    ("address space", "-v", resource.RLIMIT_AS),
    ("data", "-d", resource.RLIMIT_DATA),
    ("file size", "-f", resource.RLIMIT_FSIZE),
    ("processor time", "-t", resource.RLIMIT_CPU),
)


class Ulimit(NamedTuple):
    """One limit of the shell in the kernel's unit (bytes, seconds, or a plain number); None: no limit."""

    name: str
    flag: str
    """The letter of the limit as an option of `ulimit`."""
    soft: int | None
    hard: int | None


class LoginPolicy(NamedTuple):
    """The effect of a logout on a process of the user, according to systemd's configuration."""

    unit: str
    """The systemd unit of this process that a logout may end; empty if there is none."""
    kills: bool
    """True if logind kills the unit at the end of the session: KillUserProcesses."""
    source: str
    """The file that configures the effect of a logout."""
    lingers: bool
    """True if the user's service manager continues without a session."""

    @property
    def is_session(self) -> bool:
        """True if the unit is a login session; False if it is the user's service manager, which ends with the last
        session.
        """
        return self.unit.startswith("session-")

    @property
    def ends_us(self) -> bool:
        """True if a logout ends the processes that start from this one."""
        return self.kills if self.is_session else bool(self.unit) and not self.lingers


def container(environ: Mapping[str, str] = os.environ, root: Path = ROOT) -> tuple[str, str]:
    """Return the type of container in which this process seems to run, and the evidence for it; empty strings if there
    is none.
    """
    for name, kind in _VARIABLES.items():
        if environ.get(name):
            return kind, f"the variable {name}"
    for file, kind in _FILES.items():
        if (root / file).exists():
            return kind, f"/{file}"
    said = text(root / "run/systemd/container") or environ.get("container", "")
    if said:
        return said, "/run/systemd/container" if text(root / "run/systemd/container") else "the variable container"
    groups = text(root / "proc/self/cgroup")
    return next(((kind, "the name of its cgroup") for word, kind in _GROUPS.items() if f"/{word}" in groups), ("", ""))


def in_first_pid_namespace(root: Path = ROOT) -> bool:
    """Tell whether the pids of this process's namespace are the pids of the whole machine, which the NVIDIA driver
    reports.
    """
    try:
        return (root / "proc/self/ns/pid").stat().st_ino == _FIRST_PID_NAMESPACE
    except OSError:
        return True


def in_wsl(root: Path = ROOT) -> bool:
    """Tell whether the kernel is the one of the Windows Subsystem for Linux."""
    return "microsoft" in text(root / "proc/sys/kernel/osrelease").lower()


def cgroup_version(root: Path = ROOT) -> str:
    """Return `v2`, `v1`, or `v1 and v2` if controllers of v1 are used in addition to v2; an empty string if there are
    no cgroups.
    """
    lines = [line.split(":", 2) for line in text(root / "proc/self/cgroup").splitlines()]
    names = {"v2" if words[0] == "0" and not words[1] else "v1" for words in lines if not words[1].startswith("name=")}
    return " and ".join(sorted(names))


def swap(root: Path = ROOT) -> int:
    """Return the size of the swap space in bytes."""
    match = re.search(r"^SwapTotal:\s+(\d+)", text(root / "proc/meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def counts_kills(root: Path = ROOT) -> bool:
    """Tell whether the kernel counts the processes that it kills for lack of memory."""
    return "\noom_kill " in text(root / "proc/vmstat")


def shared_memory(path: Path = SHARED) -> tuple[int, int] | None:
    """Return the size and the free bytes of /dev/shm; None if it does not exist."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    return status.f_blocks * status.f_frsize, status.f_bavail * status.f_frsize


def ulimits() -> list[Ulimit]:
    """Return the limits of the shell that tasks inherit and might reach."""
    return [Ulimit(name, flag, *map(_finite, resource.getrlimit(number))) for name, flag, number in _ULIMITS]


def _finite(limit: int) -> int | None:
    return None if limit == resource.RLIM_INFINITY else limit


# Logging out


def login(user: str, root: Path = ROOT) -> LoginPolicy:
    """Return the effect of a logout on processes that this process starts as the given user."""
    groups = text(root / "proc/self/cgroup")
    match = _MANAGER.search(groups) or _SESSION.search(groups)
    lingers = (root / "var/lib/systemd/linger" / user).exists()
    if match is None:
        return LoginPolicy("", False, "", lingers)
    said, source = _logind(root)
    only, exempt = said.get("KillOnlyUsers", "").split(), said.get("KillExcludeUsers", "root").split()
    kills = _is_yes(said.get("KillUserProcesses", "no")) and user not in exempt and (not only or user in only)
    return LoginPolicy(match[1], kills, source, lingers)


def _logind(root: Path) -> tuple[dict[str, str], str]:
    """Return logind's configuration, and the file that sets whether a logout kills processes.

    The main file shows, after a `#`, the defaults that the distribution compiled in, which may differ from systemd's
    own.
    """
    main = next((path for where in _LOGIND if (path := root / where / "logind.conf").is_file()), None)
    said, source = {"KillUserProcesses": "no"}, "its default"
    if main is not None:
        entries = list(_entries(main))
        said |= {name: value for commented, name, value in entries if commented}
    for path in filter(None, (main, *_drop_ins(root))):
        news = {name: value for commented, name, value in _entries(path) if not commented}
        said |= news
        source = f"/{path.relative_to(root)}" if "KillUserProcesses" in news else source
    return said, source


def _drop_ins(root: Path) -> list[Path]:
    """Return the drop-in files in the order in which systemd reads them: sorted by name, each name once."""
    found: dict[str, Path] = {}
    for where in _LOGIND:
        for path in (root / where / "logind.conf.d").glob("*.conf"):
            found.setdefault(path.name, path)
    return [found[name] for name in sorted(found)]


def _entries(path: Path) -> Iterator[tuple[str, str, str]]:
    return ((match[1], match[2], match[3].strip()) for match in _ENTRY.finditer(text(path)))


def _is_yes(word: str) -> bool:
    return word.lower() in ("1", "yes", "y", "true", "t", "on")
