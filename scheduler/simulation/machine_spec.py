"""The devices of a simulated machine, from the text of `--devices`."""

from __future__ import annotations

import re

from scheduler.core.model import HOST, Device
from scheduler.errors import UsageError
from scheduler.patterns import lazy_pattern
from scheduler.units import parse_size, size

_GPUS = lazy_pattern(r"(?:(\d+)\s*x\s*)?(\d.*)\Z", re.IGNORECASE)
MOST = 10_000


def parse_machine(said: str, cores: float) -> tuple[Device, ...]:
    """Read `8x24GiB`, `4x24GiB,2x80GiB`, `host:64GiB`; cores are the host's."""
    devices: list[Device] = []
    for item in filter(None, (part.strip() for part in said.split(","))):
        name, colon, memory = item.partition(":")
        if colon and name.strip().lower() == HOST:
            if any(device.key == HOST for device in devices):
                raise UsageError(f"--devices {said}: there is one host, {item!r} names another: leave one of them out")
            devices.append(Device(HOST, HOST, _size(said, memory), cores))
            continue
        match = _GPUS.match(item)
        if match is None or colon:
            raise UsageError(f"--devices {said}: {item!r} is no device: write 8x24GiB for GPUs, host:64GiB for RAM")
        number, total = int(match[1] or 1), _size(said, match[2])
        if not 1 <= number <= MOST:
            raise UsageError(f"--devices {said}: {number} GPUs are not between 1 and {MOST:,}")
        before = sum(device.is_gpu for device in devices)
        devices += [_gpu(index, total) for index in range(before, before + number)]
    if not devices:
        raise UsageError(f"--devices {said!r}: it names no device: write 8x24GiB for GPUs, host:64GiB for RAM")
    return tuple(devices)


def _gpu(index: int, total: int) -> Device:
    return Device(f"GPU-{index}", f"GPU {index}", total, 1.0, index, f"simulated {size(total)}")


def _size(said: str, text: str) -> int:
    try:
        bytes_ = parse_size(text)
    except ValueError as exc:
        raise UsageError(f"--devices {said}: {exc}") from exc
    if not bytes_:
        raise UsageError(f"--devices {said}: a device without memory holds nothing, write 8x24GiB")
    return bytes_
