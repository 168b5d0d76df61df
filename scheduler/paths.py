"""The only place that knows what files are called and where they lie."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from dataclasses import field
from pathlib import Path
from typing import BinaryIO

from scheduler.errors import StateError
from scheduler.values import dataclass

APPLICATION = "gpu-batch-scheduler"
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p", "fuse.sshfs"}
)

PACKAGE = Path(__file__).parent
NATIVE_SOURCE = PACKAGE / "shim.c"
PAGE = PACKAGE / "view" / "page"
"""What a browser is given: the live page, and what a report is made of."""
RUN_CODE = (
    (PACKAGE / "shim.py", "scheduler/shim.py"),
    (PACKAGE / "launcher.py", "scheduler/launcher.py"),
    (PACKAGE / "devices" / "__init__.py", "scheduler/__init__.py"),
    (PACKAGE / "devices" / "__init__.py", "scheduler/devices/__init__.py"),
    *(
        (PACKAGE / "devices" / name, f"scheduler/devices/{name}")
        for name in ("sampler.py", "cgroups.py", "nvml_sampler.py", "owners.py", "mps_control.py", "mps_ending.py")
    ),
    (PACKAGE / "processes.py", "scheduler/processes.py"),
)
"""What a run starts from copies in its own directory."""
NATIVE_CODE = "scheduler/shim"
"""What it starts in place of its shim, where it could be compiled."""


@dataclass(frozen=True, slots=True)
class Places:
    """A user's state on this machine."""

    root: Path
    why: str = ""
    """A sentence where the usual place could not be used."""

    shared: bool = False
    """Whether the states of other machines may lie beside it, each under its host's name."""

    def of_other_machines(self) -> list[Places]:
        """The states beside this one, where a home is shared by several machines."""
        if not self.shared:
            return []
        try:
            others = sorted(self.root.parent.iterdir())
        except OSError:
            return []
        return [Places(other) for other in others if other != self.root and (other / "runs").is_dir()]

    @property
    def counter(self) -> Path:
        return self.root / "counter"

    @property
    def profiles(self) -> Path:
        return self.root / "profiles.db"

    @property
    def looks(self) -> Path:
        """What each that holds memory had used of the cores when somebody looked."""
        return self.root / "looks.json"

    @property
    def out_of_service(self) -> Path:
        """The GPUs that the user's one-shot jobs leave alone."""
        return self.root / "out-of-service.json"

    def native(self, key: str) -> Path:
        """The shim compiled; the key tells from what and by what."""
        return self.root / "native" / f"shim-{key}"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    def run(self, number: int) -> RunPlaces:
        return RunPlaces(self.runs / str(number), number)


@dataclass(frozen=True, slots=True)
class ExperimentPlaces:
    """One experiment's folder, which people look into."""

    root: Path

    @property
    def table(self) -> Path:
        return self.root / "table.csv"

    @property
    def batches(self) -> Path:
        return self.root / "batches.csv"

    @property
    def page(self) -> Path:
        return self.root / "report.html"

    @property
    def picture(self) -> Path:
        return self.root / "report.png"

    @property
    def machine(self) -> Path:
        return self.root / "machine.json"

    @property
    def kept(self) -> Path:
        """Every reading as it was made, so that an interrupted experiment goes on."""
        return self.root / "readings.jsonl"

    @property
    def copies(self) -> Path:
        """The list of an experiment on one command."""
        return self.root / "copies.csv"


@dataclass(frozen=True, slots=True)
class RunPlaces:
    """One run's directory."""

    root: Path
    number: int
    tasks: Path = field(init=False, repr=False, compare=False)
    _tasks: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", self.root / "tasks")  # made once: they are asked for at every start
        object.__setattr__(self, "_tasks", str(self.tasks))

    @property
    def journal(self) -> Path:
        return self.root / "journal.db"

    @property
    def log(self) -> Path:
        return self.root / "run.log"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def forecast(self) -> Path:
        """How its scheduler expects it to go on."""
        return self.root / "forecast.json"

    @property
    def requests(self) -> Path:
        return self.root / "requests"

    @property
    def bell(self) -> Path:
        return self.requests / "bell"

    @property
    def env(self) -> Path:
        return self.root / "env"

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def shim(self) -> Path:
        return self.code / "scheduler" / "shim.py"

    @property
    def native(self) -> Path:
        """The shim compiled, where the run began with it."""
        return self.code / NATIVE_CODE

    @property
    def launcher(self) -> Path:
        return self.code / "scheduler" / "launcher.py"

    @property
    def given(self) -> Path:
        """What Python tasks are given, and what functions return."""
        return self.root / "given"

    def given_to(self, row: int) -> Path:
        return self.given / str(row)

    def task(self, task: int) -> str:
        """What the task may leave files in; its logs are there too."""
        return f"{self._tasks}/{task}"

    def result(self, task: int, attempt: int) -> str:
        return f"{self._tasks}/{task}/.result.{attempt}"

    def progress(self, task: int, attempt: int) -> str:
        return f"{self._tasks}/{task}/.progress.{attempt}"

    def task_log(self, task: int, attempt: int) -> Path:
        return self.tasks / f"{task}/{attempt}.log"

    def task_errors(self, task: int, attempt: int) -> Path:
        """Its errors, where they are kept apart from its output."""
        return self.tasks / f"{task}/{attempt}.err"


def find_places(state: str | None) -> Places:
    """The user's state directory: as said, else XDG's, else (on a network file system) one under /var/tmp.

    Raises StateError where somebody else has made the latter, who could put anything in its place.
    """
    if state:
        return Places(Path(state).expanduser().absolute())
    host = os.uname().nodename or "localhost"
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    usual = Path(base) / APPLICATION / host
    kind = file_system(usual)
    if kind not in NETWORK_FILE_SYSTEMS:
        return Places(usual, shared=True)
    mine = Path(f"/var/tmp/{APPLICATION}-{os.getuid()}")
    if os.path.lexists(mine) and mine.lstat().st_uid != os.getuid():
        raise _of_a_stranger(mine, mine.lstat().st_uid)
    local = mine / host
    return Places(local, f"state is kept in {local}, because {usual} is on a network file system ({kind})", shared=True)


def file_system(path: Path) -> str:
    """The type of the file system a path lies (or would lie) on, as /proc/mounts names it."""
    real = os.path.realpath(nearest(path))
    best, kind = "", ""
    for place, name in _mounts():
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, name
    return kind


def _mounts() -> list[tuple[str, str]]:
    """Where file systems are mounted, and their types."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            words = [line.split(" ")[1:3] for line in mounts]
    except OSError:
        return []
    return [(place.encode("latin-1", "replace").decode("unicode_escape"), name) for place, name in words]


def open_plain(path: Path | str) -> BinaryIO:
    """Open a file that a task may have put there: no link is followed, and no pipe keeps us waiting."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return os.fdopen(fd, "rb")


def open_within(path: Path, root: Path) -> BinaryIO:
    """The same, and no folder on its way below `root` is a link either: what was opened lies where it seems to."""
    file = open_plain(path)
    if os.readlink(f"/proc/self/fd/{file.fileno()}") != os.path.join(os.path.realpath(root), path.relative_to(root)):
        file.close()
        raise OSError(errno.EINVAL, "a link stands in its way", str(path))
    return file


def make_private(path: Path) -> None:
    """Make a directory that only its owner may enter, and those on its way; refuse one that somebody else owns."""
    if not path.parent.exists():
        make_private(path.parent)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as exc:
        raise StateError(
            f"cannot make the state directory {path}: {exc.strerror}; give another with --state DIR"
        ) from exc
    if status.st_uid == os.getuid():
        if status.st_mode & 0o077:
            path.chmod(0o700)
    elif os.getuid() != 0 or stat.S_ISLNK(status.st_mode):  # root looks after others, but not where they lead it
        raise _of_a_stranger(path, status.st_uid)


def owner_beside_root(path: Path) -> tuple[int, int] | None:
    """User and group whose file it is, or whose directory it lies in, where root looks at somebody else's."""
    if os.getuid() != 0:
        return None
    for place in (path.parent, path):
        with contextlib.suppress(OSError):  # it is not there
            status = place.lstat()
            if status.st_uid:
                return status.st_uid, status.st_gid
    return None


def _of_a_stranger(path: Path, uid: int) -> StateError:
    return StateError(f"{path} belongs to user {uid}, not to you: give another with --state DIR")


def nearest(path: Path) -> Path:
    """The path itself, or what there is of it."""
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path


def why_not_writable(path: Path) -> str:
    """Why a directory cannot be made or written by its user, in words behind its name; empty where it can.

    Nothing is left of the try; a directory that is not there yet is judged by where it would be made.
    """
    import tempfile  # 8 ms that only who asks pays

    there = nearest(path)
    if not there.is_dir():
        return f"cannot be made: {there} is no directory"
    if there != path:
        return "" if os.access(there, os.W_OK | os.X_OK) else f"cannot be made: you may not write in {there}"
    owner = path.stat().st_uid
    if owner != os.getuid() and os.getuid() != 0:
        return f"belongs to user {owner}, not to you"
    try:
        fd, name = tempfile.mkstemp(dir=path)
        try:
            os.write(fd, bytes(4096))
        finally:
            os.close(fd)
            os.unlink(name)
    except OSError as exc:
        return f"cannot be written: {(exc.strerror or str(exc)).lower()}"
    return ""


def tilde(path: Path | str) -> str:
    """A path as people like to read it."""
    text, home = str(path), os.path.expanduser("~")
    if home != "/" and (text == home or text.startswith(home + "/")):
        return "~" + text[len(home) :]
    return text
