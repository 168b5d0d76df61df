"""CUDA for a training process on the stand-in's GPUs: its devices, their memory, and the speed of work.

Standard library only: a task imports it with `python -S`, from the folder of its own script.
"""

from __future__ import annotations

import ctypes
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from typing import ClassVar

COMPUTE, GRAPHICS, MPS = 1, 2, 4
HOLDERS = 1024
WHOLE = 16
"""The number of the first MIG instance; those of whole GPUs are below."""
SATURATED = 0.95
"""The load of a device above which work on it slows down."""


class OutOfMemory(Exception):
    """A device has less free memory than was asked for; all numbers are bytes."""

    def __init__(self, position: int, requested: int, free: int, total: int) -> None:
        super().__init__(f"device {position}: {requested} bytes wanted, {free} of {total} free")
        self.position, self.requested, self.free, self.total = position, requested, free, total


class Fault(Exception):
    """A call of CUDA failed with this number of an error."""

    WORDS: ClassVar = {
        719: "unspecified launch failure",
        805: "MPS client failed to connect to the MPS control daemon or the MPS server",
        807: "MPS server is not ready to accept new MPS client requests",
        810: "MPS client has been terminated by the server",
    }

    def __init__(self, code: int) -> None:
        super().__init__(f"CUDA error: {self.WORDS[code]}")
        self.code = code


def library(folder: str) -> ctypes.CDLL:
    """Load the C code, and declare the types that are not int."""
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
        ("all", ctypes.c_int, gpus),
        ("slice", ctypes.c_int, gpus, device, text, text, number, ctypes.c_int, ctypes.c_int),
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

    def instance(self, uuid: str) -> int | None:
        """Return the number of a MIG instance; None if there is none with this UUID now."""
        return next(
            (n for n in range(WHOLE, self.code.all(self.at)) if self.uuid(n) == uuid and not self.gone(n)), None
        )

    def gone(self, device: int) -> bool:
        return bool(self.number(device, "gone"))

    def number(self, device: int, name: str) -> int:
        """Return one of used, total, reserved, ooms, peak, bus, ordinal, mig, gone."""
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
        """Return the sum of the shares for which its processes keep it busy."""
        return float(self.code.load(self.at, device))

    def _check(self, result: int, pid: int) -> None:
        if result:
            raise ProcessLookupError(f"no process {pid} lives, or the stand-in has no room for more of them")

    def close(self) -> None:
        self.code.close(self.at)


class Cuda:
    """CUDA as one process sees it; positions count the visible devices, as `cuda:0` does."""

    def __init__(self, environ: Mapping[str, str] = os.environ, kind: int = COMPUTE) -> None:
        self.kind = kind
        path = environ.get("STANDIN_GPUS")  # without it this is a machine without a GPU
        self._shown = shown(Gpus(path), environ) if path else []
        self._environ = environ
        self._server: socket.socket | None = None
        self._begun = False
        self._limits = {
            position: int(share * self.total(position))
            for position in range(len(self._shown))
            for share in allocator_shares(environ)
        }
        self._held: dict[int, int] = {}

    def devices(self) -> list[str]:
        """Return the UUIDs of the visible devices, by position."""
        return [gpus.uuid(device) for gpus, device in self._shown]

    def total(self, position: int) -> int:
        gpus, device = self._shown[position]
        return gpus.number(device, "total")

    def available(self, position: int) -> int:
        """Return the free bytes of cudaMemGetInfo."""
        gpus, device = self._shown[position]
        return max(0, self.total(position) - gpus.number(device, "reserved") - gpus.number(device, "used"))

    def allocate(self, position: int, size: int) -> None:
        """Take memory; raise OutOfMemory if the device, or the limit given by MPS, has less."""
        self.check()
        gpus, device = self._shown[position]
        held = self._held.get(position, 0)
        if position in self._limits and held + size > self._limits[position]:
            raise OutOfMemory(position, size, self._limits[position] - held, self.total(position))
        self._held[position] = held + size
        gpus.change(device, os.getpid(), size, self.kind, position)

    def free(self, position: int, size: int) -> None:
        """Give memory back; without any left the process is no longer listed."""
        self.allocate(position, -size)

    def busy(self, position: int, share: float) -> None:
        """Keep so much of the device busy from now on, 0 to 1."""
        gpus, device = self._shown[position]
        gpus.busy(device, os.getpid(), share, self.kind)

    def check(self) -> None:
        """Make any call of CUDA: the first one joins an MPS daemon if there is one; raise Fault on an error."""
        if not self._begun:
            self._begun = True
            self._join(self._environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
        if self._server is not None:
            try:
                said = self._server.recv(64, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                said = b""
            if said:
                raise Fault(int(said))
            self._server.close()  # the daemon was killed: a server that has its clients goes on without
            self._server = None

    def _join(self, directory: str) -> None:
        """Use the GPU directly where there is no daemon, silently, as CUDA does."""
        end = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            end.connect(f"{directory}/control")
            end.send(b"client %d" % os.getpid())
            said = end.recv(64)
        except OSError:
            return
        if said != b"ok":
            raise Fault(int(said or b"805"))
        self._server, self.kind = end, COMPUTE | MPS
        self._limits = limits(self._environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""), self.devices())

    def fault(self) -> None:
        """Cause a fault of the GPU; raise Fault, here and in all clients of its MPS server."""
        if self._server is None:
            raise Fault(719)
        self._server.send(b"fault")
        self._server.setblocking(True)
        raise Fault(int(self._server.recv(64)))

    def pace(self, position: int) -> float:
        """Return how many times slower than alone work is now."""
        self.check()
        gpus, device = self._shown[position]
        return slowdown(gpus.load(device))


def allocator_shares(environ: Mapping[str, str]) -> Iterator[float]:
    """Yield the share of a device that PyTorch's allocator would take at most, if its options say so."""
    said = environ.get("PYTORCH_ALLOC_CONF") or environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    for option in said.split(","):
        name, _, value = option.partition(":")
        if name.strip() == "per_process_memory_fraction":
            yield float(value)


def limits(said: str, uuids: Sequence[str]) -> dict[int, int]:
    """Read CUDA_MPS_PINNED_DEVICE_MEM_LIMIT by position; one invisible device in it voids all limits."""
    found = {}
    for entry in said.split(",") if said else ():
        name, _, limit = entry.partition("=")
        position = uuids.index(name) if name in uuids else int(name) if name.isdecimal() else len(uuids)
        if position >= len(uuids):
            return {}
        found[position] = int(limit.rstrip("MB")) << 20
    return found


def shown(gpus: Gpus, environ: Mapping[str, str]) -> list[tuple[Gpus, int]]:
    """Return the devices that the environment makes visible, in its order."""
    said = environ.get("CUDA_VISIBLE_DEVICES", "")
    if said.startswith("MIG-"):  # one, whatever the list names after it
        number = gpus.instance(said.partition(",")[0])
        return [] if number is None else [(gpus, number)]
    by = "bus" if environ.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID" else "ordinal"
    whole = [device for device in range(len(gpus)) if not gpus.number(device, "mig")]
    order = sorted(whole, key=lambda device: gpus.number(device, by))
    uuids = [gpus.uuid(device) for device in order]
    return [(gpus, order[ordinal]) for ordinal in visible(environ.get("CUDA_VISIBLE_DEVICES"), uuids)]


def slowdown(load: float) -> float:
    """Return how many times slower work is at a load; up to 2.0 less than the overload."""
    if load <= SATURATED:
        return 1.0
    if load <= 2.0:
        return float((load / SATURATED) ** 0.5)
    return float(load / 2 * (2 / SATURATED) ** 0.5)


def visible(said: str | None, uuids: Sequence[str]) -> list[int]:
    """Return the ordinals that CUDA_VISIBLE_DEVICES leaves, read as CUDA and torch read it.

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
    """Read an ordinal as strtoul does: characters after the digits are ignored."""
    digits = entry[: len(entry) - len(entry.lstrip("0123456789"))]
    return int(digits) if digits and int(digits) < len(uuids) else None
