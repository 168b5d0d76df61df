"""The parts that all benchmarks share: a folder of their own, timed programs, turns between tools."""

from __future__ import annotations

import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
T = TypeVar("T")


@dataclass(frozen=True)
class Bench:
    """The arguments of a measurement."""

    folder: Path
    """Its own, and empty."""
    quick: bool = False
    traces: Path = Path("traces")
    """Where the measured traces lie."""

    def goes(self, full: int) -> int:
        """How often everything is repeated."""
        return min(3, full) if self.quick else full

    def at(self, name: str) -> Path:
        """A new folder in it."""
        path = self.folder / name
        path.mkdir(parents=True)
        return path


def scheduler() -> str:
    """The command as it is installed beside this Python."""
    return str(Path(sys.executable).with_name("scheduler"))


def environ(folder: Path, **more: str) -> dict[str, str]:
    """Return an environment in which no other run is seen and nothing was learned."""
    private = {"SCHEDULER_STATE": f"{folder}/state", "SCHEDULER_LEASES": f"{folder}/leases"}
    return {**inherited(), **private, **more}


def inherited() -> dict[str, str]:
    """Return the environment without the variable that would make every start of Python compile its modules again."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def compiled(name: str, folder: Path) -> str:
    """A program of `programs/`, compiled there; RuntimeError where there is no compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise RuntimeError("the limit is written in C and there is no compiler here: install gcc")
    program = folder / name
    if not program.exists():
        subprocess.run([compiler, "-O2", "-o", program, PROGRAMS / f"{name}.c"], check=True)
    return str(program)


def in_turns(goes: int, measured: Mapping[str, Callable[[int], T]]) -> dict[str, list[T]]:
    """Everything once, then everything again, each time begun by another one: what disturbs, disturbs all alike."""
    found: dict[str, list[T]] = {name: [] for name in measured}
    names = list(measured)
    for go in range(goes):
        for name in names[go % len(names) :] + names[: go % len(names)]:
            found[name].append(measured[name](go))
    return found


def seconds_of(command: Sequence[str], **how: object) -> tuple[float, float]:
    """How long a program took, and how long of that it had a core; CalledProcessError where it failed."""
    started, before = time.perf_counter(), _cores_time()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True, **how)  # type: ignore[call-overload]  # as it comes
    return time.perf_counter() - started, _cores_time() - before


def _cores_time() -> float:
    """Return the processor time of all children that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which so many of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def ratios(goes: Sequence[float], limit: Sequence[float]) -> list[float]:
    """Each go over the limit of the same turn."""
    return [one / base for one, base in zip(goes, limit, strict=True)]


def busy() -> float:
    """Return the seconds that all cores together have been busy since the start of the machine."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _, _, irq, soft = map(int, file.readline().split()[1:8])
    return (user + nice + system + irq + soft) / os.sysconf("SC_CLK_TCK")


@cache
def machine() -> dict[str, str]:
    """Return the facts of the machine that is measured, without its name."""
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        models = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    return {
        "cores": str(os.cpu_count()),
        "processor": models[0] if models else platform.machine(),
        "memory": f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {'.'.join(platform.release().split('-')[0].split('.')[:2])}",
        "python": platform.python_version(),
    }


def today() -> str:
    """The day, and the minute."""
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")


def median_and_spread(values: Sequence[float], digits: int = 1) -> str:
    """`4.2 (3.9 to 5.0)`."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def kept(what: str, measured: float, bound: float, *, exactly: bool = False) -> bool:
    """Print a figure beside its bound; whether it keeps it."""
    good = measured == bound if exactly else measured <= bound + 1e-9
    verdict, how = "ok  " if good else "MISS", "exactly" if exactly else "at most"
    print(f"  {verdict} {what}: {measured:g} ({how} {bound:g})", flush=True)
    return good
