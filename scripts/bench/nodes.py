"""Times of a run on several machines: faults until they are seen and cured, the rate of short tasks, an idle agent.

    python scripts/bench/nodes.py [--repeats 10] [--tasks 500]

Stand-in machines (tests/support/standin/nodes.py): all of them, and the head, share this machine's processors.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support import killing  # noqa: E402  # found through the line above
from tests.support.standin.nodes import Lab  # noqa: E402
from tests.support.waiting import wait_until  # noqa: E402

LONG = 600
CUT = 6.0
"""Seconds for which a link is cut."""
IDLE = 5.0
"""Seconds for which an idle agent is watched."""


def seconds_until(done: Callable[[], object]) -> float:
    """Return how long it takes until something is true."""
    began = time.monotonic()
    wait_until(done, 30, pause=0.01)
    return time.monotonic() - began


def faults(repeats: int) -> dict[str, list[float]]:
    """Break a run of long tasks again and again; return the times by name."""
    root = Path(tempfile.mkdtemp(prefix="bench-nodes."))
    lab = Lab(root, "n1", "n2", gpus=2)
    try:
        lab.once(4 + repeats, LONG)
        head = lab.start("run", "jobs.csv", *lab.on, "--plain", "--keep-going")
        wait_until(lambda: len(lab.told("begin")) == 4, 30)
        found: dict[str, list[float]] = {"silence": [], "agent": [], "heard": [], "resume": []}
        for _ in range(repeats):
            head = break_once(lab, head, found)
        show_idle(lab.nodes["n1"].agents()[0])
        head.terminate()
        head.wait(60)
    finally:
        lab.end()
        shutil.rmtree(root)
    return found


def break_once(lab: Lab, head: killing.Started, found: dict[str, list[float]]) -> killing.Started:
    """Kill an agent, cut a link, and kill the head; note the times, and return the next head."""
    node = lab.nodes["n1"]

    def said_again(words: str) -> Callable[[], bool]:
        before = lab.log().count(words)
        return lambda: lab.log().count(words) > before

    back = said_again("n1 has answered again")
    killing.kill(node.agents()[0])
    found["agent"].append(seconds_until(back))
    time.sleep(0.5)
    back, away = said_again("n1 has answered again"), said_again("n1 is away")
    node.cut()
    found["silence"].append(seconds_until(away))
    time.sleep(CUT)
    node.mend()
    found["heard"].append(seconds_until(back))
    ended = said_again(" done ")
    killing.kill(lab.scheduler())
    head.wait()
    killing.kill(node.processes("sleep 600")[0])  # the next head has an end to hear of
    head = lab.start("resume", "--plain", "--keep-going")
    found["resume"].append(seconds_until(ended))
    wait_until(node.agents, 10)
    time.sleep(0.5)
    return head


def show_idle(agent: int) -> None:
    """Print what an agent takes while nothing happens."""
    before = ticks(agent)
    time.sleep(IDLE)
    share = (ticks(agent) - before) / os.sysconf("SC_CLK_TCK") / IDLE
    print(f"agent with 2 tasks: {memory(agent):.1f} MiB, {100 * share:.1f} % of a core")


def ticks(pid: int) -> int:
    """Return the processor time of a process, in ticks of the kernel."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def memory(pid: int) -> float:
    """Return the memory that is a process's own, in MiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


def rate(tasks: int, *names: str) -> float:
    """Return how many short tasks end in a second on these machines."""
    root = Path(tempfile.mkdtemp(prefix="bench-nodes."))
    lab = Lab(root, *names, gpus=2)
    try:
        lab.write("jobs.csv", "Command,GPUs,HostMemory", *[["true", "0", "20MiB"]] * tasks)
        began = time.monotonic()
        lab.call("run", "jobs.csv", *lab.on, "--plain", "--max-load", "1000", code=0)
        return tasks / (time.monotonic() - began)
    finally:
        lab.end()
        shutil.rmtree(root)


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=500)
    args = parser.parse_args()
    for name, seconds in faults(args.repeats).items():
        print(f"{name}: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s of {len(seconds)}")
    one, three = rate(args.tasks, "n1"), rate(args.tasks, "n1", "n2", "n3")
    print(f"{args.tasks} x true: one node {one:.0f}/s, three nodes {three:.0f}/s, ratio {three / one:.2f}")


if __name__ == "__main__":
    main()
