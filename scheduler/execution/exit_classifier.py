"""The classification of an attempt's end, from its exit record and the last lines of its output."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from scheduler.core.attempts import early_abort, mps_policy
from scheduler.core.events import Exited
from scheduler.core.model import HOST, Outcome
from scheduler.core.ports import Key
from scheduler.core.profiling import oom_patterns
from scheduler.runtime.paths import open_plain
from scheduler.runtime.shim import Record

_OUTCOMES = {
    "exited": Outcome.SUCCEEDED,
    "signalled": Outcome.FAILED,
    "spawn": Outcome.FAILED,
    "timeout": Outcome.TIMEOUT,
    "stopped": Outcome.INTERRUPTED,
}
_SAMPLE, _MOSTLY = 1000, 0.6
"""The number of bytes of an output that are searched for zeros, and the share of zeros that means UTF-16."""
_LAST_WORDS = (signal.SIGABRT, signal.SIGBUS)
"""Signals that end a program for lack of memory: after std::bad_alloc, and if /dev/shm is full."""


def exited(key: Key, record: Record, log: str, stderr: str, directory: str) -> Exited:
    """Return the end of an attempt as an event of the core.

    `log` is the file of its output, `stderr` that of its standard error if it is separate, `directory` its working
    directory if known.
    """
    if record.hindrance:
        away = directory if record.hindrance == "directory" else ""
        return Exited(*key, Outcome.UNSTARTED, reason=record.error, seconds=record.seconds, away=away)
    outcome, reason, ran = _outcome(record, log, stderr)
    part = ran.part if ran else ""
    if outcome is Outcome.FAILED and oom_patterns.may_be_gpu_memory(
        _last_output(log, stderr), signalled=record.signal is not None
    ):
        part = oom_patterns.GPU
    return Exited(
        *key,
        outcome,
        code=record.code,
        signal=record.signal,
        reason=reason,
        peak={HOST: record.max_rss},
        seconds=record.seconds,
        cpu_seconds=record.cpu_seconds,
        leftovers=record.leftovers,
        part=part,
        asked=ran.asked if ran else 0,
        position=ran.position if ran else None,
        last=early_abort.last_line(_last_output(log, stderr)) if outcome is Outcome.FAILED else "",
        mps=mps_policy.what_failed(_last_output(log, stderr)) if outcome is Outcome.FAILED else "",
    )


def _outcome(record: Record, log: str, stderr: str) -> tuple[Outcome, str, oom_patterns.OomMatch | None]:
    """Return the outcome, the reason if there is one, and which memory ran out."""
    plain = _OUTCOMES.get(record.outcome, Outcome.FAILED)
    if record.outcome not in ("exited", "signalled") or record.code == 0:
        return plain, record.error, None
    output = _last_output(log, stderr)
    if oom_patterns.killed_for_memory(record.signal, record.code, record.oom_kills, output):
        return Outcome.OOM, "killed by the kernel for memory", oom_patterns.OomMatch(oom_patterns.HOST)
    spoke = record.code is not None or record.signal in _LAST_WORDS
    ran = oom_patterns.what_ran_out(output) if spoke else None
    if ran is None:
        return Outcome.FAILED, record.error, None
    end = f"signal {record.signal}" if record.code is None else f"exit {record.code}"
    memory = "GPU memory" if ran.part == oom_patterns.GPU else "host memory"
    return Outcome.OOM, f"{end}, out of {memory} by its own words", ran


def _last_output(log: str, stderr: str) -> str:
    return _tail(log) + (_tail(stderr) if stderr else "")


def _tail(path: str) -> str:
    try:
        with open_plain(Path(path)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - oom_patterns.TAIL))
            return decode(file.read())
    except OSError:
        return ""


def decode(text: bytes) -> str:
    """Return an output as text: as UTF-16 if every second byte of its beginning is zero, else as UTF-8.

    If the output is cut, the byte order mark may be missing, and the first character may begin with either byte.
    """
    beginning = text[:_SAMPLE]
    for order, zeros in (("utf-16-le", beginning[1::2]), ("utf-16-be", beginning[0::2])):
        if len(beginning) > 1 and zeros.count(0) > _MOSTLY * len(zeros):
            return text.decode(order, "replace")
    return text.decode("utf-8", "replace")
