"""In which functions the scheduler's own process spends its time."""

from __future__ import annotations

import pstats
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring import PROGRAMS
from page import number, table
from peers import PEERS, Tool

MOST = 16
"""So many functions are kept."""
RATE = 500
"""Looks a second, where it is looked at from outside."""


def profiled(tool: Tool, commands: Sequence[str], folder: Path) -> dict[str, Any]:
    """A whole run under cProfile: seconds that functions took by themselves, the most first."""
    out = folder / "profile"
    argv = [sys.executable, str(PROGRAMS / "profiled.py"), str(out), *tool.argv[1:]]
    went = Tool(tool.name, argv, tool.environ).run(commands, folder)
    stats: dict[tuple[str, int, str], Any] = pstats.Stats(str(out)).stats  # type: ignore[attr-defined]  # not in its stub
    own: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for (path, _, name), (_, times, seconds, _, _) in stats.items():
        own[_where(path, name)] += seconds
        calls[_where(path, name)] += times
    most = [(where, round(seconds, 4), calls[where]) for where, seconds in own.most_common(MOST)]
    return {"seconds": round(went.seconds, 3), "functions": most}


def _where(path: str, name: str) -> str:
    """A function in words: of ours with its file, of the interpreter without."""
    if path == "~":
        return name.strip("<>").replace("built-in method ", "").replace("method ", "")
    parts = Path(path).parts
    inside = parts[parts.index("scheduler") + 1 :] if "scheduler" in parts else parts[-1:]
    return f"{'/'.join(inside)} {name}"


def as_table(profile: dict[str, Any], tasks: int, per: str = "a task") -> str:
    """Return the functions of a whole run as a table, by their time for each task."""
    rows = [
        [f"`{where}`", number(seconds / tasks * 1e6), f"{seconds / profile['seconds']:.1%}", number(calls / tasks)]
        for where, seconds, calls in profile["functions"]
    ]
    return table(("function", f"us {per}", "share", f"calls {per}"), rows)


def watched(pid: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Return how often py-spy saw a living process in which function; empty without py-spy."""
    spy, out = PEERS / "bin/py-spy", folder / "watched"
    if not spy.exists():
        return {}
    words = ["record", "--pid", str(pid), "--duration", f"{seconds:.0f}", "--rate", str(RATE), "--format", "raw"]
    subprocess.run([spy, *words, "--nonblocking", "--output", out], capture_output=True, check=False)
    seen: Counter[str] = Counter()
    for line in out.read_text(encoding="utf-8").splitlines() if out.exists() else []:
        stack, _, times = line.rpartition(" ")
        ours = [frame for frame in stack.split(";") if "scheduler/" in frame] or stack.split(";")
        seen[f"{ours[-1].partition(' (')[0]} ({Path(ours[-1].partition('(')[2]).name.partition(':')[0]})"] += int(times)
    return {"looks": RATE * seconds, "functions": seen.most_common(MOST)}


def seen_table(watched_: dict[str, Any]) -> str:
    """Return the functions of a living process as a table, by their share of a core."""
    rows = [[f"`{where}`", f"{times / watched_['looks']:.3%}"] for where, times in watched_["functions"]]
    return table(("innermost function of ours", "of a core"), rows)
