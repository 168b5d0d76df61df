"""Faults of a sampler child of the GPUs: a call of the NVIDIA library that hangs, or crashes the child."""

from __future__ import annotations

import signal

from scheduler.devices.gpu.inventory import REBOOT
from scheduler.devices.sampler_child import INIT, LibraryCall, SamplerChild
from scheduler.values import dataclass

DYING = 0.5
"""Seconds within which a process must exit after it has closed its output."""
CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
)
"""Signals that end a process when the library crashes; other signals are sent by other processes."""


@dataclass(frozen=True, slots=True)
class SamplerLimits:
    """The time limits of the samplers, in seconds."""

    init: float = 10.0
    """Seconds that the initialisation of the library may take."""
    call: float = 3.0
    """Seconds that one call to the library may take."""
    patience: float = 0.4
    """Seconds for which one GPU may delay the others; together with one tick of the loop, the delay stays below a
    second.
    """
    retry: float = 60.0
    """Seconds before an unavailable GPU is tried again."""
    fresh: float = 3.0
    """Seconds for which a sample counts as fresh."""
    quick: float = 0.25
    """The most seconds that a sample may take without counting as a delay for the other GPUs."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A GPU that hangs or crashes a sampler child, or a fault of the library itself."""

    where: str
    """The GPU's UUID, or its index during discovery; empty: the fault is in the initialisation of the library."""
    sentence: str
    """The fault: words that follow the GPU's name, or a whole sentence about the library."""


def find_hang(call: LibraryCall, limits: SamplerLimits, now: float) -> Fault | None:
    """Return the fault if a call takes too long; None if it does not."""
    if call.where == INIT:
        return Fault("", hung_at_start(limits.init)) if now - call.since > limits.init else None
    if now - call.since <= limits.call:
        return None
    return Fault(call.where, f"does not answer: {call.name} hung for {limits.call:.0f} s")


def find_crash(child: SamplerChild) -> tuple[Fault | None, str]:
    """Return the fault if the library crashed a child (else None), and how the child ended: `SIGSEGV`."""
    call, code = child.call(), child.code()
    how = child.bug or _death(code)
    crashed = not child.bug and (code is None or code > 0 or -code in CRASHES)
    if call is None or not crashed:
        return None, how
    if call.where == INIT:
        return Fault("", f"the NVIDIA library crashes while it is initialised ({how} in {call.name})"), how
    return Fault(call.where, f"crashes the NVIDIA library ({how} in {call.name})"), how


def hung_at_start(seconds: float) -> str:
    """Return the sentence about a library whose initialisation does not finish within `seconds`."""
    return f"the NVIDIA library did not start within {seconds:.0f} s: {REBOOT}"


def _death(code: int | None) -> str:
    """Return how a process ended, by its exit code: `SIGSEGV`, `exit code 1`."""
    if code is None:
        return "it closed its output"
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
