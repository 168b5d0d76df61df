"""Bytes and durations: texts for users and numbers for the code."""

from __future__ import annotations

import re
from collections.abc import Iterable

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40

_SIZES = {"k": KIB, "m": MIB, "g": GIB, "t": TIB}
_SIZE = r"(?i)\s*(\d+(?:\.\d+)?)\s*([kmgt])(?:i?b)?\s*\Z"
"""Patterns are compiled when they are first used: light verbs need none of them."""
_PARTS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "min": 60.0, "s": 1.0, "ms": 0.001}
_DURATION = r"(?i)(?:\d+(?:\.\d+)?(?:ms|min|d|h|m|s))+\Z"
_PART = r"(?i)(\d+(?:\.\d+)?)(ms|min|d|h|m|s)"
_CLOCK = r"(\d+):([0-5]?\d):([0-5]?\d)\Z"
_BARE = r"\d+(?:\.\d+)?\Z"


def parse_size(text: str) -> int:
    """Read `8GiB`, `8G`, `900MiB`: M = MiB = MB = 2^20 and G = GiB = GB = 2^30, as nvidia-smi counts."""
    match = re.match(_SIZE, text)
    if match:
        return round(float(match[1]) * _SIZES[match[2].lower()])
    bare = text.strip()
    if re.match(_BARE, bare):
        raise ValueError(f"{bare!r} has no unit: write {bare}GiB or {bare}MiB")
    raise ValueError(f"{bare!r} is not a size: write it like 8GiB or 900MiB")


def parse_duration(text: str) -> float:
    """Read `90s`, `1h30m`, `2d`, `02:00:00` into seconds."""
    bare = text.strip()
    clock = re.match(_CLOCK, bare)
    if clock:
        return int(clock[1]) * 3600.0 + int(clock[2]) * 60.0 + int(clock[3])
    if re.match(_DURATION, bare):
        return sum(float(number) * _PARTS[unit.lower()] for number, unit in re.findall(_PART, bare))
    if re.match(_BARE, bare):
        raise ValueError(f"{bare!r} has no unit: write {bare}s or {bare}m")
    raise ValueError(f"{bare!r} is not a time: write it like 90s, 1h30m or 02:00:00")


def size(count: float) -> str:
    """Write bytes for users: `24.0GiB`, `512MiB`, `0MiB`."""
    if abs(count) >= GIB:
        return f"{count / GIB:.1f}GiB"
    return f"{count / MIB:.0f}MiB"


def duration(seconds: float) -> str:
    """Write seconds for users: `0.4s`, `41s`, `3m20s`, `2h05m`, `3d04h`."""
    if seconds < 9.95:
        return f"{max(seconds, 0.0):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def count(number: int, noun: str) -> str:
    """Write `1 task`, `2 tasks`, `2 batches`, `2 epochs`."""
    plural = noun + ("es" if noun.endswith(("tch", "s")) else "s")
    return f"{number:,} {noun if number == 1 else plural}"


def ranges(numbers: Iterable[int]) -> str:
    """Write numbers as ranges: `0-3, 6`."""
    parts = list[list[int]]()
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]}-{part[-1]}" for part in parts)
