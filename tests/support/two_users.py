"""Two users of one machine, whose schedulers and shims are killed while both launch; tests and a benchmark use them."""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scheduler.errors import StateError
from scheduler.runtime.shim import BLOCK, unpack_block
from scheduler.store.run.journal_reader import JournalReader
from scheduler.units import GIB
from tests.support.killing import ROOT, Home, Started, command_line, is_alive, kill, state_of
from tests.support.waiting import wait_until

USERS = (65534, 12345)
BUDGET = 2 * GIB
SYSTEM_PYTHON = "/usr/bin/python3"
BORROWED = ("psutil", "pynvml")
"""The packages that are copied with the code to a place that all users can read."""
GONE = 2.0
"""Seconds within which a lease must end after its holder: the kernel releases the lock at once."""
SOON = 5.0
"""Seconds within which a user whose shim is to be killed has one."""
THREE = 3
"""The number of killed shims in a row after which a task fails with that reason."""
NAMELESS = 30.0
"""Seconds within which a new lease must name its shim."""


class Unreachable(Exception):
    """Another user cannot run the code here."""


class User(Home):
    """The places of one user; only the lease directory is shared."""

    def __init__(self, root: Path, uid: int, python: str, code: Path, leases: Path) -> None:
        super().__init__(root, (*become(uid), python, "-m", "scheduler"))
        self.leases = leases
        self.env |= {"SCHEDULER_LEASES": str(leases), "PYTHONPATH": str(code), "PATH": "/usr/bin:/bin"}
        self.uid = uid
        self.last: Started | None = None

    def prepare(self, tasks: int, dice: random.Random) -> None:
        """Write a list of tasks that mostly declare their memory and record every start."""
        self.root.mkdir()
        rows = []
        for _ in range(tasks):
            memory = dice.choice((*(f"{dice.randrange(100, 1200)}MiB" for _ in range(6)), ""))
            seconds = round(dice.uniform(0, 0.4), 2)
            script = f"echo $SCHEDULER_TASK_ID >>told; sleep {seconds}"
            rows.append([f"sh -c '{script}'", memory])
        self.write("jobs.csv", "Command,Memory", *rows)
        for path in (self.root, self.root / "jobs.csv"):
            os.chown(path, self.uid, self.uid)

    def accepted(self) -> str:
        """Return the run whose list was accepted; a scheduler that was killed before that has left none.

        One that was killed right after it has left a journal and no log yet: then the list is refused once more.
        """
        refused = self.last is not None and self.last.poll() == 2
        file = "journal.db" if refused else "run.log"
        runs = (path.parent for path in self.state.glob(f"runs/[0-9]*/{file}"))
        return min((run.name for run in runs if _has_list(run)), key=int, default="")

    def is_done(self) -> bool:
        """Tell whether its list is done; then the storm has nothing to kill any more."""
        run = self.accepted()
        told = self.call("results", f"r{run}", "--json") if run else None
        if told is None or told.returncode:
            return False  # killed as it was accepted: the next scheduler finds out
        return all(task["state"] in ("succeeded", "failed") for task in json.loads(told.stdout)["tasks"])

    def go(self) -> Started:
        """Start the next scheduler of this user."""
        accepted = self.accepted()
        arguments = ("--devices", "host:2GiB", "--buffer", "32MiB", "--max-load", "1000")
        said = (self.root / "said").open("a")
        try:
            asked = ("resume", f"r{accepted}") if accepted else ("run", "jobs.csv", *arguments)
            self.last = self.start(*asked, stderr=said)
            return self.last
        finally:
            said.close()


def _has_list(run: Path) -> bool:
    """Tell whether a run's journal can be read: a scheduler that was killed as it made it left an empty one."""
    try:
        JournalReader.read(run / "journal.db").close()
    except StateError:
        return False
    return True


class Observer(threading.Thread):
    """A thread that reads the leases every few milliseconds as a scheduler does, under the directory's mutex."""

    def __init__(self, directory: Path) -> None:
        super().__init__(daemon=True)
        self.most = self.looks = self.most_leases = 0
        self.both = 0
        """Looks at which both users had leases."""
        self.faults: list[str] = []
        self.stale: list[str] = []
        """Leases that counted as living although all processes that could hold them were dead."""
        self._told: set[str] = set()
        self._orphans: dict[str, float] = {}
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self._enough = threading.Event()

    def run(self) -> None:
        try:
            while not self._enough.wait(0.003):
                fcntl.flock(self._fd, fcntl.LOCK_EX)
                try:
                    self.look()
                finally:
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
        except Exception as exc:  # noqa: BLE001 - the test reads it; a thread has no caller
            self.faults.append(repr(exc))

    def look(self) -> None:
        living = {
            name: block
            for name in os.listdir(self._fd)
            if name[0].isdigit() and (block := self._living(name)) is not None
        }
        read = {name: unpack_block(block) for name, block in living.items()}
        self.faults += [f"{name} cannot be read" for name, lease in read.items() if lease is None]
        self._look_for_stale({name: int(lease["shim"]) for name, lease in read.items() if lease})
        reserved = sum(lease["bytes"]["host"] for lease in read.values() if lease)
        if reserved > BUDGET:
            self.faults.append(f"{reserved} reserved by {read}")
        self.looks += 1
        self.most = max(self.most, reserved)
        self.most_leases = max(self.most_leases, len(living))
        self.both += len({name.partition(".")[0] for name in living}) > 1

    def _look_for_stale(self, shims: dict[str, int]) -> None:
        """Record the leases that outlive their shim."""
        now = time.monotonic()
        alone = {name: shim for name, shim in shims.items() if not shim or not is_alive(shim)}
        self._orphans = {name: self._orphans.get(name, now) for name in alone}
        for name, since in self._orphans.items():
            if now - since > (GONE if alone[name] else NAMELESS) and name not in self._told:
                self._told.add(name)
                self.stale.append(f"{name} of shim {alone[name]}, held by {self._holders(name)}")

    def _holders(self, name: str) -> list[str]:
        """Return the processes that have a lease's file open."""
        return [
            f"{fd.parts[2]} ({state_of(int(fd.parts[2]))}, {command_line(int(fd.parts[2]))})"
            for fd in Path("/proc").glob("[0-9]*/fd/*")
            if os.path.basename(readlink(fd)) == name
        ]

    def _living(self, name: str) -> bytes | None:
        """Return the record of a locked lease."""
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=self._fd)
        except FileNotFoundError:
            return None  # a task that ends takes its lease away without asking
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        except BlockingIOError:
            return os.pread(fd, BLOCK, 0)
        finally:
            os.close(fd)

    def stop(self) -> None:
        self._enough.set()
        self.join()
        os.close(self._fd)


def readlink(path: Path) -> str:
    """Return the target of a link; empty if it is gone."""
    with contextlib.suppress(OSError):
        return os.readlink(path)
    return ""


def reachable_python(common: Path) -> tuple[str, Path]:
    """Return an interpreter and the code where both users can read them: in place, or copied."""
    if can(USERS[0], sys.executable, ROOT):
        return sys.executable, ROOT
    code = common / "code"
    shutil.copytree(ROOT / "scheduler", code / "scheduler", ignore=shutil.ignore_patterns("__pycache__"))
    for name in BORROWED:
        _borrow(name, code)
    for uid in USERS:
        if not can(uid, SYSTEM_PYTHON, code):
            raise Unreachable(
                f"user {uid} can run neither {sys.executable} nor {SYSTEM_PYTHON} with a copy of the code"
            )
    return SYSTEM_PYTHON, code


def _borrow(name: str, code: Path) -> None:
    """Copy a package or module that is installed here."""
    found = Path(str(importlib.import_module(name).__file__))
    if found.name == "__init__.py":
        shutil.copytree(found.parent, code / name)
    else:
        shutil.copy(found, code / found.name)


def become(uid: int) -> tuple[str, ...]:
    """Return the words before a command that make it another user's; setpriv passes every directory as root."""
    return "setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "sh", "-c", 'exec "$@"', "sh"


def can(uid: int, python: str, code: Path) -> bool:
    """Tell whether a user can run the code with an interpreter."""
    program = "import sys, psutil, scheduler.app; sys.exit(sys.version_info < (3, 11))"
    command = [*become(uid), python, "-c", program]
    try:
        tried = subprocess.run(command, check=False, cwd="/", env={"PYTHONPATH": str(code)}, capture_output=True)
        return tried.returncode == 0
    except OSError as exc:
        raise Unreachable(f"setpriv cannot be run: {exc}") from exc


@dataclass
class Storm:
    """The numbers of kills, and the faults that were found."""

    seed: int
    schedulers: int = 0
    shims: int = 0
    seconds: float = 0.0
    looks: int = 0
    both: int = 0
    most: int = 0
    most_leases: int = 0
    faults: list[str] = field(default_factory=list)
    """Sentences on overcommits and unreadable leases."""
    stale: list[str] = field(default_factory=list)
    codes: list[int] = field(default_factory=list)

    @property
    def kills(self) -> int:
        return self.schedulers + self.shims

    def line(self) -> str:
        """Return the closing line."""
        return (
            f"seed {self.seed}: killed {self.schedulers} schedulers and {self.shims} shims that held leases, all done "
            f"after {self.seconds:.0f}s; {self.looks} looks, {self.both} at leases of both; at most "
            f"{self.most / GIB:.3f} of {BUDGET / GIB:g} GiB reserved, {self.most_leases} leases at once; "
            f"{len(self.faults)} overcommits, {len(self.stale)} stale live leases"
        )


def storm(users: list[User], seed: int, *, seconds: float, kills: int = 0, shims: float = 0.0) -> Storm:
    """Let both users launch while their schedulers are killed, or a shim in the share `shims` of the kills.

    It ends after `kills` kills, or where that is 0 after `seconds`; then both runs are finished.
    """
    dice, came = random.Random(seed), Storm(seed)
    observer = Observer(users[0].leases)
    observer.start()
    began = time.monotonic()
    schedulers = [user.go() for user in users]
    # On a busy machine a start takes seconds: one list could be done before the other one is accepted.
    wait_until(lambda: all(user.accepted() for user in users), 60, pause=0.05)
    ready = time.monotonic()
    next_kill = [ready + dice.uniform(0.0, 1.5) for _ in users]
    while came.kills < kills if kills else time.monotonic() < ready + seconds:
        turn = min(range(len(users)), key=next_kill.__getitem__)
        with contextlib.suppress(subprocess.TimeoutExpired):
            schedulers[turn].wait(max(0.0, next_kill[turn] - time.monotonic()))
        if dice.random() < shims:
            with contextlib.suppress(AssertionError):  # a scheduler that was killed takes its time to start anything
                came.shims += wait_until(lambda user=users[turn]: kill_a_shim(user, dice), SOON, pause=0.01)
            next_kill[turn] = time.monotonic() + dice.uniform(0.05, 0.4)
            continue
        if schedulers[turn].poll() is None:
            schedulers[turn].kill()
            came.schedulers += schedulers[turn].wait() == -signal.SIGKILL
        elif users[turn].is_done():
            break
        next_kill[turn] = time.monotonic() + dice.choice((dice.uniform(0, 0.5), dice.uniform(0.2, 2)))
        schedulers[turn] = users[turn].go()
    patience = 60 + 2 * seconds
    came.codes = [finish(user, scheduler, patience) for user, scheduler in zip(users, schedulers, strict=True)]
    observer.stop()
    came.seconds = time.monotonic() - began
    came.looks, came.both, came.most = observer.looks, observer.both, observer.most
    came.most_leases, came.faults, came.stale = observer.most_leases, observer.faults, observer.stale
    return came


def kill_a_shim(user: User, dice: random.Random) -> bool:
    """Kill a shim that a lease of this user names; return whether there was one."""
    shims = []
    for path in user.leases.glob(f"{user.uid}.*"):
        with contextlib.suppress(OSError, KeyError):
            shims.append(int((unpack_block(path.read_bytes()) or {})["shim"]))
    living = [shim for shim in shims if shim and is_alive(shim)]
    return bool(living) and kill(dice.choice(living))


def finish(user: User, scheduler: Started, patience: float) -> int:
    """Return the exit code of the last scheduler; a finished run may be resumed, which does nothing."""
    try:
        code = scheduler.wait(patience)
        return code if code != 2 else user.go().wait(patience)
    except subprocess.TimeoutExpired:
        scheduler.kill()
        return scheduler.wait()


def judge(user: User, line: str, *, once: bool = True) -> None:
    """Check that every task succeeded and left no process; where no shim was killed, each ran once."""
    tasks: list[dict[str, Any]] = user.tasks(user.accepted())
    failed = [task for task in tasks if task["state"] != "succeeded"]
    assert all(task["state"] == "failed" and task["attempts"] >= THREE and not once for task in failed), line
    started = Counter((user.root / "told").read_text().split())
    assert not once or started == Counter(str(task["id"]) for task in tasks), line
    assert started.keys() == {str(task["id"]) for task in tasks}, line
    assert user.living() == [], line
    said = (user.root / "said").read_text().splitlines()
    expected = re.compile("hint:|.*, so nothing is started: ")
    assert [text for text in said if not expected.match(text)] == [], line
