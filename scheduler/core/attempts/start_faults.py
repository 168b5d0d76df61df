"""The errors of programs that cannot start with a value they got: a UUID in place of a number, or a port in use."""

from __future__ import annotations

from scheduler.core.profiling.error_lines import clean, is_another_error
from scheduler.patterns import lazy_pattern

_UUID = r"GPU-[0-9A-Fa-f]"
_NOT_A_NUMBER = lazy_pattern(
    rf"invalid literal for int\(\) with base \d+: .{{0,12}}['\"]{_UUID}"  # Python, so DeepSpeed, vLLM and many scripts
    rf"|could not convert string to float: ['\"]{_UUID}"
    rf"|invalid int value: ['\"]{_UUID}"  # argparse
    rf"|input_value=['\"]{_UUID}"  # pydantic
    rf"|Invalid device string: ['\"](?:cuda|gpu):{_UUID}"  # torch
    rf"|No slot ['\"]{_UUID}"  # DeepSpeed
    rf"|Value ['\"]{_UUID}.{{0,80}} could not be converted to Integer"  # OmegaConf
    rf"|\bparsing \"{_UUID}.{{0,80}}invalid syntax"  # Go
)
_PORT_TAKEN = lazy_pattern(r"\bEADDRINUSE\b|\[Errno 98\]|\b[Aa]ddress already in use\b")
_PORT = lazy_pattern(r"\bport: (\d{2,5})\b")
LAST = 200
"""The number of lines at the end of an output that are examined."""


def hint(output: str) -> str:
    """Return a hint for users: which value a failed program could not use, and what to do; empty if its last error is
    of another kind.
    """
    lines = clean(output)[-LAST:]
    for at in range(len(lines) - 1, -1, -1):
        found = _hint_of(lines[at])
        if found:
            return "" if is_another_error(lines[at + 1 :]) else found
    return ""


def _hint_of(line: str) -> str:
    if _NOT_A_NUMBER.search(line):
        return "it takes a GPU's UUID for a number: give it numbers with --visible index"
    if not _PORT_TAKEN.search(line):
        return ""
    port = _PORT.search(line)
    which = f"port {port[1]}" if port else "its port"
    return f"{which} is in use: let it read its port from MASTER_PORT, which no other task gets"
