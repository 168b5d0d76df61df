"""The limit that PyTorch itself sets on its GPU memory by an option of its allocator, if its release has the option.

PyTorch is located by its files among the packages of the task's Python, and never imported. Releases from 2.10 on know
the option; older releases exit with an error when they read it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from scheduler.core.model import Device, Placement
from scheduler.core.ports import FenceLaunch
from scheduler.values import dataclass, field

OPTION = "per_process_memory_fraction"
NEW, OLD = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
"""The variables with the allocator's options; PyTorch has deprecated the second one."""
_LIBRARIES = ("libc10_cuda.so", "libc10_hip.so")
"""The libraries of PyTorch that read the option; a PyTorch without GPU support has neither of them."""
_STEP = 1e-4
"""The granularity of the fraction of memory, which is rounded down to a multiple of this value."""
_SCRIPT = b"#!"
_LONGEST = 512


@dataclass(slots=True)
class TorchFence:
    """The MemoryFence of a run with `--fence torch`; `say` is called with a sentence about each Python for which no
    limit can be set.
    """

    devices: Callable[[], Sequence[Device]]
    say: Callable[[str], None]
    _known: dict[str, bool] = field(default_factory=dict)

    def limit(self, placement: Placement, argv: Sequence[str], environ: Mapping[str, str | None]) -> FenceLaunch:
        """Return the variables that limit the task to its reservation; none if the task's PyTorch would not
        read them.
        """
        share = self._share(placement)
        if share is None or not argv:
            return FenceLaunch()
        program = find_program(argv[0], environ.get("PATH") or os.defpath)
        if program not in self._known:
            self._known[program] = takes_limit(program, environ)
            if not self._known[program]:
                self.say(
                    f"--fence torch: {argv[0]} has no PyTorch for GPUs of 2.10 or newer, so its tasks have no limit"
                )
        return FenceLaunch(merged(environ, share)) if self._known[program] else FenceLaunch()

    def _share(self, placement: Placement) -> float | None:
        """Return the fraction of its GPUs' memory that a task may use; None for a task without a GPU of its own."""
        totals = {device.key: device.total for device in self.devices()}
        shares = [placement.reservation.get(key, 0) / totals[key] for key in placement.sees if totals.get(key)]
        most = max(shares, default=0.0)
        return min(1.0, int(most / _STEP) * _STEP) if most else None


def merged(environ: Mapping[str, str | None], share: float) -> dict[str, str]:
    """Return the allocator's variables with the limit added; the user's other options are kept, and so is a lower limit
    of the user.
    """
    mine = [name for name in (NEW, OLD) if environ.get(name)] or [NEW]
    return {name: _with_limit(environ.get(name) or "", share) for name in mine}


def _with_limit(options: str, share: float) -> str:
    kept = []
    for option in [one.strip() for one in options.split(",") if one.strip()]:
        name, _, value = option.partition(":")
        if name.strip() != OPTION:
            kept.append(option)
        elif _number(value) is not None:
            share = min(share, _number(value) or share)
    return ",".join([*kept, f"{OPTION}:{share:.4f}"])


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def find_program(word: str, path: str) -> str:
    """Return the path of the interpreter that a command starts: a Python itself, or the one in the first line of a
    script.
    """
    found = shutil.which(word, path=path) or word
    try:
        with open(found, "rb") as file:
            line = file.read(_LONGEST).partition(b"\n")[0]
    except OSError:
        return found
    if not line.startswith(_SCRIPT):
        return found
    words = os.fsdecode(line.removeprefix(_SCRIPT)).split()
    if words and os.path.basename(words[0]) == "env":
        words = [one for one in words[1:] if not one.startswith("-") and "=" not in one]
    return shutil.which(words[0], path=path) or words[0] if words else found


def takes_limit(program: str, environ: Mapping[str, str | None]) -> bool:
    """Tell whether the PyTorch of an interpreter accepts the option; False if the interpreter has no PyTorch."""
    for folder in _packages(program, environ):
        libraries = folder / "torch" / "lib"
        if libraries.is_dir():
            return any(_knows(libraries / name) for name in _LIBRARIES)
    return False


def _packages(program: str, environ: Mapping[str, str | None]) -> Iterator[Path]:
    """Yield the directories in which a Python looks for packages, in the order of its search."""
    yield from (Path(one) for one in (environ.get("PYTHONPATH") or "").split(os.pathsep) if one)
    own, real = Path(os.path.abspath(program)), Path(os.path.realpath(program))
    prefixes = dict.fromkeys((own.parent.parent, real.parent.parent))
    for prefix in (*prefixes, Path(environ.get("HOME") or "/nonexistent", ".local")):
        for pattern in ("lib/python3*/site-packages", "local/lib/python3*/dist-packages", "lib/python3*/dist-packages"):
            yield from sorted(prefix.glob(pattern), reverse=True)


def _knows(library: Path) -> bool:
    try:
        return OPTION.encode() in library.read_bytes()
    except OSError:
        return False
