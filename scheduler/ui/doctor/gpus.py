"""The findings of `doctor` about GPUs: driver, each GPU, permissions, unmanaged memory, MPS."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from scheduler.ui.doctor.lines import Finding, absent, broken, ok, wrong
from scheduler.ui.doctor.report import GpuReport, GpusReport, MpsReport
from scheduler.ui.text import short
from scheduler.units import duration, ranges, size

_UUID = 12
"""Characters of a UUID that are shown."""
_MODEL = 28


def gpu_findings(gpus: GpusReport) -> Iterator[Finding]:
    """Yield all findings about GPUs but those about MPS."""
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
        yield from _unmanaged(usable, gpus)


def numbers(gpus: Iterable[GpuReport]) -> str:
    """Write the numbers of several GPUs: `GPU 0-3, 6`."""
    return f"GPU {ranges(gpu.index for gpu in gpus)}"


def _driver(gpus: GpusReport) -> Iterator[Finding]:
    if gpus.gpus:
        yield ok("driver", f"{gpus.driver}, CUDA {gpus.cuda}; read through {gpus.module}")
    elif gpus.broken:
        yield broken("driver", gpus.why, f"{gpus.cure}; or run without GPUs: --devices host")
    elif gpus.module_trouble and gpus.why == gpus.module_trouble:
        yield absent("driver", f"not checked: {gpus.why}; runs use no GPU", gpus.module_cure)
        return
    else:
        yield absent("driver", f"{gpus.why}: runs use no GPU")
    if gpus.module_trouble and gpus.module_trouble != gpus.why:
        yield wrong("pynvml", gpus.module_trouble, gpus.module_cure)


def _each(gpus: GpusReport) -> Iterator[Finding]:
    widths = [max((len(cell(gpu)) for gpu in gpus.gpus), default=0) for cell in _CELLS]
    for gpu in gpus.gpus:
        cells = [cell(gpu).ljust(width) for cell, width in zip(_CELLS, widths, strict=True)]
        yield _gpu(gpu, "  ".join(cells).rstrip(), gpus)


_CELLS: tuple[Callable[[GpuReport], str], ...] = (
    lambda gpu: short(gpu.model.removeprefix("NVIDIA "), _MODEL),
    lambda gpu: size(gpu.total) if gpu.total else "",
    lambda gpu: f"{size(gpu.free)} free" if gpu.free is not None else "",
    lambda gpu: gpu.uuid[:_UUID],
)


def _gpu(gpu: GpuReport, row: str, gpus: GpusReport) -> Finding:
    what, smi = f"GPU {gpu.index}", f"nvidia-smi -i {gpu.index}"
    if gpu.trouble:
        return broken(what, row, gpu.cure, gpu.trouble, stops=gpus.broken)
    if not gpu.allowed:
        return absent(what, row, note="" if gpus.refused else "not allowed for this shell")
    if gpu.mig:
        return wrong(what, row, f"{smi} -mig 0 as root turns MIG off", "MIG is on: not used")
    if gpu.compute_mode == "prohibited":
        return wrong(what, row, f"{smi} -c DEFAULT as root allows it", "compute mode prohibited: not used")
    return ok(what, row, "one task at a time" if gpu.compute_mode == "exclusive process" else "")


def _allowed(gpus: GpusReport) -> Iterator[Finding]:
    allowed = [gpu for gpu in gpus.gpus if gpu.allowed]
    whole = [gpu for gpu in allowed if not gpu.mig]
    if gpus.refused:
        why, _, cure = gpus.refused.rpartition(": ")
        yield broken("allowed", why, cure)
    elif whole and all(gpu.compute_mode == "prohibited" for gpu in whole):
        yield broken(
            "allowed", "only GPUs in compute mode prohibited: a run is refused", "allow one, or run --devices host"
        )
    elif not allowed:
        yield absent("allowed", f"none, by {gpus.allowed_by}: runs use no GPU")
    elif gpus.allowed_by:
        yield ok("allowed", f"{numbers(allowed)} of {len(gpus.gpus)}, by {gpus.allowed_by}")
    else:
        yield ok("allowed", "all: no variable and no cgroup limits this shell")
    for note in gpus.notes:
        yield wrong("allowed", note, "set CUDA_VISIBLE_DEVICES to whole GPUs of this machine, or unset it")


def _order(gpus: GpusReport) -> Iterator[Finding]:
    """Yield a finding if CUDA may number the GPUs differently from nvidia-smi."""
    given = "tasks get CUDA's numbers (--visible index)" if gpus.told == "index" else "tasks get UUIDs, valid for both"
    in_order = sorted(gpus.cuda_numbers)
    if in_order != sorted(in_order, key=lambda index: gpus.cuda_numbers[index]):
        pairs = ", ".join(f"{number} is GPU {index}" for index, number in _by_number(gpus))
        yield ok("CUDA's order", f"differs from nvidia-smi (in PCI bus order, CUDA's {pairs}): {given}")
    elif not gpus.by_bus:
        why = "the models differ, and CUDA puts the fastest first unless CUDA_DEVICE_ORDER=PCI_BUS_ID"
        yield ok("CUDA's order", f"may differ from nvidia-smi ({why}): {given}")


def _by_number(gpus: GpusReport) -> Sequence[tuple[int, int]]:
    return sorted(gpus.cuda_numbers.items(), key=lambda item: item[1])


def _reads(looked_at: Sequence[GpuReport], gpus: GpusReport) -> Finding:
    coarse = [gpu for gpu in looked_at if gpu.reads == "device"]
    inside = (
        "" if gpus.first_namespace else "this is a separate pid namespace, and the driver reports the machine's pids"
    )
    if not coarse:
        used = any(gpu.unmanaged or gpu.reserved_held for gpu in looked_at)
        doubt = f"; {inside}, so that can change" if inside else " (not certain while the GPUs are unused)"
        return ok("memory use", f"visible per process{doubt if inside or not used else ''}")
    why = inside or "the driver does not report the memory of each process"
    says = f"visible only per device on {numbers(coarse)} ({why}): needs are measured on the whole GPU"
    return absent("memory use", says, "start the container with --pid=host" if inside else "")


def _modes(usable: Sequence[GpuReport]) -> Finding:
    modes = {gpu.compute_mode: [one for one in usable if one.compute_mode == gpu.compute_mode] for gpu in usable}
    return ok("compute mode", ", ".join(f"{mode} on {numbers(gpus)}" for mode, gpus in modes.items()))


def _accounting(usable: Sequence[GpuReport]) -> Finding:
    off = [gpu for gpu in usable if not gpu.accounting]
    if not off:
        return ok("accounting", "on: the driver reports the exact peak of each task")
    where = "off" if len(off) == len(usable) else f"off on {numbers(off)}"
    which = "" if len(off) == len(usable) else f" -i {','.join(str(gpu.index) for gpu in off)}"
    cure = f"nvidia-smi{which} -am 1 as root gives exact peaks; with -pm 1 it stays on after the last process"
    return absent("accounting", f"{where}: memory is sampled, short peaks can be missed", cure)


def _unmanaged(usable: Sequence[GpuReport], gpus: GpusReport) -> Iterator[Finding]:
    held = [gpu for gpu in usable if gpu.unmanaged]
    if not held:
        yield ok("unmanaged", "no unmanaged process uses GPU memory")
    for gpu in held:
        used = ", ".join(f"{size(one.bytes)} used by {one.user or 'an unknown user'}" for one in gpu.unmanaged)
        yield ok("unmanaged", f"GPU {gpu.index}: {used}{_consequence(gpu, gpus)}")


def _consequence(gpu: GpuReport, gpus: GpusReport) -> str:
    """Return what a run does because of unmanaged memory."""
    if not gpu.kept:
        return " (--unmanaged ignore)" if gpus.policy == "ignore" else ""
    if gpus.policy == "avoid":
        return "; not used (--unmanaged avoid)"
    wait = gpus.calm - min(one.calm for one in gpu.unmanaged)
    young = f"; a run starts nothing there for {duration(wait)}" if wait > 0 else ""
    return f", {size(gpu.kept)} more kept free for it{young}"


def mps_findings(mps: MpsReport) -> Iterator[Finding]:
    """Yield the findings about MPS."""
    where = f"its control program is {mps.program}" if mps.program else "nvidia-cuda-mps-control is not on PATH"
    turns = "" if any(daemon.found for daemon in mps.daemons) else ": tasks on one GPU compute in turns"
    if mps.program:
        yield ok("MPS", f"only used with --mps{turns} ({where})")
    else:
        yield absent("MPS", f"cannot be used{turns} ({where})")
    for place in mps.left:
        yield wrong("MPS", f"an unused daemon is left in {place}", "scheduler doctor --clean")
    for daemon in mps.daemons:
        runs = f"a daemon of {daemon.user} runs in {daemon.directory} (process {daemon.pid})"
        if daemon.found:
            joins = "tasks find it and join it, and a crash of one can end the others"
            yield wrong("MPS", f"{runs}: {joins}", "echo quit | nvidia-cuda-mps-control, as that user")
        else:
            yield ok("MPS", f"{runs}: tasks join it only with --mps=join")
    if mps.variables:
        variables = ", ".join(f"{name}={value}" for name, value in mps.variables.items())
        yield ok("MPS", f"removed from the environment of tasks: {variables}")
