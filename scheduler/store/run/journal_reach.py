"""The small file next to a journal that shows how far the journal was durable.

It is written after each durable transaction and never synced, so after a power failure it may be behind the journal. If
the journal is behind this file, the journal has lost its end.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path
from zlib import crc32

from scheduler.runtime.paths import open_plain
from scheduler.values import dataclass

_FORMAT = struct.Struct("<qqqI")
"""The binary format of a Reach: its three numbers and their checksum."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The number of the newest event, the id of the last task, and the number of rows; the default values mean an empty
    journal.
    """

    newest: int = 0
    last: int = -1
    rows: int = 0


class ReachFile:
    """The file, opened by the only writer of the journal."""

    def __init__(self, journal: Path) -> None:
        self._fd = os.open(_beside(journal), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

    def write(self, reach: Reach) -> None:
        """Replace the content of the file in one block; ignore a failure, because the next call writes it again."""
        with contextlib.suppress(OSError):
            os.pwrite(self._fd, _packed(reach.newest, reach.last, reach.rows), 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)


def read_reach(journal: Path) -> Reach:
    """Return how far a journal was certainly durable; an empty Reach if the file is missing or damaged."""
    try:
        with open_plain(_beside(journal)) as file:
            content = file.read(_FORMAT.size)
    except OSError:
        return Reach()
    if len(content) < _FORMAT.size:
        return Reach()
    *numbers, _ = _FORMAT.unpack(content)
    return Reach(*numbers) if content == _packed(*numbers) else Reach()


def _packed(*numbers: int) -> bytes:
    return _FORMAT.pack(*numbers, crc32(repr(numbers).encode()))


def _beside(journal: Path) -> Path:
    return journal.with_name("journal.reach")
