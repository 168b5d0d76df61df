"""The checks of limits on GPU memory without MPS: whether PyTorch or the kernel could enforce them on this machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from scheduler.devices import dmem_fence, torch_fence
from scheduler.ui.verbs.doctor import Finding, absent, ok


def fences(python: str, buses: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the findings about `--fence torch` for this Python, and about `--fence dmem` for GPUs by UUID."""
    if not buses:
        return
    if torch_fence.takes_limit(python, os.environ):
        yield ok("fences", f"torch: possible (--fence torch), the PyTorch of {python} takes a limit")
    else:
        yield absent("fences", f"torch: not possible, {python} has no PyTorch for GPUs of 2.10 or newer")
    why = dmem_fence.why_not(buses, change=False)
    if why:
        yield absent("fences", f"dmem: not possible, {why}")
    else:
        yield ok("fences", "dmem: possible (--fence dmem), the kernel limits the GPU memory of a task")
