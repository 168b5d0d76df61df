"""The fence of a node: it ends the attempts of a run there when the run's head has been silent for some time.

The agent writes the time until which they may live to a file, and their shims read it. So the fence works even if the
agent has died, or the machine was suspended. The time counts from the last value of the node's own clock that the head
has sent back, so a message that was delayed in a buffer does not extend it.
"""

from __future__ import annotations

import os

MARGIN = 5.0
"""Seconds within which the processes of an attempt are gone even on a busy machine, counted from the end of the fence's
time and the attempt's grace period."""
_BYTES = 32


class NodeFence:
    """The file with the time until which the attempts of a run may live on this node."""

    def __init__(self, path: str, seconds: float) -> None:
        """Open the file and allocate its blocks now, so that a disk that is full later ends no task. Raise OSError if
        the file cannot be written.
        """
        self.path, self._seconds = path, seconds
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.fstat(self._fd).st_size < _BYTES:
            os.pwrite(self._fd, b" " * _BYTES, 0)

    def extend(self, clock: float) -> None:
        """Let the attempts live until the fence's time has passed since `clock`, in seconds since boot; 0: change
        nothing.
        """
        if clock:
            os.pwrite(self._fd, f"{clock + self._seconds:.3f}".ljust(_BYTES).encode(), 0)

    def close(self) -> None:
        """Close the file; its content stays valid."""
        os.close(self._fd)
