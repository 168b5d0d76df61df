"""The policy for NVIDIA MPS: shares of threads and memory, and the messages that mean a failure of MPS."""

from __future__ import annotations

from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Exited
from scheduler.core.model import SHARED_OUT, Outcome, Placement, Terms
from scheduler.patterns import lazy_pattern
from scheduler.units import MIB
from scheduler.values import replace

CLIENT, TURNS, REFUSED, FAULT = "client", "turns", "refused", "fault"
"""The states of an attempt under MPS: a client of MPS; outside of MPS, where it takes turns with others; refused or
given up by MPS; or ended, like all other attempts on its GPU, by a fault."""

FAILED = (REFUSED, FAULT)

_REFUSED = lazy_pattern(
    r"\bCUDA_ERROR_MPS_(?:CONNECTION_FAILED|RPC_FAILURE|SERVER_NOT_READY|MAX_CLIENTS_REACHED"
    r"|MAX_CONNECTIONS_REACHED|CLIENT_TERMINATED)\b"
    r"|\bcudaErrorMps(?:ConnectionFailed|RpcFailure|ServerNotReady|MaxClientsReached|MaxConnectionsReached"
    r"|ClientTerminated)\b"
    r"|\bMPS client failed to connect to the MPS control daemon or the MPS server"
    r"|\bthe remote procedural call between the MPS server and the MPS client failed"
    r"|\bMPS server is not ready to accept new MPS client requests"
    r"|\bhardware resources required to (?:create MPS client|support device connections) have been exhausted"
    r"|\bMPS client has been terminated by the server"
    r"|(?i:\bcuda(?: runtime| driver)? error[: (]+80[5-9]\b|\bcuda(?: runtime| driver)? error[: (]+810\b)"
)
"""The CUDA errors 805 to 810, which concern MPS: by name, by number and in the driver's text."""
_FAULT = lazy_pattern(
    r"\bCUDA_ERROR_(?:ILLEGAL_ADDRESS|LAUNCH_FAILED|LAUNCH_TIMEOUT|HARDWARE_STACK_ERROR|ILLEGAL_INSTRUCTION"
    r"|MISALIGNED_ADDRESS|INVALID_ADDRESS_SPACE|INVALID_PC|ASSERT|ECC_UNCORRECTABLE|NVLINK_UNCORRECTABLE)\b"
    r"|\bcudaError(?:IllegalAddress|LaunchFailure|LaunchTimeout|HardwareStackError|IllegalInstruction"
    r"|MisalignedAddress|InvalidAddressSpace|InvalidPc|Assert|ECCUncorrectable|NvlinkUncorrectable)\b"
    r"|\ban illegal memory access was encountered|\bunspecified launch failure"
    r"|\bthe launch timed out and was terminated"
    r"|\ban illegal instruction was encountered|\bmisaligned address|\bhardware stack error|\binvalid program counter"
    r"|\boperation not supported on global/shared address space|\bdevice-side assert triggered"
    r"|\buncorrectable (?:ECC|NVLink) error"
)
"""CUDA errors after which a process cannot use its GPU any more. Under MPS every task on the GPU gets such an error."""


def what_failed(output: str) -> str:
    """Return REFUSED or FAULT if the last lines that a task under MPS printed show such a failure; else an empty
    string.
    """
    if _REFUSED.search(output):
        return REFUSED
    return FAULT if _FAULT.search(output) else ""


def percentage(terms: Terms, beside: int) -> int:
    """Return the percentage of the GPU's threads for a task that starts where `beside` tasks run already."""
    said = terms.thread_percentage
    if said is None:
        return 100
    return max(1, 100 // (beside + 1)) if said == SHARED_OUT else said


def client(placement: Placement, terms: Terms, beside: int, rules: SchedulingConfig) -> Placement:
    """Return the placement of a task that becomes a client of MPS on a GPU where `beside` tasks run already."""
    return replace(placement, percentage=percentage(terms, beside), fence=fence(placement, rules))


def fence(placement: Placement, rules: SchedulingConfig) -> int:
    """Return the memory limit that MPS enforces, in bytes: the reservation in whole MiB; 0 for no limit."""
    if not rules.fence or rules.slots is not None or placement.visible:
        return 0
    return placement.reservation[placement.gpus[0]] // MIB * MIB


def judged(exited: Exited, placement: Placement, seen: str) -> Exited:
    """Return the event for an attempt's end. A problem of MPS, or a fault that ends all tasks on a GPU, does not count
    as a failure of the task.

    `seen` is CLIENT or TURNS if the attempt's state under MPS is known, else empty.
    """
    if not placement.percentage:
        return replace(exited, mps="") if exited.mps else exited
    if not exited.mps or exited.outcome is not Outcome.FAILED:
        return replace(exited, mps=seen)
    return replace(exited, outcome=Outcome.LOST, reason=reason(exited.mps))


def sentence(failed: str) -> str:
    """Return why no task starts on a GPU on which an attempt has just failed because of MPS."""
    if failed == REFUSED:
        return "its MPS server refused or gave up a task: nothing starts there until it accepts tasks again"
    return "a fault ended all tasks that shared it under MPS: nothing starts there until its MPS server has recovered"


def reason(failed: str) -> str:
    """Return the reason for an end that MPS caused, in words for users."""
    if failed == REFUSED:
        return "MPS refused it or gave it up: it starts again"
    return "a fault of its GPU, which under MPS ends all that share it: it starts again outside of MPS"
