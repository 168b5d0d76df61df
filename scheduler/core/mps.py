"""NVIDIA's MPS: who gets which share of threads and memory, and the words by which a task says that it failed."""

from __future__ import annotations

import re
from dataclasses import replace

from scheduler.core.events import Exited
from scheduler.core.model import SHARED_OUT, Outcome, Placement, Terms
from scheduler.core.rules import Rules
from scheduler.units import MIB

CLIENT, TURNS, REFUSED, FAULT = "client", "turns", "refused", "fault"
"""What became of an attempt under MPS: it was a client; it was none, and took turns with the others; MPS did not take
it, or gave it up; a fault of its GPU ended all that shared it."""

FAILED = (REFUSED, FAULT)

_REFUSED = re.compile(
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
"""CUDA's errors 805 to 810, by name, by number and in the driver's words."""
_FAULT = re.compile(
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
"""After these a process can do nothing more with its GPU; under MPS all that share it are told one of them."""


def what_failed(output: str) -> str:
    """REFUSED or FAULT, where a failed task's last words say so; only to be asked about one under MPS."""
    if _REFUSED.search(output):
        return REFUSED
    return FAULT if _FAULT.search(output) else ""


def percentage(terms: Terms, beside: int) -> int:
    """The share of its GPU's threads that a task starts with, beside so many residents."""
    said = terms.thread_percentage
    if said is None:
        return 100
    return max(1, 100 // (beside + 1)) if said == SHARED_OUT else said


def fence(placement: Placement, rules: Rules) -> int:
    """The bytes that MPS lets it have: what it is promised, in whole MiB; 0 where no limit is set."""
    if not rules.fence or rules.slots is not None:
        return 0
    return placement.promise[placement.gpus[0]] // MIB * MIB


def judged(exited: Exited, placement: Placement, seen: str) -> Exited:
    """How an attempt ended: nobody is blamed for what MPS did, nor for a fault that strikes all who share a GPU.

    `seen` is CLIENT or TURNS, where that is known.
    """
    if not placement.percentage:
        return replace(exited, mps="") if exited.mps else exited
    if not exited.mps or exited.outcome is not Outcome.FAILED:
        return replace(exited, mps=seen)
    return replace(exited, outcome=Outcome.LOST, reason=reason(exited.mps))


def sentence(failed: str) -> str:
    """Why nothing starts on a GPU where an attempt has just failed so."""
    if failed == REFUSED:
        return "its MPS server did not take a task, or gave one up: nothing starts there before it does again"
    return "a fault ended what shared it under MPS: nothing starts there before its MPS server has recovered"


def reason(failed: str) -> str:
    """How such an attempt ended, for its task."""
    if failed == REFUSED:
        return "MPS did not take it, or gave it up: it starts again"
    return "a fault of its GPU, which under MPS ends all that share it: it starts again outside of MPS"
