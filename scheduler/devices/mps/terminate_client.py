"""The program that a shim runs before it signals its task: it makes MPS end the GPU work of the task's processes.

`python -I -S -c START CODE PROGRAM DIRECTORY`. A signal to a process in the middle of its work under MPS may hang or
break the server, and with it every client on that GPU.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from scheduler.devices.mps.control import DaemonSilent, MpsControl
from scheduler.runtime.processes import isolated_python, tree

START = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from scheduler.devices.mps.terminate_client import main; main(sys.argv[2:])"
)
PATIENCE = 15.0
"""Seconds that the whole program may take; fewer than a shim waits for it."""


def command(code: str, program: str, directory: str) -> tuple[str, ...]:
    """Return the command that a shim runs; `code` is the directory of the run's copies."""
    return (*isolated_python(), "-c", START, code, program, directory)


def main(argv: list[str]) -> None:
    """Terminate every MPS client among the descendants of the shim."""
    program, directory = argv
    end = time.monotonic() + PATIENCE
    control = MpsControl(program, directory)
    with contextlib.suppress(DaemonSilent):  # without a daemon nothing is in the way of signals
        for server in control.servers():
            mine = set(tree(os.getppid())) - {os.getpid()}
            for client in sorted(mine.intersection(control.clients(server))):
                control.terminate(server, client, max(0.1, end - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1:])
