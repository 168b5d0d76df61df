"""Run by a shim before it signals its task: has MPS end the work of that task's processes, so that nobody else suffers.

`python -I -S -c START CODE PROGRAM DIRECTORY`: signalling a process in the midst of its work under MPS may hang or
break the server, and with it everybody on that GPU.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time

from scheduler.devices.mps_control import Control, Silent
from scheduler.processes import isolated_python, tree

START = "import sys; sys.path.insert(0, sys.argv[1]); from scheduler.devices.mps_ending import main; main(sys.argv[2:])"
PATIENCE = 15.0
"""Seconds for all of it; less than a shim waits."""


def command(code: str, program: str, directory: str) -> tuple[str, ...]:
    """What a shim is to run; `code` is where the run's copies lie."""
    return (*isolated_python(), "-c", START, code, program, directory)


def main(argv: list[str]) -> None:
    """Terminate every client among the descendants of the shim."""
    program, directory = argv
    end = time.monotonic() + PATIENCE
    control = Control(program, directory)
    with contextlib.suppress(Silent):  # without a daemon nothing is in the way of signals
        for server in control.servers():
            mine = set(tree(os.getppid())) - {os.getpid()}
            for client in sorted(mine.intersection(control.clients(server))):
                control.terminate(server, client, max(0.1, end - time.monotonic()))


if __name__ == "__main__":
    main(sys.argv[1:])
