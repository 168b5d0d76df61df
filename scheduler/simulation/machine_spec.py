"""The devices of a simulated machine, or of several, from the text of `--devices`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scheduler.core.model import HOST, Device, host_of
from scheduler.errors import UsageError
from scheduler.patterns import lazy_pattern
from scheduler.units import parse_size, size

_GPUS = lazy_pattern(r"(?:(\d+)\s*x\s*)?(\d.*)\Z", re.IGNORECASE)
_NODES = lazy_pattern(r"(?:(\d+)\s*x\s*)?\((.*)\)\Z", re.IGNORECASE)
_WITHIN = lazy_pattern(r"[^,()]*(?:\([^()]*\)?)?[^,()]*")
MOST = 10_000
_HOW = "write 8x24GiB for GPUs, host:64GiB for RAM, 3x(4x24GiB,host:64GiB) for nodes"


def parse_machine(said: str, cores: float) -> tuple[Device, ...]:
    """Read `8x24GiB`, `4x24GiB,2x80GiB`, `host:64GiB`, `3x(4x24GiB)` for nodes; cores are those of each host."""
    items = [part.strip() for part in _WITHIN.findall(said) if part.strip()]
    if not any("(" in item for item in items):
        return tuple(_devices(said, items, "", cores))
    devices: list[Device] = []
    nodes = 0
    for item in items:
        match = _NODES.match(item)
        if match is None:
            raise UsageError(f"--devices {said}: {item!r} belongs to no node: {_HOW}, and give all devices in this way")
        number, inside = int(match[1] or 1), [part.strip() for part in match[2].split(",") if part.strip()]
        if not 1 <= number <= MOST - nodes:
            raise UsageError(f"--devices {said}: {number} nodes are not between 1 and {MOST:,}")
        for node in range(nodes + 1, nodes + number + 1):
            devices += _devices(said, inside, f"n{node}", cores)
        nodes += number
    return tuple(devices)


def _devices(said: str, items: list[str], node: str, cores: float) -> Iterator[Device]:
    """Yield the devices of one machine or node."""
    if not items:
        raise UsageError(f"--devices {said!r}: it names no device: {_HOW}")
    gpus, has_host = 0, False
    before = f"{node} " if node else ""
    for item in items:
        name, colon, memory = item.partition(":")
        if colon and name.strip().lower() == HOST:
            if has_host:
                raise UsageError(f"--devices {said}: there is one host, {item!r} names another: leave one of them out")
            has_host = True
            yield Device(host_of(node), f"{before}{HOST}", _size(said, memory), cores, node=node)
            continue
        match = _GPUS.match(item)
        if match is None or colon:
            raise UsageError(f"--devices {said}: {item!r} is no device: {_HOW}")
        number, total = int(match[1] or 1), _size(said, match[2])
        if not 1 <= number <= MOST:
            raise UsageError(f"--devices {said}: {number} GPUs are not between 1 and {MOST:,}")
        for index in range(gpus, gpus + number):
            key = f"GPU-{node}-{index}" if node else f"GPU-{index}"
            yield Device(key, f"{before}GPU {index}", total, 1.0, index, f"simulated {size(total)}", node=node)
        gpus += number


def _size(said: str, text: str) -> int:
    try:
        bytes_ = parse_size(text)
    except ValueError as exc:
        raise UsageError(f"--devices {said}: {exc}") from exc
    if not bytes_:
        raise UsageError(f"--devices {said}: a device without memory holds nothing, write 8x24GiB")
    return bytes_
