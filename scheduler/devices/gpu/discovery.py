"""Discovery of the node's GPUs by a sampler child; it is repeated without a GPU that hangs or crashes the child."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from scheduler.devices.gpu.child_faults import Fault, SamplerLimits, find_crash, find_hang, hung_at_start
from scheduler.devices.gpu.inventory import AGAIN, REINSTALL, GpuInventory, read_node, why_not
from scheduler.devices.sampler_child import SamplerChild, bury
from scheduler.values import replace

Start = Callable[[Mapping[str, Any]], SamplerChild]
PAUSE = 0.05


def find_node(start: Start, limits: SamplerLimits, dev: Path, hint: str) -> tuple[GpuInventory, SamplerChild | None]:
    """Return the inventory, and the child that made the inventory and can take orders; None for the child if there is
    nothing to sample.
    """
    left_out: dict[int, str] = {}
    while True:
        child = start({"find": True, "skip": sorted(left_out)})
        said = answer(child, limits)
        if isinstance(said, Fault):
            dismiss(child)
            index = int(said.where or -1)
            if index < 0 or index in left_out:
                return GpuInventory(why=said.sentence, broken=True, hint=hint), None
            left_out[index] = f"GPU {index} {said.sentence}"
        elif "node" in said:
            node = read_node(said["node"], hint)
            node = replace(node, errors=tuple(sorted((*node.errors, *left_out.items()))))
            if node.gpus:
                return node, child
            dismiss(child)
            why = node.why or "; ".join(why for _, why in node.errors)
            return replace(node, why=why, broken=bool(node.errors)), None
        else:
            dismiss(child)
            code, word, _ = said["failed"]
            why, broken = why_not(code, word, there=(dev / "nvidiactl").exists())
            return GpuInventory(why=why, broken=broken, hint=hint), None


def answer(child: SamplerChild, limits: SamplerLimits) -> Mapping[str, Any] | Fault:
    """Return a child's first answer, or its fault; no other function waits for a child."""
    end = time.monotonic() + limits.init + limits.call
    while True:
        select.select([child], [], [], PAUSE)
        answers = child.answers(time.monotonic())
        if answers:
            return answers[0]
        if child.ended:
            return _why_ended(child)
        call = child.call()
        if call is None and time.monotonic() > end:
            return Fault("", hung_at_start(limits.init + limits.call))
        if call is not None and (fault := find_hang(call, limits, time.monotonic())) is not None:
            return fault


def _why_ended(child: SamplerChild) -> Fault:
    bury([child], 1.0)
    if child.bug:
        return Fault("", f"pynvml cannot be used ({child.bug}): {REINSTALL}")
    fault, how = find_crash(child)
    return fault or Fault("", f"the sampler of the GPUs ended before it could read any ({how}): {AGAIN}")


def dismiss(child: SamplerChild) -> None:
    """End a child that is no longer needed."""
    child.end()
    bury([child], 1.0)
