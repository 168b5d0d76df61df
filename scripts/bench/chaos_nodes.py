"""Chaos on several machines: heads, agents and links fail while lists run, and every task is judged.

    python scripts/bench/chaos.py --on ssh|ray [--minutes 10] [--seed 7] [--fence] [--keep]

Three stand-in machines (namespaces, tests/support/standin/nodes.py) with two GPUs each, reached by a stand-in `ssh`.
One list after the other runs on them; where the head was killed, the next one resumes. Meanwhile agents and heads are
killed, links cut for up to 20 s and machines frozen for up to 12 s. Each task notes itself when it begins and ends,
and holds a lock that a second copy would meet, on a file system that all machines share. At the end no process is left.

With `--on ray` the machines are those of a Ray cluster. Bridges and raylets are killed, too, and a link is cut by
stopping what belongs to Ray on its machine; a raylet that is gone is started again as a service would do it.

With `--fence` the runs have `--node-fence 8s`, tasks take up to 15 s, and links are cut for up to 45 s. A task that
ended while its machine was cut off may then run once more, but never two copies at one moment.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import killing
from tests.support.standin.nodes import Lab, Node
from tests.support.standin.ray_nodes import RayNodes
from tests.support.waiting import wait_until

NAMES = ("n1", "n2", "n3")
LONGEST_CUT, LONGEST_FREEZE = 20.0, 12.0
FENCED_CUT = 45.0
FENCE = ("--node-fence", "8s", "--grace", "1s")
STORM = 60.0
"""The longest time for which things break while one list runs, in seconds."""
CALM_DOWN = 180.0
"""Seconds in which a list has to come to its end once nothing is broken any more."""
TASK = """\
cd "$(dirname "$0")"
exec 9>>"lives/$RUN_NAME.$1"
flock -n 9 || echo "twice $1 $SCHEDULER_ATTEMPT $(hostname)" >>"told.$RUN_NAME"
echo "begin $1 $SCHEDULER_ATTEMPT $(hostname)" >>"told.$RUN_NAME"
sleep "$2"
printf '{"given": %s}' "$1" >"$SCHEDULER_RESULT"
echo "end $1 $SCHEDULER_ATTEMPT $(hostname)" >>"told.$RUN_NAME"
exit "$3"
"""


@dataclass(slots=True)
class Verdict:
    """The figures of all lists so far."""

    faults: Counter[str] = field(default_factory=Counter)
    tasks: int = 0
    lists: int = 0
    wrong: list[str] = field(default_factory=list)
    again: int = 0
    """Tasks behind a fence that ended more than once."""


class Storm(threading.Thread):
    """The faults, one after the other until `enough` is set."""

    def __init__(self, lab: Lab, dice: random.Random, faults: Counter[str], longest_cut: float) -> None:
        super().__init__(daemon=True)
        self.lab, self.dice, self.faults, self._longest_cut = lab, dice, faults, longest_cut
        self.enough = threading.Event()
        self.run_number = 0
        self._out: list[threading.Thread] = []

    def run(self) -> None:
        """Break something every second or so."""
        while not self.enough.wait(self.dice.uniform(0.2, 1.6)):
            node = self.lab.nodes[self.dice.choice(NAMES)]
            weights = self.weights()
            (fault,) = self.dice.choices([*weights], [*weights.values()])
            if fault(node):
                self.faults[fault.__name__] += 1
        for thread in self._out:
            thread.join()

    def weights(self) -> dict[Callable[[Node], bool], int]:
        """Return how often each fault is drawn."""
        return {self.agent: 8, self.head: 3, self.cut: 2, self.freeze: 2}

    def agent(self, node: Node) -> bool:
        """Kill the agent of a machine."""
        killed = [killing.kill(pid) for pid in node.agents()]
        return any(killed)

    def head(self, _: Node) -> bool:
        """Kill the head."""
        try:
            return killing.kill(self.lab.scheduler(self.run_number)) if self.run_number else False
        except (ValueError, OSError):
            return False

    def cut(self, node: Node) -> bool:
        """Cut the link of a machine for some time."""
        return self._for_a_while(node, node.cut, node.mend, self._longest_cut)

    def freeze(self, node: Node) -> bool:
        """Stop everything on a machine for some time."""
        return self._for_a_while(node, node.freeze, lambda: node.freeze(thaw=True), LONGEST_FREEZE)

    def _for_a_while(self, node: Node, begin: object, end: object, longest: float) -> bool:
        if self._is_out(node):
            return False
        seconds = self.dice.uniform(0.5, longest)

        def outage() -> None:
            begin()  # type: ignore[operator]
            self.enough.wait(seconds)
            end()  # type: ignore[operator]

        thread = threading.Thread(target=outage, name=node.name, daemon=True)
        thread.start()
        self._out.append(thread)
        return True

    def _is_out(self, node: Node) -> bool:
        return any(thread.name == node.name and thread.is_alive() for thread in self._out)


class RayStorm(Storm):
    """The faults of a Ray cluster; the first machine has the head of the cluster and keeps its raylet."""

    ray: RayNodes

    def weights(self) -> dict[Callable[[Node], bool], int]:
        """Return how often each fault is drawn."""
        return {self.agent: 8, self.bridge: 5, self.raylet: 3, self.head: 2, self.cut: 2, self.freeze: 2}

    def bridge(self, _: Node) -> bool:
        """Kill the process between the head and the cluster."""
        lines = ((pid, killing.command_line(pid)) for pid in killing.processes())
        found = [pid for pid, line in lines if "scheduler.cluster.ray_bridge" in line and self.ray.address in line]
        return [pid for pid in found if killing.kill(pid)] != []

    def raylet(self, node: Node) -> bool:
        """Kill the raylet of a machine."""
        if node is self.lab.nodes[NAMES[0]] or not raylets(node) or self._is_out(node):
            return False
        self.ray.kill(RAYLET, node)
        return True

    def cut(self, node: Node) -> bool:
        """Stop what belongs to Ray on a machine for some time, so that nothing is carried."""
        if node is self.lab.nodes[NAMES[0]]:
            return False

        def send(number: int) -> None:
            for pid in node.processes("ray"):
                killing.kill(pid, number)

        return self._for_a_while(node, lambda: send(signal.SIGSTOP), lambda: send(signal.SIGCONT), self._longest_cut)


RAYLET = "raylet/raylet"


def raylets(node: Node) -> list[int]:
    """Return the living raylets of a machine."""
    return node.processes(RAYLET)


class RayService(threading.Thread):
    """Starts Ray again on machines where it has ended."""

    def __init__(self, lab: Lab, ray: RayNodes) -> None:
        super().__init__(daemon=True)
        self._lab, self._ray, self.over = lab, ray, threading.Event()

    def run(self) -> None:
        """Look each second."""
        while not self.over.wait(1.0):
            for node in [self._lab.nodes[name] for name in NAMES[1:]]:
                self._look_after(node)

    def _look_after(self, node: Node) -> None:
        if not raylets(node):
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):  # frozen meanwhile: once more later
                self._ray.start_node(node)


def run_list(
    lab: Lab, number: int, dice: random.Random, verdict: Verdict, *, fence: bool, ray: RayNodes | None = None
) -> None:
    """Run one list through a storm, and judge it."""
    tasks, name = dice.randrange(24, 60), f"list{number}"
    codes = [dice.choice((0, 0, 0, 0, 3)) for _ in range(tasks)]
    rows = [
        f"sh {lab.root}/run_task.sh {row} {dice.uniform(0.1, 15 if fence else 3):.2f} {code}"
        for row, code in enumerate(codes)
    ]
    lab.commands(*rows, name=f"{name}.csv")
    lab.env["RUN_NAME"] = name
    longest = FENCED_CUT if fence else LONGEST_CUT
    storm = (Storm if ray is None else RayStorm)(lab, dice, verdict.faults, longest)
    if ray is not None and isinstance(storm, RayStorm):
        storm.ray = ray
    words = ["run", f"{name}.csv", *lab.on, *(FENCE if fence else ()), "--plain", "--keep-going"]
    storm.start()
    began = time.monotonic()
    while not verdict.wrong:
        code = one_head(lab, number, words, storm, began)
        if code is None:
            verdict.wrong.append(f"{name} did not end within {CALM_DOWN:g} s of calm")
        elif code in (0, 1, 2) and accepted(lab, number):
            break
        words = ["resume", f"r{number}", "--plain"] if accepted(lab, number) else words
    storm.enough.set()
    storm.join()
    verdict.lists, verdict.tasks = verdict.lists + 1, verdict.tasks + tasks
    judge(lab, name, number, codes, verdict, fence=fence)


def one_head(lab: Lab, number: int, words: list[str], storm: Storm, began: float) -> int | None:
    """Run one head to its end, or until it is killed; return its exit code, None if it takes too long."""
    with open(lab.root / "said", "a") as said, lab.start(*words, stdout=said, stderr=said) as head:
        wait_until(lambda: head.poll() is not None or accepted(lab, number), 60)
        storm.run_number = number if accepted(lab, number) else 0
        while head.poll() is None:
            time.sleep(0.1)
            if time.monotonic() - began > STORM:
                storm.enough.set()
            if time.monotonic() - began > STORM + CALM_DOWN:
                head.kill()
                return None
        return head.returncode


def accepted(lab: Lab, number: int) -> bool:
    """Tell whether a run was accepted."""
    return (lab.state / f"runs/{number}/run.log").exists()


def judge(lab: Lab, name: str, number: int, codes: list[int], verdict: Verdict, *, fence: bool) -> None:
    """Compare what the tasks noted with what the run says."""
    path = lab.root / f"told.{name}"
    told = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    verdict.wrong += [f"{name}: {' '.join(words)}" for words in told if words[0] == "twice"]
    ended = Counter(int(words[1]) for words in told if words[0] == "end")
    said = json.loads(lab.call("results", f"r{number}", "--json", code=0).stdout)["tasks"]
    for row, (task, code) in enumerate(zip(said, codes, strict=True)):
        good = ("succeeded", 0) if not code else ("failed", code)
        if (task["state"], task["exit_code"]) != good or task.get("result.given") != row:
            verdict.wrong.append(f"{name}: row {row} is {task['state']} {task['exit_code']}, has to be {good}: {task}")
        verdict.again += max(0, ended[row] - 1)
        if ended[row] != 1 and not (fence and ended[row]):
            verdict.wrong.append(f"{name}: row {row} ended {ended[row]} times")


def main(on: str, minutes: float, seed: int, *, keep: bool, fence: bool) -> int:
    """Run lists for some minutes; print the figures, and return 1 if anything was wrong."""
    root = Path(tempfile.mkdtemp(prefix="chaos-nodes."))
    dice, verdict = random.Random(seed), Verdict()
    print(f"seed {seed}, {root}", flush=True)
    lab = Lab(root, *NAMES, gpus=2)
    (root / "lives").mkdir()
    (root / "run_task.sh").write_text(TASK)
    end = time.monotonic() + 60 * minutes
    try:
        with ray_on(lab) if on == "ray" else contextlib.nullcontext() as ray:
            while time.monotonic() < end and not verdict.wrong:
                run_list(lab, verdict.lists + 1, dice, verdict, fence=fence, ray=ray)
                print(f"{verdict.lists} lists, {verdict.tasks} tasks, {dict(verdict.faults)}", flush=True)
            find_left(lab, verdict)
    finally:
        lab.end()
    faults = sum(verdict.faults.values())
    print(*verdict.wrong, sep="\n")
    again = f", {verdict.again} ended once more after a fence" if fence else ""
    judged = f"{len(verdict.wrong)} wrong{again} (seed {seed})"
    print(f"{faults} faults, {verdict.tasks} tasks in {verdict.lists} lists: {judged}")
    if not keep and not verdict.wrong:
        shutil.rmtree(root)
    return 1 if verdict.wrong else 0


@contextlib.contextmanager
def ray_on(lab: Lab) -> Iterator[RayNodes]:
    """Start Ray on the machines of a lab, keep it there, and let runs use it."""
    with contextlib.closing(RayNodes(lab)) as ray:
        lab.env |= ray.env
        lab.on = ("--on", f"ray://{ray.address}")
        service = RayService(lab, ray)
        service.start()
        try:
            yield ray
        finally:
            service.over.set()
            service.join()


def find_left(lab: Lab, verdict: Verdict) -> None:
    """Find processes that are left on the machines, and what the heads should not have said."""
    left = [killing.command_line(pid) for node in lab.nodes.values() for pid in settled(node)]
    verdict.wrong += [f"survivor: {words}" for words in left]
    if "Traceback" in (lab.root / "said").read_text():
        verdict.wrong.append(f"a traceback in {lab.root}/said")


def settled(node: Node) -> list[int]:
    """Return what lives on a machine once agents and shims had time to end."""
    end = time.monotonic() + 20
    while (found := [pid for pid in node.processes() if pid != node.init and is_ours(pid)]) and time.monotonic() < end:
        time.sleep(0.2)
    return found


def is_ours(pid: int) -> bool:
    """Tell whether a process is none of Ray itself; the actors that carry links have to end, too."""
    line = killing.command_line(pid)
    return "ray" not in line or "ray::Carrier" in line
