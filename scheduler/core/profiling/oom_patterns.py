"""The words by which a task says that memory ran out: which memory, and how much it had asked for."""

from __future__ import annotations

import re
from math import prod
from typing import Literal

from scheduler import units
from scheduler.values import dataclass

TAIL = 64 * 1024
"""So much of the end of its output is enough."""
GPU: Literal["gpu"] = "gpu"
HOST: Literal["host"] = "host"
Part = Literal["host", "gpu"]

_LONG = 3
"""A message may be broken into so many lines, where tracebacks are drawn in a frame."""
# Gaps in these patterns are bounded: a line may be all of the tail.
_HEALTHY = re.compile(
    r"not a failure"  # XLA and TensorFlow tried for speed, and do without
    r"|failed to alloc(?:ate)? .{0,400}\b(?:from device|on host): CUDA_ERROR_OUT_OF_MEMORY"  # they try again with less
    r"|Tried to allocate more than 1EB"  # torch was given a size that makes no sense
    r"|\bibv_\w+.{0,400}Cannot allocate memory"  # a limit on locked memory (ulimit -l)
)
_ON_GPU = re.compile(
    r"\btorch(?:\.cuda)?\.OutOfMemoryError(?::|$)"
    r"|\b(?:CUDA|HIP|XPU) out of memory\. Tried to allocate"
    r"|Error: (?:CUDA|HIP|XPU) out of memory"
    r"|\b(?:CUDA|HIP) error: out of memory"
    r"|\bcuda runtime error \(2\) ?: out of memory"
    r"|\bCUDA_ERROR_OUT_OF_MEMORY\b|\bcudaErrorMemoryAllocation\b"
    r"|\bCU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED\b|\bCUFFT_ALLOC_FAILED\b"
    r"|\bcu(?:da)?[A-Z]\w* failed: out of memory"  # calls of the driver and of the runtime
    r"|\bCuda failure (?:\d+ )?'out of memory'"  # NCCL
    r"|\bGPUassert: out of memory"
    r"|\bcupy\.cuda\.memory\.OutOfMemoryError\b|\bOut of memory allocating [\d,]+ bytes \(allocated so far"
    r"|\bout_of_memory: (?:CUDA|RMM)"
    r"|(?i:resource[_ ]?exhausted(?:error)?): .{0,400}\bOut of memory while trying to allocate"
    r"|^Out of memory while trying to allocate [\d.]+ ?(?:bytes|[KMGT]iB)"  # below TensorFlow's ResourceExhaustedError
    r"|\bFailed to allocate request for \S+ \(\d+B\) on device"
    r"|\bResourceExhaustedError: .{0,400}\bfailed to allocate memory\b"
    r"|\bAllocator \(GPU_\d+_bfc\) ran out of memory trying to allocate"
    r"|\bon GPU:\d+ failed\. Status: out of memory"
    r"|\bDst tensor is not initialized"  # what TensorFlow says when there is no room to copy to
)
_TENSOR = re.compile(r"\bOOM when allocating tensor with shape ?\[(?P<shape>[\d,]*)\](?: and type (?P<type>\w+))?")
_ON_CPU = re.compile(r"\bdevice:CPU:\d|\bby allocator (?:cpu|mklcpu)\b")
_PINNED = re.compile(r"\bcu(?:da)?(?:Mem)?(?:Host(?:Alloc|Register)|M?[Aa]llocHost)\b")
"""CUDA's calls that lock memory of the host."""
_ON_HOST = re.compile(
    r"^(?:\[rank\d+\]: ?)?(?:[\w.]+\.)?_?(?:Array)?MemoryError\b"
    r"|\bstd::bad_alloc\b"
    r"|\bCannot allocate memory\b"
    r"|\bOSError: \[Errno 12\]"
    r"|\bDefaultCPUAllocator: (?:can't allocate memory|not enough memory)"
    r"|\bRESOURCE_EXHAUSTED: Out of memory allocating [\d,]+ bytes"  # JAX without a GPU
    r"|^memory allocation of \d+ bytes failed"
    r"|\bDataLoader worker \(pid.{0,400}\) is killed by signal: (?:Killed|Bus error)"
    r"|\bdataloader's workers are out of shared memory|\binsufficient shared memory \(shm\)"
    r"|\bunable to (?:write to|mmap \d+ bytes from|open shared memory object|allocate shared memory).{0,400} </?torch_"
    r"|/dev/shm\b.{0,400}\bNo space left on device|\bNo space left on device\b.{0,400}/dev/shm\b"
)

_AMOUNT = r"(\d[\d,]*(?:\.\d*)?) ?(bytes|[KMGT]?i?B|[KMGT])(?![A-Za-z])"
_ASKED = re.compile(
    r"(?:\b[Tt]r(?:ied|ying) to allocate|\bOut of memory allocating|\bout of memory to allocate|\ballocating"
    r"|\bFailed to allocate request for|\bUnable to allocate|\bmemory allocation of)\s+" + _AMOUNT
)
_FREE = re.compile(rf"\bof which {_AMOUNT} is free|; {_AMOUNT} free;")
_POSITION = re.compile(
    r"\bGPU (\d+)(?: has a total|;)|\bdevice:GPU:(\d+)|\bdevice ordinal (\d+)|\bGPU_(\d+)_bfc|\bon GPU:(\d+)"
    r"|\bon device (\d+):"
)
_UNITS = {"b": 1, "B": 1, "K": units.KIB, "M": units.MIB, "G": units.GIB, "T": units.TIB}
_WIDTHS = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "half": 2, "bfloat16": 2, "float": 4, "int32": 4,
    "uint32": 4, "double": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes of one number, by TensorFlow's name of its type."""


@dataclass(frozen=True, slots=True)
class OomMatch:
    """The memory that ran out, as a task's own output says."""

    part: Part
    asked: int = 0
    """Bytes it tried to allocate; 0: it did not say."""
    position: int | None = None
    """The place of the GPU among those it sees, where it said so."""
    free: int | None = None
    """Bytes that were free there at that moment, where it said so."""


def what_ran_out(output: str) -> OomMatch | None:
    """Return the memory that ran out by the last lines of a failed task; None where they are about something else.

    Of several such messages the last counts. Call it only for a task that did not succeed: a task may run out of
    memory, recover and still print it.
    """
    lines = output.splitlines()
    for number in range(len(lines) - 1, -1, -1):
        part = _part(lines[number], lines[number : number + _LONG])
        if part is not None:
            return _ran(part, " ".join(line.strip() for line in lines[number : number + _LONG]))
    return None


def killed_for_memory(signal: int | None, code: int | None, kernel_kills: int) -> bool:
    """Tell whether the kernel killed it for memory: no scheduler did, and the kernel killed for memory meanwhile."""
    return kernel_kills > 0 and (signal == 9 or code in (137, 247))


def _part(line: str, message: list[str]) -> Part | None:
    """Return the memory that a line says ran out; GPUs first, because some frameworks raise MemoryError for them."""
    if _HEALTHY.search(line):
        return None
    if _TENSOR.search(line):
        return HOST if _ON_CPU.search(" ".join(message)) else GPU
    if _ON_GPU.search(line):
        return HOST if _PINNED.search(line) else GPU
    return HOST if _ON_HOST.search(line) else None


def _ran(part: Part, message: str) -> OomMatch:
    free, position = _FREE.search(message), _POSITION.search(message)
    return OomMatch(
        part,
        _asked(message),
        int(position[position.lastindex or 0]) if position and part == GPU else None,
        _bytes(free[1] or free[3], free[2] or free[4]) if free else None,
    )


def _asked(message: str) -> int:
    said, tensor = _ASKED.search(message), _TENSOR.search(message)
    if tensor and (said is None or tensor.start() < said.start()):
        numbers = [int(number) for number in tensor["shape"].split(",") if number]
        return prod(numbers) * _WIDTHS.get(tensor["type"] or "float", 4)
    return _bytes(said[1], said[2]) if said else 0


def _bytes(number: str, unit: str) -> int:
    return round(float(number.replace(",", "")) * _UNITS[unit[0]])
