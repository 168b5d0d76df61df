"""Files that are followed: each appended line is a command, even after a restart of the run or a rotation."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from hashlib import blake2b

from scheduler.core.tasks.fields import RowForm
from scheduler.core.tasks.row_source import InputRow, RowSource
from scheduler.errors import InputError
from scheduler.inputs.lines import LineCutter, PendingLines
from scheduler.runtime.threads import BoundedCalls
from scheduler.units import count
from scheduler.values import dataclass

BLOCK = 1 << 18
TAIL = 64
"""The number of bytes before the reading position that are compared, to notice that the file was changed."""


@dataclass(frozen=True, slots=True)
class FollowMark:
    """The accepted part of a file: the file's inode, the number of bytes and lines of that part, and its digest."""

    inode: int = 0
    offset: int = 0
    lines: int = 0
    digest: str = ""
    multiline: bool = False

    def pack(self) -> str:
        """Return the mark as a string for a journal."""
        return json.dumps(
            {
                "inode": self.inode,
                "offset": self.offset,
                "lines": self.lines,
                "digest": self.digest,
                "multiline": self.multiline,
            }
        )

    @classmethod
    def unpack(cls, text: str) -> FollowMark:
        """Return the mark that `pack` wrote."""
        return cls(**json.loads(text))


class FollowedFile(RowSource):
    """A growing file as a source of rows; it never ends by itself.

    A rotated file is read to its end before the new one. A truncated file is read again from its beginning. If an
    editor rewrote a file and kept its beginning, reading continues at the mark.
    """

    def __init__(self, path: str, form: RowForm, mark: FollowMark) -> None:
        self.form = form
        self._path = os.path.abspath(path)
        self._lines = PendingLines(form)
        self._mark = self._next = mark
        """The mark after the accepted rows, and the mark after the rows that were returned last."""
        self._hash = self._next_hash = _new_hash()
        self._cutter = LineCutter()
        self._fd = -1
        self._read_to = 0
        self._tail = b""
        self._quiet = False
        """True if the last check found no new bytes. A file that was renamed is only then given up for its
        successor.
        """
        self._said = ""
        self._calls = BoundedCalls()
        """The runner of the checks of the file. While a check is late, only the runner's thread may use this object's
        state.
        """
        self._always = os.eventfd(1, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        if os.path.isdir(self._path):
            raise InputError(path, "it is a directory: follow a file to which commands are appended")
        if os.path.exists(self._path) and not os.access(self._path, os.R_OK):
            raise InputError(path, "you may not read it: chmod it, or follow another file")

    # ---- something to wait on ----

    def fileno(self) -> int:
        """Return a descriptor that is readable while commands wait to be accepted; -1 if only repeated checks find that
        the file has grown.
        """
        if self._calls.is_late(self._path):
            return -1
        return self._always if self._lines.pending or (self._fd >= 0 and not self._quiet) else -1

    # ---- rows ----

    @property
    def mark(self) -> str:
        """The packed mark of the accepted rows."""
        return self._mark.pack()

    @property
    def more(self) -> bool:
        """True: the file may always grow."""
        return True

    def appended(self, *, last: bool) -> tuple[Sequence[InputRow], str, str]:
        """Return the new commands, the mark after them, and a sentence about other changes of the file.

        While a network mount does not respond, a file on it has no new commands.
        """
        try:
            rows, mark, said = self._calls.call(self._path, self._appended)
        except TimeoutError:
            rows, mark, said = [], "", f"{self._path} does not answer: the run waits for it"
        news, self._said = (said if said != self._said else ""), said
        return rows, mark, news

    def _appended(self) -> tuple[list[InputRow], str, str]:
        said = ""
        if not self._lines.pending:
            try:
                said = self._look()
            except OSError as exc:
                said = f"{self._path} cannot be read ({(exc.strerror or str(exc)).lower()}): the run waits for it"
        rows = self._lines.next_rows()
        if line := self._lines.last_returned:
            self._next_hash = self._hash.copy()
            self._next_hash.update(os.pread(self._fd, line.end - self._mark.offset, self._mark.offset))
            inode, digest = os.fstat(self._fd).st_ino, self._next_hash.hexdigest()
            self._next = FollowMark(inode, line.end, line.lines, digest, self._mark.multiline)
        return rows, self._next.pack() if rows else "", said

    def accepted(self) -> None:
        """Continue after the rows that were returned last, because these rows and the mark after them are in the
        journal.
        """
        self._lines.accepted()
        self._mark, self._hash = self._next, self._next_hash

    # ---- the file ----

    def _look(self) -> str:
        """Read the bytes that were added; at the end of the file, check whether the file was replaced. Return a
        sentence if it was.
        """
        said = ""
        if self._fd < 0 and (said := self._open()) and self._fd < 0:
            return said
        if self._was_cut():
            self._begin(self._fd, FollowMark(multiline=self._mark.multiline))
            said = f"{self._path} was truncated: it is read again from its beginning"
        grew = self._read()
        if not grew and self._quiet:
            said = self._succeed() or said
        self._quiet = not grew
        return said

    def _read(self) -> bool:
        """Read the available bytes and cut them into commands; tell whether there were any bytes."""
        before = self._read_to
        while not self._lines.pending and (data := os.pread(self._fd, BLOCK, self._read_to)):
            self._read_to += len(data)
            self._tail = (self._tail + data)[-TAIL:]
            self._lines.pending.extend(self._cutter.feed(data))
        return self._read_to > before

    def _was_cut(self) -> bool:
        """Tell whether the file no longer contains the bytes that were read last."""
        before = self._read_to - len(self._tail)
        return os.pread(self._fd, len(self._tail), before) != self._tail

    def _open(self) -> str:
        """Open the file at the path, or the file with the mark's inode if it was renamed since. Return a sentence if
        that file is gone.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return f"{self._path} does not exist yet: the run waits for it"
        inode, mark = os.fstat(fd).st_ino, self._mark
        moved = _with_inode(os.path.dirname(self._path), mark.inode) if mark.inode not in (0, inode) else ""
        if moved:
            os.close(fd)
            fd = os.open(moved, os.O_RDONLY | os.O_CLOEXEC)
        if self._begin(fd, mark) or not mark.offset:
            return ""
        gone = f"{self._path} is no longer the file whose first {count(mark.lines, 'line')} were accepted"
        return f"{gone}, and that file is not in its directory: this one is read from its beginning"

    def _begin(self, fd: int, mark: FollowMark) -> bool:
        """Continue at the mark if the accepted part of the open file is unchanged; otherwise start at the beginning and
        return False.
        """
        if self._fd not in (-1, fd):
            os.close(self._fd)
        self._fd = fd
        digest = _new_hash()
        digest.update(os.pread(fd, mark.offset, 0))
        known = bool(mark.offset) and digest.hexdigest() == mark.digest
        if not known:
            mark, digest = FollowMark(multiline=mark.multiline), _new_hash()
        self._mark = self._next = mark
        self._hash = self._next_hash = digest
        self._cutter = LineCutter(multiline=mark.multiline, offset=mark.offset, number=mark.lines)
        self._read_to = mark.offset
        self._tail = os.pread(fd, min(TAIL, mark.offset), max(0, mark.offset - TAIL))
        return known

    def _succeed(self) -> str:
        """If another file has the path now, continue with that file, and return a sentence about this; otherwise return
        an empty string.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return ""  # the old file was moved away, and the new one does not exist yet
        if os.path.sameopenfile(fd, self._fd):
            os.close(fd)
            return ""
        self._lines.pending.extend(self._cutter.rest())
        if self._lines.pending:
            os.close(fd)
            return ""
        taken = count(self._mark.lines, "line")
        if self._begin(fd, self._mark):
            return f"{self._path} was rewritten and still begins with the accepted {taken}: reading goes on after them"
        return f"{self._path} was rotated after {taken}: the new file is read from its beginning"


def _new_hash() -> blake2b:
    return blake2b(digest_size=10)


def _with_inode(folder: str, inode: int) -> str:
    """Return the path of the file in a folder that has this inode; empty if there is none."""
    with os.scandir(folder) as entries:
        return next((entry.path for entry in entries if entry.inode() == inode and entry.is_file()), "")
