"""The inventory of this node, read from the NVIDIA library: its GPUs, or the reason why there are none."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scheduler.values import dataclass, replace

EXCLUSIVE_PROCESS, PROHIBITED = 3, 2
REBOOT = "see the kernel log (dmesg) for lines with NVRM or Xid; usually a reboot helps"
_RESET = "nvidia-smi --gpu-reset as root while no process uses it, or a reboot"
_ACCESS = "ask the administrator of the container or the cgroup for access"
_LIBRARIES = "install the driver's libraries; a container gets them with NVIDIA_DRIVER_CAPABILITIES=compute,utility"
_HOST = "run on the host's RAM, --devices host"
_RELOAD = "reboot, or reload its modules"
_INSTALL = "pip install nvidia-ml-py"
AGAIN = "try again"
REINSTALL = "pip uninstall pynvml; pip install --force-reinstall nvidia-ml-py"
_CURES = (REBOOT, _RESET, _ACCESS, _LIBRARIES, _HOST, _RELOAD, REINSTALL, _INSTALL, AGAIN)
XID = "XID "
"""The prefix of the word for a critical error of the driver."""
_CRITICAL = {
    48: "an uncorrectable memory error",
    62: "one of its controllers stopped",
    64: "a broken row of its memory could not be replaced",
    74: "an NVLink error",
    79: "it has fallen off the bus",
    95: "an uncontained memory error",
    110: "a security fault",
    119: "its system processor does not answer",
    120: "an error of its system processor",
    140: "an unrecovered memory error",
    143: "it could not be initialised",
}
_SENTENCES = {
    "GPU_IS_LOST": f"is lost (it has fallen off the bus): {REBOOT}",
    "RESET_REQUIRED": f"needs a reset: {_RESET}",
    "NO_PERMISSION": f"cannot be read by this user: {_ACCESS}",
    "OPERATING_SYSTEM": f"is blocked by the operating system (a device cgroup or a container keeps it away): {_ACCESS}",
    "NOT_FOUND": "no longer exists",
    "NOT_SUPPORTED": f"has no memory of its own to schedule: {_HOST}",
}
_DIVIDED = {
    "nvmlDeviceGetMigDeviceHandleByIndex": "no longer exists, because its GPU was divided in another way",
    "nvmlDeviceGetMigMode": "was divided into MIG instances, which tasks use in its place",
}
"""The meaning of the error NOT_FOUND for a GPU or an instance, by the name of the call that reported it."""


@dataclass(frozen=True, slots=True)
class InstalledGpu:
    """One GPU of the node, or one MIG instance of a GPU, even if this process may not use it."""

    index: int
    """The GPU's number in nvidia-smi; for an instance, the number of the GPU to which it belongs."""
    uuid: str
    model: str
    bus_id: str
    total: int
    minor: int = -1
    """The minor number of the device file /dev/nvidiaN, which cgroups and Slurm use; -1: the minor number equals the
    index.
    """
    mig: bool = False
    """True if the GPU is divided into MIG devices."""
    compute_mode: int = 0
    capability: Sequence[int] = ()
    """CUDA's compute capability, major and minor; empty if unknown."""
    accounting: bool = False
    """True if accounting mode is on, which gives exact peaks."""
    parent: str = ""
    """The UUID of the GPU to which this MIG instance belongs; empty: this is a whole GPU."""
    part: int = -1
    """The number of the instance on its GPU; -1: this is a whole GPU."""
    uncorrected: int | None = None
    """The number of uncorrectable memory errors since the driver was loaded; None: this GPU does not count them."""
    pending: bool = False
    """True if a broken part of the GPU's memory will be replaced at the next reset."""
    worn: bool = False
    """True if the GPU has a broken row of memory that it could not replace by a spare row."""
    throttled: int = 0
    """The reasons why the GPU's clocks are below their maximum, as a bit mask of NVML."""
    sharers: int = 1
    """The number of compute instances that share the memory of this GPU instance."""

    failure: Sequence[Any] = ()
    """The number of NVML's error, its name, and the call, if the memory of an instance cannot be read."""

    @property
    def word(self) -> str:
        """The GPU's number as users write it: `0`, or `0.1` for an instance."""
        return str(self.index) if self.part < 0 else f"{self.index}.{self.part}"

    @property
    def label(self) -> str:
        """The name of the GPU or instance, as users read it."""
        return f"GPU {self.word}"

    @property
    def number(self) -> int:
        """The N in the name of the GPU's device file /dev/nvidiaN; nvidia-smi may give the GPU another number inside a
        container or a Slurm job.
        """
        return self.index if self.minor < 0 else self.minor

    @property
    def unreadable(self) -> str:
        """The reason why the GPU's memory cannot be read, with the cure; empty if it can be read."""
        return f"{self.label} {trouble(*self.failure)}" if self.failure else ""

    @property
    def unusable(self) -> str:
        """The reason why no task can run on the GPU; empty if tasks can."""
        if self.failure:
            return self.unreadable
        if self.mig:
            return (
                f"{self.label} is in MIG mode: only its instances can be used; nvidia-smi -i {self.index} -mig 0 as "
                "root makes it whole"
            )
        if self.compute_mode == PROHIBITED:
            return (
                f"{self.label} is closed for computing (compute mode PROHIBITED): "
                f"nvidia-smi -i {self.index} -c DEFAULT as root opens it"
            )
        return ""


UNREAD = "GPU-unread-"
"""The prefix of the key of a GPU whose UUID could not be read yet."""


def unread(index: int, like: InstalledGpu) -> InstalledGpu:
    """Return a description of the GPU `index`, which cannot be read: it is assumed to be like `like`, another GPU of
    the node.
    """
    return replace(like, index=index, uuid=f"{UNREAD}{index}", bus_id="", minor=-1)


def is_unread(uuid: str) -> bool:
    """Tell whether this is the key of a GPU that could not be read yet."""
    return uuid.startswith(UNREAD)


def instances_of(gpu: InstalledGpu, node: Iterable[InstalledGpu]) -> list[InstalledGpu]:
    """Return the MIG instances of a GPU."""
    return [one for one in node if one.parent == gpu.uuid]


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """The inventory of a node, before any of its GPUs is chosen."""

    gpus: tuple[InstalledGpu, ...] = ()
    driver: str = ""
    cuda: str = ""
    reads: str = "process"
    """How GPU memory is read: per `process`, or only per `device`."""
    errors: tuple[tuple[int, str], ...] = ()
    """GPUs that cannot be sampled, as pairs of index and sentence."""
    why: str = ""
    """The reason why there are no GPUs at all."""
    broken: bool = False
    """True if the lack of GPUs needs a repair; False on a machine without a GPU."""
    hint: str = ""
    first_namespace: bool = True
    """True if this process is in the pid namespace whose pids NVML reports."""


def read_node(said: Mapping[str, Any], hint: str) -> GpuInventory:
    """Return the inventory from the report of the sampler child."""
    gpus = tuple(InstalledGpu(**facts) for facts in said["gpus"])
    errors = tuple((index, f"GPU {index} {trouble(code, word, call)}") for index, code, word, call in said["errors"])
    why = "" if gpus or errors else "the NVIDIA driver is there, but it lists no GPU"
    reads = "device" if _in_wsl() else "process"
    return GpuInventory(gpus, said["driver"], said["cuda"], reads, errors, why, False, hint, said["first_namespace"])


def _in_wsl() -> bool:
    """Tell, by the driver's device file, whether this machine has the Windows driver, which does not show the memory of
    processes.
    """
    return os.path.exists("/dev/dxg")


def trouble(code: int, word: str, call: str) -> str:
    """Return the fault of a GPU, as words that follow the GPU's name."""
    if word.startswith(XID):
        return f"reported {word} ({_CRITICAL.get(code, 'a critical error')}), so it needs a reset: {_RESET}"
    if word == "NOT_FOUND" and call in _DIVIDED:
        return _DIVIDED[call]
    said = _SENTENCES.get(word)
    return f"{said} ({call}: {word})" if said else f"cannot be read ({call}: {word}, error {code}): {REBOOT}"


def why_not(code: int, word: str, there: bool) -> tuple[str, bool]:
    """Return why the library could not be initialised, and whether this needs a repair. `there` is True if the kernel
    has GPUs.
    """
    if code == 12 and there:
        return f"there is an NVIDIA GPU, but libnvidia-ml.so.1 was not found: {_LIBRARIES}", True
    if code == 12:
        return "there is no NVIDIA driver here (libnvidia-ml.so.1 was not found)", False
    if code == 9 and there:
        return f"the NVIDIA driver does not answer although its devices are there: {REBOOT}", True
    if code == 9:
        return "the NVIDIA driver is not loaded", False
    if code == 18:
        return f"the NVIDIA driver was upgraded while the old one is still loaded: {_RELOAD}", True
    return f"the NVIDIA library could not be initialised ({word}, error {code}): {REBOOT}", True


def apart(sentence: str) -> tuple[str, str]:
    """Split a sentence about a GPU or the library into fault and cure; the default cure is a reboot."""
    cure = next((cure for cure in _CURES if f": {cure}" in sentence), "")
    return sentence.replace(f": {cure}", "") if cure else sentence, cure or REBOOT


@dataclass(frozen=True, slots=True)
class PynvmlModule:
    """The location of NVIDIA's own module pynvml, found without importing it."""

    path: Path | None
    hint: str = ""
    """A sentence about a problem with the module and its cure; empty if there is no problem."""


def find_pynvml() -> PynvmlModule:
    """Find pynvml; report a package from an old distribution `pynvml` that hides it or has replaced it."""
    try:
        spec = importlib.util.find_spec("pynvml")
    except ValueError:  # its spec was removed after its import
        spec = None
    if spec is not None and spec.submodule_search_locations is None and spec.origin:
        return PynvmlModule(Path(spec.origin))
    beside = next((path for place in sys.path if (path := Path(place, "pynvml.py")).is_file()), None)
    if spec is None:
        return PynvmlModule(beside, "" if beside else f"the Python module pynvml is missing: {_INSTALL}")
    where = next(iter(spec.submodule_search_locations or ()), "somewhere")
    said = f"the package in {where} hides NVIDIA's own module pynvml"
    return PynvmlModule(
        beside, f"{said}, which is used nevertheless: {REINSTALL}" if beside else f"{said}: {REINSTALL}"
    )
