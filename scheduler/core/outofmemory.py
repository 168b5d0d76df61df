"""The words by which a task says that memory ran out."""

from __future__ import annotations

import re

TAIL = 64 * 1024
"""So much of the end of its output is enough."""
_SAID = re.compile(
    r"^(?:[\w.]+\.)?_?(?:Array)?MemoryError\b"
    r"|\bstd::bad_alloc\b"
    r"|\bCannot allocate memory\b"
    r"|\bOSError: \[Errno 12\]"
    r"|DataLoader worker \(pid.*\) is killed by signal: Killed",
    re.MULTILINE,
)
_HEALTHY = "not a failure"
"""What an allocator says that only tried."""


def said_so(output: str) -> bool:
    """Whether a failed task's last words are those of one that ran out of host memory."""
    lines = (line for line in output.splitlines() if _HEALTHY not in line)
    return bool(_SAID.search("\n".join(lines)))


def killed_for_memory(signal: int | None, code: int | None, kernel_kills: int) -> bool:
    """Whether the kernel took it: it was killed by nobody of ours, while the kernel killed for memory."""
    return kernel_kills > 0 and (signal == 9 or code in (137, 247))
