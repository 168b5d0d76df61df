"""The names and places of all files; no other module knows them."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from scheduler.errors import StateError
from scheduler.values import dataclass, field

APPLICATION = "gpu-batch-scheduler"
NETWORK_FILE_SYSTEMS = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p", "fuse.sshfs"}
)

PACKAGE = Path(__file__).parent.parent
PAGE = PACKAGE / "ui" / "web" / "page"
"""The files that a browser gets: the live page, and the parts of a report."""
COPIED = (
    "runtime/shim.py",
    "runtime/task_launcher.py",
    "runtime/processes.py",
    "devices/metric_reader.py",
    *(f"core/metrics/{name}.py" for name in ("__init__", "curve", "goal", "readings", "record")),
    "devices/sampler_protocol.py",
    "devices/gpu/nvml_library.py",
    "devices/gpu/nvml_sampler.py",
    "devices/gpu/node_facts.py",
    "devices/gpu/process_owner.py",
    "devices/host/activity.py",
    "devices/host/sampler.py",
    "devices/host/cgroups.py",
    "devices/mps/control.py",
    "devices/mps/terminate_client.py",
    *(
        f"{package}/__init__.py"
        for package in ("core", "runtime", "devices", "devices/gpu", "devices/host", "devices/mps")
    ),
)
RUN_CODE = (
    *((PACKAGE / name, f"scheduler/{name}") for name in COPIED),
    (PACKAGE / "devices" / "__init__.py", "scheduler/__init__.py"),
)
"""The files that a run copies into its own directory, to start its processes from these copies."""


@dataclass(frozen=True, slots=True)
class StatePaths:
    """The state of one user on one machine."""

    root: Path
    why: str = ""
    """A sentence about why the usual place could not be used; empty if it is used."""

    shared: bool = False
    """True if the states of other machines may be next to this one, each under its host's name."""

    def of_other_machines(self) -> list[StatePaths]:
        """Return the states of other machines next to this one, if several machines share a home."""
        if not self.shared:
            return []
        try:
            others = sorted(self.root.parent.iterdir())
        except OSError:
            return []
        return [StatePaths(other) for other in others if other != self.root and (other / "runs").is_dir()]

    @property
    def counter(self) -> Path:
        return self.root / "counter"

    @property
    def profiles(self) -> Path:
        return self.root / "profiles.db"

    @property
    def out_of_service(self) -> Path:
        """The file with the GPUs that the user's one-shot tasks do not use."""
        return self.root / "out-of-service.json"

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def queues(self) -> Path:
        """The links from the names of standing queues to their runs."""
        return self.root / "queues"

    def guest(self, token: str) -> Path:
        """Return the directory of a run of another machine, for its tasks on this one."""
        return self.root / "guests" / token

    def run(self, number: int) -> RunPaths:
        return RunPaths(self.runs / str(number), number)


@dataclass(frozen=True, slots=True)
class ExperimentPaths:
    """The folder of one experiment, whose files users may read."""

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
        return self.root / "report.svg"

    @property
    def results(self) -> Path:
        """All results so far, so that an interrupted experiment can continue."""
        return self.root / "results.json"

    @property
    def copies(self) -> Path:
        """The task list of an experiment with a single command."""
        return self.root / "copies.csv"


@dataclass(frozen=True, slots=True)
class RunPaths:
    """The directory of one run."""

    root: Path
    number: int
    tasks: Path = field(init=False, repr=False, compare=False)
    _tasks: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", self.root / "tasks")  # built once, because every start of a task needs it
        object.__setattr__(self, "_tasks", str(self.tasks))

    @property
    def journal(self) -> Path:
        return self.root / "journal.db"

    @property
    def facts(self) -> Path:
        """The file with the facts of the run, which its scheduler saves when it ends."""
        return self.root / "facts.json"

    @property
    def log(self) -> Path:
        return self.root / "run.log"

    @property
    def forecast(self) -> Path:
        """The file with the latest forecast of the run's scheduler."""
        return self.root / "forecast.json"

    @property
    def devices(self) -> Path:
        """The file with the load of the run's devices over time."""
        return self.root / "devices.json"

    @property
    def readings(self) -> Path:
        """The file with the last measurements of the run's devices by its scheduler."""
        return self.root / "readings.json"

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
    def shells(self) -> Path:
        """The folder with a file for each shell from which tasks of a queue were submitted."""
        return self.root / "shells"

    @property
    def server(self) -> Path:
        """The file that names the fork server of the run's last scheduler."""
        return self.root / "server"

    @property
    def code(self) -> Path:
        return self.root / "code"

    @property
    def shim(self) -> Path:
        return self.code / "scheduler" / "runtime" / "shim.py"

    @property
    def launcher(self) -> Path:
        return self.code / "scheduler" / "runtime" / "task_launcher.py"

    @property
    def given(self) -> Path:
        """The folder with the arguments of Python tasks."""
        return self.root / "given"

    @property
    def calls(self) -> Path:
        """The file with the arguments of all Python tasks."""
        return self.given / "calls"

    def call(self, row: int) -> Path:
        """Return the file with the function and the arguments of one call of an executor."""
        return self.given / f"{row}.call"

    def task(self, task: int) -> str:
        """Return the task's folder, which contains its logs and the files that it leaves."""
        return f"{self._tasks}/{task}"

    def result(self, task: int, attempt: int) -> str:
        return f"{self._tasks}/{task}/.result.{attempt}"

    def value(self, task: int, attempt: int) -> str:
        """Return the file for what a function returns or raises; the launcher derives its name from that of the result
        file.
        """
        return f"{self.result(task, attempt)}.value"

    def metrics(self, task: int, attempt: int) -> str:
        """Return the file with the record of an attempt's metrics."""
        return f"{self._tasks}/{task}/.metrics.{attempt}"

    def progress(self, task: int, attempt: int) -> str:
        return f"{self._tasks}/{task}/.progress.{attempt}"

    def task_log(self, task: int, attempt: int) -> Path:
        return self.tasks / f"{task}/{attempt}.log"

    def task_errors(self, task: int, attempt: int) -> Path:
        """Return the file of an attempt's standard error, if that is separate from its output."""
        return self.tasks / f"{task}/{attempt}.err"


def find_places(state: str | None) -> StatePaths:
    """Return the user's state directory: the given one, else XDG's, else (on a network file system) one under /var/tmp.

    Raise StateError if there is no home, or if another user has created the directory under /var/tmp and could write to
    it.
    """
    if state:
        return StatePaths(Path(state).expanduser().absolute())
    host = os.uname().nodename or "localhost"
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    if base.startswith("~"):
        raise StateError(
            "there is no home directory to keep the state in: set HOME, or name the directory with --state DIR"
        )
    usual = Path(base) / APPLICATION / host
    kind = file_system(usual)
    if kind not in NETWORK_FILE_SYSTEMS:
        return StatePaths(usual, shared=True)
    mine = Path(f"/var/tmp/{APPLICATION}-{os.getuid()}")
    if os.path.lexists(mine) and mine.lstat().st_uid != os.getuid():
        raise _of_another_user(mine, mine.lstat().st_uid)
    local = mine / host
    return StatePaths(
        local, f"state is kept in {local}, because {usual} is on a network file system ({kind})", shared=True
    )


def file_system(path: Path) -> str:
    """Return the type of the file system on which a path is, or would be, as /proc/mounts names it."""
    real = os.path.realpath(nearest(path))
    best, kind = "", ""
    for place, name in _mounts():
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):
            best, kind = place, name
    return kind


def _mounts() -> list[tuple[str, str]]:
    """Return the mount points of file systems, and their types."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            words = [line.split(" ")[1:3] for line in mounts]
    except OSError:
        return []
    return [(place.encode("latin-1", "replace").decode("unicode_escape"), name) for place, name in words]


def open_plain(path: Path | str) -> BinaryIO:
    """Open a file that a task may have created: links are not followed, and a pipe does not block."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a plain file", str(path))
    return os.fdopen(fd, "rb")


def open_within(path: Path, root: Path) -> BinaryIO:
    """Open a file like `open_plain`, without following links in the folders below `root` either."""
    file = open_plain(path)
    if os.readlink(f"/proc/self/fd/{file.fileno()}") != os.path.join(os.path.realpath(root), path.relative_to(root)):
        file.close()
        raise OSError(errno.EINVAL, "a link is in its way", str(path))
    return file


def replace_file(path: Path, data: bytes, *, durable: bool = True) -> None:
    """Replace or create a file as a whole; if that fails, raise OSError and leave no part of it behind.

    With `durable` it is on disk when this returns.
    """
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    part.unlink(missing_ok=True)
    try:
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        with open(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(fd)
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            part.unlink()
        raise


def make_private(path: Path) -> None:
    """Create a directory that only its owner may enter, with its parents; refuse one that belongs to another user."""
    if not path.parent.exists():
        make_private(path.parent)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        status = path.lstat()
    except OSError as exc:
        raise StateError(
            f"cannot make the state directory {path}: {exc.strerror}; name another directory with --state DIR"
        ) from exc
    if status.st_uid == os.getuid():
        if status.st_mode & 0o077:
            path.chmod(0o700)
    elif os.getuid() != 0 or stat.S_ISLNK(status.st_mode):  # root may serve others, but follows no link of theirs
        raise _of_another_user(path, status.st_uid)


def owner_beside_root(path: Path) -> tuple[int, int] | None:
    """Return the user and group that own the directory of a file, or the file itself, if this process is root and
    another user is the owner; otherwise None.
    """
    if os.getuid() != 0:
        return None
    for place in (path.parent, path):
        with contextlib.suppress(OSError):  # it is not there
            status = place.lstat()
            if status.st_uid:
                return status.st_uid, status.st_gid
    return None


def _of_another_user(path: Path, uid: int) -> StateError:
    return StateError(f"{path} belongs to user {uid}, not to you: name another directory with --state DIR")


def nearest(path: Path) -> Path:
    """Return the path itself, or its nearest parent that exists."""
    while not os.path.exists(path) and path != path.parent:
        path = path.parent
    return path


def why_not_writable(path: Path) -> str:
    """Return why a user cannot create or write a directory, as words that follow its name; empty if that is possible.

    The test leaves nothing behind; a directory that does not exist yet is judged by its nearest parent.
    """
    import tempfile  # it takes 8 ms to load, and is rarely needed

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
    """Return a path with `~` for the home directory."""
    text, home = str(path), os.path.expanduser("~")
    if home != "/" and (text == home or text.startswith(home + "/")):
        return "~" + text[len(home) :]
    return text
