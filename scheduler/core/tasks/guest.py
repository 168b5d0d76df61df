"""The guest of a task: a process for which the task holds devices, though no shim started it (`scheduler lease`)."""

from __future__ import annotations

from scheduler.patterns import lazy_pattern
from scheduler.values import dataclass

_TEXT = lazy_pattern(r"([1-9]\d{0,9}):(\d+\.\d+):([0-9a-f-]{1,64})\Z")


@dataclass(frozen=True, slots=True)
class Guest:
    """A guest, identified so that no other process with the same pid can be mistaken for it."""

    pid: int
    identity: str
    """The pid namespace and the start time of the process, as `store/machine/lease_records` writes them."""
    boot: str
    """The boot id of the machine when the process started."""

    @classmethod
    def read(cls, text: str) -> Guest:
        """Return the guest that a text from `str` describes; raise ValueError for any other text."""
        match = _TEXT.match(text)
        if match is None:
            raise ValueError(f"{text!r} is not PID:NAMESPACE.START:BOOT, which scheduler lease writes")
        return cls(int(match[1]), match[2], match[3])

    def __str__(self) -> str:
        """Return the guest as the text of a task's field, which `read` accepts."""
        return f"{self.pid}:{self.identity}:{self.boot}"


def pid_of(text: str) -> int:
    """Return the pid of a task's guest; 0 if the task has none."""
    return Guest.read(text).pid if text else 0
