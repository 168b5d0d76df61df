"""The current state of the GPUs (clocks, power, throttle reasons, energy), read once by a child process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.devices.gpu.child_faults import SamplerLimits
from scheduler.devices.gpu.discovery import answer, dismiss
from scheduler.devices.gpu.inventory import find_pynvml
from scheduler.devices.sampler_child import GPUS, SamplerChild
from scheduler.runtime.paths import PACKAGE

Cards = Sequence[Mapping[str, Any]]
"""The telemetry of each GPU."""
REASONS = {
    0x1: "idle", 0x2: "clock setting of an application", 0x4: "power cap", 0x8: "slowdown by hardware",
    0x10: "sync boost", 0x20: "thermal slowdown by software", 0x40: "thermal slowdown by hardware",
    0x80: "power brake", 0x100: "display clocks",
}  # fmt: skip
"""Each bit of nvmlDeviceGetCurrentClocksThrottleReasons with its meaning in words (nvml.h)."""
SLOWED = 0x8 | 0x20 | 0x40 | 0x80
"""The bits that mean heat or a lack of power; the other bits do not indicate a problem."""


def look_at_cards() -> Cards:
    """Return NVML's values for each GPU, with None for missing values; empty if there is no NVML, or if it hangs."""
    module = find_pynvml()
    if module.path is None:
        return []
    child = SamplerChild(GPUS, PACKAGE.parent, [str(module.path), json.dumps({"cards": True})])
    try:
        said = answer(child, SamplerLimits())
    finally:
        dismiss(child)
    if not isinstance(said, Mapping):
        return []
    return [{**card, "throttled": reasons(card["throttled"])} for card in said.get("cards", ())]


def reasons(bits: int | None) -> list[str] | None:
    """Return the reasons, in words, why the clocks are below their maximum; None if they are unknown."""
    if bits is None:
        return None
    known = [word for bit, word in REASONS.items() if bits & bit]
    rest = bits & ~sum(REASONS)
    return [*known, hex(rest)] if rest else known


def joules(before: Cards, after: Cards, uuids: Sequence[str]) -> float | None:
    """Return the energy in joules that these GPUs used between two readings; None if one of the GPUs does not report
    it.
    """
    first, last = ({card["uuid"]: card["energy_mj"] for card in cards} for cards in (before, after))
    if not uuids or any(last.get(uuid) is None or first.get(uuid) is None for uuid in uuids):
        return None
    return float(sum(last[uuid] - first[uuid] for uuid in uuids)) / 1000
