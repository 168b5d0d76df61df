"""A machine with stand-in GPUs, which tests make, inspect and break."""

from __future__ import annotations

import ctypes
import hashlib
import itertools
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.units import parse_size
from tests.support.standin.client import COMPUTE, HOLDERS, Gpus, library

HERE = Path(__file__).resolve().parent
TRAIN = HERE / "train.py"
SAVES = HERE / "saves.py"
SOURCES = ("gpus.h", "gpus.c", "nvml.c", "cuda.c")
DRIVERS = ("615", "470", "450")
"""Versions: 470 lacks the third process list and later memory calls; 450 lacks the second list too."""

FLAGS = (
    "-std=gnu11",
    "-O1",
    "-g",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
)

GPU_IS_LOST = 15
"""The value of the switch `error` for a device that has fallen off the bus."""

NO_COMPILER = "stand-in GPUs are built with cc, and there is none here"


def build(cache: Path | None = None) -> Path | None:
    """Return the folder of the compiled libraries, NVML and CUDA for each driver; None without a compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return None
    text = b"".join((HERE / name).read_bytes() for name in SOURCES) + " ".join(FLAGS).encode()
    built = (cache or HERE / ".built") / hashlib.sha256(text).hexdigest()[:16]
    if not built.exists():
        built.parent.mkdir(parents=True, exist_ok=True)
        (built.parent / ".gitignore").write_text("*\n")
        compile_into(built, compiler)
    return built


def compile_into(built: Path, compiler: str) -> None:
    """Compile the libraries into a folder; if several processes do so at once, the first whole folder stays."""
    with tempfile.TemporaryDirectory(dir=built.parent) as given:
        made = Path(given) / "made"
        made.mkdir()
        run_compiler(compiler, made / "libstandin.so", "gpus.c")
        for driver in DRIVERS:
            (made / driver).mkdir()
            said = (f"-DDRIVER={driver}", "-Wl,-soname,libnvidia-ml.so.1")
            run_compiler(compiler, made / driver / "libnvidia-ml.so.1", "gpus.c", "nvml.c", *said)
            run_compiler(compiler, made / driver / "libcuda.so.1", "gpus.c", "cuda.c", "-Wl,-soname,libcuda.so.1")
        try:
            made.rename(built)
        except OSError:
            if not built.exists():
                raise


def run_compiler(compiler: str, target: Path, *said: str) -> None:
    done = subprocess.run(
        [compiler, *FLAGS, *said, "-o", target], cwd=HERE, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{target.name} does not compile:\n{done.stderr}")


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a device, or has ended and still lingers."""

    pid: int
    size: int
    peak: int
    busy: float
    kind: int
    dead: bool


class Unmanaged:
    """A process of another user, which uses memory until it is closed."""

    def __init__(self, gpus: Gpus, device: int, size: int | str, busy: float, kind: int) -> None:
        self._gpus, self._device, self._kind, self._size = gpus, device, kind, 0
        # It reads what is never written, so that it goes with a test that was killed.
        self._process = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        self.pid = self._process.pid
        try:
            self.resize(size)
        except Exception:
            self.close()
            raise
        gpus.busy(device, self.pid, busy, kind)

    def resize(self, size: int | str) -> None:
        """Hold so much from now on; raises OutOfMemory, which the device counts, where there is not so much."""
        wanted = in_bytes(size)
        self._gpus.change(self._device, self.pid, wanted - self._size, self._kind)
        self._size = wanted

    def close(self) -> None:
        """End the process, without a word to the driver, as after a SIGKILL."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()

    def __enter__(self) -> Unmanaged:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Box:
    """A machine with stand-in GPUs, which processes that are given `env` see; close it, or use it in a `with`.

    Devices are numbered as NVML does. `cuda_order` and `pci_order` name them in the order in which CUDA sorts them by
    speed and by bus; both are NVML's own unless said otherwise. `total` and `name` may be one for all, or one for each.
    """

    def __init__(
        self,
        folder: Path,
        gpus: int = 4,
        total: int | str | Sequence[int | str] = "24GiB",
        name: str | Sequence[str] = "NVIDIA Stand-in 24GB",
        cuda_order: Sequence[int] | None = None,
        pci_order: Sequence[int] | None = None,
        reserved: int | str = "300MiB",
        compute_capability: tuple[int, int] = (8, 9),
        driver: str = DRIVERS[0],
        cache: Path | None = None,
        salt: str = "",
    ) -> None:
        """`salt` makes the GPUs others than those of another machine."""
        built = build(cache)
        if built is None:
            raise RuntimeError(NO_COMPILER)
        folder.mkdir(parents=True, exist_ok=True)
        self.file, self.driver, self._built = folder / "gpus", driver, built
        (folder / "libstandin.so").symlink_to(built / "libstandin.so")
        self._create(gpus)
        self._gpus = Gpus(str(self.file))
        self._salt = salt
        self.instances: dict[int, str] = {}
        """The UUIDs of MIG instances by their numbers."""
        self._names: list[str] = []
        self.uuids = [f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'stand-in {device}{salt}')}" for device in range(gpus)]
        for device in range(gpus):
            bus = 1 + 16 * position(device, pci_order)
            self._names.append(one_of(name, device))
            self._describe(device, self._names[device], bus, position(device, cuda_order))
            size = in_bytes(one_of(total, device))
            self._gpus.code.size(self._gpus.at, device, size, in_bytes(reserved), *compute_capability)
        self._unmanaged: list[Unmanaged] = []

    def _create(self, gpus: int) -> None:
        code = library(str(self.file.parent))
        at = code.create(str(self.file).encode(), gpus)
        if not at:
            raise RuntimeError(f"{self.file} cannot be made: {gpus} GPUs, of which there can be 16, or it exists")
        code.close(at)

    def _describe(self, device: int, name: str, bus: int, ordinal: int) -> None:
        told = (self.uuids[device].encode(), name.encode(), bus, ordinal)
        self._gpus.code.describe(self._gpus.at, device, *told)

    def slice(self, device: int, *parts: str, total: int | str | None = None) -> list[int]:
        """Divide a GPU into MIG instances, such as `2g.10gb`; return their numbers. Compute instances of one GPU
        instance are `1c.2g.10gb`, one after the other.
        """
        self.set(device, mig=1)
        made = []
        for place, part in enumerate(parts):
            shared = place if "c." not in part else parts.index(part)
            size = in_bytes(total if total is not None else part.rpartition(".")[2].replace("gb", "GiB"))
            text = f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'stand-in {device}{self._salt} {len(self.instances)}')}"
            name = f"{self._names[device]} MIG {part}"
            number = self._gpus.code.slice(
                self._gpus.at, device, text.encode(), name.encode(), size, shared + 1, place - shared
            )
            self.instances[number] = text
            made.append(number)
        return made

    @property
    def numbers(self) -> dict[str, int]:
        """Return the numbers of all GPUs and MIG instances by UUID."""
        whole = {text: number for number, text in enumerate(self.uuids)}
        return whole | {text: number for number, text in self.instances.items()}

    # ---- for processes ----

    @property
    def env(self) -> dict[str, str]:
        """Return the variables by which a process sees this machine's GPUs, through the current driver."""
        return {"LD_LIBRARY_PATH": str(self._built / self.driver), "STANDIN_GPUS": str(self.file)}

    # ---- looking ----

    def processes(self, device: int) -> list[Holder]:
        """Return the processes that use its memory, whatever NVML is set to report."""
        rows = (ctypes.c_int64 * (6 * HOLDERS))()
        found = self._gpus.code.look(self._gpus.at, device, rows, HOLDERS)
        return [Holder(p, s, k, b / 1000, kind, bool(d)) for p, s, k, b, kind, d in batches(rows[: 6 * found], 6)]

    def used(self, device: int) -> int:
        """Return the memory that processes use, lingering dead ones among them; without the reserved part."""
        return self._gpus.number(device, "used")

    def free(self, device: int) -> int:
        return self.total(device) - self._gpus.number(device, "reserved") - self.used(device)

    def total(self, device: int) -> int:
        return self._gpus.number(device, "total")

    def peak_used(self, device: int) -> int:
        """Return the highest use of a device at one moment."""
        return self._gpus.number(device, "peak")

    def ooms(self, device: int) -> int:
        """Return how often a process wanted more of it than was free."""
        return self._gpus.number(device, "ooms")

    # ---- meddling ----

    def set(self, device: int | None = None, **switches: int) -> None:
        """Set switches of a device, or of all; gpus.h lists and explains them."""
        for name, value in switches.items():
            if self._gpus.code.set(self._gpus.at, -1 if device is None else device, name.encode(), int(value)):
                raise ValueError(f"there is no switch {name!r}; gpus.h lists them")

    def hold(self, device: int, pid: int, more: int | str, busy: float = 0.0, kind: int = COMPUTE) -> None:
        """Have a living process, whatever it is, take so much more; raises OutOfMemory."""
        self._gpus.change(device, pid, in_bytes(more), kind)
        self._gpus.busy(device, pid, busy, kind)

    def unmanaged(self, device: int, size: int | str, busy: float = 0.0, kind: int = COMPUTE) -> Unmanaged:
        """Start a process of another user, which uses this much."""
        self._unmanaged.append(Unmanaged(self._gpus, device, size, busy, kind))
        return self._unmanaged[-1]

    def close(self) -> None:
        """End what was started here; processes that hang in a call are let go."""
        self.set(hang=0, init_hang=0)
        for one in self._unmanaged:
            one.close()

    def __enter__(self) -> Box:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def in_bytes(said: int | str) -> int:
    return said if isinstance(said, int) else parse_size(said)


def position(device: int, order: Sequence[int] | None) -> int:
    return device if order is None else list(order).index(device)


def one_of(said: Any, device: int) -> Any:
    return said if isinstance(said, int | str) else said[device]


def batches(flat: Sequence[int], size: int) -> list[tuple[int, ...]]:
    return list(zip(*[itertools.chain(flat)] * size, strict=True))
