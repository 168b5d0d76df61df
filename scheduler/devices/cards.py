"""How the GPUs run at this moment: clocks, power, what holds them back, energy so far; asked once, in a child."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.devices.finding import answer, dismiss
from scheduler.devices.node import find_pynvml
from scheduler.devices.nvml_child import NvmlChild
from scheduler.devices.samplers import Limits
from scheduler.paths import PACKAGE

Cards = Sequence[Mapping[str, Any]]
"""What is known of each GPU."""
REASONS = {
    0x1: "idle", 0x2: "clocks set by an application", 0x4: "power cap", 0x8: "slowdown by hardware",
    0x10: "sync boost", 0x20: "slowdown by software for heat", 0x40: "slowdown by hardware for heat",
    0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""What the bits of nvmlDeviceGetCurrentClocksThrottleReasons mean (nvml.h)."""


def look_at_cards() -> Cards:
    """What NVML gives of each GPU, None where it does not; nothing where there is no NVML, or it hangs."""
    module = find_pynvml()
    if module.path is None:
        return []
    child = NvmlChild(PACKAGE.parent, Path(module.path), {"cards": True})
    try:
        said = answer(child, Limits())
    finally:
        dismiss(child)
    if not isinstance(said, Mapping):
        return []
    return [{**card, "throttled": reasons(card["throttled"])} for card in said.get("cards", ())]


def reasons(bits: int | None) -> list[str] | None:
    """Why the clocks are below what they could be, in words."""
    if bits is None:
        return None
    known = [word for bit, word in REASONS.items() if bits & bit]
    rest = bits & ~sum(REASONS)
    return [*known, hex(rest)] if rest else known


def joules(before: Cards, after: Cards, uuids: Sequence[str]) -> float | None:
    """What these GPUs used between two looks; None where one of them does not tell."""
    first, last = ({card["uuid"]: card["energy_mj"] for card in cards} for cards in (before, after))
    if not uuids or any(last.get(uuid) is None or first.get(uuid) is None for uuid in uuids):
        return None
    return float(sum(last[uuid] - first[uuid] for uuid in uuids)) / 1000
