"""A power limit on the GPUs of a run, which root sets with nvidia-smi before the run and restores after it.

A file in the lease directory, the note, holds the earlier limit of a GPU. Each run that wants the cap holds a shared
lock on the note; if the run is killed, the kernel releases the lock. A process that gets an exclusive lock restores the
limit and removes the note. The last run with the cap does this when it ends. If that run was killed, the next run does
it when it starts, or `doctor --clean` does it.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from scheduler.errors import DeviceError
from scheduler.runtime.processes import answer

_SMI = "nvidia-smi"
_PREFIX = "power."
_SAME = 0.5
"""The most watts by which two limits may differ and still count as equal."""


class PowerCaps:
    """The power limits that a run has set, by the UUIDs of whole GPUs."""

    def __init__(self, folder: Path, watts: float, environ: Mapping[str, str]) -> None:
        self._folder, self._watts, self._environ = folder, watts, environ
        self._held: list[int] = []

    def check(self, gpus: Iterable[tuple[str, str]]) -> None:
        """Raise DeviceError if the cap cannot be set on these GPUs, given as pairs of name and UUID."""
        if os.geteuid() != 0:
            raise DeviceError(
                "only root may set the power limit of GPUs: leave --power-cap out, or ask an administrator"
            )
        for label, uuid in gpus:
            _, least, most = _limits(uuid, self._environ)
            if not least - _SAME <= self._watts <= most + _SAME:
                raise DeviceError(f"{label} can be limited to {least:g} W to {most:g} W, not to {self._watts:g} W")

    def set(self, gpus: Iterable[tuple[str, str]]) -> None:
        """Set the cap on these GPUs, given as pairs of name and UUID. Raise DeviceError if that fails; then nothing is
        changed.
        """
        try:
            for label, uuid in gpus:
                self._set(label, uuid)
        except BaseException:
            self.restore()
            raise

    def restore(self) -> list[str]:
        """Give up the cap, and restore the earlier limits of GPUs whose cap no other run wants. Return a sentence about
        each failure.
        """
        held, self._held = self._held, []
        return [said for fd in held for said in _give_up(fd, self._environ)]

    def _set(self, label: str, uuid: str) -> None:
        fd = _open(self._folder / f"{_PREFIX}{hashlib.sha256(uuid.encode()).hexdigest()[:13]}")
        self._held.append(fd)
        now = _limits(uuid, self._environ)[0]
        if _read(fd) is None:
            _write(fd, f"{now:g} {uuid}\n")
        elif abs(now - self._watts) > _SAME:
            raise DeviceError(f"{label} is limited to {now:g} W by another run: use the same cap, or wait for it")
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DeviceError(f"another run restores the power limit of {label} at this moment: start again") from None
        _limit(uuid, self._watts, self._environ)


def restore_left(folder: Path, environ: Mapping[str, str]) -> list[str]:
    """Restore the limits of GPUs whose cap killed runs left behind; return a sentence about each."""
    said = []
    for path in sorted(folder.glob(f"{_PREFIX}*")):
        try:
            fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            continue  # of another user, or just removed
        if not _is_own(fd):
            os.close(fd)
            continue
        said += _give_up(
            fd, environ, "restored the power limit of {uuid} to {watts:g} W, which a killed run had lowered"
        )
    return said


def _open(path: Path) -> int:
    """Open a note, and lock it exclusively unless another run holds a lock on it at this moment; return its
    descriptor.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as exc:
        raise DeviceError(f"{path} cannot be made: {exc.strerror}") from exc
    if not _is_own(fd):
        os.close(fd)
        raise DeviceError(f"{path} belongs to another user: remove it")
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return fd


def _is_own(fd: int) -> bool:
    """Tell whether a note belongs to this user; any user may write into the lease directory."""
    return os.fstat(fd).st_uid == os.geteuid()


def _give_up(fd: int, environ: Mapping[str, str], sentence: str = "") -> list[str]:
    """Restore the limit in a note and remove the note, unless another run holds the note; return sentences for the
    user.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        note = _read(fd)
        if note is not None and os.fstat(fd).st_nlink:
            watts, uuid = note
            _limit(uuid, watts, environ)
            os.unlink(os.readlink(f"/proc/self/fd/{fd}"))
            return [sentence.format(uuid=uuid, watts=watts)] if sentence else []
    except BlockingIOError:
        return []
    except (DeviceError, OSError) as exc:
        return [f"the earlier power limit could not be restored: {exc}"]
    finally:
        os.close(fd)
    return []


def _read(fd: int) -> tuple[float, str] | None:
    """Return the earlier limit and the UUID from a note; None if the note is empty or damaged."""
    match = re.fullmatch(r"([0-9.]+) (GPU-[0-9a-fA-F-]+)\n", os.pread(fd, 256, 0).decode("ascii", "replace"))
    return (float(match[1]), match[2]) if match else None


def _write(fd: int, text: str) -> None:
    os.ftruncate(fd, 0)
    os.pwrite(fd, text.encode("ascii"), 0)
    os.fsync(fd)


def _limits(uuid: str, environ: Mapping[str, str]) -> tuple[float, float, float]:
    """Return, in watts, the current limit of a GPU, and the lowest and the highest limit that can be set."""
    query = "--query-gpu=power.limit,power.min_limit,power.max_limit"
    said = _run(uuid, [query, "--format=csv,noheader,nounits"], environ)
    try:
        now, least, most = (float(word) for word in said.split(","))
    except ValueError:
        raise DeviceError(f"{_SMI} does not report the power limits of {uuid}: {said[:200]!r}") from None
    return now, least, most


def _limit(uuid: str, watts: float, environ: Mapping[str, str]) -> None:
    said = _run(uuid, ["-pl", f"{watts:g}"], environ)
    if abs(_limits(uuid, environ)[0] - watts) > _SAME:
        raise DeviceError(f"the power limit of {uuid} could not be set to {watts:g} W: {said[:200]}")


def _run(uuid: str, arguments: Sequence[str], environ: Mapping[str, str]) -> str:
    program = shutil.which(_SMI, path=environ.get("PATH"))
    if not program:
        raise DeviceError(f"{_SMI} is not on PATH, and power limits are set with it")
    try:
        return answer([program, "-i", uuid, *arguments], "", 30.0, environ)[1].strip()
    except subprocess.TimeoutExpired as exc:
        raise DeviceError(f"{_SMI} did not answer within 30 s") from exc
    except OSError as exc:
        raise DeviceError(f"{program} cannot be started: {exc.strerror}") from exc
