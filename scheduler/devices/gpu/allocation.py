"""The GPUs of the node that this process may use, according to its environment.

NVML lists every GPU of the node, and the MIG instances of each. Some of them may be hidden from this process: first by
a device cgroup, then by CUDA_VISIBLE_DEVICES or, if that is not set, by the variables of Slurm or of the container
runtime.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from scheduler.devices.gpu.inventory import InstalledGpu, instances_of
from scheduler.errors import DeviceError
from scheduler.patterns import lazy_pattern
from scheduler.values import dataclass

T = TypeVar("T")

CUDA, ORDER, CONTAINER = "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"
SLURM = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")
CGROUP = "the device cgroup"
_NVIDIA = 195
"""The major device number of /dev/nvidia0, /dev/nvidia1, …"""
_RULE = lazy_pattern(r"^([ac]) (\d+|\*):(\d+|\*) (\w*)", re.MULTILINE)
_NUMBER = lazy_pattern(r"\+?(\d+)")
_NONE_MEANT = lazy_pattern(r"|-\d+|NoDevFiles")
"""Entries that users and Slurm write to end the list on purpose."""
_UUIDS = ("GPU-", "MIG-")
"""The prefixes of the UUIDs of GPUs and of MIG instances."""


@dataclass(frozen=True, slots=True)
class AllowedGpus:
    """The GPUs that this process may use."""

    gpus: tuple[InstalledGpu, ...]
    """The GPUs in the order in which the limiting variable names them; without such a variable, in the order of
    nvidia-smi.
    """
    source: str = ""
    """The variable or the cgroup that limits the GPUs; empty if nothing limits them."""
    notes: tuple[str, ...] = ()
    """Sentences about GPUs that were left out, if their absence may surprise users."""


Found = tuple[tuple[InstalledGpu, ...], str]
"""The GPUs that a variable permits, and the variable's name."""


def allowed(node: Sequence[InstalledGpu], environ: Mapping[str, str], device_rules: str = "") -> AllowedGpus:
    """Return the GPUs that the environment permits; `device_rules` is the content of a cgroup's `devices.list`.

    Raise DeviceError if numbers of GPUs in the environment are ambiguous.
    """
    if not node:
        return AllowedGpus(())
    notes: list[str] = []
    reachable = within(node, device_rules)
    sources = [CGROUP] if len(reachable) < len(node) else []
    gpus, source = _named(reachable, environ, notes)
    usable = divided(gpus, reachable)
    if len(usable) < len(divided(reachable, reachable)):
        sources.append(source)
    notes += [
        f"{gpu.label} is in MIG mode without an instance and left out: nvidia-smi mig -i {gpu.index} -cgi PROFILE -C "
        f"as root makes instances, nvidia-smi -i {gpu.index} -mig 0 makes it whole"
        for gpu in gpus
        if gpu.mig and not instances_of(gpu, reachable)
    ]
    return AllowedGpus(usable, " and ".join(sources), tuple(notes))


def divided(gpus: Iterable[InstalledGpu], node: Sequence[InstalledGpu]) -> tuple[InstalledGpu, ...]:
    """Return the given GPUs, each of them once; a GPU in MIG mode is replaced by its instances."""
    parts = (part for gpu in gpus for part in (instances_of(gpu, node) if gpu.mig else [gpu]))
    return tuple({part.uuid: part for part in parts}.values())


def whole(node: Iterable[InstalledGpu]) -> list[InstalledGpu]:
    """Return only the whole GPUs, without the MIG instances."""
    return [gpu for gpu in node if not gpu.parent]


def cuda_numbers(reachable: Sequence[InstalledGpu]) -> dict[str, int]:
    """Return CUDA's number of each GPU by UUID, under CUDA_DEVICE_ORDER=PCI_BUS_ID; it may differ from NVML's index.

    Pass only the GPUs that `within` returned: CUDA counts only GPUs that it can open. MIG instances have no numbers.
    """
    return {gpu.uuid: number for number, gpu in enumerate(_by_bus(whole(reachable)))}


def labels(gpus: Iterable[InstalledGpu]) -> str:
    """Return the names of several GPUs, as users read them: `GPU 2, 5`."""
    return "GPU " + ", ".join(gpu.word for gpu in gpus)


def starting_with(prefix: str, gpus: Iterable[InstalledGpu]) -> list[InstalledGpu]:
    """Return the GPUs and MIG instances whose UUID starts with `prefix`; none if `prefix` cannot be the start of a
    UUID.
    """
    return [gpu for gpu in gpus if gpu.uuid.startswith(prefix)] if prefix.startswith(_UUIDS) else []


def within(node: Sequence[InstalledGpu], device_rules: str) -> tuple[InstalledGpu, ...]:
    """Return the GPUs that the cgroup lets this process open; all of them if the cgroup sets no rules.

    Each line gives a permission (`c 195:2 rwm`); anything else is forbidden. The permission to make nodes (`m`) alone
    does not allow use. A cgroup that forbids single devices still lists `a *:* rwm`; NVML cannot open the forbidden
    devices, and does not list them.
    """
    if not device_rules.strip():
        return tuple(node)
    leaves = [rule for rule in _RULE.finditer(device_rules) if {"r", "w"} <= set(rule[4])]
    numbers = {rule[3] for rule in leaves if rule[1] == "a" or rule[2] in ("*", str(_NVIDIA))}
    return tuple(gpu for gpu in node if not numbers.isdisjoint(("*", str(gpu.number))))


def _named(gpus: Sequence[InstalledGpu], environ: Mapping[str, str], notes: list[str]) -> Found:
    """Return the GPUs that the variables permit; CUDA's own variable takes precedence over the variables of Slurm and
    of container runtimes, because it is usually derived from them.
    """
    if CUDA in environ:
        return _by_cuda(environ[CUDA].strip(), gpus, environ, notes)
    name, numbers = _slurm(environ)
    if numbers:
        return _by_slurm(numbers, whole(gpus)), name
    return _by_container(environ.get(CONTAINER, ""), gpus), CONTAINER


# CUDA_VISIBLE_DEVICES


def _by_cuda(said: str, gpus: Sequence[InstalledGpu], environ: Mapping[str, str], notes: list[str]) -> Found:
    """Return the GPUs for a list of UUIDs or numbers. CUDA does not mix the two: the first entry sets the kind of the
    list, and an entry of the other kind ends the list. Numbers count all GPUs, including those in MIG mode.
    """
    if said.startswith(_UUIDS):
        return tuple(_entries(said, lambda entry: _of_prefix(entry, gpus), notes)), CUDA
    cards = whole(gpus)
    numbers = _entries(said, lambda entry: _number(entry, len(cards)), notes)
    line = _in_cuda_order(cards, environ)
    if line is not None:
        return tuple(line[number] for number in numbers), CUDA
    if len(numbers) in (0, len(cards)):
        return tuple(cards if numbers else ()), CUDA
    return _by_slurm_instead(said, len(numbers), cards, environ)


def _entries(said: str, read: Callable[[str], T | None], notes: list[str]) -> list[T]:
    """Return the values of the list's entries, up to the first entry that is unknown or repeated."""
    found: list[T] = []
    for entry in (entry.strip() for entry in said.split(",")):
        item = read(entry)
        if item is not None and item not in found:
            found.append(item)
            continue
        if not _NONE_MEANT.fullmatch(entry):
            why = "names no GPU here" if item is None else "comes twice"
            notes.append(f"{CUDA}={said} is read up to {entry!r}, which {why}: CUDA, too, ignores the rest")
        break
    return found


def _of_prefix(entry: str, gpus: Sequence[InstalledGpu]) -> InstalledGpu | None:
    """Return the GPU or instance whose UUID starts with an entry: CUDA accepts any prefix that is unique."""
    found = starting_with(entry, gpus)
    return found[0] if len(found) == 1 else None


def _number(entry: str, count: int) -> int | None:
    """Return the number at the beginning of an entry, as CUDA reads it with strtoul: `1st` is 1, and `0-3` is 0."""
    match = _NUMBER.match(entry)
    return int(match[1]) if match and int(match[1]) < count else None


def _in_cuda_order(gpus: Sequence[InstalledGpu], environ: Mapping[str, str]) -> list[InstalledGpu] | None:
    """Return the GPUs in CUDA's order; None if their models differ, because then only CUDA knows which is the
    fastest.
    """
    if environ.get(ORDER) == "PCI_BUS_ID" or len({gpu.model for gpu in gpus}) <= 1:
        return _by_bus(gpus)
    return None


def _by_bus(gpus: Iterable[InstalledGpu]) -> list[InstalledGpu]:
    """Return the GPUs sorted by PCI bus id, whose parts are hexadecimal and vary in width."""
    return sorted(gpus, key=lambda gpu: [int(part, 16) for part in re.findall(r"[0-9a-fA-F]+", gpu.bus_id)])


def _by_slurm_instead(said: str, count: int, gpus: Sequence[InstalledGpu], environ: Mapping[str, str]) -> Found:
    """Return the GPUs that Slurm names, to replace ambiguous numbers. Raise DeviceError unless Slurm names `count`
    GPUs.
    """
    name, numbers = _slurm(environ)
    named = tuple(gpu for gpu in gpus if gpu.number in numbers)
    if len(named) == len(numbers) == count:
        return named, f"{CUDA} and {name}"
    models = ", ".join(f"{gpu.label} {gpu.model}" for gpu in gpus)
    raise DeviceError(
        f"{CUDA}={said} could mean one GPU or another: this machine has different models ({models}), and without "
        f"{ORDER} CUDA counts the fastest first: set {ORDER}=PCI_BUS_ID or name them by UUID"
    )


# Slurm and containers


def _slurm(environ: Mapping[str, str]) -> tuple[str, frozenset[int]]:
    """Return the name of Slurm's variable for GPUs, and the numbers in it; both are empty if it is not set, or
    malformed.
    """
    for name in SLURM:
        words = [word.strip() for word in environ.get(name, "").split(",")]
        if all(word.isdecimal() for word in words):
            return name, frozenset(int(word) for word in words)
    return "", frozenset()


def _by_slurm(numbers: frozenset[int], gpus: Sequence[InstalledGpu]) -> tuple[InstalledGpu, ...]:
    """Return the GPUs for Slurm's numbers. If NVML lists no more GPUs than Slurm gave, a cgroup already hides the
    others, so all listed GPUs are returned.
    """
    if len(gpus) <= len(numbers):
        return tuple(gpus)
    return tuple(gpu for gpu in gpus if gpu.number in numbers)


def _by_container(said: str, gpus: Sequence[InstalledGpu]) -> tuple[InstalledGpu, ...]:
    """Return the GPUs of a container, which may see more GPUs than it was given: a privileged container sees all.

    Words that name no GPU are ignored. One of them is `void`, which is set if the devices were added in another way
    (CDI), https://github.com/NVIDIA/nvidia-container-toolkit/pull/395.
    """
    words = [word.strip() for word in said.split(",")]
    if words == ["none"]:
        return ()
    cards = whole(gpus)
    instances = [gpu for gpu in gpus if gpu.parent and (gpu.uuid in words or gpu.word.replace(".", ":") in words)]
    if instances:
        return tuple(instances)
    if len(cards) <= len(words) or not all(word.isdecimal() or word.startswith("GPU-") for word in words):
        return tuple(cards)
    by_uuid = {gpu.uuid for word in words for gpu in starting_with(word, cards)}
    return tuple(gpu for gpu in cards if gpu.uuid in by_uuid or str(gpu.index) in words)
