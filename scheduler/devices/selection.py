"""The meaning of `--devices`: the GPUs of a run, and budgets on them and on the host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from scheduler.core.model import HOST
from scheduler.devices.gpu.allocation import AllowedGpus, divided, labels, starting_with, whole
from scheduler.devices.gpu.inventory import InstalledGpu
from scheduler.errors import UsageError
from scheduler.patterns import lazy_pattern
from scheduler.units import parse_size
from scheduler.values import dataclass

ALL, AUTO = "all", "auto"
_NUMBERS = lazy_pattern(r"(\d+)(?:-(\d+))?", re.ASCII)
_INSTANCE = lazy_pattern(r"\d+\.\d+", re.ASCII)


@dataclass(frozen=True, slots=True)
class GpuBudget:
    """A GPU of a run; `cap` is the budget in bytes for all leases on it, or None for its whole memory."""

    gpu: InstalledGpu
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class ChosenDevices:
    """The devices of a run."""

    shares: tuple[GpuBudget, ...] = ()
    host_cap: int | None = None
    divisible: Mapping[str, int | None] = MappingProxyType({})
    """The UUIDs of GPUs that were named as a whole, with the budget of each: new MIG instances of such a GPU join the
    run.
    """

    @property
    def host_only(self) -> bool:
        """True if every task runs on the host alone."""
        return not self.shares


def choose(spec: str, allowed: AllowedGpus, node: Sequence[InstalledGpu]) -> ChosenDevices:
    """Read `--devices`: items `all`, `auto`, `host`, numbers as in nvidia-smi, ranges, UUIDs or their beginnings. `0.1`
    is the MIG instance 1 of GPU 0, and `0` all instances of a GPU in MIG mode.

    Each item may have a budget (`0:10GiB`); if a device has two, the later one counts. `auto`, the default, is every
    allowed GPU, even if there are none. The caller must check that a budget is larger than the buffer. Raise UsageError
    if `spec` is malformed, or names a device that does not exist or is not allowed.
    """
    caps: dict[str, int | None] = {}
    beyond: dict[str, InstalledGpu] = {}
    divisible: dict[str, int | None] = {}
    for item in (spec.strip() or AUTO).split(","):
        which, cap = _budget(spec, item.strip())
        divisible.update({card.uuid: cap for card in _cards(spec, which, node) if _is_free(card, allowed, node)})
        for key, gpu in _meant(spec, which, allowed, node):
            caps[key] = caps.get(key) if cap is None else cap
            if gpu is not None and gpu not in allowed.gpus:
                beyond[gpu.uuid] = gpu
    if beyond:
        raise UsageError(_too_much(spec, allowed, sorted(beyond.values(), key=lambda gpu: (gpu.index, gpu.part))))
    shares = tuple(GpuBudget(gpu, caps[gpu.uuid]) for gpu in allowed.gpus if gpu.uuid in caps)
    return ChosenDevices(shares, caps.get(HOST), divisible)


def _cards(spec: str, which: str, node: Sequence[InstalledGpu]) -> list[InstalledGpu]:
    """Return the whole GPUs that one item names."""
    if which in (ALL, AUTO):
        return whole(node)
    if which == HOST:
        return []
    return whole(_named(spec, which, node))


def _is_free(card: InstalledGpu, allowed: AllowedGpus, node: Sequence[InstalledGpu]) -> bool:
    """Tell whether all present parts of a GPU may be used, and all parts into which the GPU may be divided later."""
    parts = divided([card], node)
    return all(part in allowed.gpus for part in parts) and (bool(parts) or not allowed.source)


def _named(spec: str, which: str, node: Sequence[InstalledGpu]) -> list[InstalledGpu]:
    return _by_number(spec, which, node) if which[:1].isdecimal() else [_by_uuid(spec, which, node)]


def _budget(spec: str, item: str) -> tuple[str, int | None]:
    which, colon, size = item.partition(":")
    if not colon:
        return which, None
    try:
        return which, parse_size(size)
    except ValueError as exc:
        raise UsageError(f"--devices {spec}: {exc}") from exc


def _meant(
    spec: str, which: str, allowed: AllowedGpus, node: Sequence[InstalledGpu]
) -> Iterator[tuple[str, InstalledGpu | None]]:
    """Yield the key and the GPU of each device that one item names."""
    if which == HOST:
        yield HOST, None
        return
    if which in (ALL, AUTO):
        found: Sequence[InstalledGpu] = allowed.gpus
        if not found and which == ALL:
            raise UsageError(f"--devices {spec}: {_may_use(allowed) if node else 'there is no GPU here'}")
    else:
        named = _named(spec, which, node)
        found = divided(named, node) or named
    yield from ((gpu.uuid, gpu) for gpu in found)


def _by_number(spec: str, which: str, node: Sequence[InstalledGpu]) -> list[InstalledGpu]:
    if _INSTANCE.fullmatch(which):
        instances = [gpu for gpu in node if gpu.word == which]
        if not instances:
            raise UsageError(_unknown(spec, which, node))
        return instances
    match = _NUMBERS.fullmatch(which)
    numbers = range(int(match[1]), int(match[2] or match[1]) + 1) if match else range(0)
    by_index = {gpu.index: gpu for gpu in whole(node)}
    if not numbers or not by_index.keys() >= {numbers[0], numbers[-1]}:
        raise UsageError(_unknown(spec, which, node))
    return [by_index[number] for number in numbers if number in by_index]


def _by_uuid(spec: str, which: str, node: Sequence[InstalledGpu]) -> InstalledGpu:
    found = starting_with(which, node)
    if not found:
        raise UsageError(_unknown(spec, which, node))
    if len(found) > 1:
        raise UsageError(
            f"--devices {spec}: {which} could be any of {', '.join(gpu.uuid for gpu in found)}: write more of it"
        )
    return found[0]


def _unknown(spec: str, which: str, node: Sequence[InstalledGpu]) -> str:
    return f"--devices {spec}: there is no device {which!r} here; this machine has: {_what_there_is(node)}"


def _what_there_is(node: Sequence[InstalledGpu]) -> str:
    listed = [f"{gpu.word} ({gpu.model}, {gpu.uuid})" for gpu in node]
    return ", ".join([*listed, HOST])


def _may_use(allowed: AllowedGpus) -> str:
    which = labels(allowed.gpus) if allowed.gpus else "no GPU"
    return f"this shell may use {which}" + (f" ({allowed.source})" if allowed.source else "")


def _too_much(spec: str, allowed: AllowedGpus, beyond: Sequence[InstalledGpu]) -> str:
    return (
        f"--devices {spec}: {_may_use(allowed)}; it may not use {labels(beyond)}: "
        "leave that out, or start where it is allowed" + "".join(f" ({note})" for note in allowed.notes)
    )
