"""The error tree: everything a user can be told went wrong, each with its exit code.

SchedulerError                 exit 1
├── UsageError                 exit 2   the command line or a setting makes no sense
│   ├── InputError             exit 2   a file, a row or a cell; names them
│   ├── ConfigError            exit 2   the configuration of Python tasks; a ValueError too
│   └── NeverFits              exit 2   a declared need above every device
├── StateError                 exit 1   a run, a journal or a state directory
│   ├── NoSuchRun              exit 2
│   ├── StillRunning           exit 2
│   ├── SameList               exit 2   a run of the same list is alive or unfinished
│   └── Elsewhere              exit 2   the run belongs to another machine
├── LeaseError                 exit 1   the machine-wide lease directory
├── DeviceError                exit 1   no device, or none that can be read
└── Forbidden                  exit 1   an event that the lifecycle does not allow (our own fault)
"""

from __future__ import annotations


class SchedulerError(Exception):
    """Something the user should read: one sentence with the numbers, the place and the next step."""

    exit_code = 1


def of_the_system(exc: OSError) -> str:
    """What the kernel refused, as a sentence with the file."""
    return f"{exc.filename or 'cannot go on'}: {(exc.strerror or str(exc)).lower()}"


class UsageError(SchedulerError):
    """The command line or a setting makes no sense."""

    exit_code = 2


class InputError(UsageError):
    """A file, a row or a cell that cannot be taken."""

    def __init__(self, path: str, message: str, row: int | None = None, column: str | None = None) -> None:
        self.message, self.column = message, column
        place = path
        if row is not None:
            place += f", row {row}"
        if column is not None:
            place += f", column {column}"
        super().__init__(f"{place}: {message}")


class ConfigError(UsageError, ValueError):
    """The configuration of Python tasks, or what they are made of, that cannot be taken."""


class NeverFits(UsageError):
    """A declared need that no device here can ever hold."""


class StateError(SchedulerError):
    """A run, a journal or a state directory that cannot be used as asked."""


class NoSuchRun(StateError):
    """No run or task has that number or name here."""

    exit_code = 2


class StillRunning(StateError):
    """The run is alive, so it cannot be taken over."""

    exit_code = 2


class Elsewhere(StateError):
    """The run belongs to another machine, where its tasks may live."""

    exit_code = 2


class SameList(StateError):
    """A run of the same list is alive or unfinished."""

    exit_code = 2


class LeaseError(SchedulerError):
    """The machine-wide lease directory cannot be trusted or locked."""


class DeviceError(SchedulerError):
    """There is no device to run on, or none that can be read."""


class Forbidden(SchedulerError):
    """An event that the lifecycle does not allow; carries the task's whole story."""
