"""The reader of one attempt's metrics, from its output and its result file; each call reads a bounded part.

This module uses the standard library only, because the host's sampler child runs a copy of this module in the run's
directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
from functools import cached_property

from scheduler.core.metrics.readings import LineReader, count, reported
from scheduler.core.metrics.record import LARGEST, MetricRecord

PART = 32 << 10
"""The bytes of a file that are read at one look, in about 10 ms."""
FAR = 1 << 20
"""If more bytes than this have not been read yet, only the end of the file is read."""
LARGEST_RESULT = 64 << 10
"""The most bytes of a result file that is read as one object."""
PROGRESS_TAIL = 256
MOST_PARTS = FAR // PART


class MetricReader:
    """The metrics and the epochs of one attempt, from the parts of its files that were read so far."""

    def __init__(
        self,
        log: str,
        progress: str = "",
        result: str = "",
        kept: str = "",
        names: str = "",
        watched: str = "",
        *,
        writes: bool = True,
    ) -> None:
        """Prepare to read; parts of the files that the record in the file `kept` already covers are not read again. A
        view passes `writes=False`, and writes nothing to that file.

        `watched` has the names of the metrics whose values are reported one by one.
        """
        self._log, self._progress, self._result, self._kept = log, progress, result, kept
        self._names, self._watched = names, watched
        self.first = tuple(names.split(",")) if names else ()
        """The metrics that the user named."""
        self._writes = writes
        self._written = b""
        self.changed = False
        """True if the last look found new metrics or epochs."""
        self.record = self._load()
        if watched:
            self.record.watch(watched.split(","))

    @cached_property
    def _lines(self) -> LineReader:
        """The reader of metrics in the lines of the attempt's output, created when there is output to read."""
        return LineReader(self._names, self._watched)

    def _load(self) -> MetricRecord:
        if self._kept:
            with contextlib.suppress(OSError), open(self._kept, "rb", opener=without_waiting) as file:
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return MetricRecord.load(file.read(LARGEST)) or MetricRecord()
        return MetricRecord()

    def look(self) -> bool:
        """Read a part of the data that was written since the last look; return whether there is more to read."""
        self.changed = False
        if self.record.final:
            return False
        more = self._look_at_log()
        more |= self._look_at_result()
        if self._progress and (said := count(_tail(self._progress))) is not None:
            self.changed |= said != self.record.progress
            self.record.progress = said
        return more

    def _look_at_log(self) -> bool:
        part = self._part(self._log, self.record.log_at) if self._log else None
        if part is None:
            return False
        begin, text, more = part
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1
        if not end and len(text) < PART:
            return False  # a line that is not complete yet
        end = end or len(text)
        self.record.log_at = begin + end
        for progress, found in self._lines.lines(text[:end].decode("utf-8", "replace")):
            self.changed = True
            self.record.progress = progress or self.record.progress
            self.record.take(found)
        return more

    def _look_at_result(self) -> bool:
        """Read the result file: one JSON object that tasks rewrite, or JSON lines that they append."""
        try:
            found = os.stat(self._result, follow_symlinks=False) if self._result else None
        except OSError:
            return False
        if found is None or not stat.S_ISREG(found.st_mode):
            return False
        state = [found.st_ino, found.st_size, found.st_mtime_ns]
        if state == self.record.result_state and not self.record.result_at:
            return False
        same = self.record.result_state[:1] == state[:1] and found.st_size >= self.record.result_at
        if not (same and self.record.result_at) and found.st_size <= LARGEST_RESULT:
            text = self._whole(self._result)
            if (said := reported(text.decode("utf-8", "replace"))) is not None:
                self.record.take(said, reported=True)
                self.record.result_state, self.record.result_at, self.changed = state, 0, True
                return False
        return self._look_at_lines(state, self.record.result_at if same else 0)

    def _look_at_lines(self, state: list[int], begin: int) -> bool:
        if not begin and self.record.result_state[:1] == state[:1]:
            begin = self.record.result_state[1]  # its first line was read as an object
        part = self._part(self._result, begin)
        if part is None:
            return False
        begin, text, more = part
        end = text.rfind(b"\n") + 1 or (len(text) if len(text) >= PART else 0)
        lines = [said for line in text[:end].splitlines() if (said := reported(line.decode("utf-8", "replace")))]
        for said in lines:
            self.record.take(said, reported=True)
            self.changed = True
        if lines or state[1] > LARGEST_RESULT:  # else it may be an object that is being written
            self.record.result_state, self.record.result_at = state, begin + end
        return more and bool(end)

    @staticmethod
    def _part(path: str, begin: int) -> tuple[int, bytes, bool] | None:
        """Return the next part of a file as (position, bytes, whether more bytes follow); None if there is no
        new part.
        """
        try:
            with open(path, "rb", buffering=0, opener=without_waiting) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size == begin:
                    return None
                if begin > status.st_size or status.st_size - begin > FAR:  # it was rewritten, or it grows too fast
                    begin = max(0, status.st_size - PART)
                file.seek(begin)
                text = file.read(PART)
        except OSError:
            return None
        return begin, text, begin + len(text) < status.st_size

    @staticmethod
    def _whole(path: str) -> bytes:
        try:
            with open(path, "rb", buffering=0, opener=without_waiting) as file:
                return file.read(LARGEST_RESULT)
        except OSError:
            return b""

    def news(self) -> list[tuple[str, float, float]]:
        """Return the values of watched metrics since the last call, each with its step."""
        news, self.record.news = self.record.news, []
        return news

    def finish(self) -> None:
        """Save the record as final; call this when the attempt has ended and all its files were read."""
        self.record.final = True
        self.save()

    def read_rest(self) -> None:
        """Read the remaining data for a view; nothing is written."""
        for _ in range(MOST_PARTS):
            if not self.look():
                break

    def save(self) -> None:
        """Write the record atomically, if it has metrics and has changed; a full disk is not an error."""
        if not self._writes or not self._kept or not self.record.curves:
            return
        text = self.record.dump()
        if text == self._written:
            return
        part = f"{self._kept}.part"
        try:
            with open(part, "wb", opener=_anew) as file:
                file.write(text)
            os.rename(part, self._kept)
            self._written = text
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(part)


def without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting for the other end of a pipe, and without following a link."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)


def _anew(path: str, flags: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def _tail(path: str) -> str:
    """Return the end of a small text file; empty if it is not a regular file (it may be a pipe)."""
    try:
        with open(path, "rb", buffering=0, opener=without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return ""
            file.seek(max(0, status.st_size - PROGRESS_TAIL))
            return file.read(PROGRESS_TAIL).decode("utf-8", "replace")
    except OSError:
        return ""
