"""The fence of a node: its attempts of a run end there once its head has not been heard for some time.

The agent writes until when they may live, and their shims read it: so it holds while the agent is dead, and for a
machine that was frozen. It counts from what the head echoed of the node's own clock, so no message that lay in a buffer
makes it later.
"""

from __future__ import annotations

import os

MARGIN = 5.0
"""Seconds after the fence and the grace of an attempt within which its tree is gone, also on a busy machine."""
_BYTES = 32


class NodeFence:
    """The file that says until when the attempts of a run may live on this node."""

    def __init__(self, path: str, seconds: float) -> None:
        """Open the file, with its blocks, so that a full disk ends no task. Raise OSError."""
        self.path, self._seconds = path, seconds
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.fstat(self._fd).st_size < _BYTES:
            os.pwrite(self._fd, b" " * _BYTES, 0)

    def extend(self, clock: float) -> None:
        """Let the attempts live for the fence's time after this time since boot; 0 is no time."""
        if clock:
            os.pwrite(self._fd, f"{clock + self._seconds:.3f}".ljust(_BYTES).encode(), 0)

    def close(self) -> None:
        """Close the file; what it says holds on."""
        os.close(self._fd)
