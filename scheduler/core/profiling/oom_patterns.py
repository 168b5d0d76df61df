"""The words by which a task reports that memory ran out: which memory, and how much it had requested.

Three kinds of patterns, from the general to the special: the words of memory that is short, in any program; the words
that tell that they mean something else; and the sentences of single products that have none of these words.
"""

from __future__ import annotations

import re
from math import prod
from typing import Literal

from scheduler import units
from scheduler.core.profiling.error_lines import EXCEPTION, clean, is_another_error, without_code
from scheduler.values import dataclass

TAIL = 64 * 1024
"""The bytes at the end of an output that are searched."""
GPU: Literal["gpu"] = "gpu"
HOST: Literal["host"] = "host"
Part = Literal["host", "gpu"]

_LONG = 3
"""The number of lines over which a message may be broken, where tracebacks are drawn in a frame."""
_BREAK = 60
"""The number of characters at the end of a line in which broken words are searched."""
_SENSELESS = 1 << 50
"""A request for this many bytes is a mistake of the program, because no machine has them."""

_OF_MEMORY = (
    "memory", "alloc", "oom", "exhausted", "ram", "errno 12", "nomem", "no_mem", "shm", "tensor", "batch size", "kv",
    "torch_", "worker", "heap", "mem ", "memalign", "mumps", "curesult", "cuda error", "hip error", "paging file",
)  # fmt: skip
_OF_FAILURE = (
    "out", "not", "n't", "no ", "insuff", "low on", "fail", "unable", "error", "err", "bad", "kill", "enough", "oom",
    "less", "larger", "status", "exceed", "exhausted", "need", "requ", "fit", "over", "lack", "short", "full", "small",
    "nomem", "no_mem", "returned", "too ",
)  # fmt: skip
"""Words of which each pattern below needs at least one, in lower case. Most lines have none and are not examined
further."""

# Gaps in these patterns are bounded: a line may be long.
_KIND = (
    r"(?:(?:gpu|device|cuda|hip|host|system|video|graphics|cpu|main|physical|virtual|pinned|free|available|allocatable"
    r"|process|hbm|total|the|your)[ _-]?)*"
)
_MEMORY = r"(?:memory|v?ram\b)"
_HEAP = r"(?:memory|v?ram|heaps?|swap)(?: space)?"
_SHORT = re.compile(
    rf"(?<![a-z0-9_])out[ _-]of[ _-]{_KIND}(?:(?:and|or) (?:shared )?{_KIND})?{_MEMORY}(?![a-z_]*(?:=|\())"
    rf"|outof{_KIND}memory"
    rf"|(?-i:OUT_OF_(?:[A-Z]+_)?MEMORY)"
    rf"|\b(?:(?:not|(?:do|does|did)n't) (?:\w+ )?(?:enough|sufficient)|insufficient|lack(?:s|ing)?(?: of)?"
    rf"|short(?:age)? of|no (?:more |further )?(?:available|free)|no more|too little|low on|make sure you have enough)"
    rf"\s(?:amount of )?"
    rf"{_KIND}{_MEMORY}(?! (?:slots?|cells?|registers?|banks?|bandwidth|ports?|leaks?)\b)"
    rf"|\bno {_KIND}memory (?:left|available|remaining)\b|\b{_MEMORY} (?:is )?(?:not enough|insufficient|full)\b"
    rf"|\b{_HEAP} (?:is |are |was |were )?exhausted\b|\bexhaust(?:ed|s)? (?:all )?{_KIND}{_MEMORY}|out of heap\b"
    rf"|(?:(?:\bnot|n't|\bnever|\btoo \w+) (?:.{{0,40}}\b)?(?:to )?fit|\bexceed(?:s|ed|ing)?)\b "
    rf"(?:(?:in|on)(?:to)? |to )?{_KIND}{_MEMORY}(?! (?:slots?|banks?|bandwidth)\b)|paging file is too small"
    rf"|\bkill(?:ed|s|ing)?\b.{{0,60}}\b(?:memory|oom)\b|\boom[ _-]?kill"
    rf"|\b(?:error|exception|failed|fatal)\b.{{0,60}}\boom\b"
    rf"|\b(?:requires?|needs?) more {_KIND}{_MEMORY}|\bexceed\w*\s(?:\S+\s){{0,3}}memory (?:\w+ )?(?:limit|budget)"
    rf"|\bover (?:its |the )?memory limit|\bv?mem \d+\w* exceed(?:s|ed) limit"
    rf"|\bmemory (?:limit|budget)s? (?:\(\w+\) )?(?:was |is |has been )?exceeded"
    rf"|\bresource[_ ]?exhausted\w*\W.{{0,80}}(?:\ballocat|\breserv|{_MEMORY}|\bhbm\b)",
    re.IGNORECASE,
)
"""Lack of memory, in the words of any program."""
_WHAT = r"(?:mem(?:ory)?\b|buffers?|bytes|storage|arrays?|tensors?|blocks?|[KMGT]i?B\b|v?ram\b)"
_FAILS = r"(?:fail(?:ed|s|ure)?|unable|cannot|can not|can't|could ?n[o']t|error)"
_ALLOCATES = r"(?:re-?)?\w{0,16}alloc\w*"
_REFUSED = re.compile(
    rf"\b{_FAILS}(?: (?:to|in|while|when|during))?[ :]{{1,2}}(?:\w+[ :]{{1,2}}){{0,2}}{_ALLOCATES}\b.{{0,80}}{_WHAT}"
    rf"|\b{_ALLOCATES}\b.{{0,80}}\b{_WHAT}.{{0,40}}\bfail(?:ed|s|ure)?\b"
    rf"|\b(?:{_WHAT}|object)\b.{{0,20}}\balloc\w* (?:error|fail\w*)\b"
    rf"|\b{_ALLOCATES} of size \d+ failed\b|\b\w*alloc\w*memory\w* failed\b|\balloc\w*[ -]fail\w*.{{0,80}}{_WHAT}"
    rf"|\b(?:\w*[mc]alloc(?:Async|Managed|Host|Pitch)?|cu\w{{0,20}}alloc\w{{0,20}}|\w*memalign|VirtualAlloc) failed\b"
    rf"(?!: (?:an? |invalid|unspecified|no (?:cuda|kernel)|driver|initiali))"
    rf"|\b(?:attempt(?:ed|ing)|tr(?:ied|ying)) to {_ALLOCATES}\b.{{0,80}}\b(?:greater|larger) than\b"
    rf"|\balloc\w* (?:size|request)\b.{{0,40}}\b(?:more|greater|larger) than\b.{{0,40}}{_WHAT}"
    rf"|\bfail(?:ed)? to allocate(?: again)?(?:[.!](?=\s|$)|\s*$)|\bmemory (?:allocation|request) (?:error|failure)\b"
    rf"|\b{_FAILS}(?: to)? (?:reserve|commit|obtain|get|acquire|map) (?:\S+ ){{0,4}}(?:memory|v?ram)\b"
    rf"(?! (?:info|usage|use|size|stat))"
    rf"|\b\w*alloc\w*(?:\([^)]{{0,60}}\))? returned (?:NULL|nullptr|error 2)\b"
    rf"|\bbad[_ ]alloc(?:ation)?\b|{_WHAT}.{{0,60}}\b(?:could not|cannot|can't) be allocated\b",
    re.IGNORECASE,
)
"""A refused allocation, in the words of any program."""
_CODES = re.compile(
    r"\b[A-Z_]{2,40}_ALLOC(?:ATION|ATOR)?_(?:FAIL(?:ED|URE)|ERR(?:OR)?)\b|\b(?:cuda|hip)ErrorMemoryAllocation\b"
    r"|\brocblas_status_memory_error\b|\b(?:[A-Z]+_)*E?NO_?MEM(?:ORY)?\b|\[Errno 12\]|\berrno\W{1,3}12\b"
    r"|\b(?:CUresult|(?:CUDA|HIP)(?: driver| runtime)? error)(?: error| code)?\W{1,3}(?:result=|code )?2\b(?![.\d])"
    r"|(?:^|[\s.|\]])_?\w{0,30}MemoryError(?::|\s*$)"
)
"""Codes and names of errors that mean a lack of memory."""
_TRANSLATED = re.compile(
    r"Nicht genügend (?:Haupt)?[Ss]peicher|Kann (?:Haupts|S)peicher nicht (?:anfordern|belegen)"
    r"|(?:Ne peut|Impossible d'|impossible d’)\s?allouer de la mémoire|[Mm]émoire insuffisante"
    r"|[Nn]o se (?:puede|pudo) asignar memoria|[Mm]emoria insuficiente|[Ii]mpossibile allocare memoria"
    r"|[Nn]ão (?:é possível|foi possível) alocar memória|Невозможно выделить память|Недостаточно памяти"
    r"|无法(?:分配|申请)内存|[内显]存(?:不足|不够|溢出)|無法配置記憶體|記憶體不足|メモリを確保できません|メモリ(?:ー)?(?:が)?不足"
    r"|메모리를? 할당할 수 없|메모리(?:가)? 부족"
)
"""The system's words for a refused allocation (ENOMEM), and the usual ones for a lack of memory, in other languages."""
_PRODUCTS = re.compile(
    r"\bOOM when allocating tensor"  # TensorFlow
    r"|\bDst tensor is not initialized"  # TensorFlow, where there is no room to copy to
    r"|\bFailed to allocate request for \S+ \(\d+B\) on device"  # JAX
    r"|\bResourceExhaustedError: .{0,400}\bfailed to allocate memory\b"
    r"|\bDataLoader worker \(pid.{0,400}\) is killed by signal: (?:Killed|Bus error)"
    r"|\bdataloader's workers are out of shared memory|\binsufficient shared memory \(shm\)"
    r"|\bunable to (?:write to|mmap \d+ bytes from|allocate shared memory).{0,400} </?torch_"
    r"|/dev/shm\b.{0,400}\bNo space left on device|\bNo space left on device\b.{0,400}/dev/shm\b"
    r"|\bNo executable batch size found"  # accelerate, which tries smaller batches after each lack of memory
    r"|\blarger than the (?:available KV cache memory|maximum number of tokens that can be stored in KV cache)"  # vLLM
    r"|\bless than desired GPU memory utilization"  # vLLM
    r"|\bworkers? .{0,60}\bkilled due to memory pressure"  # Ray
    r"|\b[SDCZ]MUMPS INFO\(1\)= *-(?:5|7|13)\b"  # MUMPS, where it could not allocate
)
"""Sentences of particular products."""

_MEANS_ELSE = re.compile(
    r"\bnot a failure\b"  # XLA and TensorFlow tried for speed, and do without
    r"|failed to alloc(?:ate)? .{0,400}\b(?:from device|on host): CUDA_ERROR_OUT_OF_MEMORY"  # they try again with less
    r"|Tried to allocate more than 1EB"  # torch was given a size that makes no sense
    r"|\bibv_\w+.{0,400}Cannot allocate memory"  # a limit on locked memory (ulimit -l)
    r"|\bOutOfMemory: out of shared memory"  # a limit of a database
    r"|\bJava(?:Script)? heap\b|\bGC overhead limit\b|\bunable to create (?:new )?native thread"  # limits of Java
    r"|\bstatic TLS block\b|\bnegative \w* ?size\b|\ballocat\w+ -\d{3}"
    r"|\bhas no attribute\b|\bcannot import name\b|\bis not defined\b"
    r"|\balloc\w*\b.{0,120}: (?:invalid (?:argument|device|value)|operation not (?:permitted|supported))"
    r"|\b(?:memory|oom)s?(?: \w+){0,2} ?[:=] ?0\b|\boom[ _-]?(?:score|adj)|\boom[ _-]?kill(?:er)?[ _-]?disable"
    r"|\bmetaspace\b|\bdirect buffer memory\b|\bfallocate\b|\bdisk (?:space|quota)\b|\bmemory required by task\b"
    r"|\b(?:possible|potential)(?: \w+)? causes\b",  # it guesses
    re.IGNORECASE,
)
"""Lines that contain such words but mean something else."""
_LEAVES_OUT = re.compile(r"\bskipp(?:ing|ed)\b|\bcontinuing\b", re.IGNORECASE)
"""Words by which a program tells that it leaves something out for lack of memory."""
_TRIES_AGAIN = re.compile(
    r"\bretrying\b|\bwill (?:re)?try\b|\bfall(?:ing|s)? ?back\b|\btrying again\b"
    r"|\b(?:attempting|trying) to (?:free|recover|continue|reclaim)\b",
    re.IGNORECASE,
)
"""Words by which it tells that it does without what it was refused."""
_ADVICE = re.compile(
    r"\b(?:avoid\w*|prevent\w*|if|may|might|in case|risk|potential\w*|possib\w+|handl\w+|catch\w*|until"
    r"|unless|when|whether|likely|against)\b[^.:;]{0,80}$",
    re.IGNORECASE,
)
"""Words before it in its sentence that make it advice and not a report."""
_PROGRAMMING = frozenset(
    {
        "AttributeError", "ImportError", "ModuleNotFoundError", "NameError", "UnboundLocalError", "KeyError",
        "IndexError", "TypeError", "SyntaxError", "IndentationError", "FileNotFoundError", "PermissionError",
        "NotADirectoryError", "IsADirectoryError", "UnicodeDecodeError", "UnicodeEncodeError", "ZeroDivisionError",
        "NotImplementedError", "RecursionError", "StopIteration",
    }
)  # fmt: skip
"""Exceptions that never concern memory, whatever their message quotes."""
_WORKER_KILLED = re.compile(
    r"\bSIGKILL\b|\bsignal 9\b|\bsignal: Killed\b|\bexit ?code\W{1,5}-9\b|\b-9 \(pid\b|\bterminated abruptly\b"
)
"""The words of launchers and pools about a worker that was killed with SIGKILL."""
_STICKY = re.compile(
    r"\ban illegal memory access was encountered|\bdevice-side assert triggered|\bunspecified launch failure"
    r"|\bCUDA_ERROR_ILLEGAL_ADDRESS\b|\bcudaErrorIllegalAddress\b|\bmisaligned address\b"
)
"""Errors after which every CUDA call fails, including allocations."""

_MAY_BE = re.compile(
    r"\bCU(?:BLAS|DNN|SOLVER|SPARSE|FFT)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)\b"
    r"|\bcuDNN failed to initialize\b|\bcu(?:blas|dnn|solver)Create\b|\b[Uu]nable to find an engine to execute"
    r"|\bCL_OUT_OF_RESOURCES\b|_ERROR_OUT_OF_RESOURCES\b|\bcudaErrorUnknown\b|\bCUDA error: unknown error"
    r"|\bunhandled cuda error\b|\b[Aa]lloc\w* failed\b"
)
"""Words that can mean a lack of GPU memory, but often mean something else."""

_TENSOR = re.compile(r"\bOOM when allocating tensor with shape ?\[(?P<shape>[\d,]*)\](?: and type (?P<type>\w+))?")
_ON_CPU = re.compile(
    r"\bdevice:CPU:\d|\bby allocator (?:cpu|mklcpu)\b|(?<!GPU or )(?<!shared )\b(?:CPU|host) memory\b"
    r"|\bcpu_device|\bDefaultCPUAllocator\b"
    r"|\bRESOURCE_EXHAUSTED: Out of memory allocating [\d,]+ bytes"  # JAX without a GPU
    r"|\bMemoryError: Unable to allocate"  # NumPy
    r"|\bcu(?:da)?(?:Mem)?(?:Host(?:Alloc|Register)|M?[Aa]llocHost)\b|\bnew RAM\b|/dev/shm|\bray\.exceptions\b"
    r"|^(?:\[rank\d+\]: ?)?MemoryError\s*$",
    re.IGNORECASE,
)
"""Words about memory of the host, including CUDA calls that lock host memory."""
_ON_GPU = re.compile(
    r"cuda|curesult|cu_mem_|webgpu|\bvulkan|\bhbm\b|显存|\bgpus?\b|\bgpu[_\d]|nccl|\bhip\b|\bhipError|\bxpu\b|\bnpu\b|vram|cublas|cudnn|cufft|cusolver|cusparse|curand"
    r"|\btensorrt|\btrt\b|nvinfer|\brmm(?![a-z])|thrust|torch\.(?:cuda\.)?OutOfMemory|\bdevice ordinal|\bon device \d"
    r"|DEVICE[_ -]?MEMORY|optix|\bvk[A-Z]\w+|VkResult|Pxg|\.cu\b|\bcu[A-Z]\w* failed|\bresource[_ ]?exhausted"
    r"|\bOOM when allocating tensor|\bDst tensor|KV cache|cache blocks|mem-fraction|memory object|CL_MEM_OBJECT"
    r"|\bexecutable batch size|\(allocated so far|^out of memory (?:while trying to allocate|on)"
    r"|\bout of memory to allocate \d|\bMPS\b|\bgraphics memory"
    r"|\bAscend|\bGE module\b|\bmem_dynamic_allocator|\bpooled_storage_manager",
    re.IGNORECASE,
)
"""Words about a GPU, near the message."""

_AMOUNT = r"(\d[\d,]*(?:\.\d*)?) ?(bytes|[KMGT]?i?B|[KMGT])(?![A-Za-z])"
_ASKED = re.compile(
    r"(?:\b[Tt]r(?:ied|ying) to allocate|\bOut of memory allocating|\bout of memory to allocate|\ballocating"
    r"|\bFailed to allocate request for|\bUnable to allocate|\bmemory allocation of|\bannot allocate|\brequested"
    r"|\b(?:cudaM|CUDA c|fail to allocate m)\w+)\s+" + _AMOUNT
)
_OF_SIZE = re.compile(r"\b(?:of )?size (\d{4,})\b")
"""A size without a unit, which is in bytes."""
_FREE = re.compile(
    rf"\bof which {_AMOUNT} is free|; {_AMOUNT} free;|\bavailable memory is only {_AMOUNT}|; free {_AMOUNT}"
)
_POSITION = re.compile(
    r"\bGPU (\d+)(?: has a total|;)|\bdevice:GPU:(\d+)|\bdevice ordinal (\d+)|\bGPU_(\d+)_bfc|\bon GPU:(\d+)"
    r"|\bon device (\d+)\b|\berror on GPU (\d+)\b"
)
_UNITS = {"b": 1, "B": 1, "K": units.KIB, "M": units.MIB, "G": units.GIB, "T": units.TIB}
_WIDTHS = {
    "bool": 1, "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "half": 2, "bfloat16": 2, "float": 4, "int32": 4,
    "uint32": 4, "double": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Bytes per element, by TensorFlow's name of the type."""


@dataclass(frozen=True, slots=True)
class OomMatch:
    """The memory that ran out, according to the task's own output."""

    part: Part
    asked: int = 0
    """The bytes that it tried to allocate; 0 if it did not say."""
    position: int | None = None
    """The position of the GPU among those it sees, if it said so."""
    free: int | None = None
    """The bytes that were free there at that moment, if it said so."""


def what_ran_out(output: str) -> OomMatch | None:
    """Return the memory that ran out according to a failed task's last lines; None if they are about something else.

    Of several such messages the last counts, and only if no other error follows it: a task may run out of memory,
    recover, and fail for another reason. Call this only for a task that did not succeed.
    """
    if not _may_say_so(output):
        return None
    lines = without_code(clean(output))
    for number in range(len(lines) - 1, -1, -1):
        if _tries_again(lines[number]):
            return None
        if _says_so(lines[number]) or _says_so_with(lines[number], lines[number + 1 : number + 2]):
            if is_another_error(lines[number + 1 :]) or _STICKY.search("\n".join(lines[:number])):
                return None
            ran = _ran(lines[number : number + _LONG], lines[max(0, number - _LONG) : number])
            return ran if ran.asked < _SENSELESS else None
    return None


def may_be_gpu_memory(output: str, *, signalled: bool) -> bool:
    """Tell whether a task may have failed for lack of GPU memory, which is certain only if its GPU was full.

    Its last error contains words that can mean this, or a signal ended it without any error message.
    """
    ran = what_ran_out(output)
    if ran is not None:  # a signal ended it after it had said so
        return ran.part == GPU
    lines = without_code(clean(output))
    last = next((n for n in range(len(lines) - 1, -1, -1) if _MAY_BE.search(lines[n])), None)
    if last is not None:
        return not is_another_error(lines[last + 1 :])
    return signalled and not is_another_error(lines) and not any(_STICKY.search(line) for line in lines)


def _may_say_so(text: str) -> bool:
    if not text.isascii() and _TRANSLATED.search(text):
        return True
    text = text.lower()
    return any(word in text for word in _OF_MEMORY) and any(word in text for word in _OF_FAILURE)


def killed_for_memory(signal: int | None, code: int | None, kernel_kills: int, output: str = "") -> bool:
    """Tell whether the kernel killed the task for memory: no scheduler did, and the kernel counted such a kill
    meanwhile.

    A launcher such as torchrun ends with its own exit code, and reports that a worker was killed with SIGKILL.
    """
    if kernel_kills <= 0 or code == 0:
        return False
    return signal == 9 or code in (137, 247) or (code is not None and _WORKER_KILLED.search(output) is not None)


def _goes_on(line: str) -> bool:
    return _LEAVES_OUT.search(line) is not None or _TRIES_AGAIN.search(line) is not None


def _tries_again(line: str) -> bool:
    """Tell whether a line reports that memory ran out and that the program does without it."""
    return _TRIES_AGAIN.search(line) is not None and _has_the_words(line)


def _says_so(line: str) -> bool:
    """Tell whether a line reports that memory ran out, and not that the program goes on."""
    return not _goes_on(line) and _has_the_words(line)


def _has_the_words(line: str) -> bool:
    if not _may_say_so(line) or _MEANS_ELSE.search(line):
        return False
    exception = EXCEPTION.search(line)
    if exception and exception["type"].rpartition(".")[2] in _PROGRAMMING:
        return False
    if _CODES.search(line) or _PRODUCTS.search(line) or _TRANSLATED.search(line):
        return True
    found = [match for match in (_SHORT.search(line), _REFUSED.search(line)) if match]
    return any(not _ADVICE.search(line[: match.start()]) and line[match.end() :][:2] != "? " for match in found)


def _says_so_with(line: str, following: list[str]) -> bool:
    """Tell whether a line reports it together with the next one, if the message is broken between them."""
    if not following or not line or not following[0]:
        return False
    end = line.rstrip()[-_BREAK:]
    joined = f"{end} {following[0].lstrip()[:_BREAK]}"
    if not _may_say_so(joined) or _MEANS_ELSE.search(joined) or _goes_on(joined):
        return False
    broken = (match for pattern in (_SHORT, _REFUSED) for match in pattern.finditer(joined))
    return any(
        match.start() < len(end) < match.end() and not _ADVICE.search(joined[: match.start()]) for match in broken
    )


def _part(message: list[str], before: list[str]) -> Part:
    """Return the memory that a message is about: from its first line, else from the lines around it."""
    for text in (message[0], " ".join(message), " ".join(before)):
        if _ON_CPU.search(text):
            return HOST
        if _ON_GPU.search(text):
            return GPU
    return HOST


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


def _bytes(number: str, unit: str) -> int:
    return round(float(number.replace(",", "")) * _UNITS[unit[0]])
