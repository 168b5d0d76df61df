"""What CUDA would show a training process of the stand-in's GPUs: its devices, their memory, and how fast work goes.

Standard library only: a task imports it with `python -S`, from the folder of its own script.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence

COMPUTE, GRAPHICS, MPS = 1, 2, 4
HOLDERS = 1024
SATURATED = 0.95
"""So busy a device can be before work on it slows down."""


class OutOfMemory(Exception):
    """A device has less free than was asked for; everything in bytes."""

    def __init__(self, position: int, requested: int, free: int, total: int) -> None:
        super().__init__(f"device {position}: {requested} bytes wanted, {free} of {total} free")
        self.position, self.requested, self.free, self.total = position, requested, free, total


def library(folder: str) -> ctypes.CDLL:
    """The C code, told the types of what is not an int."""
    code = ctypes.CDLL(os.path.join(folder, "libstandin.so"))
    gpus, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_uint64
    share, device, pid, kind = ctypes.c_double, ctypes.c_int, ctypes.c_int, ctypes.c_int
    for name, result, *arguments in (
        ("create", gpus, text, ctypes.c_int),
        ("open", gpus, text),
        ("close", None, gpus),
        ("describe", None, gpus, device, text, text, ctypes.c_int, ctypes.c_int),
        ("size", None, gpus, device, number, number, ctypes.c_int, ctypes.c_int),
        ("set", ctypes.c_int, gpus, device, text, ctypes.c_int64),
        ("change", ctypes.c_int, gpus, device, pid, ctypes.c_int64, kind, ctypes.POINTER(number)),
        ("busy", ctypes.c_int, gpus, device, pid, share, kind),
        ("load", share, gpus, device),
        ("look", ctypes.c_int, gpus, device, ctypes.POINTER(ctypes.c_int64), ctypes.c_int),
        ("count", ctypes.c_int, gpus),
        ("uuid", text, gpus, device),
        ("number", number, gpus, device, text),
    ):
        function = getattr(code, f"standin_{name}")
        function.restype, function.argtypes = result, arguments
        setattr(code, name, function)
    return code


class Gpus:
    """The shared file, opened; devices are numbered as NVML does."""

    def __init__(self, path: str, code: ctypes.CDLL | None = None) -> None:
        self.code = code or library(os.path.dirname(path))
        self.at = self.code.open(path.encode())
        if not self.at:
            raise FileNotFoundError(f"{path} is no file of stand-in GPUs, or of another version")

    def __len__(self) -> int:
        return int(self.code.count(self.at))

    def uuid(self, device: int) -> str:
        return str(self.code.uuid(self.at, device).decode())

    def number(self, device: int, name: str) -> int:
        """One of used, total, reserved, ooms, peak, bus, ordinal."""
        return int(self.code.number(self.at, device, name.encode()))

    def change(self, device: int, pid: int, more: int, kind: int = COMPUTE, position: int | None = None) -> None:
        """Give a process memory, or take it back; raises OutOfMemory, which its device counts."""
        free = ctypes.c_uint64()
        result = self.code.change(self.at, device, pid, more, kind, ctypes.byref(free))
        if result == 1:
            shown = device if position is None else position
            raise OutOfMemory(shown, more, free.value, self.number(device, "total"))
        self._check(result, pid)

    def busy(self, device: int, pid: int, share: float, kind: int = COMPUTE) -> None:
        self._check(self.code.busy(self.at, device, pid, share, kind), pid)

    def load(self, device: int) -> float:
        """The sum of the shares that its processes keep it busy."""
        return float(self.code.load(self.at, device))

    def _check(self, result: int, pid: int) -> None:
        if result:
            raise ProcessLookupError(f"no process {pid} lives, or the stand-in has no room for more of them")

    def close(self) -> None:
        self.code.close(self.at)


class Cuda:
    """What a process gets of CUDA; positions count what it is shown, as `cuda:0` does."""

    def __init__(self, environ: Mapping[str, str] = os.environ, kind: int = COMPUTE) -> None:
        self.kind = kind
        path = environ.get("STANDIN_GPUS")  # without it this is a machine without a GPU
        self._shown = shown(Gpus(path), environ) if path else []

    def devices(self) -> list[str]:
        """The UUIDs of what this process is shown, by position."""
        return [gpus.uuid(device) for gpus, device in self._shown]

    def total(self, position: int) -> int:
        gpus, device = self._shown[position]
        return gpus.number(device, "total")

    def available(self, position: int) -> int:
        """What cudaMemGetInfo calls free."""
        gpus, device = self._shown[position]
        return max(0, self.total(position) - gpus.number(device, "reserved") - gpus.number(device, "used"))

    def allocate(self, position: int, size: int) -> None:
        """Take memory; raises OutOfMemory when the device has not that much."""
        gpus, device = self._shown[position]
        gpus.change(device, os.getpid(), size, self.kind, position)

    def free(self, position: int, size: int) -> None:
        """Give memory back; without any left the process is no longer listed."""
        self.allocate(position, -size)

    def busy(self, position: int, share: float) -> None:
        """Keep so much of the device busy from now on, 0 to 1."""
        gpus, device = self._shown[position]
        gpus.busy(device, os.getpid(), share, self.kind)

    def pace(self, position: int) -> float:
        """How many times slower than alone work goes right now."""
        gpus, device = self._shown[position]
        return slowdown(gpus.load(device))


def shown(gpus: Gpus, environ: Mapping[str, str]) -> list[tuple[Gpus, int]]:
    """The devices that the environment leaves a process, in the order it wants them in."""
    by = "bus" if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else "ordinal"
    order = sorted(range(len(gpus)), key=lambda device: gpus.number(device, by))
    uuids = [gpus.uuid(device) for device in order]
    return [(gpus, order[ordinal]) for ordinal in visible(environ.get("CUDA_VISIBLE_DEVICES"), uuids)]


def slowdown(load: float) -> float:
    """How many times slower work goes on a device that is wanted so much: at first less than it is overbooked."""
    if load <= SATURATED:
        return 1.0
    if load <= 2.0:
        return float((load / SATURATED) ** 0.5)
    return float(load / 2 * (2 / SATURATED) ** 0.5)


def visible(said: str | None, uuids: Sequence[str]) -> list[int]:
    """The ordinals that CUDA_VISIBLE_DEVICES leaves, read as CUDA and torch read it.

    The list ends at the first entry that names nothing; naming a device twice leaves none; the first entry decides
    whether it is a list of UUIDs (or their beginnings, where only one device has it) or of ordinals.
    """
    if said is None:
        return list(range(len(uuids)))
    read = by_uuid if said.lstrip().startswith("GPU-") else by_ordinal
    found: list[int] = []
    for entry in said.split(","):
        ordinal = read(entry.strip(), uuids)
        if ordinal is None:
            return found
        if ordinal in found:
            return []
        found.append(ordinal)
    return found


def by_uuid(entry: str, uuids: Sequence[str]) -> int | None:
    if not entry.startswith("GPU-"):
        return None
    fitting = [ordinal for ordinal, uuid in enumerate(uuids) if uuid.startswith(entry)]
    return fitting[0] if len(fitting) == 1 else None


def by_ordinal(entry: str, uuids: Sequence[str]) -> int | None:
    """As strtoul: what follows the digits is not looked at."""
    digits = entry[: len(entry) - len(entry.lstrip("0123456789"))]
    return int(digits) if digits and int(digits) < len(uuids) else None
