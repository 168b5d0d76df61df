"""The world of oracle.py: three users on two stand-in GPUs, leases read from outside, and what kills.

Nothing of the program is imported. The stand-in GPUs and their MPS are those of the tests.
"""

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
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.support.standin.box import Box  # noqa: E402  # found through the line above

MIB = 1 << 20
GPUS, TOTAL, RESERVED = 2, 24 << 30, 300 * MIB
BUDGET = 2048 * MIB
"""The RAM of all users together."""
UIDS = (65534, 12345, 23456)
PYTHON = "/usr/bin/python3"
MARK = "ORACLE"
LEASE = re.compile(r"(\d+)\.([0-9a-f-]+)\.(\d+)\.(\d+)\.[0-9a-f]{16}(\.shim)?")
SLACK = 64 * MIB
"""Bytes that an interpreter and a look between two steps may add to what a task takes."""
TASK = """
import fcntl, os, signal, subprocess, sys, time
sys.path.insert(0, {standin!r})
import client
told, name, kind, code, seconds, gpu, host = sys.argv[1:4] + [float(word) for word in sys.argv[4:]]
attempt = os.environ["SCHEDULER_TASK_ID"], os.environ["SCHEDULER_ATTEMPT"]
def tell(*words):
    fd = os.open(told + name, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, (" ".join(map(str, words + attempt + (time.monotonic(), os.getpid()))) + "\\n").encode())
    os.close(fd)
def save(*_):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    tell("saved")
    os._exit(75)
if kind == "saves":
    signal.signal(signal.SIGTERM, save)
life = open(told + name + ".life", "w")
try:
    fcntl.flock(life, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    tell("twice")
tell("begin")
kept = bytearray(int(host) << 20)
for place in range(0, len(kept), 4096):
    kept[place] = 1
if kind == "leaves":
    subprocess.Popen(["sleep", "600"], start_new_session=True, env={{"ORACLE_TAG": {tag!r}}})
try:
    cuda = client.Cuda()
    for position in range(len(cuda.devices()) if gpu else 0):
        cuda.allocate(position, int(gpu) << 20)
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(0.05)
        cuda.check()
except client.OutOfMemory:
    tell("oom")
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %d MiB" % gpu)
except client.Fault as fault:
    tell("fault%d" % fault.code)
    sys.exit("torch.AcceleratorError: %s" % fault)
if kind == "saves":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
tell("end")
sys.exit(int(code))
"""


class Attempt(NamedTuple):
    """One attempt, as its lease and its environment name it."""

    uid: int
    task: int
    number: int


@dataclass
class Seen:
    """Everything that was seen, done and found."""

    looks: int = 0
    most: Counter[str] = field(default_factory=Counter)
    """The highest sum of reservations on each device."""
    kills: Counter[str] = field(default_factory=Counter)
    hit: dict[Attempt, set[str]] = field(default_factory=dict)
    grown: dict[Attempt, list[tuple[str, int, int]]] = field(default_factory=dict)
    """The reservations that grew: the device, the bytes before and the bytes after it."""
    daemons: list[float] = field(default_factory=list)
    """When daemons of MPS were killed."""
    explained: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)


def leases(folder: int) -> dict[str, dict[str, Any]]:
    """Return what the living leases say, by name, read under the mutex of an open directory."""
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        every = {name: lease(folder, name) for name in os.listdir(folder) if LEASE.fullmatch(name)}
    finally:
        fcntl.flock(folder, fcntl.LOCK_UN)
    return {name: said for name, said in every.items() if said is not None}


def lease(folder: int, name: str) -> dict[str, Any] | None:
    """Return what a lease says; None if it is dead."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        return None
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
        sum_, _, text = os.pread(fd, 4096, 0).partition(b"\n")[0].partition(b" ")
        return json.loads(text) if sum_ == b"%08x" % crc32(text) else {}
    finally:
        os.close(fd)


def attempt_of(name: str) -> Attempt:
    """Return the attempt that a lease names."""
    uid, _, task, number, _ = LEASE.fullmatch(name).groups()  # type: ignore[union-attr]  # all names were matched
    return Attempt(int(uid), int(task), int(number))


class Process(NamedTuple):
    """A living process of one of the users."""

    pid: int
    parent: int
    uid: int
    words: str
    env: dict[str, str]

    @property
    def attempt(self) -> Attempt | None:
        """Return the attempt that its environment names."""
        if "SCHEDULER_ATTEMPT" not in self.env:
            return None
        return Attempt(self.uid, int(self.env["SCHEDULER_TASK_ID"]), int(self.env["SCHEDULER_ATTEMPT"]))


def processes(mark: str) -> list[Process]:
    """Return the living processes whose environment has the mark of this world."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            env = (folder / "environ").read_bytes()
            state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
            if mark.encode() in env and state not in "ZX":
                pairs = dict(pair.split("=", 1) for pair in os.fsdecode(env).split("\0") if "=" in pair)
                words = os.fsdecode((folder / "cmdline").read_bytes()).replace("\0", " ")
                found.append(Process(int(folder.name), int(parent), folder.stat().st_uid, words, pairs))
    return found


class World:
    """The places of three users who share GPUs, RAM and a lease directory."""

    def __init__(self, root: Path, seen: Seen) -> None:
        self.root, self.seen, self.tag = root, seen, f"{MARK}-{uuid.uuid4().hex[:12]}"
        self.code, self.leases = root / "code", root / "leases"
        root.chmod(0o755)
        self.leases.mkdir()
        self.leases.chmod(0o1777)
        self._copy()
        self.box = Box(root / "gpus", gpus=GPUS, total=TOTAL, reserved=RESERVED, cache=root / "built")
        self.box.file.chmod(0o666)
        (root / "mps-notes").touch()
        (root / "mps-notes").chmod(0o666)
        self.queuing: set[int] = set()
        """The users that have a queue just now, which may use all of the RAM."""

    def _copy(self) -> None:
        """Copy the code, its packages and the stand-ins to where all users can read them."""
        hidden = shutil.ignore_patterns("__pycache__", ".built")
        shutil.copytree(ROOT / "scheduler", self.code / "scheduler", ignore=hidden)
        standin = self.code / "standin"
        shutil.copytree(ROOT / "tests/support/standin", standin, ignore=hidden)
        for package in ("psutil", "pynvml"):
            file = Path(str(importlib.import_module(package).__file__))
            if file.name == "__init__.py":
                shutil.copytree(file.parent, self.code / package)
            else:
                shutil.copy(file, self.code)
        (self.root / "bin").mkdir()
        for program, script in (("nvidia-cuda-mps-control", "mps_control.py"), ("nvidia-smi", "nvidia_smi.py")):
            path = self.root / "bin" / program
            path.write_text(f"#!{PYTHON} -S\n" + (standin / script).read_text())
            path.chmod(0o755)
        (self.code / "task.py").write_text(TASK.format(standin=str(standin), tag=self.tag))

    def env(self, home: Path) -> dict[str, str]:
        """Return the environment of a user's commands."""
        return self.box.env | {
            "PATH": f"{self.root / 'bin'}:/usr/bin:/bin",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(self.code),
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "SCHEDULER_STATE": str(home / "state"),
            "SCHEDULER_LEASES": str(self.leases),
            "SCHEDULER_MAX_LOAD": "1000",
            "SCHEDULER_SETTLE": "1s",
            "SCHEDULER_UNMANAGED": "ignore",
            "SCHEDULER_QUEUE_IDLE": "2s",
            "SCHEDULER_PREEMPT_AFTER": "0.3s",
            "STANDIN_MPS": str(self.root / "mps-notes"),
            MARK: self.tag,
        }


class Watcher(threading.Thread):
    """Reads the leases 20 times a second, and explains each sum above a device's memory, or notes an overcommit."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self.world, self.seen = world, world.seen
        self.over = threading.Event()
        self._folder = os.open(world.leases, os.O_RDONLY | os.O_DIRECTORY)
        self._last: dict[str, dict[str, int]] = {}
        self._capacity = {"host": BUDGET, **dict.fromkeys(world.box.uuids, TOTAL - RESERVED)}

    def run(self) -> None:
        try:
            while not self.over.wait(0.05):
                self.look()
        except Exception as exc:  # noqa: BLE001 - the main thread reads it; a thread has no caller
            self.seen.faults.append(f"the watcher: {exc!r}")

    def look(self) -> None:
        """Compare the leases with those of the last look: only a lease that is there already may pass the capacity."""
        read = leases(self._folder)
        self.seen.faults += [f"lease {name} cannot be read" for name, said in read.items() if not said]
        now = {name: said.get("bytes", {}) for name, said in read.items()}
        self.seen.looks += 1
        for device, capacity in self._capacity.items():
            before = {name: bytes_.get(device, 0) for name, bytes_ in self._last.items()}
            here = {name: bytes_[device] for name, bytes_ in now.items() if device in bytes_}
            if device == "host":
                here = {name: bytes_ for name, bytes_ in here.items() if attempt_of(name).uid not in self.world.queuing}
            self.seen.most[device] = max(self.seen.most[device], sum(here.values()))
            for name in here:
                if here[name] > before.get(name, here[name]):
                    attempt = attempt_of(name)
                    self.seen.grown.setdefault(attempt, []).append((device, before[name], here[name]))
            new = [name for name in here if name not in before]
            granted = sum(min(bytes_, before.get(name, bytes_)) for name, bytes_ in here.items())
            if granted > capacity and new:
                words = f"{device}: {granted / MIB:.0f} of {capacity / MIB:.0f} MiB with {new}: {here}"
                self.seen.over.append(f"{words}; before: {before}")
            elif sum(here.values()) > capacity:
                self.seen.explained["looks at a sum above a device, by growth that was measured"] += 1
        self._last = now


class Killer:
    """Kills schedulers, fork servers, shims, samplers, tasks and daemons of MPS at random."""

    KINDS = ("scheduler", "scheduler", "scheduler", "server", "sampler", *["shim"] * 4, "task", "task", "mps")

    def __init__(self, world: World, dice: random.Random) -> None:
        self.world, self.seen, self.dice = world, world.seen, dice
        self._folder = os.open(world.leases, os.O_RDONLY | os.O_DIRECTORY)

    def act(self) -> None:
        """Kill one process of a kind drawn, if there is one."""
        kind, uid = self.dice.choice(self.KINDS), self.dice.choice(UIDS)
        if kind == "shim":
            self._kill_shim(uid)
            return
        mine = [one for one in processes(self.world.tag) if one.uid == uid]
        if kind == "server":  # it looks like a shim, and is a child of the scheduler, as a shim never is
            schedulers = {one.pid for one in mine if kind_of(one) == "scheduler"}
            every = [one for one in mine if kind_of(one) == "shim" and one.parent in schedulers]
        else:
            every = [one for one in mine if kind_of(one) == kind]
        if not every:
            return
        one = self.dice.choice(every)
        if kind == "task" and one.attempt:
            self.seen.hit.setdefault(one.attempt, set()).add(kind)
        if kind == "mps":
            self.seen.daemons.append(time.monotonic())
        self._kill(one.pid, kind)

    def _kill_shim(self, uid: int) -> None:
        """Stop a shim that a lease names, note all attempts that it has now, and kill it."""
        mine = [said["shim"] for name, said in leases(self._folder).items() if name.startswith(f"{uid}.")]
        living = [shim for shim in mine if shim]
        if not living:
            return
        shim = self.dice.choice(living)
        with contextlib.suppress(ProcessLookupError):
            os.kill(shim, signal.SIGSTOP)
        for name, said in leases(self._folder).items():
            if said["shim"] == shim:
                self.seen.hit.setdefault(attempt_of(name), set()).add("shim")
        self._kill(shim, "shim")

    def _kill(self, pid: int, kind: str) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.seen.kills[kind] += 1


def kind_of(process: Process) -> str:
    """Return what a process is, by its command line."""
    words = process.words
    if "task.py" in words and "SCHEDULER_ATTEMPT" in process.env and " -m scheduler" not in words:
        return "task" if words.split()[0].endswith("python3") else ""
    if "nvidia-cuda-mps-control -d" in words:
        return "mps"
    if re.search(r"-m scheduler (run|resume|submit)", words):
        return "scheduler"
    if "sampler" in words:
        return "sampler"
    return "shim" if re.search(r"runs/\d+/code", words) else ""


def become(uid: int) -> list[str]:
    """Return the words before a command that make it a user's."""
    return ["setpriv", f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "sh", "-c", 'exec "$@"', "sh"]


def run(command: list[str], env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end."""
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, check=False, timeout=120)
