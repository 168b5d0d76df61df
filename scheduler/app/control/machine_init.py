"""`devices init`: prepares a machine for several users, with an example of its file and the lease directory."""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path
from string import ascii_letters, digits
from subprocess import TimeoutExpired

from scheduler.errors import LeaseError, describe_os_error
from scheduler.runtime import site_file
from scheduler.runtime.processes import answer
from scheduler.runtime.settings import Settings
from scheduler.runtime.users import user_name
from scheduler.store.machine.lease_directory import FALLBACK, RUNTIME
from scheduler.store.machine.locked_files import having_open, user_of
from scheduler.units import count

UNITS = Path("/etc/systemd/system")
OPTIONS = "size=64m,nr_inodes=65536,mode=1777,nosuid,nodev,noexec"
"""The mount options of the lease directory's own file system, which can hold 16,000 leases and the logs of MPS
daemons."""
UNIT = """\
# Where the schedulers of all users meet (scheduler devices init). Every user may write there. It is a file system
# of its own, so users who fill it cannot fill any other file system.
[Unit]
Description=Lease directory of gpu-batch-scheduler
DefaultDependencies=no
Conflicts=umount.target
Before=local-fs.target umount.target

[Mount]
What=tmpfs
Where={directory}
Type=tmpfs
Options={options}

[Install]
WantedBy=local-fs.target
"""
VOLATILE = ("/run/", "/tmp/", "/dev/shm/")
"""Directories whose content does not survive a reboot."""
EXAMPLE = """\
# Rules for all users of gpu-batch-scheduler on this machine.
#
# The file counts only while it belongs to root, only root can write it, and all users can read it. Running schedulers
# notice a change of [quotas] and [may] by themselves. The rules bind schedulers of this kind: a process that is started
# by hand is shown with its user, and its memory is left free. `scheduler doctor` shows which rules apply to you.

# Any setting that `scheduler doctor` shows can stand here, as the default for all users. The order is:
# flags, then SCHEDULER_<NAME>, then ~/.config/gpu-batch-scheduler/config.toml, then this file.
# unmanaged = "headroom"        # policy for GPUs with unmanaged memory: headroom, avoid or ignore
# leases = "/run/gpu-batch-scheduler"

# The GPUs that tasks may use, as nvidia-smi numbers them (default: all).
# devices = "0-5"

# The quota of one user at a time, over all runs. Running tasks continue when a quota is lowered.
[quotas]
# gpus = 4                    # GPUs in use at once
# memory = "96GiB"            # reserved on all GPUs together
# host_memory = "128GiB"      # reserved of the host's RAM
# tasks = 64                  # running at once

# Quotas of one user; "none" removes a limit.
# [quotas.users.ben]
# gpus = "none"

# Users who may do this besides root: names, "@group" for its members, "*" for all.
[may]
# reserve = ["ben", "@staff"] # scheduler devices reserve 0-1 --for 4h
# disable = ["@operators"]    # scheduler devices disable 2 --all-users
"""


def prepare(settings: Settings, units: Path | None = None) -> list[str]:
    """Create what is missing, change nothing else, and return a sentence for each step.

    If the rules file is not the usual one, as in a trial, mount nothing and leave systemd's folder alone, unless
    `units` names a folder. Raise LeaseError for users other than root, and if schedulers use another lease directory
    now.
    """
    if os.getuid() != site_file.ROOT:
        raise LeaseError("devices init needs root: sudo scheduler devices init")
    directory = Path(settings.leases).absolute() if settings.leases else RUNTIME
    path = site_file.path(os.environ)
    if units is None and str(path) == site_file.PLACE:
        units = UNITS
    _check_empty(directory)
    try:
        said = [_directory(directory)]
        if units is not None and f"{directory}/".startswith(VOLATILE):
            said += [_mounted(directory), _kept(directory, units)]
        return [*said, _rules(path)]
    except OSError as exc:
        raise LeaseError(f"{describe_os_error(exc)}: nothing more was done") from exc


def _check_empty(directory: Path) -> None:
    """Raise LeaseError while schedulers use another lease directory, because they would not see reservations in the new
    one.
    """
    if directory == FALLBACK or os.path.lexists(directory) or not FALLBACK.is_dir():
        return
    found = sorted(_who_has_open(FALLBACK))
    if found:
        first = f"process {found[0]} of {user_name(user_of(found[0]) or 0)}"
        raise LeaseError(
            f"{count(len(found), 'process')} of schedulers and their tasks meet in {FALLBACK} ({first}), "
            f"and would not see what is reserved in {directory}: let them end first, or stop them; nothing was done"
        )


def _who_has_open(directory: Path) -> set[int]:
    """Return the other processes that have the directory open, or a file in it."""
    inside = f"{directory}/"
    return {pid for pid, _ in having_open(lambda path: f"{path}/".startswith(inside))} - {os.getpid()}


def _directory(directory: Path) -> str:
    """Create the lease directory: all users may write there, and each may remove only its own files."""
    try:
        directory.mkdir(parents=True)
        made = True
    except FileExistsError:
        made = False
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise LeaseError(f"{directory} is not a directory: move it away, then run scheduler devices init again")
    if status.st_uid == site_file.ROOT and stat.S_IMODE(status.st_mode) == 0o1777:
        return f"{directory} exists already, owned by root with mode 1777"
    os.chown(directory, site_file.ROOT, -1)
    directory.chmod(0o1777)
    return f"{directory} {'made' if made else 'given to root'}, mode 1777: all schedulers of this machine meet there"


def _mounted(directory: Path) -> str:
    """Mount a separate file system on the directory, because any user could otherwise fill /run, which the system
    needs.
    """
    if directory.is_mount():
        return f"{directory} is a file system of its own already"
    if any(directory.iterdir()) or _who_has_open(directory):
        return (
            f"{directory} is in use, on a file system that any user could fill: run scheduler devices init again when "
            "no task runs"
        )
    command = ["mount", "-t", "tmpfs", "-o", OPTIONS, "tmpfs", str(directory)]
    try:
        code, said = answer(command)
    except TimeoutExpired as exc:
        raise LeaseError(f"{shlex.join(command)} did not end within {exc.timeout:g}s; nothing more was done") from exc
    if code:
        raise LeaseError(f"{shlex.join(command)} failed: {said.strip()}; nothing more was done")
    return (
        f"{directory} is now a file system of its own ({OPTIONS}), so users who fill it cannot fill any other file "
        "system"
    )


def _kept(directory: Path, units: Path) -> str:
    """Make systemd mount the directory at every start of the machine."""
    unit = units / _unit_name(directory)
    line = f"tmpfs {directory} tmpfs {OPTIONS},x-mount.mkdir 0 0"
    if unit.exists():
        return f"{unit} exists already and is unchanged"
    if not units.is_dir():
        return f"there is no {units} here: for the next start add a line to /etc/fstab: {line}"
    _write(unit, UNIT.format(directory=directory, options=OPTIONS))
    wanted = units / "local-fs.target.wants"
    wanted.mkdir(exist_ok=True)
    if not (wanted / unit.name).is_symlink():
        (wanted / unit.name).symlink_to(f"../{unit.name}")
    return f"{unit} written: the directory is mounted again after a reboot"


def _unit_name(directory: Path) -> str:
    """Return systemd's name for the mount of a directory (`systemd-escape --path --suffix=mount`)."""
    text = str(directory).strip("/")
    plain = ascii_letters + digits + ":_."
    return "".join(c if c in plain else _escaped(c) for c in text) + ".mount"


def _escaped(character: str) -> str:
    return "-" if character == "/" else "".join(f"\\x{byte:02x}" for byte in character.encode())


def _rules(path: Path) -> str:
    if path.exists():
        return f"{path} exists already and is unchanged"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, EXAMPLE)
    return f"{path} written, an example without quotas: edit it; scheduler doctor shows which rules apply"


def _write(path: Path, text: str) -> None:
    """Write a file that does not exist yet, completely or not at all; make it readable by all, whatever the umask."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o644)
        file.write(text)
