"""The cost of a long queue while it only waits: memory, and time of the cores."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import own_time
import peers
from measuring import Bench
from page import Bound, Section, bar_chart, not_measured, number, table
from peers import OURS, Tool

RUNNING = 16
CALM = 12.0
"""Seconds after the last start before anything is measured: ours settles its tasks after 5."""
DEADLINE = 300.0
NOT_QUEUED = {
    "task-spooler": "every command that waits is a process of its own, its manual says",
}
READ_BY_AND_BY = ("xargs -P", "simple_gpu_scheduler", "GNU parallel")


@dataclass(frozen=True)
class Process:
    """One that belongs to a tool, as /proc tells of it."""

    pid: int
    role: str
    rss: int
    most: int
    pss: int
    ticks: int


def measure(bench: Bench) -> dict[str, Any]:
    """16 tasks that sleep, and very many behind them."""
    lengths = (10_000,) if bench.quick else (10_000, 100_000)
    window = 8.0 if bench.quick else 20.0
    others, missing = peers.others(bench.folder, RUNNING)
    tools = [peers.ours(bench.folder, RUNNING, source="jobs.csv"), *others]
    found = [
        _waiting(tool, bench.at(f"{length}-{place}"), length, window)
        for length in lengths
        for place, tool in enumerate(tools)
        if tool.name not in NOT_QUEUED and (length == lengths[-1] or tool.name not in READ_BY_AND_BY)
    ]
    return {"running": RUNNING, "window": window, "found": found, "missing": {**missing, **NOT_QUEUED}}


def _waiting(tool: Tool, folder: Path, length: int, window: float) -> dict[str, Any]:
    """One tool with such a queue: what its processes hold and use."""
    (folder / "marks").mkdir()
    command = f"echo > {folder}/marks/$$; exec sleep 100000"
    (folder / "jobs").write_text(f"{command}\n" * length, encoding="utf-8")
    rows = f"\"sh -c '{command}'\",32MiB\n" * length
    (folder / "jobs.csv").write_text(f"Command,Memory\n{rows}", encoding="utf-8")
    mark, began = str(folder), time.monotonic()
    child = tool.start(folder / "jobs", mark)
    try:
        _until_running(folder / "marks", child)
        started = time.monotonic() - began
        time.sleep(CALM if tool.name == OURS else CALM / 4)
        before = {one.pid: one for one in processes(mark, child.pid)}
        time.sleep(window)
        after = [one for one in processes(mark, child.pid) if one.pid in before]
        seen = own_time.watched(child.pid, window, folder) if tool.name == OURS else {}
    finally:
        _end(mark, child)
    tick = os.sysconf("SC_CLK_TCK")
    roles: dict[str, dict[str, float]] = {}
    for one in after:
        role = roles.setdefault(one.role, {"processes": 0, "rss": 0, "most": 0, "pss": 0, "core": 0.0})
        role["processes"] += 1
        role["rss"] += round(one.rss / 1024, 1)
        role["most"] += round(one.most / 1024, 1)
        role["pss"] += round(one.pss / 1024, 1)
        role["core"] += (one.ticks - before[one.pid].ticks) / tick / window
    return {"tool": tool.name, "queued": length, "started": round(started, 2), "roles": roles, "seen": seen}


def _until_running(marks: Path, child: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE
    while len(list(marks.iterdir())) < RUNNING:
        if child.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"{child.args} came to no {RUNNING} running tasks (exit {child.returncode})")
        time.sleep(0.01)


def processes(mark: str, first: int) -> Iterator[Process]:
    """All that carry the mark, but for the tasks."""
    for pid in _marked(mark):
        with suppress(OSError):
            folder = Path(f"/proc/{pid}")
            argv = folder.joinpath("cmdline").read_bytes().split(b"\0")
            if argv[0] in (b"sleep", b"sh", b"/bin/sh"):
                continue
            stat = folder.joinpath("stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            status = _fields(folder / "status")
            pss = _fields(folder / "smaps_rollup").get("Pss", 0)
            ticks = int(stat[11]) + int(stat[12])
            yield Process(pid, _role(pid, first, argv), status["VmRSS"], status["VmHWM"], pss, ticks)


def _role(pid: int, first: int, argv: list[bytes]) -> str:
    if pid == first:
        return "itself"
    names = b" ".join(argv)
    return "sampler" if b"sampler" in names else "shims" if b"shim" in names else "helpers"


def _fields(path: Path) -> dict[str, int]:
    lines = (line.partition(":") for line in path.read_text(encoding="utf-8").splitlines())
    return {name: int(rest.split()[0]) for name, _, rest in lines if rest.strip().endswith(" kB")}


def _marked(mark: str) -> Iterator[int]:
    wanted = f"BENCH_MARK={mark}\0".encode()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            if wanted in Path(f"/proc/{pid}/environ").read_bytes() + b"\0":
                yield int(pid)


def _end(mark: str, child: subprocess.Popen[bytes]) -> None:
    """Kill every process that carries the mark, until none is left."""
    child.kill()
    child.wait()
    while left := list(_marked(mark)):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


# ---- the page ----


def section(found: dict[str, Any]) -> list[Section]:
    """Memory and idle cost, tool by tool, and ours by its processes."""
    longest = max(one["queued"] for one in found["found"])
    at_longest = {one["tool"]: one for one in found["found"] if one["queued"] == longest}
    ours, seen = at_longest[OURS]["roles"], at_longest[OURS]["seen"]
    made = Section(f"A queue that waits: {found['running']} running, up to {longest:,} queued")
    made.text.append(
        f"The tasks sleep. Memory is what the tool's own processes hold (PSS, shared pages divided), and the most that "
        f"its main process ever held (RSS); time of a core is over {found['window']:g} s in which nothing happens. "
        f"{', '.join(READ_BY_AND_BY)} read their list as they go: they hold no queue, and know nothing of it."
    )
    drawn = {name: [_sum(one["roles"], "pss")] for name, one in at_longest.items()}
    made.show(
        "queued", "Memory held by a queue", bar_chart(f"Memory with {longest:,} queued", "less is better", drawn, "MiB")
    )
    rows = [
        [
            one["tool"], f"{one['queued']:,}", number(_sum(one["roles"], "pss")),
            number(one["roles"]["itself"]["most"]), f"{_sum(one['roles'], 'core'):.2%}", number(one["started"]),
        ]
        for one in found["found"]
    ]  # fmt: skip
    made.text.append(
        table(("tool", "queued", "memory, MiB", "peak of itself, MiB", "of a core", "s until 16 ran"), rows)
    )
    made.text += ["Ours, by its processes:", _roles(ours)]
    if seen:
        head = "What its own process does meanwhile, seen from outside by py-spy (few looks: small shares are rough):"
        made.text += [head, own_time.seen_table(seen)]
    made.text += not_measured(found["missing"])
    beyond = sum(role["core"] for name, role in ours.items() if name != "sampler")
    made.bounds = [
        Bound(f"idle, {longest:,} queued, without the sampler", 1, beyond * 100, "% of a core"),
        Bound(f"memory of the scheduler, {longest:,} queued", 150, ours["itself"]["most"], "MiB"),
    ]
    return [made]


def _roles(ours: dict[str, dict[str, float]]) -> str:
    rows = [
        [name, number(role["processes"]), number(role["pss"]), number(role["rss"]), f"{role['core']:.2%}"]
        for name, role in ours.items()
    ]
    return table(("part", "processes", "PSS, MiB", "RSS, MiB", "of a core"), rows)


def _sum(roles: dict[str, dict[str, float]], what: str) -> float:
    return sum(role[what] for role in roles.values())
