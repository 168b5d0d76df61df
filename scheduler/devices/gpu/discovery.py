"""Discovery of the node's GPUs: a sampler child is asked, and asked again without a GPU that hung or crashed it."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from scheduler.devices.gpu.inventory import (
    REINSTALL,
    GpuInventory,
    death,
    hung,
    hung_at_start,
    read_node,
    why_not,
)
from scheduler.devices.gpu.sampler_group import SamplerLimits
from scheduler.devices.sampler_child import INIT, SamplerChild, bury
from scheduler.values import dataclass

Start = Callable[[Mapping[str, Any]], SamplerChild]
PAUSE = 0.05


@dataclass(frozen=True, slots=True)
class Fault:
    """The failure of a child: the GPU that caused it, or -1 where none did."""

    index: int
    sentence: str


def find_node(start: Start, limits: SamplerLimits, dev: Path, hint: str) -> tuple[GpuInventory, SamplerChild | None]:
    """Return the inventory, and the child that made it, ready for orders; None where there is nothing to look at."""
    left_out: dict[int, str] = {}
    while True:
        child = start({"find": True, "skip": sorted(left_out)})
        said = answer(child, limits)
        if isinstance(said, Fault):
            dismiss(child)
            if said.index < 0 or said.index in left_out:
                return GpuInventory(why=said.sentence, broken=True, hint=hint), None
            left_out[said.index] = said.sentence
        elif "node" in said:
            node = read_node(said["node"], hint)
            node = replace(node, errors=tuple(sorted((*node.errors, *left_out.items()))))
            if node.gpus:
                return node, child
            dismiss(child)
            return replace(
                node, why=node.why or "; ".join(why for _, why in node.errors), broken=bool(node.errors)
            ), None
        else:
            dismiss(child)
            return _nothing(said, dev, hint), None


def _nothing(said: Mapping[str, Any], dev: Path, hint: str) -> GpuInventory:
    if "bug" in said:
        last = said["bug"].strip().rpartition("\n")[2]
        return GpuInventory(why=f"pynvml cannot be used ({last}): {REINSTALL}", broken=True, hint=hint)
    code, word, _ = said["failed"]
    why, broken = why_not(code, word, there=(dev / "nvidiactl").exists())
    return GpuInventory(why=why, broken=broken, hint=hint)


def answer(child: SamplerChild, limits: SamplerLimits) -> Mapping[str, Any] | Fault:
    """Return a child's first answer, or its failure; only this function waits for a child."""
    end = time.monotonic() + limits.init + limits.call
    while True:
        select.select([child], [], [], PAUSE)
        answers = child.answers(time.monotonic())
        if answers:
            return answers[0]
        fault = _how_it_died(child) if child.ended else _how_it_hangs(child, limits)
        if fault is not None:
            return fault
        if child.call() is None and time.monotonic() > end:
            return Fault(-1, hung_at_start(limits.init + limits.call))


def _how_it_died(child: SamplerChild) -> Fault | None:
    bury([child], 1.0)
    call, how = child.call(), death(child.code())
    if call is None:
        return Fault(-1, f"the sampler of the GPUs ended before it could read any ({how})")
    if call.where == INIT:
        return Fault(-1, f"the NVIDIA library crashed as it came up ({how} in {call.name})")
    return Fault(int(call.where), f"GPU {call.where} crashes the NVIDIA library ({how} in {call.name})")


def _how_it_hangs(child: SamplerChild, limits: SamplerLimits) -> Fault | None:
    call = child.call()
    if call is None:
        return None
    seconds = time.monotonic() - call.since
    if call.where == INIT:
        return Fault(-1, hung_at_start(limits.init)) if seconds > limits.init else None
    return Fault(int(call.where), f"GPU {call.where} {hung(call.name, limits.call)}") if seconds > limits.call else None


def dismiss(child: SamplerChild) -> None:
    """End a child that is needed no more."""
    child.end()
    bury([child], 1.0)
