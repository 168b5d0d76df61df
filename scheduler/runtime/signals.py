"""The signals to this process as a source of requests."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

Handler = Callable[[int, FrameType | None], object] | int | None


NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP)


class SignalReader:
    """The reader of signals: INT once drains, twice stops, three times kills; TERM stops; QUIT leaves tasks to their
    shims; HUP hangs up.

    Each signal that the kernel delivers counts, however close together they are: the interpreter writes it down at
    once, while handlers in Python may see several as one. Two signals are one only if the second is sent before the
    first was delivered. Off the main thread this class does nothing, and leaves the caller's handlers unchanged.
    """

    def __init__(self) -> None:
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._old: dict[int, Handler] = {}
        self._old_wakeup = -1
        self._ints = 0
        self.last = 0
        """The signal that ends the run, for its exit code."""
        self.asked = ""
        """The last request."""
        if threading.current_thread() is threading.main_thread():
            self._old_wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            for number in NUMBERS:
                self._old[number] = signal.signal(number, _take_note)

    def fileno(self) -> int:
        """Return a descriptor that is readable when a signal came."""
        return self._read

    def collect(self) -> list[str]:
        """Return what the signals since the last call request: drain, stop, kill, leave, hangup."""
        try:
            numbers = os.read(self._read, 64)
        except BlockingIOError:
            return []
        words = [self._meaning(number) for number in numbers if number in NUMBERS]
        self.asked = words[-1] if words else self.asked
        return words

    def _meaning(self, number: int) -> str:
        if number == signal.SIGHUP:
            return "hangup"
        self.last = number
        if number == signal.SIGQUIT:
            return "leave"
        self._ints += 1 if number == signal.SIGINT or self._ints >= 2 else 2
        return {1: "drain", 2: "stop"}.get(self._ints, "kill")

    def close(self) -> None:
        """Restore the caller's handlers; the second call does nothing."""
        if self._read < 0:
            return
        if self._old:
            signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._old.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        self._old.clear()
        os.close(self._read)
        os.close(self._write)
        self._read = self._write = -1


def _take_note(_number: int, _frame: FrameType | None) -> None:
    """Do nothing. The handler exists so that the interpreter writes the signal down instead of ending the process."""
