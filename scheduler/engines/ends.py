"""What the record of an attempt, and what it wrote last, say about its end."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from scheduler.core import firstrows, mps, outofmemory
from scheduler.core.events import Exited
from scheduler.core.model import HOST, Outcome
from scheduler.core.ports import Key
from scheduler.paths import open_plain
from scheduler.shim import Record

_OUTCOMES = {
    "exited": Outcome.SUCCEEDED,
    "signalled": Outcome.FAILED,
    "spawn": Outcome.FAILED,
    "timeout": Outcome.TIMEOUT,
    "stopped": Outcome.INTERRUPTED,
}
_LAST_WORDS = (signal.SIGABRT, signal.SIGBUS)
"""By these a program ends that found no memory: after std::bad_alloc, and where /dev/shm is full."""


def exited(key: Key, record: Record, log: str, stderr: str) -> Exited:
    """The end in the words of the core; `log` is where it wrote, `stderr` where its errors went if that is not it."""
    outcome, reason, ran = _outcome(record, log, stderr)
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
        part=ran.part if ran else "",
        asked=ran.asked if ran else 0,
        position=ran.position if ran else None,
        last=firstrows.last_line(_last_output(log, stderr)) if outcome is Outcome.FAILED else "",
        mps=mps.what_failed(_last_output(log, stderr)) if outcome is Outcome.FAILED else "",
    )


def _outcome(record: Record, log: str, stderr: str) -> tuple[Outcome, str, outofmemory.Ran | None]:
    """How it ended, why where that needs saying, and which memory ran out."""
    plain = _OUTCOMES.get(record.outcome, Outcome.FAILED)
    if record.outcome not in ("exited", "signalled") or record.code == 0:
        return plain, record.error, None
    if outofmemory.killed_for_memory(record.signal, record.code, record.oom_kills):
        return Outcome.OOM, "killed by the kernel for memory", outofmemory.Ran(outofmemory.HOST)
    spoke = record.code is not None or record.signal in _LAST_WORDS
    ran = outofmemory.what_ran_out(_last_output(log, stderr)) if spoke else None
    if ran is None:
        return Outcome.FAILED, record.error, None
    end = f"signal {record.signal}" if record.code is None else f"exit {record.code}"
    memory = "GPU memory" if ran.part == outofmemory.GPU else "host memory"
    return Outcome.OOM, f"{end}, out of {memory} by its own words", ran


def _last_output(log: str, stderr: str) -> str:
    return _tail(log) + (_tail(stderr) if stderr else "")


def _tail(path: str) -> str:
    try:
        with open_plain(Path(path)) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - outofmemory.TAIL))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
