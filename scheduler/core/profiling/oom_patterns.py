"""The words by which a task reports that memory ran out: which memory, and how much it had requested.

There are three kinds of patterns, from the general to the special: the words by which any program says that memory is
short; the words that give such a line another meaning; and the sentences of single products with none of these words.
"""

from __future__ import annotations

import re
from math import prod
from typing import Literal

from scheduler import units
from scheduler.core.profiling import oom_words as words
from scheduler.core.profiling.error_lines import EXCEPTION, clean, is_another_error, without_code
from scheduler.patterns import lazy_pattern
from scheduler.values import dataclass

TAIL = 64 * 1024
"""The number of bytes at the end of an output that are searched."""
GPU: Literal["gpu"] = "gpu"
HOST: Literal["host"] = "host"
Part = Literal["host", "gpu"]

_LONG = 3
"""The most lines that one message is assumed to have. A message is broken into lines if its traceback is drawn in a
frame."""
_AROUND = 40
"""The number of lines before a message that are searched for a GPU if the message itself names no memory."""
_BREAK = 60
"""The number of characters of a line that are joined with the next line, to find words that are broken between them."""
_SENSELESS = 1 << 50
"""A request for at least this many bytes is a mistake of the program, because no machine has them."""

_PROGRAMMING = frozenset(
    {
        "AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError", "KeyError",
        "IndexError", "TypeError", "SyntaxError", "IndentationError", "FileNotFoundError", "PermissionError",
        "NotADirectoryError", "IsADirectoryError", "UnicodeDecodeError", "UnicodeEncodeError", "ZeroDivisionError",
        "NotImplementedError", "RecursionError", "StopIteration",
    }
)  # fmt: skip
"""Exceptions that never concern memory, whatever their message quotes."""
_WORKER_KILLED = lazy_pattern(
    r"\bSIGKILL\b|\bsignal 9\b|\bsignal: Killed\b|\bexit ?code\W{1,5}-9\b|\b-9 \(pid\b|\bterminated abruptly\b"
)
"""The words by which launchers and pools report that a worker was killed with SIGKILL."""
_STICKY = lazy_pattern(
    r"\ban illegal memory access was encountered|\bdevice-side assert triggered|\bunspecified launch failure"
    r"|\bCUDA_ERROR_ILLEGAL_ADDRESS\b|\bcudaErrorIllegalAddress\b|\bmisaligned address\b"
    r"|\b[Uu]nsupported system page size\b"
)
"""Errors after which every further CUDA call or allocation fails, so that a lack of memory which is reported later is
not the cause."""

_MAY_BE = lazy_pattern(
    r"\bCU(?:BLAS|DNN|SOLVER|SPARSE|FFT)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)\b"
    r"|\bcuDNN failed to initialize\b|\bcu(?:blas|dnn|solver)Create\b|\b[Uu]nable to find an engine to execute"
    r"|\bCL_OUT_OF_RESOURCES\b|_ERROR_OUT_OF_RESOURCES\b|\bcudaErrorUnknown\b|\bCUDA error: unknown error"
    r"|\bunhandled cuda error\b|\b[Aa]lloc\w* failed\b"
)
"""Words that can mean a lack of GPU memory, but often mean something else."""

_TENSOR = lazy_pattern(r"\bOOM when allocating tensor with shape ?\[(?P<shape>[\d,]*)\](?: and type (?P<type>\w+))?")
_ON_CPU = lazy_pattern(
    r"\bdevice:CPU:\d|\bby allocator (?:cpu|mklcpu)\b|(?<!GPU or )(?<!shared )(?:\bCPU|\bhost|_HOST)[ _]memory\b"
    r"|\bcpu_device|\bDefaultCPUAllocator\b"
    r"|\bRESOURCE_EXHAUSTED: Out of memory allocating [\d,]+ bytes"  # JAX without a GPU
    r"|\bMemoryError: Unable to allocate"  # NumPy
    r"|\bcu(?:da)?(?:Mem)?(?:Host(?:Alloc|Register)|M?[Aa]llocHost)\b|\bnew RAM\b|/dev/shm|\bray\.exceptions\b"
    r"|^(?:\[rank\d+\]: ?)?MemoryError\s*$",
    re.IGNORECASE,
)
"""Words about memory of the host, including CUDA calls that lock host memory."""
_OF_HOST = lazy_pattern(
    r"\bbad[_ ]alloc|MemoryError\b|\b(?:m|c|re|mm)alloc\b|\bm(?:un)?map\b|\boom[ _-]?kill|\bkilled\b|\bvector of size\b"
    r"|\bvirtual memory\b|\bswap\b|paging file|\bRAM\b|\bErrno 12\b|\bE?NO_?MEM\b|\bcannot allocate memory\b"
    r"|\bmemory allocation of \d+ bytes failed|\bmemory limit\b|\bexceeded\b|\bPython\b|\bheap\b",
    re.IGNORECASE,
)
"""Words that mostly concern memory of the host, if no word about a GPU is near."""
_ON_GPU = lazy_pattern(
    r"cuda|curesult|cu_mem_|webgpu|\bvulkan|\bhbm\b|显存|gpus?(?![a-z])|(?-i:\bcl(?:Create|Enqueue)\w*)|\bCL_MEM|\bMEM_OBJECT_ALLOC"
    r"|opencl|nvenc|cuvid|nccl|\bhip(?![a-z])|rocm|\bhipError|\bxpu\b|\bnpu\b|vram|cublas|cudnn|cufft|cusolver|cusparse|curand"
    r"|\btensorrt|\btrt\b|nvinfer|\brmm(?![a-z])|thrust|torch\.(?:cuda\.)?OutOfMemory|\bdevice ordinal|\bon device \d"
    r"|DEVICE[_ -]?MEMORY|optix|\bvk[A-Z]\w+|VkResult|Pxg|\.cu\b|\bcu[A-Z]\w* failed|\bresource[_ ]?exhausted"
    r"|\bOOM when allocating tensor|\bDst tensor|KV cache|cache blocks|mem-fraction|memory object|CL_MEM_OBJECT"
    r"|\bexecutable batch size|\(allocated so far|^out of memory (?:while trying to allocate|on)"
    r"|\bout of memory to allocate \d|\bMPS\b|graphics|\bfor (?:the |this |your )?(?:device|card|accelerator)s?\b"
    r"|^OutOfMemoryError\s+Traceback\b"  # Python's own has another name
    r"|\bAscend|\bGE module\b|\bmem_dynamic_allocator|\bpooled_storage_manager",
    re.IGNORECASE,
)
"""Words about a GPU, which count if they are near the message."""

_AMOUNT = r"(\d[\d,]*(?:\.\d*)?) ?(bytes|[KMGT]?i?B|[KMGT])(?![A-Za-z])"
_ASKED = lazy_pattern(
    r"(?:\b[Tt]r(?:ied|ying) to allocate|\bOut of memory allocating|\bout of memory to allocate|\ballocating"
    r"|\bFailed to allocate request for|\bUnable to allocate|\bmemory allocation of|annot allocate|\brequested"
    r"|\b(?:cudaM|CUDA c|fail to allocate m)\w+)\s+" + _AMOUNT
)
_WANTED = lazy_pattern(
    rf"(?:alloc|request|reserv|requir)\w*\b(?:[ :=(]\w*){{0,4}}?[ :=(]{{1,3}}{_AMOUNT}", re.IGNORECASE
)
"""A size that a program requested."""
_OF_SIZE = lazy_pattern(r"\b(?:of )?size (\d{4,})\b")
"""A requested size without a unit, in bytes."""
_FREE = lazy_pattern(
    rf"\bof which {_AMOUNT} is free|; {_AMOUNT} free;|\bavailable memory is only {_AMOUNT}|; free {_AMOUNT}"
)
_POSITION = lazy_pattern(
    r"\bGPU (\d+)(?: has a total|;)|\bdevice:GPU:(\d+)|\bdevice ordinal (\d+)|\bGPU_(\d+)_bfc|\bon GPU:(\d+)"
    r"|\bon device (\d+)\b|\berror on GPU (\d+)\b"
)
_UNITS = {"b": 1, "B": 1, "K": units.KIB, "M": units.MIB, "G": units.GIB, "T": units.TIB}
_WIDTHS = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "half": 2, "bfloat16": 2, "float": 4, "int32": 4,
    "uint32": 4, "double": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""The number of bytes of one element, by TensorFlow's name for its type."""


@dataclass(frozen=True, slots=True)
class OomMatch:
    """The memory that ran out, as the output of the task says."""

    part: Part
    asked: int = 0
    """The bytes that the task tried to allocate; 0 if its output does not say."""
    position: int | None = None
    """The position of the GPU among those that the task sees; None if its output does not say."""
    free: int | None = None
    """The free bytes that the message of the task reports; None if the output does not say."""


_MAY_BREAK = (words.SHORT, words.REFUSES, words.PRODUCTS)
"""The patterns that are also searched across the end of a line, where words may be broken."""


def what_ran_out(output: str) -> OomMatch | None:
    """Return the memory that ran out, according to the last lines of a failed task; None if they say nothing about it.

    If several lines report this, the last one counts, and only if no other error follows it: a task may run out of
    memory, recover, and fail for another reason. Call this only for a task that did not succeed.
    """
    if not _may_say_so(output):
        return None
    lines = without_code(clean(output))
    for number in range(len(lines) - 1, -1, -1):
        if _tries_again(*lines[number : number + 2]):
            return None
        if words.FIRST_TRY.search(lines[number]) and any(line.strip() for line in lines[number + 1 :]):
            continue
        if _warns_of_what_is_left_out(lines[number : number + 2]):
            continue
        if _says_so(lines[number]) or _says_so_with(lines[number], lines[number + 1 : number + 2]):
            if is_another_error(lines[number + 1 :]) or _STICKY.search("\n".join(lines[:number])):
                return None
            ran = _ran(lines[number : number + _LONG], lines[max(0, number - _AROUND) : number])
            around = " ".join(lines[max(0, number - _LONG + 1) : number + _LONG])
            return None if max(ran.asked, _most_wanted(around)) >= _SENSELESS else ran
    return None


def may_be_gpu_memory(output: str, *, signalled: bool) -> bool:
    """Tell whether GPU memory may have run out. That is certain only if the GPU was full as well.

    It may have if the last error of the task contains words that can mean this, or if a signal ended it without any
    error message.
    """
    ran = what_ran_out(output)
    if ran is not None:  # it reported this before a signal ended it
        return ran.part == GPU
    lines = without_code(clean(output))
    last = next((n for n in range(len(lines) - 1, -1, -1) if _MAY_BE.search(lines[n])), None)
    if last is not None:
        return not is_another_error(lines[last + 1 :])
    return signalled and not is_another_error(lines) and not any(_STICKY.search(line) for line in lines)


def _may_say_so(text: str) -> bool:
    if not text.isascii() and words.TRANSLATED.search(text):
        return True
    text = text.lower()
    return any(one in text for one in words.OF_MEMORY) and any(one in text for one in words.OF_FAILURE)


def killed_for_memory(signal: int | None, code: int | None, kernel_kills: int, output: str = "") -> bool:
    """Tell whether the kernel killed a task because memory ran out, provided that no scheduler killed it.

    `kernel_kills` is the number of such kills that the kernel counted during the attempt.

    A launcher such as torchrun ends with its own exit code, and reports that a worker was killed with SIGKILL.
    """
    if kernel_kills <= 0 or code == 0:
        return False
    return signal == 9 or code in (137, 247) or (code is not None and _WORKER_KILLED.search(output) is not None)


def _goes_on(line: str) -> bool:
    return words.LEAVES_OUT.search(line) is not None or words.TRIES_AGAIN.search(line) is not None


def _tries_again(line: str, following: str = "") -> bool:
    """Tell whether a line reports that memory ran out, while this line or the next one says that the program
    continues.
    """
    return any(words.TRIES_AGAIN.search(text) for text in (line, following)) and _has_the_words(line)


def _warns_of_what_is_left_out(lines: list[str]) -> bool:
    return (
        words.WARNS.search(lines[0]) is not None
        and words.LEAVES_OUT.search(lines[-1]) is not None
        and _has_the_words(lines[-1])
    )


def _says_so(line: str) -> bool:
    """Tell whether a line reports that memory ran out, and does not say that the program continues."""
    return not _goes_on(line) and _has_the_words(line)


def _has_the_words(line: str) -> bool:
    line = words.ADDRESS.sub("", line) if "://" in line else line
    if not _may_say_so(line) or words.MEANS_ELSE.search(line):
        return False
    exception = EXCEPTION.search(line)
    if exception and exception["type"].rpartition(".")[2] in _PROGRAMMING:
        return False
    if words.CODE.search(line) or words.PRODUCTS.search(line) or words.TRANSLATED.search(line):
        return True
    found = (match for pattern in (words.SHORT, words.REFUSES) for match in pattern.finditer(line))
    return any(not words.ADVICE.search(line[: match.start()]) and line[match.end() :][:2] != "? " for match in found)


def _says_so_with(line: str, following: list[str]) -> bool:
    """Tell whether a line and the next one together report that memory ran out, in a message that is broken between
    them.
    """
    if not following or not line or not following[0]:
        return False
    end = line.rstrip()[-_BREAK:]
    joined = f"{end} {following[0].lstrip()[:_BREAK]}"
    if not _may_say_so(joined) or words.MEANS_ELSE.search(joined) or _goes_on(joined):
        return False
    broken = (match for pattern in _MAY_BREAK for match in pattern.finditer(joined))
    return any(
        match.start() < len(end) < match.end() and not words.ADVICE.search(joined[: match.start()]) for match in broken
    )


def _part(message: list[str], before: list[str]) -> Part:
    """Return the memory that a message concerns: by its first line, else by the lines around it.

    If these do not name it, it is GPU memory if an earlier line mentions a GPU, else that of the host.
    """
    for text in (message[0], " ".join(message), " ".join(before[-_LONG:])):
        if _ON_CPU.search(text):
            return HOST
        if _ON_GPU.search(text):
            return GPU
    if _OF_HOST.search(" ".join(message)):
        return HOST
    return GPU if any(_ON_GPU.search(line) for line in before) else HOST


def _ran(lines: list[str], before: list[str]) -> OomMatch:
    message = " ".join(line.strip() for line in lines)
    part, free, position = _part(lines, before), _FREE.search(message), _POSITION.search(message)
    size, unit = [text for text in free.groups() if text] if free else ("", "")
    return OomMatch(
        part,
        _asked(message),
        int(position[position.lastindex or 0]) if position and part == GPU else None,
        _bytes(size, unit) if free else None,
    )


def _asked(message: str) -> int:
    said, tensor = _ASKED.search(message), _TENSOR.search(message)
    if tensor and (said is None or tensor.start() < said.start()):
        numbers = [int(number) for number in tensor["shape"].split(",") if number]
        return prod(numbers) * _WIDTHS.get(tensor["type"] or "float", 4)
    if said:
        return _bytes(said[1], said[2])
    size = _OF_SIZE.search(message)
    return int(size[1]) if size else 0


def _most_wanted(text: str) -> int:
    return max((_bytes(amount[1], amount[2]) for amount in _WANTED.finditer(text)), default=0)


def _bytes(number: str, unit: str) -> int:
    return round(float(number.replace(",", "")) * _UNITS[unit[0]])
