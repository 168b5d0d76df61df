"""Prepares a machine for several users, as root: an example of its rules, and the directory where promises meet."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from scheduler import machinefile
from scheduler.errors import LeaseError, of_the_system
from scheduler.people import user_name
from scheduler.settings import Settings
from scheduler.store.leases import FALLBACK, RUNTIME
from scheduler.store.locks import user_of
from scheduler.units import count

TMPFILES = Path("/etc/tmpfiles.d/gpu-batch-scheduler.conf")
VOLATILE = ("/run/", "/tmp/", "/dev/shm/")
"""Where a directory does not survive a reboot."""
EXAMPLE = """\
# What holds for everybody who uses gpu-batch-scheduler on this machine.
#
# It counts only while it belongs to root and nobody else can write it, and everybody can read it. Running schedulers
# notice a change of [caps] and [may] by themselves. It is kept among schedulers of this kind: a process that somebody
# starts by hand is shown with its user, and worked around. `scheduler doctor` says what of it holds for you.

# Any setting of `scheduler doctor` can stand here, as the default of all users; theirs come before it:
# flags, then SCHEDULER_<NAME>, then ~/.config/gpu-batch-scheduler/config.toml, then this file.
# foreign = "headroom"        # beside memory that was taken by hand: headroom, avoid or ignore
# leases = "/run/gpu-batch-scheduler"

# The GPUs that are offered, as nvidia-smi counts; without it all of them.
# devices = "0-5"

# What one user may hold at a time, over all runs. What already runs goes on when a cap is lowered.
[caps]
# gpus = 4                    # on so many GPUs at once
# memory = "96GiB"            # promised on GPUs, all of them together
# host_memory = "128GiB"      # promised of the host's RAM
# tasks = 64                  # running at once

# Others for one user; "none" takes a cap away.
# [caps.users.ben]
# gpus = "none"

# Who may, besides root: users, "@group" for its members, "*" for everybody.
[may]
# reserve = ["ben", "@staff"] # scheduler devices reserve 0-1 --for 4h
# disable = ["@operators"]    # scheduler devices disable 2 --everybody
"""


def prepare(settings: Settings, tmpfiles: Path | None = None) -> list[str]:
    """Make what is not there yet, and change nothing that is; what was done and what was there, in sentences.

    A try, for which the machine's file is another one, leaves systemd's folder alone unless it is given one. Raises
    LeaseError for everybody but root, and where schedulers meet in another place now.
    """
    if os.getuid() != machinefile.ROOT:
        raise LeaseError("devices init takes root: sudo scheduler devices init")
    directory = Path(settings.leases).absolute() if settings.leases else RUNTIME
    path = machinefile.path(os.environ)
    if tmpfiles is None and str(path) == machinefile.PLACE:
        tmpfiles = TMPFILES
    _check_empty(directory)
    try:
        said = [_directory(directory)]
        said += _kept(directory, tmpfiles) if tmpfiles else []
        return [*said, _rules(path)]
    except OSError as exc:
        raise LeaseError(f"{of_the_system(exc)}: nothing more was done") from exc


def _check_empty(directory: Path) -> None:
    """Schedulers that meet elsewhere would not see what those promise that come from now on."""
    if directory == FALLBACK or os.path.lexists(directory) or not FALLBACK.is_dir():
        return
    found = sorted(_who_has_open(FALLBACK))
    if found:
        first = f"process {found[0]} of {user_name(user_of(found[0]) or 0)}"
        raise LeaseError(
            f"{count(len(found), 'process')} of schedulers and their tasks meet in {FALLBACK} ({first}), "
            f"and would not see what is promised in {directory}: let them end first, or stop them; nothing was done"
        )


def _who_has_open(directory: Path) -> Iterator[int]:
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid() and _has_open(name, str(directory)):
            yield int(name)


def _has_open(pid: str, directory: str) -> bool:
    try:
        fds = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for fd in fds:
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except OSError:
            continue
        if target == directory or target.startswith(f"{directory}/"):
            return True
    return False


def _directory(directory: Path) -> str:
    """The lease directory: everybody may write there, and nobody may take away what is another's."""
    try:
        directory.mkdir(parents=True)
        made = True
    except FileExistsError:
        made = False
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise LeaseError(f"{directory} is no directory: move it away, and say scheduler devices init again")
    if status.st_uid == machinefile.ROOT and stat.S_IMODE(status.st_mode) == 0o1777:
        return f"{directory} is there already, of root and with mode 1777"
    os.chown(directory, machinefile.ROOT, -1)
    directory.chmod(0o1777)
    return f"{directory} {'made' if made else 'given to root'}, mode 1777: all schedulers of this machine meet there"


def _kept(directory: Path, tmpfiles: Path) -> list[str]:
    """A line for systemd, which makes the directory again after a reboot; a directory on a disk needs none."""
    if not f"{directory}/".startswith(VOLATILE):
        return []
    line = f"d {directory} 1777 root root -\n"
    if tmpfiles.exists():
        there = line in tmpfiles.read_text(encoding="utf-8")
        return [f"{tmpfiles} is there already" + ("" if there else f", without this line: {line.strip()}")]
    if not tmpfiles.parent.is_dir():
        return [f"there is no {tmpfiles.parent} here: have {directory} made with mode 1777 at every start"]
    _write(tmpfiles, f"# Where the schedulers of all users meet (scheduler devices init)\n{line}")
    return [f"{tmpfiles} written: the directory is made again after a reboot"]


def _rules(path: Path) -> str:
    if path.exists():
        return f"{path} is there already, and stays as it is"
    path.parent.mkdir(parents=True, exist_ok=True)
    _write(path, EXAMPLE)
    return f"{path} written, an example that caps nothing yet: edit it; scheduler doctor says what holds"


def _write(path: Path, text: str) -> None:
    """Only where there is nothing yet, whole, and readable by everybody whatever the umask is."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    with open(fd, "w", encoding="utf-8") as file:
        os.fchmod(fd, 0o644)
        file.write(text)
