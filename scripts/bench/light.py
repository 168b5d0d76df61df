"""How long the light verbs take, beside a bare start of the same Python: `python scripts/bench/light.py`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from measuring import Bench, environ, in_turns, scheduler, seconds_of
from page import Bound, Section, bar_chart, number, spread, table

BARE = "bare python"
VERBS = ("--help", "status", "results", "list", "profiles", "logs 0", "wait", "runs")
BOUND = 60
"""The most milliseconds of a core."""


def measure(bench: Bench) -> dict[str, Any]:
    """Measure each verb in turns, in a state directory with one short run."""
    return taken(bench.folder, bench.goes(20))


def taken(folder: Path, goes: int) -> dict[str, Any]:
    """Return the milliseconds of each verb by the clock and of a core, `goes` times."""
    (folder / "jobs.csv").write_text("Command\n" + "true\n" * 20, encoding="utf-8")
    env, command = environ(folder), scheduler()
    subprocess.run([command, "run", "jobs.csv"], cwd=folder, env=env, stdout=subprocess.DEVNULL, check=True)
    commands = {BARE: [sys.executable, "-c", "pass"], **{verb: [command, *verb.split()] for verb in VERBS}}

    def milliseconds(words: list[str]) -> tuple[float, ...]:
        return tuple(round(one * 1000, 2) for one in seconds_of(words, cwd=folder, env=env))

    found = in_turns(goes, {name: lambda _, words=words: milliseconds(words) for name, words in commands.items()})
    return {
        "milliseconds": {name: [wall for wall, _ in both] for name, both in found.items()},
        "of_a_core": {name: [core for _, core in both] for name, both in found.items()},
    }


def section(found: dict[str, Any]) -> list[Section]:
    """Return a table and its chart."""
    made, times = Section("Verbs that only look"), found["of_a_core"]
    drawn = {name if name == BARE else f"scheduler {name}": values for name, values in times.items()}
    made.text.append("From start to end: time of a core, which other work changes little, and by the clock.")
    made.show("light", "What the light verbs cost", bar_chart("Time of a core", "less is better", drawn, "ms"))
    bare = statistics.median(times[BARE])
    rows = [
        [f"`{shown}`", spread(drawn[shown]), number(statistics.median(drawn[shown]) / bare), spread(clock)]
        for shown, clock in zip(drawn, found["milliseconds"].values(), strict=True)
    ]
    made.text.append(table(("verb", "ms of a core", "times a bare start", "ms by the clock"), rows))
    slowest = max(VERBS, key=lambda verb: statistics.median(times[verb]))
    made.bounds = [
        Bound(f"the slowest light verb ({slowest})", BOUND, statistics.median(times[slowest]), "ms of a core")
    ]
    return [made]


def main() -> int:
    """Print the median time of a core for each verb; return 1 if one is above its bound."""
    with tempfile.TemporaryDirectory(prefix="light-") as name:
        times = taken(Path(name), 20)["of_a_core"]
    bare = statistics.median(times[BARE])
    for name, taken_ in times.items():
        median = statistics.median(taken_)
        print(f"{name:<12} {median:6.1f} ms   {median / bare:5.1f} times a bare start")
    return 0 if all(statistics.median(times[verb]) < BOUND for verb in VERBS) else 1


if __name__ == "__main__":
    sys.exit(main())
