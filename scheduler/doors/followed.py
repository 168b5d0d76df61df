"""A file that is followed: lines appended to it are commands, also while nobody looked and after it was rotated."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from hashlib import blake2b

from scheduler.core.fields import Form
from scheduler.core.ports import Happening
from scheduler.doors.lines import Cutter, Lines, Row
from scheduler.errors import InputError
from scheduler.units import count
from scheduler.values import dataclass

BLOCK = 1 << 18
TAIL = 64
"""So many bytes before the place where reading goes on have to be what they were."""


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a file was taken: which file, up to which byte and line, and what stood there."""

    inode: int = 0
    offset: int = 0
    lines: int = 0
    digest: str = ""
    multiline: bool = False

    def pack(self) -> str:
        """As text for a journal."""
        return json.dumps(asdict(self))

    @classmethod
    def unpack(cls, text: str) -> Mark:
        """What `pack` wrote."""
        return cls(**json.loads(text))


class Followed:
    """Rows for a run from a file that grows; it never ends by itself.

    A rotated file is read to its end before the new one is begun, a shortened one is begun again, and one that an
    editor wrote anew with the same beginning is read on from where it was.
    """

    def __init__(self, path: str, form: Form, mark: Mark) -> None:
        self.form = form
        self._path = os.path.abspath(path)
        self._lines = Lines(form)
        self._mark = self._next = mark
        """How far it was accepted, and how far it will be with what was told last."""
        self._hash = self._next_hash = _new_hash()
        self._cutter = Cutter()
        self._fd = -1
        self._read_to = 0
        self._tail = b""
        self._quiet = False
        """Whether nothing had been added at the last look: then a file that was moved away is over."""
        self._said = ""
        self._always = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        if os.path.isdir(self._path):
            raise InputError(path, "it is a directory: follow a file that commands are appended to")
        if os.path.exists(self._path) and not os.access(self._path, os.R_OK):
            raise InputError(path, "you may not read it: chmod it, or follow another file")

    # ---- something to wait on ----

    def fileno(self) -> int:
        """Readable while there is more to take; else growth is seen by looking."""
        return self._always if self._lines.pending or (self._fd >= 0 and not self._quiet) else -1

    def collect(self) -> Sequence[Happening]:
        """Nothing: it is read when its rows are asked for."""
        return ()

    # ---- rows ----

    @property
    def mark(self) -> str:
        """How far it was accepted."""
        return self._mark.pack()

    @property
    def more(self) -> bool:
        """It may always grow."""
        return True

    def untaken(self) -> tuple[Sequence[Row], str]:
        """Nothing: every line is a command."""
        return (), ""

    def appended(self, *, last: bool) -> tuple[Sequence[Row], str, str]:
        """The commands that came since, the mark behind them, and a sentence about what else happened to the file."""
        said = ""
        if not self._lines.pending:
            try:
                said = self._look()
            except OSError as exc:
                said = f"{self._path} cannot be read ({(exc.strerror or str(exc)).lower()}): it is waited for"
        rows = self._lines.tell()
        if line := self._lines.last_told:
            self._next_hash = self._hash.copy()
            self._next_hash.update(os.pread(self._fd, line.end - self._mark.offset, self._mark.offset))
            inode, digest = os.fstat(self._fd).st_ino, self._next_hash.hexdigest()
            self._next = Mark(inode, line.end, line.lines, digest, self._mark.multiline)
        news, self._said = (said if said != self._said else ""), said
        return rows, self._next.pack() if rows else "", news

    def accepted(self) -> None:
        """The rows told last are in the journal, and so is the mark behind them."""
        self._lines.accepted()
        self._mark, self._hash = self._next, self._next_hash

    # ---- the file ----

    def _look(self) -> str:
        """Read what was added; at its end see what became of the file."""
        said = ""
        if self._fd < 0 and (said := self._open()) and self._fd < 0:
            return said
        if self._was_cut():
            self._begin(self._fd, Mark(multiline=self._mark.multiline))
            said = f"{self._path} was cut short: it is read from its beginning again"
        grew = self._read()
        if not grew and self._quiet:
            said = self._succeed() or said
        self._quiet = not grew
        return said

    def _read(self) -> bool:
        """Whether there was more."""
        before = self._read_to
        while not self._lines.pending and (data := os.pread(self._fd, BLOCK, self._read_to)):
            self._read_to += len(data)
            self._tail = (self._tail + data)[-TAIL:]
            self._lines.pending.extend(self._cutter.feed(data))
        return self._read_to > before

    def _was_cut(self) -> bool:
        """Whether what was read is not there any more."""
        before = self._read_to - len(self._tail)
        return os.pread(self._fd, len(self._tail), before) != self._tail

    def _open(self) -> str:
        """Open it where it is, or where it was moved to since its mark was made."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return f"{self._path} is not there yet: it is waited for"
        inode, mark = os.fstat(fd).st_ino, self._mark
        moved = _with_inode(os.path.dirname(self._path), mark.inode) if mark.inode not in (0, inode) else ""
        if moved:
            os.close(fd)
            fd = os.open(moved, os.O_RDONLY | os.O_CLOEXEC)
        if self._begin(fd, mark) or not mark.offset:
            return ""
        gone = f"{self._path} is not the file any more whose first {count(mark.lines, 'line')} were taken"
        return f"{gone}, and that one is not beside it: this one is read from its beginning"

    def _begin(self, fd: int, mark: Mark) -> bool:
        """Read from the mark on, where what it stands behind is there; else from the beginning, and False."""
        if self._fd not in (-1, fd):
            os.close(self._fd)
        self._fd = fd
        digest = _new_hash()
        digest.update(os.pread(fd, mark.offset, 0))
        known = bool(mark.offset) and digest.hexdigest() == mark.digest
        if not known:
            mark, digest = Mark(multiline=mark.multiline), _new_hash()
        self._mark = self._next = mark
        self._hash = self._next_hash = digest
        self._cutter = Cutter(multiline=mark.multiline, offset=mark.offset, number=mark.lines)
        self._read_to = mark.offset
        self._tail = os.pread(fd, min(TAIL, mark.offset), max(0, mark.offset - TAIL))
        return known

    def _succeed(self) -> str:
        """Where another file has its name by now, go on with that one; this one has no more."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return ""  # between being moved away and being made anew
        if os.path.sameopenfile(fd, self._fd):
            os.close(fd)
            return ""
        self._lines.pending.extend(self._cutter.rest())
        if self._lines.pending:
            os.close(fd)
            return ""
        taken = count(self._mark.lines, "line")
        if self._begin(fd, self._mark):
            return f"{self._path} was written anew with the {taken} that were taken: it is read on behind them"
        return f"{self._path} was rotated after {taken}: the new one is read from its beginning"


def _new_hash() -> blake2b:
    return blake2b(digest_size=10)


def _with_inode(folder: str, inode: int) -> str:
    """The file of a folder that has this inode; empty where there is none."""
    with os.scandir(folder) as entries:
        return next((entry.path for entry in entries if entry.inode() == inode and entry.is_file()), "")
