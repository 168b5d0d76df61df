"""Power cuts at any write: a recorder of what a run writes, and the disk as a power cut leaves it at each point.

`Recorder` runs commands with `standin/written.c` loaded, which logs every write, sync, name, move and removal below the
state and lease folders. `Disk` reads the log up to a point and keeps what a file system without luck keeps: the data of
a file up to its last sync, with zeros where later data made it longer; names, moves and removals up to the last sync of
any file (`names="synced"`, as a journal of metadata does), or all of them (`names="all"`: what was renamed without a
sync of its data is empty). What tasks and the command have told the world outside is kept whole.
"""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.killing import Home

SOURCE = Path(__file__).parent / "standin/written.c"
ENDS = ("succeeded", "failed")
HEAD = struct.Struct("=IIIIQQ")
WRITE, SYNC, SIZE, NAME, FOLDER, MOVE, REMOVE, LINK = "wstndmrl"
TO = b"symlink to "
"""The beginning of the content of a symbolic link, which is whole as soon as its name is kept."""


class Entry(NamedTuple):
    """One thing that was done to a file."""

    op: str
    path: str
    second: str
    inode: int
    offset: int
    data: bytes


@dataclass(slots=True)
class File:
    """The content of one file: as it is, and as it was synced."""

    content: bytearray = field(default_factory=bytearray)
    synced: bytes = b""

    def write(self, data: bytes, at: int) -> None:
        """Put data at its place."""
        if len(self.content) < at:
            self.content.extend(bytes(at - len(self.content)))
        self.content[at : at + len(data)] = data

    def resize(self, size: int) -> None:
        """Cut the file, or fill it with zeros."""
        self.content = self.content[:size].ljust(size, b"\0")


class Disk:
    """The files below a folder after some entries of a log."""

    def __init__(self) -> None:
        self.files: dict[int, File] = {}
        self.names: dict[str, int] = {}
        self.folders: set[str] = set()
        self._safe: tuple[dict[str, int], set[str]] = ({}, set())

    def apply(self, entry: Entry) -> None:
        """Do what an entry says."""
        file = self.files.setdefault(entry.inode, File())
        if entry.op == WRITE:
            file.write(entry.data, entry.offset)
        elif entry.op == SIZE:
            file.resize(entry.offset)
        elif entry.op == SYNC:
            file.synced = bytes(file.content)
            self._safe = dict(self.names), set(self.folders)
        elif entry.op == FOLDER:
            self.folders.add(entry.path)
        elif entry.op == NAME:
            if entry.inode not in self.names.values():
                self.files[entry.inode] = File()
            elif not entry.second:
                self.files[entry.inode].resize(entry.offset)
            self.names[entry.path] = entry.inode
        elif entry.op == LINK:
            content = TO + os.fsencode(entry.second)
            self.files[entry.inode] = File(bytearray(content), content)
            self.names[entry.path] = entry.inode
        elif entry.op == MOVE:
            self._move(entry.path, entry.second)
        elif entry.op == REMOVE:
            self.names.pop(entry.path, None)
            self.folders.discard(entry.path)

    def _move(self, old: str, new: str) -> None:
        for path in [path for path in self.names if path == old or path.startswith(f"{old}/")]:
            self.names[new + path[len(old) :]] = self.names.pop(path)
        for path in [path for path in self.folders if path == old or path.startswith(f"{old}/")]:
            self.folders.discard(path)
            self.folders.add(new + path[len(old) :])

    def left(self, names: str) -> tuple[dict[str, bytes], set[str]]:
        """Return the files and folders that a power cut leaves now."""
        kept, folders = self._safe if names == "synced" else (self.names, self.folders)
        return {path: self.files[inode].synced for path, inode in kept.items()}, folders


def read(log: Path) -> Iterator[Entry]:
    """Yield the entries of a log."""
    data, at = log.read_bytes(), 0
    while at < len(data):
        op, first, second, length, inode, offset = HEAD.unpack_from(data, at)
        at += HEAD.size
        parts = []
        for size in (first, second, length):
            parts.append(data[at : at + size])
            at += size
        yield Entry(chr(op), os.fsdecode(parts[0]), os.fsdecode(parts[1]), inode, offset, parts[2])


class Recorder:
    """A home whose commands are recorded, and which can be brought to any point of the record."""

    def __init__(self, root: Path) -> None:
        self.home = Home(root / "home")
        self.home.root.mkdir()
        self.outside = self.home.root / "outside"
        self.outside.mkdir()
        self.log = root / "log"
        self.log.touch()
        (self.outside / "said").touch()
        self._said = (self.outside / "said").stat().st_ino
        """The file of the commands' output, which is named here and not by a recorded process."""
        self._library = root / "written.so"
        built = ["cc", "-shared", "-fPIC", "-O1", "-D_FORTIFY_SOURCE=0", "-o", str(self._library), str(SOURCE), "-ldl"]
        subprocess.run(built, check=True)

    def record(self, *commands: Sequence[str]) -> None:
        """Run commands one after the other, each to its end; their output is told to the world outside."""
        plain = dict(self.home.env)
        self.home.env |= {
            "LD_PRELOAD": str(self._library),
            "WRITTEN_BELOW": str(self.home.root),
            "WRITTEN_LOG": str(self.log),
            "PYTHONUNBUFFERED": "1",
        }
        for command in commands:
            with open(self.outside / "said", "a") as said, self.home.start(*command, stdout=said, stderr=said) as done:
                done.wait(120)
        self.home.env = plain
        self.home.end()

    def points(self, names: str) -> Iterator[tuple[int, dict[str, bytes], set[str], dict[str, bytes]]]:
        """Yield each point at which a power cut leaves something else than at the one before: its number, the files
        and folders left, and what the world outside knows.
        """
        disk, before = Disk(), None
        world = str(self.outside)
        disk.names[f"{world}/said"], disk.files[self._said] = self._said, File()
        for number, entry in enumerate(read(self.log)):
            disk.apply(entry)
            files, folders = disk.left(names)
            told = {
                path: bytes(disk.files[inode].content) for path, inode in disk.names.items() if path.startswith(world)
            }
            now = ({path: data for path, data in files.items() if not path.startswith(world)}, set(folders), told)
            if now != before:
                yield number, *now
                before = now

    def restore(self, files: dict[str, bytes], folders: set[str], told: dict[str, bytes]) -> None:
        """Bring the disk to what a power cut has left."""
        for folder in (self.home.state, self.home.leases):
            shutil.rmtree(folder, ignore_errors=True)
        for path in sorted(folders):
            Path(path).mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in self.outside.iterdir():
            path.unlink()
        for path, data in {**files, **told}.items():
            if not Path(path).parent.is_dir():
                continue
            if data.startswith(TO):
                Path(path).symlink_to(os.fsdecode(data.removeprefix(TO)))
                continue
            Path(path).write_bytes(data)
            Path(path).chmod(0o600)


@dataclass(slots=True)
class Verdict:
    """The result of all points that were tried."""

    points: int = 0
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.lost or self.twice or self.unreadable)

    def line(self) -> str:
        """Return the closing line."""
        return (
            f"{self.points} points tried: {len(self.lost)} lost, {len(self.twice)} run twice, "
            f"{len(self.unreadable)} unreadable"
        )


Judge = Callable[[Recorder, list[int], int, dict[str, bytes], Verdict], None]


def prepare(recorder: Recorder, codes: list[int]) -> None:
    """Write a list whose tasks tell the world when they begin, and end with these exit codes."""
    told = recorder.outside / "told"
    recorder.home.commands(*(f"sh -c 'echo begin {task} >>{told}; exit {code}'" for task, code in enumerate(codes)))


def judge(recorder: Recorder, codes: list[int], point: int, told: dict[str, bytes], verdict: Verdict) -> None:
    """Resume the run as the power cut has left it, and note what is wrong with it afterwards."""
    home = recorder.home
    said = told.get(str(recorder.outside / "said"), b"").decode(errors="replace")
    is_accepted = "run 1 " in said
    ended = [task for task in range(len(codes)) if any(_tells_end(line, task) for line in said.splitlines())]
    begun = told.get(str(recorder.outside / "told"), b"").decode()
    verdict.points += 1
    try:
        done = home.call("resume", "r1")
        runs = home.call("runs")
        if done.returncode not in (0, 1) and is_accepted:
            verdict.lost.append(f"point {point}: accepted, but resume says {done.stderr.strip()[-300:]}")
            return
        if not is_accepted and (done.returncode == 2 or "1" not in runs.stdout):
            return
        found = [(task["state"], task["exit_code"]) for task in home.tasks("1")]
    except AssertionError as exc:
        verdict.unreadable.append(f"point {point}: {str(exc)[-600:]}")
        return
    wanted = [("failed" if code else "succeeded", code) for code in codes]
    if found != wanted:
        verdict.lost.append(f"point {point}: {found}")
    after = (recorder.outside / "told").read_text().removeprefix(begun)
    verdict.twice += [
        f"point {point}: task {task} ended before the cut" for task in ended if f"begin {task}\n" in after
    ]


RUN = ["run", "jobs.csv", "--devices", "host", "--slots", "2", "--keep-going", "--plain"]
"""The command whose run is cut."""


def queue_commands(recorder: Recorder, codes: list[int]) -> list[list[str]]:
    """Return commands that submit the same tasks to a queue, each after the one before, and wait for them."""
    told, found = recorder.outside / "told", list[list[str]]()
    for task, code in enumerate(codes):
        after = ["--after", f"ended:t{task - 1}"] if task else []
        line = f"echo begin {task} >>{told}; exit {code}"
        found += [["submit", "--name", f"t{task}", "--gpus", "0", *after, "--", "sh", "-c", line]]
        found += [["wait", f"t{task}"]] if task != 1 else []  # the next one is submitted while this one waits or runs
    return found


def _listed(home: Home) -> list[dict[str, Any]]:
    """Return all tasks of all runs."""
    runs = json.loads(home.call("list", "--json", code=0).stdout)["runs"]
    return [task for run in runs for task in run["tasks"]]


def judge_queue(recorder: Recorder, codes: list[int], point: int, told: dict[str, bytes], verdict: Verdict) -> None:
    """Submit one task more to the queue as the power cut has left it, which continues it, and note what is wrong."""
    home = recorder.home
    said = told.get(str(recorder.outside / "said"), b"").decode(errors="replace").splitlines()
    accepted = [task for task in range(len(codes)) if str(task) in said]
    ended = [task for task in range(len(codes)) if any(f"task {task} {how}" in line for line in said for how in ENDS)]
    begun = told.get(str(recorder.outside / "told"), b"").decode()
    verdict.points += 1
    try:
        home.call("submit", "--name", "more", "--gpus", "0", "--", "true", code=0)
        for _ in range(2):  # what was sent and not accepted yet may be accepted now
            home.call("wait", *(str(task["id"]) for task in _listed(home)))
        listed = _listed(home)
    except (AssertionError, subprocess.TimeoutExpired) as exc:
        verdict.unreadable.append(f"point {point}: {str(exc)[-600:]}")
        return
    for task, code in enumerate(codes):
        found = [(one["id"], one["exit_code"]) for one in listed if one["name"] == f"t{task}"]
        fine = (
            [[(task, code)]] if task in accepted else [[(task, code)], [(task, None)], []]
        )  # None: of a run of its own
        if found not in fine:
            verdict.lost.append(f"point {point}: t{task} is {found}; accepted: {task in accepted}")
    path = recorder.outside / "told"
    after = path.read_text().removeprefix(begun) if path.exists() else ""
    verdict.twice += [f"point {point}: t{task} ended before the cut" for task in ended if f"begin {task}\n" in after]


def try_points(
    recorder: Recorder, codes: list[int], names: str, chosen: Collection[int], verdict: Verdict, judge: Judge = judge
) -> None:
    """Continue from what a power cut leaves at the chosen ones of all points."""
    for place, (point, files, folders, told) in enumerate(recorder.points(names)):
        if place in chosen:
            recorder.restore(files, folders, told)
            judge(recorder, codes, point, told, verdict)
            recorder.home.end()


def _tells_end(line: str, task: int) -> bool:
    """Tell whether a line of the run says that a task has ended."""
    words = line.split()
    return len(words) > 2 and words[1] in ("done", "FAILED") and words[2] == str(task)
