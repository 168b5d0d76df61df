"""The classification of an attempt's end, from its exit record and the last lines of its output."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

from scheduler.core.attempts import mps_policy, start_faults
from scheduler.core.events import Exited
from scheduler.core.model import HOST, Outcome
from scheduler.core.ports import Key
from scheduler.core.profiling import error_lines, oom_patterns
from scheduler.runtime.paths import open_plain
from scheduler.runtime.shim import Claim, Record, boot_id
from scheduler.runtime.threads import BoundedCalls

_OUTCOMES = {
    "exited": Outcome.SUCCEEDED,
    "signalled": Outcome.FAILED,
    "spawn": Outcome.FAILED,
    "timeout": Outcome.TIMEOUT,
    "stopped": Outcome.INTERRUPTED,
}
FENCED = "its machine had not heard from the scheduler for longer than --node-fence allows"
_SAMPLE, _MOSTLY = 1000, 0.6
"""The number of bytes of an output that are searched for zeros, and the share of zeros that means UTF-16."""
_LAST_WORDS = (signal.SIGABRT, signal.SIGBUS)
"""Signals that end a program for lack of memory: SIGABRT after std::bad_alloc, SIGBUS if /dev/shm is full."""


def exited(key: Key, record: Record, last_output: Callable[[], str], directory: str) -> Exited:
    """Return the end of an attempt as an event of the core.

    `last_output` returns the end of the attempt's output; `directory` is the attempt's working directory, if known.
    """
    output = cache(last_output)
    if record.outcome == "fenced":
        return Exited(*key, Outcome.LOST, reason=FENCED, seconds=record.seconds, node_lost=True)
    if record.hindrance:
        away = directory if record.hindrance == "directory" else ""
        return Exited(*key, Outcome.UNSTARTED, reason=record.error, seconds=record.seconds, away=away)
    outcome, reason, ran = _outcome(record, output)
    part = ran.part if ran else ""
    if outcome is Outcome.FAILED and not reason and (said := start_faults.hint(output())):
        reason = f"{f'exit {record.code}' if record.code is not None else f'signal {record.signal}'}: {said}"
    if outcome is Outcome.FAILED and oom_patterns.may_be_gpu_memory(output(), signalled=record.signal is not None):
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
        last=error_lines.last_error(output()) if outcome is Outcome.FAILED else "",
        mps=mps_policy.what_failed(output()) if outcome is Outcome.FAILED else "",
    )


def why_lost(claim: Claim | None, reason: str) -> str:
    """Return why an attempt has no exit record; `reason` is returned for an attempt that never had a shim."""
    if claim is None or claim.fence:
        return reason
    if claim.boot_id != boot_id():
        return "the machine was restarted while the attempt ran"
    return "its shim was killed"


def _outcome(record: Record, last_output: Callable[[], str]) -> tuple[Outcome, str, oom_patterns.OomMatch | None]:
    """Return the outcome, the reason if there is one, and which memory ran out."""
    plain = _OUTCOMES.get(record.outcome, Outcome.FAILED)
    if record.outcome not in ("exited", "signalled") or record.code == 0:
        return plain, record.error, None
    output = last_output()
    if oom_patterns.killed_for_memory(record.signal, record.code, record.oom_kills, output):
        return Outcome.OOM, "killed by the kernel for memory", oom_patterns.OomMatch(oom_patterns.HOST)
    spoke = record.code is not None or record.signal in _LAST_WORDS
    ran = oom_patterns.what_ran_out(output) if spoke else None
    if ran is None:
        return Outcome.FAILED, record.error, None
    end = f"signal {record.signal}" if record.code is None else f"exit {record.code}"
    memory = "GPU memory" if ran.part == oom_patterns.GPU else "host memory"
    return Outcome.OOM, f"{end}, out of {memory} according to its output", ran


class OutputReader:
    """The reader of the ends of outputs. It never waits for long, although a file that a row names may be on a dead
    network mount.
    """

    def __init__(self) -> None:
        self._calls = BoundedCalls()
        self._silent: set[str] = set()
        """The folders that do not answer."""
        self._news: list[str] = []

    def read(self, log: str, stderr: str) -> str:
        """Return the end of a log; if `stderr` names a separate file, append the end of that file, unless reading it
        takes too long.
        """
        said = _tail(log)
        if not stderr:
            return said
        folder = os.path.dirname(stderr)
        try:
            errors = self._calls.call(folder, partial(_tail, stderr))
        except TimeoutError:
            if folder not in self._silent:
                self._silent.add(folder)
                effect = "a task whose stderr file is in this folder may count as failed though it ran out of memory"
                self._news.append(f"{folder} does not answer: {effect}")
            return said
        self._silent.discard(folder)
        return said + errors

    def news(self) -> list[str]:
        """Return sentences for the user, each once."""
        news, self._news = self._news, []
        return news

    def close(self) -> None:
        """End the thread that reads."""
        self._calls.close()


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
