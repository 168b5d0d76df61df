"""The tools that run lists of commands: ours, the least that it can cost, and the others that are installed here."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from measuring import PROGRAMS, ROOT, busy, compiled, environ, inherited, scheduler

LIMIT, DURABLE = "C posix_spawn", "C posix_spawn, each end synced"
OURS = "scheduler"
PEERS = ROOT / ".peers"
"""A virtual environment that `scripts/bench/all` makes, with the peers that PyPI has."""
SPOOL = """
n=0; while IFS= read -r line; do tsp -n sh -c "$line"; n=$((n + 1)); done
at=$((n - TS_SLOTS)); while [ "$at" -lt "$n" ]; do tsp -w "$at"; at=$((at + 1)); done
"""
"""Every command is handed over, then the last ones are waited for: with N slots the last N to start are the last to
end; ids count from 0, since the server is new."""


@dataclass(frozen=True)
class Went:
    """One run of a list, by the monotonic clock."""

    launched: float
    """The tool was started."""
    began: float
    """It was handed the commands; that is later where a server is started first, which then is not counted."""
    ended: float
    busy: float
    """Seconds of all cores, from launch to end: of the tool, of its tasks, of what it left to others."""

    @property
    def seconds(self) -> float:
        """For the whole list."""
        return self.ended - self.began


@dataclass(frozen=True)
class Tool:
    """One of them, ready to run a list that comes on its standard input."""

    name: str
    argv: Sequence[str]
    environ: dict[str, str] = field(default_factory=dict)
    tells: bool = False
    """True if the tool itself records when it began and when it ended."""
    after: Sequence[str] = ()
    """The command that ends the server that it left."""

    def run(self, commands: Sequence[str], folder: Path) -> Went:
        """All of them to their end; SystemExit where it fails."""
        lines = "".join(f"{command}\n" for command in commands)
        spent, launched = busy(), time.monotonic()
        done = subprocess.run(
            self.argv, input=lines, cwd=folder, env=self._environ(), capture_output=True, text=True, check=False
        )
        ended, spent = time.monotonic(), busy() - spent
        if self.after:
            subprocess.run(self.after, env=self._environ(), check=False)
        if done.returncode:
            raise SystemExit(f"{self.name} ended with {done.returncode}: {done.stdout[-500:]}{done.stderr[-500:]}")
        if not self.tells:
            return Went(launched, launched, ended, spent)
        began, ended = map(float, done.stdout.split()[-2:])
        return Went(launched, began, ended, spent)

    def start(self, file: Path, mark: str) -> subprocess.Popen[bytes]:
        """Begin with what stands in a file; all that it starts carries the mark in its environment."""
        with open(file, "rb") as commands, open(os.devnull, "wb") as nowhere:
            return subprocess.Popen(
                self.argv, stdin=commands, stdout=nowhere, stderr=nowhere, cwd=file.parent,
                env={**self._environ(), "BENCH_MARK": mark}, start_new_session=True,
            )  # fmt: skip

    def _environ(self) -> dict[str, str]:
        return {**inherited(), **self.environ}


def limit(folder: Path, slots: int) -> Tool:
    """posix_spawn and waitpid, nothing else."""
    return Tool(LIMIT, [compiled("limit", folder), str(slots)])


def durable(folder: Path, slots: int) -> Tool:
    """Return the limit with a file for the end of each command that is synced before the next one starts."""
    records = folder / "records"
    records.mkdir(exist_ok=True)
    return Tool(DURABLE, [compiled("limit", folder), str(slots), str(records)])


def ours(folder: Path, slots: int, *flags: str, name: str = OURS, source: str = "-") -> Tool:
    """Return our own tool, with a state of its own."""
    argv = [scheduler(), "run", source, "--devices", "host", "--slots", str(slots), "--plain", *flags]
    own = {key: value for key, value in environ(folder).items() if os.environ.get(key) != value}
    return Tool(name, argv, own)


def others(folder: Path, slots: int) -> tuple[list[Tool], dict[str, str]]:
    """Return the tools that are installed; and why the others are missing, by name."""
    tools, missing = [], {}
    for name, make in _MAKERS.items():
        program, cure = _PROGRAMS[name]
        if shutil.which(program) or Path(program).exists():
            tools.append(make(folder, slots))
        else:
            missing[name] = cure
    return tools, missing


def in_order(medians: Mapping[str, float]) -> list[str]:
    """The limits, ours, then the others by how quick they are."""
    first = [name for name in medians if name.startswith(("C ", OURS))]
    return [*first, *sorted(medians.keys() - set(first), key=lambda name: medians[name])]


def _xargs(folder: Path, slots: int) -> Tool:
    return Tool("xargs -P", ["xargs", "-d", "\n", "-P", str(slots), "-n", "1", "sh", "-c"])


def _parallel(folder: Path, slots: int) -> Tool:
    (folder / ".parallel").mkdir(exist_ok=True)
    (folder / ".parallel/will-cite").touch()
    return Tool("GNU parallel", ["parallel", "-j", str(slots)], {"HOME": str(folder)})


def _spooler(folder: Path, slots: int) -> Tool:
    own = {"TS_SOCKET": f"{folder}/tsp", "TS_SLOTS": str(slots), "TMPDIR": str(folder)}
    return Tool("task-spooler", ["sh", "-c", SPOOL], own, after=["tsp", "-K"])


def _simple(folder: Path, slots: int) -> Tool:
    return Tool("simple_gpu_scheduler", [_SIMPLE, "--gpus", *map(str, range(slots))])


def _hyperqueue(folder: Path, slots: int) -> Tool:
    argv = [f"{PEERS}/bin/python", str(PROGRAMS / "hyperqueue_goes.py"), str(slots)]
    return Tool("HyperQueue", argv, {"TMPDIR": str(folder)}, tells=True)  # its servers leave folders there


_SIMPLE = f"{PEERS}/bin/simple_gpu_scheduler"
_MAKERS = {
    "xargs -P": _xargs,
    "simple_gpu_scheduler": _simple,
    "task-spooler": _spooler,
    "HyperQueue": _hyperqueue,
    "GNU parallel": _parallel,
}
_PROGRAMS = {
    "xargs -P": ("xargs", "there is no `xargs`: apt install findutils"),
    "simple_gpu_scheduler": (_SIMPLE, "pip could not install `simple_gpu_scheduler` into .peers"),
    "task-spooler": ("tsp", "there is no `tsp`: apt install task-spooler"),
    "HyperQueue": (f"{PEERS}/hyperqueue", "pip could not install `hyperqueue` into .peers"),
    "GNU parallel": ("parallel", "there is no `parallel`: apt install parallel"),
}


def stamping(folder: Path, name: str) -> tuple[str, Path]:
    """A command that appends when it began and ended to a file, without its seconds; and that file, empty."""
    file = folder / name
    file.write_bytes(b"")
    return shlex.join([compiled("stamp", folder), str(file)]), file


def stamps(tool: Tool, file: Path, number: int) -> tuple[list[float], list[float]]:
    """When so many tasks began and when they ended, each in order; a tool may be over a moment before its tasks."""
    deadline = time.monotonic() + 10
    while len(lines := file.read_text(encoding="ascii").splitlines()) < number and time.monotonic() < deadline:
        time.sleep(0.005)
    if len(lines) != number:
        raise SystemExit(f"{tool.name}: {len(lines)} of {number} tasks have written down when they ran")
    began, ended = (sorted(float(line.split()[column]) for line in lines) for column in (0, 1))
    return began, ended
