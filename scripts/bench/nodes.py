"""Times of a run on several machines: faults until they are seen and cured, the rate of short tasks, an idle agent.

    python scripts/bench/nodes.py [faults|rates|shared|outage ...] [--repeats 10] [--tasks 500] [--on ssh|ray]

    faults   cut links, killed agents and heads: the seconds until they are seen and cured; an idle agent
    rates    short tasks on three nodes beside one of them alone, each from the acceptance of the list to the last end,
             and the time of an empty order to take reservations
    shared   40 tasks of 4 unknown sizes on 3 nodes, beside two runs of other users on one of them
    outage   Ray's GCS is killed for two minutes and Ray begun anew while 12 tasks run (Ray alone)

Stand-in machines (tests/support/standin/nodes.py): all of them, and the head, share this machine's processors.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tests.support import killing  # noqa: E402  # found through the line above
from tests.support.standin.box import TRAIN  # noqa: E402
from tests.support.standin.nodes import Lab, Node  # noqa: E402
from tests.support.standin.ray_nodes import RayNodes  # noqa: E402
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


@contextlib.contextmanager
def lab_on(on: str, *names: str, **machine: Any) -> Iterator[tuple[Lab, RayNodes | None]]:
    """Yield machines that are reached by `on`, with Ray if it is started there."""
    root = Path(tempfile.mkdtemp(prefix="bench-nodes."))
    root.chmod(0o755)
    lab = Lab(root, *names, **machine)
    try:
        if on == "ray":
            with contextlib.closing(RayNodes(lab)) as ray:
                lab.env |= ray.env
                lab.on = ("--on", f"ray://{ray.address}")
                yield lab, ray
        else:
            yield lab, None
    finally:
        lab.end()
        shutil.rmtree(root)


# ---- rates ----


def rates(tasks: int, on: str) -> None:
    """Print how many short tasks end in a second on three nodes, and on one of them by itself, in turns."""
    with lab_on(on, "n1", "n2", "n3", gpus=2) as (lab, _):
        lab.write("jobs.csv", "Command,GPUs,HostMemory", *[["true", "0", "20MiB"]] * tasks)
        words = ("run", "jobs.csv", "--plain", "--max-load", "1000")
        alone, three = [], []
        for _ in range(3):
            alone.append(rate(lab, lambda: lab.nodes["n1"].start(*words, cwd=lab.root), lab.nodes["n1"].state))
            three.append(rate(lab, lambda: lab.start(*words, *lab.on), lab.state))
        ratio = statistics.median(three) / statistics.median(alone)
        both = f"one node alone {numbers(alone)}/s, three nodes {numbers(three)}/s"
        print(f"{tasks} x true, {on}: {both}, ratio {ratio:.2f}")
        environ = os.environ | lab.env
        took = empty_takes(lab, environ)
        print(
            f"an empty take, {on}: median {statistics.median(took):.2f} ms, 99 % {sorted(took)[-3]:.2f} of {len(took)}"
        )


def numbers(values: Sequence[float]) -> str:
    return " ".join(f"{value:.0f}" for value in values)


def rate(lab: Lab, start: Callable[[], killing.Started], state: Path) -> float:
    """Return how many tasks of a run end in a second, from its acceptance to its last end."""
    with start() as process:
        assert process.wait(300) == 0
    told = lab.call("results", "--json", code=0, env={**lab.env, "SCHEDULER_STATE": str(state)}).stdout
    rows = json.loads(told)["tasks"]
    return len(rows) / max(float(row["waited_s"]) + float(row["ran_s"]) for row in rows)


def empty_takes(lab: Lab, environ: Mapping[str, str]) -> list[float]:
    """Return the milliseconds of orders to take nothing, each under the mutex of a machine."""
    code = TAKES.format(on=lab.on[1], root=str(lab.root))
    told = subprocess.run([sys.executable, "-c", code], env=dict(environ), capture_output=True, text=True, check=False)
    assert not told.returncode, told.stderr
    return [float(word) for word in told.stdout.split()]


TAKES = """
import os, time
from pathlib import Path
from scheduler.app.cluster import nodes as cluster
from scheduler.runtime.paths import RunPaths
from scheduler.runtime.settings import read_settings
from scheduler.values import replace
settings = replace(read_settings({{}}), on={on!r})
made = cluster._nodes("auto", settings, dict(os.environ), "")
made.connect()
made.join(RunPaths(Path({root!r}), 1), {{"token": "empty", "epoch": 1, "root": {root!r}, "umask": 0o22, "warm": {{}}}})
node = made.nodes["n1"]
end = time.monotonic() + 10
while not node.view and time.monotonic() < end:
    made.collect()
assert node.view, node.why_away
for number in range(300):
    node.took, made._number = None, number
    began = time.perf_counter()
    node.order({{"take": {{"number": number, "view": node.view, "placements": []}}}})
    made._wait_for([node])
    print(1000 * (time.perf_counter() - began))
    made.collect()
made.close(over=True)
"""


# ---- other users ----


def shared() -> None:
    """Run tasks of unknown sizes beside the runs of two other users on one node; print what happened."""
    with lab_on("ssh", "n1", "n2", "n3", gpus=2) as (lab, _):
        node = lab.nodes["n1"]
        node.leases.mkdir(exist_ok=True)
        node.leases.chmod(0o1777)
        sizes = ("2GiB", "4GiB", "6GiB", "9GiB")
        rows = [f"{sys.executable} -S -E {lab.root}/train_{size}.py --peak {size} --seconds 4" for size in sizes * 10]
        shutil.copy(Path(TRAIN).with_name("client.py"), lab.root)
        for size in sizes:
            shutil.copy(TRAIN, lab.root / f"train_{size}.py")
        lab.commands(*rows)
        theirs = [
            f"/usr/bin/python3 -S -E {lab.root}/train_{size}.py --peak {size} --seconds 5" for size in sizes[1:3] * 3
        ]
        lab.commands(*theirs, name="theirs.csv")
        others = [start_as(node, uid, lab.root) for uid in OTHERS]
        wait_until(lambda: node.processes("train_") or any(other.poll() is not None for other in others), 60)
        assert node.processes("train_"), [(lab.root / f"said-{uid}").read_text() for uid in OTHERS]
        began = time.monotonic()
        lab.call("run", "jobs.csv", *lab.on, "--plain", code=0)
        took = time.monotonic() - began
        codes = [other.wait(180) for other in others]
        tasks = lab.tasks()
        unknown = sum(row["source"] == "measured" for row in tasks)
        ooms = sum(one.box.ooms(gpu) for one in lab.nodes.values() for gpu in range(2))
        on = {name: sum(row["node"] == name for row in tasks) for name in lab.nodes}
        print(
            f"40 tasks of 4 unknown sizes on 3 x 2 GPUs, two other users on n1: {took:.0f} s, {dict(on)} by node,"
            f" {ooms} OOM, {unknown} started without knowledge,"
            f" exit codes of the others {codes}"
        )


OTHERS = (65534, 12345)


def start_as(node: Node, uid: int, root: Path) -> subprocess.Popen[bytes]:
    """Start a run of another user on a machine."""
    state = node.folder / f"state-{uid}"
    state.mkdir(mode=0o700)
    os.chown(state, uid, uid)
    own = f"SCHEDULER_STATE={state} HOME={state} PYTHONPATH={ROOT}:{sysconfig.get_path('purelib')}"
    user = f"setpriv --reuid={uid} --regid={uid} --clear-groups"
    run = "/usr/bin/python3 -m scheduler run theirs.csv --plain --python /usr/bin/python3"
    words = f"cd {root} && exec env {own} {user} {run}"
    with open(root / f"said-{uid}", "w") as said:
        return subprocess.Popen(
            ["sh", str(node.folder / "enter"), words], stdin=subprocess.DEVNULL, stdout=said, stderr=said
        )


# ---- Ray away ----


def outage(seconds: float) -> None:
    """Kill Ray's GCS while 12 tasks run, start Ray anew after some time, and print what became of the tasks."""
    with lab_on("ray", "n1", "n2", "n3", gpus=2) as (lab, ray):
        assert ray is not None
        lab.once(12)
        command = f"sh {lab.root}/once.sh {seconds + 60}"
        lab.write("jobs.csv", "Command,GPUs,HostMemory", *[[command, "0", "50MiB"]] * 12)
        with lab.going("run", "jobs.csv", *lab.on, "--max-load", "100", "--plain") as head:
            wait_until(lambda: len(lab.told("begin")) == 12, 90)
            pid = lab.scheduler()
            ray.kill("gcs_server", lab.nodes["n1"])
            time.sleep(seconds)
            assert (lab.scheduler(), head.poll()) == (pid, None)
            begin_anew(lab, ray)
            began = time.monotonic()
            wait_until(lambda: lab.log().count("has answered again") >= 3, 60)
            back = time.monotonic() - began
            wait_until(lambda: head.poll() is not None, seconds + 120)
        lab.check_once(12)
        again = f"Ray begun anew, nodes heard {back:.1f} s later"
        print(f"GCS killed for {seconds:g} s, {again}: 12 tasks begun and ended once, by one scheduler process")


def begin_anew(lab: Lab, ray: RayNodes) -> None:
    """End what is left of Ray on all machines, and start it again there."""
    first, *others = lab.nodes.values()
    for node in (first, *others):
        for word in ("raylet", "ray::", "ray/"):
            ray.kill(word, node)
    ray.start_head(first)
    for node in others:
        ray.start_node(node)


def main() -> None:
    """Print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help="faults, rates (these two if none), shared, outage")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--tasks", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=120.0, help="outage: so long")
    parser.add_argument("--on", choices=["ssh", "ray"], default="ssh", help="rates: how nodes are reached")
    args = parser.parse_args()
    parts = args.parts or ["faults", "rates"]
    if "faults" in parts:
        for name, seconds in faults(args.repeats).items():
            print(f"{name}: median {statistics.median(seconds):.2f} s, worst {max(seconds):.2f} s of {len(seconds)}")
    if "rates" in parts:
        rates(args.tasks, args.on)
    if "shared" in parts:
        shared()
    if "outage" in parts:
        outage(args.seconds)


if __name__ == "__main__":
    main()
