"""What `doctor` says of GPUs: the driver, each GPU, who may use them, who holds them, and MPS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from scheduler.units import duration, ranges, size
from scheduler.view.examined import Gpu, Gpus, Mps
from scheduler.view.findings import Finding, absent, broken, ok, wrong
from scheduler.view.words import short

_UUID = 12
"""So much of a UUID tells it from others."""
_MODEL = 28


def gpu_findings(gpus: Gpus) -> Iterator[Finding]:
    """Everything but MPS."""
    yield from _driver(gpus)
    yield from _each(gpus)
    if not gpus.gpus:
        return
    yield from _allowed(gpus)
    yield from _order(gpus)
    looked_at = [gpu for gpu in gpus.gpus if gpu.reads]
    if looked_at:
        yield _reads(looked_at, gpus)
    usable = [gpu for gpu in gpus.gpus if gpu.usable]
    if usable:
        yield _modes(usable)
        yield _accounting(usable)
        yield from _foreign(usable, gpus)


def numbers(gpus: Iterable[Gpu]) -> str:
    """Several GPUs as people name them: `GPU 0-3, 6`."""
    return f"GPU {ranges(gpu.index for gpu in gpus)}"


def _driver(gpus: Gpus) -> Iterator[Finding]:
    if gpus.gpus:
        yield ok("driver", f"{gpus.driver}, CUDA {gpus.cuda}; asked through {gpus.module}")
    elif gpus.broken:
        yield broken("driver", gpus.why, f"{gpus.cure}; or run on the host's RAM alone: --devices host")
    elif gpus.module_trouble and gpus.why == gpus.module_trouble:
        yield absent("driver", f"nobody looked: {gpus.why}; runs use the host's RAM", gpus.module_cure)
        return
    else:
        yield absent("driver", f"{gpus.why}: runs use the host's RAM")
    if gpus.module_trouble and gpus.module_trouble != gpus.why:
        yield wrong("pynvml", gpus.module_trouble, gpus.module_cure)


def _each(gpus: Gpus) -> Iterator[Finding]:
    widths = [max((len(cell(gpu)) for gpu in gpus.gpus), default=0) for cell in _CELLS]
    for gpu in gpus.gpus:
        cells = [cell(gpu).ljust(width) for cell, width in zip(_CELLS, widths, strict=True)]
        yield _gpu(gpu, "  ".join(cells).rstrip(), gpus)


_CELLS: tuple[Callable[[Gpu], str], ...] = (
    lambda gpu: short(gpu.model.removeprefix("NVIDIA "), _MODEL),
    lambda gpu: size(gpu.total) if gpu.total else "",
    lambda gpu: f"{size(gpu.free)} free" if gpu.free is not None else "",
    lambda gpu: gpu.uuid[:_UUID],
)


def _gpu(gpu: Gpu, row: str, gpus: Gpus) -> Finding:
    what, smi = f"GPU {gpu.index}", f"nvidia-smi -i {gpu.index}"
    if gpu.trouble:
        return broken(what, row, gpu.cure, gpu.trouble, stops=gpus.broken)
    if not gpu.allowed:
        return absent(what, row, note="" if gpus.refused else "not for this shell")
    if gpu.mig:
        return wrong(what, row, f"{smi} -mig 0 as root makes it whole", "divided by MIG: left out")
    if gpu.compute_mode == "prohibited":
        return wrong(what, row, f"{smi} -c DEFAULT as root opens it", "compute mode prohibited")
    return ok(what, row, "one task at a time" if gpu.compute_mode == "exclusive process" else "")


def _allowed(gpus: Gpus) -> Iterator[Finding]:
    allowed = [gpu for gpu in gpus.gpus if gpu.allowed]
    whole = [gpu for gpu in allowed if not gpu.mig]
    if gpus.refused:
        why, _, cure = gpus.refused.rpartition(": ")
        yield broken("allowed", why, cure)
    elif whole and all(gpu.compute_mode == "prohibited" for gpu in whole):
        yield broken("allowed", "only what is closed: a run is refused", "open one, or run --devices host")
    elif not allowed:
        yield absent("allowed", f"none, by {gpus.allowed_by}: runs use the host's RAM")
    elif gpus.allowed_by:
        yield ok("allowed", f"{numbers(allowed)} of {len(gpus.gpus)}, by {gpus.allowed_by}")
    else:
        yield ok("allowed", "all: no variable and no cgroup keeps one from this shell")
    for note in gpus.notes:
        yield wrong("allowed", note, "name whole GPUs of this machine in CUDA_VISIBLE_DEVICES, or unset it")


def _order(gpus: Gpus) -> Iterator[Finding]:
    """Nothing where CUDA counts as nvidia-smi does."""
    by_index = "tasks are told CUDA's numbers (--visible index)"
    told = by_index if gpus.told == "index" else "tasks are told UUIDs, which mean the same to both"
    in_order = sorted(gpus.cuda_numbers)
    if in_order != sorted(in_order, key=lambda index: gpus.cuda_numbers[index]):
        pairs = ", ".join(f"{number} is GPU {index}" for index, number in _by_number(gpus))
        yield ok("CUDA's order", f"not that of nvidia-smi (by PCI bus its {pairs}): {told}")
    elif not gpus.by_bus:
        unlike = "models differ, and CUDA puts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID"
        yield ok("CUDA's order", f"may not be that of nvidia-smi ({unlike}): {told}")


def _by_number(gpus: Gpus) -> Sequence[tuple[int, int]]:
    return sorted(gpus.cuda_numbers.items(), key=lambda item: item[1])


def _reads(looked_at: Sequence[Gpu], gpus: Gpus) -> Finding:
    coarse = [gpu for gpu in looked_at if gpu.reads == "device"]
    inside = (
        "" if gpus.first_namespace else "this is a pid namespace of its own, and the driver tells the machine's pids"
    )
    if not coarse:
        used = any(gpu.foreign or gpu.promised_held for gpu in looked_at)
        doubt = f"; {inside}, so that can change" if inside else ", as far as it shows while nobody uses them"
        return ok("memory seen", f"by process{doubt if inside or not used else ''}")
    why = inside or "the driver does not tell what each process holds"
    says = f"only by device on {numbers(coarse)} ({why}): needs are learned from how the whole GPU fills"
    return absent("memory seen", says, "start the container with --pid=host" if inside else "")


def _modes(usable: Sequence[Gpu]) -> Finding:
    modes = {gpu.compute_mode: [one for one in usable if one.compute_mode == gpu.compute_mode] for gpu in usable}
    said = ", ".join(f"{mode} on {numbers(gpus)}" for mode, gpus in modes.items())
    return ok("compute mode", said)


def _accounting(usable: Sequence[Gpu]) -> Finding:
    off = [gpu for gpu in usable if not gpu.accounting]
    if not off:
        return ok("accounting", "on: the driver tells each task's exact peak")
    where = "off" if len(off) == len(usable) else f"off on {numbers(off)}"
    which = "" if len(off) == len(usable) else f" -i {','.join(str(gpu.index) for gpu in off)}"
    cure = f"nvidia-smi{which} -am 1 as root gives exact peaks; with -pm 1 it outlasts the last process"
    return absent("accounting", f"{where}: peaks are polled for, short ones can be missed", cure)


def _foreign(usable: Sequence[Gpu], gpus: Gpus) -> Iterator[Finding]:
    held = [gpu for gpu in usable if gpu.foreign]
    if not held:
        yield ok("others", "nobody without a promise holds memory there")
    for gpu in held:
        who = ", ".join(f"{size(one.bytes)} by {one.user or 'somebody who cannot be seen'}" for one in gpu.foreign)
        yield ok("others", f"GPU {gpu.index}: {who}{_manners(gpu, gpus)}")


def _manners(gpu: Gpu, gpus: Gpus) -> str:
    """What a run does because of them."""
    if not gpu.kept:
        return " (--foreign ignore)" if gpus.policy == "ignore" else ""
    if gpus.policy == "avoid":
        return "; left alone (--foreign avoid)"
    wait = gpus.calm - min(one.calm for one in gpu.foreign)
    young = f"; a run starts nothing beside it for {duration(wait)}" if wait > 0 else ""
    return f", {size(gpu.kept)} more kept for that{young}"


def mps_findings(mps: Mps) -> Iterator[Finding]:
    """What there is of MPS."""
    where = f"its control program is {mps.program}" if mps.program else "nvidia-cuda-mps-control is not on PATH"
    turns = "" if any(daemon.found for daemon in mps.daemons) else ": tasks share a GPU in turns"
    if mps.program:
        yield ok("MPS", f"not used without --mps{turns} ({where})")
    else:
        yield absent("MPS", f"cannot be used{turns} ({where})")
    for place in mps.left:
        yield wrong("MPS", f"a daemon that nobody uses any more is left in {place}", "scheduler doctor --clean")
    for daemon in mps.daemons:
        runs = f"a daemon of {daemon.user} runs in {daemon.directory} (process {daemon.pid})"
        if daemon.found:
            joins = "tasks find it there and join it, and what crashes one of them can end the others"
            yield wrong("MPS", f"{runs}: {joins}", "echo quit | nvidia-cuda-mps-control, as that user")
        else:
            yield ok("MPS", f"{runs}: tasks do not join it, unless with --mps=join")
    if mps.variables:
        said = ", ".join(f"{name}={value}" for name, value in mps.variables.items())
        yield ok("MPS", f"taken from tasks: {said}")
