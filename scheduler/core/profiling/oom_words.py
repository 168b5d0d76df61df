"""The vocabulary of a lack of memory: rules that hold for any program, and the words that overrule them.

A rule joins words of three kinds within one clause: memory, allocation, and failure or shortage. No rule names a
product; `PRODUCTS` has the few sentences that contain none of these words. The gaps of all rules are bounded, because a
line may be long.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from scheduler.patterns import lazy_pattern

OF_MEMORY = (
    "memory", "alloc", "oom", "exhausted", "ram", "errno", "nomem", "no_mem", "shm", "tensor", "batch size", "kv",
    "torch_", "worker", "heap", "mem ", "memalign", "mumps", "curesult", "hip error", "paging file",
    "gpu", "cuda", "too large", "too big", "storage", "reserve", "workspace", "enough room",
    " gb", "gib", " mb", "mib", "bytes", "buffer",
)  # fmt: skip
OF_FAILURE = (
    "out", "not", "n't", "no ", "insuff", "low on", "fail", "unable", "error", "err", "bad", "kill", "enough", "oom",
    "less", "larger", "status", "exceed", "exhausted", "need", "requ", "fit", "over", "lack", "short", "full", "small",
    "nomem", "no_mem", "returned", "too ", "deplet", "reach", "hit", "more", "only", "greater", "died", "dead", "exit",
    "terminat", "abort", "crash", "inadequate", "impossible",
    "problem", "beyond", "above", "refus", "den", "used up", "used all", "consumed all", "through",
)  # fmt: skip
"""Words in lower case. A line is examined further only if it contains one of OF_MEMORY and one of OF_FAILURE, and most
lines do not."""

_KIND = (
    r"(?:(?:gpu|device|cuda|hip|host|system|video|graphics|cpu|main|physical|virtual|pinned|free|available|allocatable"
    r"|process|hbm|total|the|your|its|any|all|this|unified|working|usable|internal|application|contiguous|remaining"
    r"|more|real|swap|local|dedicated|card|accelerator|node|machine|runtime|gfx|onboard|sufficient|enough)"
    r"(?:'s)?[ _-]?)*"
)
"""Words before the noun that name the memory. Shared, constant and texture memory of kernels is not meant."""
_NOT_THAT = r"(?! (?:slots?|cells?|registers?|banks?|bandwidth|ports?|leaks?|info|stat|usage stat|address|bars?)\w*\b)"
_MEMORY = rf"(?:memory|v?ram\b|\bmem\b){_NOT_THAT}"
_HEAP = r"(?:memory|v?ram|heaps?|swap)(?: space| pools?| arenas?)?"
_AMOUNT = r"\d[\d.,]*\s?(?:bytes|[KMGT]i?B?)\b"
_BOUND = r"(?:limits?|budgets?|quotas?|cap|capacity|thresholds?|ceiling|maximum|pools?|arenas?)"
_OF_ALL = r"(?:amount of |amounts of |space in |room in |of |space on )?"

SHORTAGE: Sequence[str] = (
    rf"(?<![a-z0-9_])out[ _-]of[ _-]{_KIND}(?:(?:and|or) (?:shared )?{_KIND})?{_MEMORY}(?![a-z_]*(?:=|\())",
    rf"outof{_KIND}memory(?!\w*\((?!['\"]))",
    r"(?-i:(?:OUT_OF|NOT_ENOUGH|INSUFFICIENT|LOW)_(?:[A-Z]+_)?MEM(?:ORY)?(?![A-Z])|MEM(?:ORY)?_?LIMIT(?:_EXCEEDED)?\b)",
    (
        r"(?-i:(?:NotEnough|Insufficient)(?:[A-Z][a-z]+){0,2}Memory|Memory(?:[A-Z][a-z]+){0,2}(?:Exceeded|Exhausted)"
        r"|BadAlloc|MemoryAllocation(?:Error|Fail\w*)|MemoryError\()"
    ),
    rf"\b(?:not?|n't|never|no longer) (?:\w+ ){{0,3}}(?:enough|sufficient|adequate)\s{_OF_ALL}{_KIND}{_MEMORY}",
    (
        rf"\b(?:insufficient|inadequate|too little|too low|low on(?: resource:)?|lack(?:s|ing|ed)?(?: of)?"
        rf"|short(?:age)? (?:of|on))\s"
        rf"{_OF_ALL}{_KIND}{_MEMORY}"
    ),
    rf"\b(?:no (?:more |further )?(?:available|free|usable|remaining)|no more)\s{_KIND}{_MEMORY}",
    rf"\bmake sure (?:you have|there is) enough {_KIND}{_MEMORY}",
    rf"\bno {_KIND}{_MEMORY} (?:is |was )?(?:left|available|remaining|in|on)\b|\b{_MEMORY} (?:ran|runs?) out\b",
    (
        rf"\b{_MEMORY}(?: (?:\w+ )?(?:space|pool|arena|size|resources?|capacity))? (?:is |are |was |were )?"
        rf"(?:currently )?(?:not (?:\w+ )?(?:enough|sufficient|adequate)|insufficient|inadequate|full\b|used up"
        rf"|too (?:small|low)|depleted)"
    ),
    (
        rf"\b{_HEAP} (?:is |are |was |were |has been )?exhaust(?:ed|ion)\b|\b(?:exhaust(?:ed|s|ing)?|deplet(?:ed|es)"
        rf"|used (?:up )?all|consumed all|ran through)(?: of)?(?: all)?(?: of)? {_KIND}{_MEMORY}|out of heap\b"
    ),
    (
        rf"(?:\bnot|n't|\bnever|\btoo \w+) (?:.{{0,40}}\b)?(?:to )?fit\b (?:(?:with)?in|on)(?:to)? {_KIND}"
        rf"(?:{_MEMORY}|(?:gpu|device|card|accelerator)s?\b)"
    ),
    rf"\btoo (?:large|big|much|many)\b(?: \S+){{0,4}}? (?:for|to fit) {_KIND}(?:{_MEMORY}|(?:gpu|device|card)s?\b)",
    rf"\bexceed(?:s|ed|ing)? (?:\S+ ){{0,4}}?{_KIND}{_MEMORY}",
    rf"\b{_MEMORY}(?: \S+){{0,4}}? (?:was |is |has been |would )?exceed(?:s|ed|ing)?\b",
    (
        rf"\b(?:over|above|beyond|past|hit(?:s|ting)?|reach(?:ed|es|ing)?|surpass(?:ed|es)) "
        rf"(?:\S+ ){{0,3}}?{_KIND}{_MEMORY} (?:\w+ )?{_BOUND}\b"
    ),
    rf"\b{_MEMORY} (?:\w+ )?{_BOUND}(?: \S+){{0,4}}? (?:hit|reached|exceeded|exhausted|surpassed|violated)\b",
    rf"\bmax(?:imum|imal)?\.? {_KIND}{_MEMORY}(?: \w+)? (?:was |is )?(?:hit|reached|exceeded|surpassed)\b",
    (
        rf"\b(?:free|available|remaining) {_KIND}{_MEMORY}.{{0,60}}? (?:less|lower|smaller) than "
        rf"(?:the )?(?:desired|needed|required|requested|minim)"
    ),
    r"\bv?mem \d+\w* exceed(?:s|ed) limit|paging file is too small|\bnot enough storage is available",
    (
        rf"\b(?:requires?|needs?|requir(?:ed|ing)|need(?:ed|ing)|requested|wants|demands)\b.{{0,60}}?"
        rf"(?:\b{_MEMORY}|{_AMOUNT}).{{0,60}}?(?:\bbut\b|\bonly\b|\bthan\b|>|,).{{0,60}}?"
        rf"\b(?:available|free|left|remaining|has|have|had|exists?|usable|found)\b"
    ),
    rf"\b(?:requires?|needs?|requested|wants) more {_KIND}{_MEMORY}",
    (
        rf"\b(?:required|requested|needed|necessary|estimated) {_KIND}{_MEMORY}.{{0,60}}?"
        rf"\b(?:larger|greater|bigger|more|higher|exceeds?)\b"
    ),
    r"\bkill(?:ed|s|ing)?\b.{0,60}\b(?:memory|oom)\b|\boom[ _-]?kill",
    rf"\b(?:{_MEMORY}) (?:\w+ ){{0,3}}too high\b.{{0,40}}\b(?:abort|kill|exit|stop|terminat)\w*",
    r"\b(?:error|exception|failed|fatal|status)\b.{0,60}\boom\b|\boom (?:error|occurred|detected|encountered|happened)",
    r"\boom\b\W{1,3}kill|\b(?:died|dead|crash\w*|exit\w*|terminated|aborted|stopped)\b.{0,20}\boom\b",
    rf"\bresource[_ ]?exhausted\w*\W.{{0,80}}(?:\ballocat|\breserv|{_MEMORY}|\bhbm\b)",
)
"""The words by which any program says that memory is short."""

_WHAT = (
    r"(?:mem(?:ory)?\b|buffers?|bytes|storage|arrays?|tensors?|blocks?|[KMGT]i?B\b|v?ram\b|vectors?\b|matri(?:x|ces)\b"
    r"|pages?\b|arenas?\b|images?\b|textures?\b|surfaces?\b|workspaces?\b|chunks?\b|heap\b|cache\b|space\b"
    r"|(?:hash)?tables?\b|framebuffers?\b|objects?\b|structures?\b|strings?\b|pool\b|\d{5,}\b)"
)
_FAILS = (
    r"(?:fail(?:ed|s|ure|ing)?|unable|cannot|can not|can't|could ?n[o']t|error|impossible|not able|not possible"
    r"|problems?|unsuccessful|did(?: not|n't)|does(?: not|n't))"
)
_FAILED = (
    r"(?:fail(?:ed(?-i:(?=[A-Z]))|(?:ed|s|ure|ing)?\b)|(?:was (?:refused|denied|rejected)|unsuccessful|impossible"
    r"|not possible)\b)"
)
_ALLOCATES = r"(?:re-?)?\w{0,16}alloc\w*"
_NO_REASON = r"(?!: (?:an? |invalid|unspecified|no (?:cuda|kernel)|driver|initiali))"

REFUSED: Sequence[str] = (
    (
        rf"\b{_FAILS}(?: (?:to|in|while|when|during|for|with))?[ :]{{1,2}}"
        rf"(?:\w+[ :]{{1,2}}){{0,2}}{_ALLOCATES}\b.{{0,80}}?{_WHAT}"
    ),
    rf"\b{_ALLOCATES}\b.{{0,80}}?\b{_WHAT}.{{0,40}}?\b{_FAILED}",
    rf"\b(?:{_WHAT}|object)\b.{{0,20}}\balloc\w* (?:error|fail\w*)\b",
    rf"\b{_ALLOCATES} of size \d+ failed\b|\b\w*alloc\w*memory\w* failed\b",
    rf"\balloc\w*[ -](?:fail|err)\w*.{{0,80}}?{_WHAT}",
    (
        r"\b(?:\w*[cem]alloc(?:Async|Managed|Host|Pitch)?|cu\w{0,20}alloc\w{0,20}|\w*memalign|VirtualAlloc)"
        r"(?:\(\S{0,20}\))? "
        rf"(?:has )?(?:failed|failure|error){_NO_REASON}"
    ),
    rf"\b(?:attempt(?:ed|ing|s)?|tr(?:ied|ying|ies)) to {_ALLOCATES}\b.{{0,80}}\b(?:greater|larger|bigger|more) than\b",
    rf"\balloc\w* (?:size|request|of)\b.{{0,40}}\b(?:more|greater|larger|bigger) than\b.{{0,40}}{_WHAT}",
    r"\balloc\w*\b.{0,60}\bexceed\w*\b.{0,40}\b(?:limit|available|free|maximum|capacity|remaining)\b",
    (
        rf"\b{_FAILS}(?: to)? create (?:\S+ ){{0,3}}?(?:buffers?|textures?|arrays?|tensors?|matrix|images?)\b.{{0,40}}?"
        rf"(?:{_AMOUNT}|\b\d{{7,}}\b)"
    ),
    r"\bfail(?:ed)? to allocate(?: again)?(?:[.!](?=\s|$)|\s*$)",
    r"\bmemory (?:allocation|request|exhaustion) (?:error|failure|failed|problem|refused|denied)\b",
    (
        rf"\b{_FAILS}(?: to)? (?:reserve|commit|obtain|get|acquire|map|provide|find|claim|secure|grow|resize"
        rf"|expand|extend"
        rf"|enlarge|increase) (?:\S+ ){{0,4}}?(?:memory|v?ram|(?:object )?heap|address space|workspace|arena)\b"
        rf"(?! (?:info|usage|use|size|stat|map|limit|at))"
    ),
    rf"\b{_FAILS}(?: to)? (?:reserve|commit|obtain|map|provide|lock|pin) (?:about |another )?{_AMOUNT}",
    r"\bnot enough (?:room|space)\b.{0,60}\b(?:grow|allocat\w*|reserv\w*)\b",
    rf"\b\w*alloc\w*(?:\([^)]{{0,60}}\))?:?(?: of {_AMOUNT})? return(?:ed|s) (?:NULL|nullptr|error 2|a null)\b",
    rf"\bbad[_ ]alloc(?:ation)?\b|{_WHAT}.{{0,60}}\b(?:could not|cannot|can't) be (?:allocated|reserved|obtained)\b",
)
"""The words by which any program says that an allocation was refused."""

CODES: Sequence[str] = (
    r"\b[A-Z_]{2,40}_ALLOC(?:ATION|ATOR)?_(?:FAIL(?:ED|URE)|ERR(?:OR)?)\b|\b(?:cuda|hip)ErrorMemoryAlloc\w*",
    r"\b(?:CL_)?MEM_OBJECT_ALLOC",
    r"\brocblas_status_memory_error\b|\b(?:[A-Z]+_)*E?NO_?MEM(?:ORY)?\b|\[Errno 12\]|\b(?:os )?err(?:no|or)\W{1,3}12\b",
    r"\b(?:CUresult|(?:CUDA|HIP)(?: driver| runtime)? error)(?: error| code)?\W{1,3}(?:result=|code )?2\b(?![.\d])",
    r"(?i:\b(?:cuda|hip)(?: \w+){0,2} fail(?:ed|ure)(?: with)?(?: error)?(?: code| status)?)\W{1,3}2\b(?![.\d])",
    r"(?:^|[\s.|\]])_?\w{0,30}MemoryError(?::|\s*$)",
)
"""Codes and names of errors that mean a lack of memory."""

TRANSLATED = lazy_pattern(
    r"Nicht genügend (?:Haupt)?[Ss]peicher|Kann (?:Haupts|S)peicher nicht (?:anfordern|belegen)"
    r"|(?:Ne peut|Impossible d'|impossible d’)\s?allouer de la mémoire|[Mm]émoire insuffisante"
    r"|[Nn]o se (?:puede|pudo) asignar memoria|[Mm]emoria insuficiente|[Ii]mpossibile allocare memoria"
    r"|[Nn]ão (?:é possível|foi possível) alocar memória|Невозможно выделить память|Недостаточно памяти"
    r"|无法(?:分配|申请)内存|[内显]存(?:不足|不够|溢出)|無法配置記憶體|記憶體不足|メモリを確保できません|メモリ(?:ー)?(?:が)?不足"
    r"|메모리를? 할당할 수 없|메모리(?:가)? 부족"
)
"""The system's words for a refused allocation (ENOMEM), and the usual words for a lack of memory, in other
languages."""

PRODUCTS = lazy_pattern(
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
"""Sentences of particular products that no rule covers."""

MEANS_ELSE = lazy_pattern(
    r"\bnot a failure\b"  # XLA and TensorFlow tried for speed, and go on
    r"|Tried to allocate more than 1EB"  # torch was given a size that makes no sense
    r"|\bibv_\w+.{0,400}Cannot allocate memory|\bmlock(?:all)?\b|\block(?:ed|ing)? (?:page|memory)\b"  # ulimit -l
    r"|\btime limit\b"
    r"|(?:exceed\w*|too much|out of(?: resources?:)?|insufficient|not enough|require\w*)(?: \S+){0,5}?"
    r" (?:shared|constant|texture) mem(?:ory)?\b(?! \(shm|.{0,400}(?:shm|torch_|dataloader))(?<!workers are out of"
    r" shared memory)"
    r"|\b(?:shared|constant|texture) memory\b(?: \S+){0,5}? (?:exceed\w*|too large)"  # limits of kernels and databases
    r"|\bJava(?:Script)? heap\b|\bGC overhead limit\b|\bunable to create (?:new )?native thread"  # limits of Java
    r"|\bstatic TLS block\b|\bnegative \w* ?size\b|\ballocat\w+ -\d{3}"
    r"|\bhas no attribute\b|\bcannot import name\b|\bis not defined\b|\babstract (?:class )?type\b"
    r"|\balloc\w*\b.{0,160}(?:\b\d+ != \d+|\bmismatch)"
    r"|\balloc\w*\b.{0,120}: (?:invalid (?:argument|device|value)|operation not (?:permitted|supported))"
    r"|\b(?:memory|oom(?!_score)\w*)s?(?: \w+){0,2}[\"']? ?[:=] ?[\"']?(?:0|false|no|none|off|null)\b"
    r"|^(?!.{0,400}(?:\binvoked oom|\bkilled process)).{0,400}\boom[ _-]?(?:score|adj)"
    r"|\boom[ _-]?kill(?:er)?[ _-]?disable|\bmetaspace\b|\bdirect buffer memory\b|\bfallocate\b|\bexceeds \d+% of\b"
    r"|\bsoft limit\b|\bdisk (?:space|quota)\b|\b(?:free|on) (?:the )?disk\b|\bmemory required by task\b"
    r"|\b(?:possible|potential)(?: \w+)? causes\b"  # a guess of the program
    r"|\balloc\w* (?:(?:an?|the|static|new|free|any|pod|network) )*(?:ip|ipv[46]|mac|tcp|udp|ports?|subnets?"
    r"|pod ?cidrs?|address(?:es)?(?! space))\b",  # of a network
    re.IGNORECASE,
)
"""Words with which a line means something other than a lack of memory."""
FIRST_TRY = lazy_pattern(
    r"\bfailed to alloc(?:ate)? .{0,400}\b(?:from device|on host): \w+OUT_?OF_?MEMORY", re.IGNORECASE
)
"""A refusal after which TensorFlow tries again with less memory. It counts only if no line follows."""
LEAVES_OUT = lazy_pattern(r"\bskipp(?:ing|ed)\b|\bcontinuing\b", re.IGNORECASE)
"""Words by which a program says that it leaves something out for lack of memory."""
WARNS = lazy_pattern(r"\[W\]|\bWARN(?:ING)?\b")
"""The levels of log lines that are warnings, not errors."""
TRIES_AGAIN = lazy_pattern(
    r"\bretrying\b|\bwill (?:re|keep )?try(?:ing)?\b|\bfall(?:ing|s)? ?back\b|\btrying again\b"
    r"|\b(?:attempting|trying) to (?:free|recover|continue|reclaim)\b"
    r"|[,;:.(-] ?(?:so |now )?(?:switching|disabling|reducing|lowering|halving|offloading|spilling|using) "
    r"(?!(?:a )?(?:smaller|lower|fewer|less).{0,60}\b(?:may|might|can|could|should|helps?)\b)",
    re.IGNORECASE,
)
"""Words by which a program says that it continues without the memory that it was refused."""
ADVICE = lazy_pattern(
    r"\b(?:avoid\w*|prevent\w*|if|may|might|in case|risk|potential\w*|possib\w+|handl\w+|catch\w*|until"
    r"|unless|when|whether|likely|against|usually|often|typically|normally|sometimes)\b[^.:;]{0,80}$",
    re.IGNORECASE,
)
"""Words that turn a message into advice if they come earlier in the same sentence."""
ADDRESS = lazy_pattern(r"\bhttps?://\S+")
"""A web address, whose words say nothing about this program."""

SHORT = lazy_pattern("|".join(SHORTAGE), re.IGNORECASE)
REFUSES = lazy_pattern("|".join(REFUSED), re.IGNORECASE)
CODE = lazy_pattern("|".join(CODES))
