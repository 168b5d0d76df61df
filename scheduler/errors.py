"""The tree of errors that reach a user, each with its exit code.

SchedulerError                 exit 1
├── UsageError                 exit 2   the command line or a setting makes no sense
│   ├── InputError             exit 2   a file, a row or a cell; names them
│   └── ConfigError            exit 2   the configuration of Python tasks; a ValueError too
├── StateError                 exit 1   a run, a journal or a state directory
│   ├── Newer                  exit 1   the run was written by a newer version
│   ├── NoSuchRun              exit 2
│   ├── StillRunning           exit 2
│   ├── SameList               exit 2   a run of the same list is alive or unfinished
│   └── Elsewhere              exit 2   the run belongs to another machine
├── LeaseError                 exit 1   the machine-wide lease directory
├── NoLease                    exit 75  a lease that was not granted
│   └── LeaseTimeout           exit 75  not within its time; a TimeoutError too
├── DeviceError                exit 1   no device, or none that can be read
├── MissingPackage             exit 1   a Python package that is needed is not installed
└── ForbiddenEvent             exit 1   an event that the lifecycle does not allow: a defect of this program
"""

from __future__ import annotations

import errno

FULL = (errno.ENOSPC, errno.EDQUOT)
"""The errors of a full disk, and of a user whose disk quota is used up."""


class SchedulerError(Exception):
    """An error for the user: one sentence with the numbers, the place and the next step."""

    exit_code = 1


def describe_os_error(exc: OSError) -> str:
    """Return a sentence about an error of the operating system, with the file that it names."""
    file = exc.filename if isinstance(exc.filename, str) else ""  # not the number of a descriptor
    if exc.errno in FULL:
        where = f"for {file}" if file else "(scheduler doctor names the disks)"
        return f"the disk is full, or a quota is used up: free some space {where}, then try again"
    return f"{file or 'cannot go on'}: {(exc.strerror or str(exc)).lower()}"


class UsageError(SchedulerError):
    """A command line or a setting that makes no sense."""

    exit_code = 2


class InputError(UsageError):
    """A file, a row or a cell that cannot be accepted."""

    def __init__(self, path: str, message: str, row: int | None = None, column: str | None = None) -> None:
        self.message, self.row, self.column = message, row, column
        place = [path, "" if row is None else f"row {row}", "" if column is None else f"column {column}"]
        super().__init__(f"{', '.join(filter(None, place))}: {message}")


class ConfigError(UsageError, ValueError):
    """A configuration or a value of Python tasks that cannot be accepted."""


class StateError(SchedulerError):
    """A run, a journal or a state directory that cannot be used as asked."""


class NoSuchRun(StateError):
    """A number or a name that no run or task has here."""

    exit_code = 2


class Newer(StateError):
    """A run that a newer version of this program wrote."""


class StillRunning(StateError):
    """A run whose scheduler is alive, so that it cannot be taken over."""

    exit_code = 2


class Elsewhere(StateError):
    """A run of another machine, where its tasks may live."""

    exit_code = 2


class SameList(StateError):
    """An earlier run of the same list, which is alive or unfinished."""

    exit_code = 2


class LeaseError(SchedulerError):
    """A machine-wide lease directory that cannot be trusted or locked."""


class NoLease(SchedulerError):
    """A lease that this process did not get: it would have had to wait, or it was refused or cancelled."""

    exit_code = 75


class LeaseTimeout(NoLease, TimeoutError):
    """A lease that was not granted in time."""


class DeviceError(SchedulerError):
    """A lack of devices: there is none to run on, or none that can be read."""


class MissingPackage(SchedulerError, ImportError):
    """A required Python package that is not installed; the message has the command that installs it."""


class ForbiddenEvent(SchedulerError):
    """An event that the lifecycle does not allow; it carries the task's whole history."""
