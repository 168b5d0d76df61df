"""A command in the foreground: it has the terminal, and the process that waits for it passes signals on."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence

from scheduler.runtime import processes

SHARED = (signal.SIGINT, signal.SIGQUIT)
"""Signals from the terminal, which reach the command without being passed on."""
PASSED_ON = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
LEFT = (signal.SIGTERM, signal.SIGHUP, signal.SIGCONT)
"""The signals that a command gets once its lease is lost: an interactive shell ignores SIGTERM, but ends on SIGHUP."""


class ForegroundCommand:
    """A command and the wait for its end. Create it in the main thread."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], lost: int, grace: float) -> None:
        """Start the command. Once the descriptor `lost` is readable, the command is stopped, and killed after `grace`
        seconds.

        Raise OSError if the command cannot be started.
        """
        self._lost, self._grace = lost, grace
        self._kill_at: float | None = None
        self._asked: list[int] = []
        self._old = {number: signal.signal(number, self._note) for number in (*SHARED, *PASSED_ON)}
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            self._child = processes.start_in_front(argv, env)
        except OSError:
            self._restore()
            raise

    def _note(self, number: int, _frame: object) -> None:
        if number in PASSED_ON:
            self._asked.append(number)

    def _restore(self) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        os.close(self._read)
        os.close(self._write)

    def wait(self) -> int:
        """Return the exit code of the command as a shell does, once it has ended."""
        poll, pidfd = select.poll(), os.pidfd_open(self._child.pid)
        for fd in (pidfd, self._read, self._lost):
            poll.register(fd, select.POLLIN)
        while self._child.poll() is None:
            ready = {fd for fd, _ in poll.poll(self._left())}
            if self._read in ready:
                os.read(self._read, 64)
            if self._lost in ready:
                poll.unregister(self._lost)
                self._lose()
            self._act()
        os.close(pidfd)
        self._restore()
        code = self._child.returncode
        return code if code >= 0 else 128 - code

    def _left(self) -> float | None:
        """Return the milliseconds until the command is killed; None if it is not going to be killed."""
        return None if self._kill_at is None else max(0.0, self._kill_at - time.monotonic()) * 1000

    def _lose(self) -> None:
        self._asked += LEFT
        self._kill_at = time.monotonic() + self._grace

    def _act(self) -> None:
        while self._asked:
            self._child.send_signal(self._asked.pop(0))
        if self._kill_at is not None and time.monotonic() >= self._kill_at:
            self._child.kill()
            self._kill_at = None
