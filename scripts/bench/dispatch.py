"""What starting a task that does nothing costs, beside the least that it can cost and what others take for it.

    python scripts/bench/dispatch.py [--tasks 2000] [--turns 3] [--slots 2] [--reactions 200] [--json FILE]

The limit is a C program, compiled here, that does posix_spawn and waitpid with `sh -c true` and keeps as many running
as there are slots. All take turns in one go, and what is told are ratios to the limit of the same turn. The reaction is
the time from the last thing that a task does to the first thing that the next one on its slot does, as both wrote down.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LIMIT = r"""
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
extern char **environ;
int main(int argc, char **argv)
{
    int left = atoi(argv[1]), slots = atoi(argv[2]), live = 0, status;
    char *task[] = {"sh", "-c", argv[3], 0};
    pid_t pid;
    while (left || live) {
        if (left && live < slots) {
            if (posix_spawn(&pid, "/bin/sh", 0, 0, task, environ)) return 1;
            left--, live++;
            continue;
        }
        if (wait(&status) < 0 || status) return 1;
        live--;
    }
}
"""
STAMP = r"""
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    struct timespec began, ended, pause = {0, 20000000L + getpid() % 16 * 1000000L};
    char line[96];
    clock_gettime(CLOCK_MONOTONIC, &began);
    int file = open(argv[1], O_WRONLY | O_CREAT | O_APPEND, 0600);
    nanosleep(&pause, 0);
    clock_gettime(CLOCK_MONOTONIC, &ended);
    int length = snprintf(line, sizeof line, "%ld.%09ld %ld.%09ld\n",
                          (long)began.tv_sec, began.tv_nsec, (long)ended.tv_sec, ended.tv_nsec);
    return write(file, line, length) != length;
}
"""


@dataclass
class Tool:
    """One way to run a list of commands of shell, and what was measured of it."""

    name: str
    argv: Sequence[str]
    environ: Mapping[str, str] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    reactions: list[float] = field(default_factory=list)

    def run(self, command: str, tasks: int, folder: Path) -> tuple[float, float]:
        """Seconds, and seconds of CPU of all that is reaped: `{command}` in the words, or lines on standard input."""
        argv = [word.format(command=command, tasks=tasks) for word in self.argv]
        lines = (f"{command}\n" * tasks).encode()
        before, started = os.times(), time.perf_counter()
        environ = {**os.environ, **self.environ}
        done = subprocess.run(argv, input=lines, cwd=folder, env=environ, capture_output=True, check=False)
        seconds, after = time.perf_counter() - started, os.times()
        if done.returncode:
            said = (done.stdout[-500:] + done.stderr[-500:]).decode(errors="replace")
            raise SystemExit(f"{self.name} ended with {done.returncode}: {said}")
        used = after.children_user + after.children_system - before.children_user - before.children_system
        return seconds, used


def tools(folder: Path, slots: int) -> list[Tool]:
    """The limit first, then whatever is here."""
    found = [Tool("C posix_spawn", [str(compiled(folder, "limit", LIMIT)), "{tasks}", str(slots), "{command}"])]
    if shutil.which("xargs"):
        found.append(Tool("xargs -P", ["xargs", "-d", "\n", "-P", str(slots), "-n", "1", "sh", "-c"]))
    if shutil.which("parallel"):
        found.append(Tool("GNU parallel", ["parallel", "-j", str(slots)], {"HOME": str(folder)}))
    scheduler = Path(sys.executable).with_name("scheduler")
    ours = [str(scheduler), "run", "-", "--devices", "host", "--slots", str(slots), "--profile", "off", "--plain"]
    environ = {"SCHEDULER_STATE": f"{folder}/state", "SCHEDULER_LEASES": f"{folder}/leases"}
    return [*found, Tool("scheduler", ours, environ)]


def compiled(folder: Path, name: str, text: str) -> Path:
    """A C program, made on the spot."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise SystemExit("there is no C compiler here, and the limit is a C program: apt install gcc")
    source = folder / f"{name}.c"
    source.write_text(text, encoding="ascii")
    subprocess.run([compiler, "-O2", "-D_GNU_SOURCE", "-o", folder / name, source], check=True)
    return folder / name


def react(tool: Tool, command: str, stamps: Path, tasks: int, slots: int, folder: Path) -> None:
    """Add the times from an end to the start that it made room for.

    With N slots the start after the first N + i can only have come after i + 1 ends, so starts and ends are paired in
    their order.
    """
    stamps.unlink(missing_ok=True)
    tool.run(command, tasks, folder)
    lines = [line.split() for line in stamps.read_text(encoding="ascii").splitlines()]
    starts, ends = (sorted(float(line[column]) for line in lines) for column in (0, 1))
    pairs = zip(starts[slots:], ends[: len(ends) - slots], strict=True)
    tool.reactions += [start - end for start, end in pairs]


def main() -> int:
    """Measure and print; 1 where ours is above its bounds."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--reactions", type=int, default=200, help="tasks of each turn whose reaction is measured")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dispatch-") as name:
        folder = Path(name)
        measured = tools(folder, args.slots)
        stamps = folder / "stamps"
        stamping = f"{compiled(folder, 'stamp', STAMP)} {stamps}"
        for tool in measured * args.turns:
            seconds, cpu = tool.run("true", args.tasks, folder)
            tool.seconds.append(seconds)
            tool.cpu.append(cpu)
            tool.ratios.append(seconds / measured[0].seconds[-1])
            if args.reactions:
                react(tool, stamping, stamps, args.reactions, args.slots, folder)
    show(measured, args.tasks)
    if args.json:
        args.json.write_text(json.dumps([vars(tool) for tool in measured], indent=1), encoding="utf-8")
    return 0 if statistics.median(measured[-1].ratios) <= 8 else 1


def show(measured: Sequence[Tool], tasks: int) -> None:
    """A line for each."""
    print(f"{'':<16}{'ms a task':>10}{'times the limit':>24}{'own CPU':>10}{'reaction ms: median':>22}{'p99':>7}")
    for tool in measured:
        ratios = f"{statistics.median(tool.ratios):.2f} ({min(tool.ratios):.2f}-{max(tool.ratios):.2f})"
        cpu = statistics.median(tool.cpu) / statistics.median(measured[0].cpu)
        each = statistics.median(tool.seconds) / tasks * 1000
        line = f"{tool.name:<16}{each:>10.3f}{ratios:>24}{cpu:>10.2f}"
        if tool.reactions:
            late = sorted(tool.reactions)[int(len(tool.reactions) * 0.99)]
            line += f"{statistics.median(tool.reactions) * 1000:>22.2f}{late * 1000:>7.2f}"
        print(line)


if __name__ == "__main__":
    sys.exit(main())
