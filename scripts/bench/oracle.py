"""Judge runs from outside: nothing of the program is imported, and what it says is compared with what was seen.

    python scripts/bench/oracle.py --minutes 10 --seed 1

Three users share two stand-in GPUs and 2 GiB of RAM; root is needed for that. Each has a list (with MPS, where no other
user's daemon is in the way) and a queue in turn, with tasks that wait for one another, urgent ones with --preempt, and
some that take more than they declare. Each task tells a file of its own when it begins, saves, runs out of memory and
ends. The leases are read 20 times a second under the mutex of their directory, by a parser of the documented format of
its own (oracle_world.py). Schedulers, fork servers, shims, samplers, tasks and daemons of MPS are killed at random,
and each kill of a shim or a task is kept with the attempt that it hit.

In the end a second attempt, or an exit code other than the task's own, is explained by a fault of that very attempt, or
is a failure. So is a sum of reservations that passes a device by anything but the growth of a task that takes so much.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from scripts.bench.oracle_world import (  # noqa: E402  # found through the line above
    BUDGET,
    MIB,
    PYTHON,
    SLACK,
    UIDS,
    Attempt,
    Killer,
    Seen,
    Watcher,
    World,
    become,
    processes,
    run,
)

UNFINISHED = ("waiting", "held", "running", "probing", "interrupted")
CALM = 240.0
"""Seconds in which a list or queue has to come to its end."""
PAUSE = 0.5
"""Seconds between kills, on average."""
DAEMON = 15.0
"""Seconds after the kill of a daemon of MPS in which tasks may fail to become clients."""
LEGITIMATE = "has not answered|ended before it had accepted|ended without success|was skipped"
"""Refusals: the scheduler was killed meanwhile, or what the task waits for has failed."""
FIELDS = ("GPUs", "Memory", "HostMemory", "After", "Priority", "Resumable", "Preempt", "Grace")


@dataclass(frozen=True)
class Job:
    """One task, as it is planned."""

    name: str
    kind: str
    code: int
    seconds: float
    gpus: int
    gpu: int
    """The MiB that it takes of each GPU."""
    host: int
    """The MiB that it takes of RAM, beside its interpreter."""
    declared: int
    """The MiB that it declares, on each GPU or of the host; 0: nothing."""
    after: tuple[str, ...] = ()
    ended: tuple[str, ...] = ()
    """Tasks that must only have ended."""
    urgent: bool = False

    @property
    def links(self) -> str:
        return ",".join([*self.after, *(f"ended:{name}" for name in self.ended)])

    def command(self, world: World, told: Path) -> list[str]:
        words = (self.name, self.kind, self.code, f"{self.seconds:.2f}", self.gpu if self.gpus else 0, self.host)
        return [PYTHON, "-S", "-E", str(world.code / "task.py"), f"{told}/", *map(str, words)]

    def cells(self, links: str) -> list[str]:
        """Return its cells in the columns of FIELDS."""
        memory = f"{self.declared}MiB" if self.declared else ""
        host = f"{self.host + 48}MiB" if self.gpus else ""
        priority = "-5" if self.urgent else "5" if self.kind == "saves" else "0"
        saves, urgent = "yes" * (self.kind == "saves"), "yes" * self.urgent
        return [str(self.gpus), memory, host, links, priority, saves, urgent, "1s"]

    def flags(self, links: str) -> list[str]:
        names = ("--gpus", "--memory", "--host-memory", "--after", "--priority", "--resumable", "", "--grace")
        cells = zip(names, self.cells(links), strict=True)
        said = [word for name, cell in cells if cell and name for word in (name, cell)]
        return [*said, *["--preempt"] * self.urgent]


def plan(dice: random.Random, prefix: str, number: int) -> list[Job]:
    """Draw tasks: on the host or GPUs, some that take more than they declare, some that save or are urgent."""
    jobs: list[Job] = []
    for place in range(number):
        kind = dice.choice((*["plain"] * 6, "leaves", "liar", "saves", "saves", "urgent"))
        gpus = 1 if kind in ("saves", "urgent") else dice.choice((0, 0, 1, 1, 2))
        gpu = dice.randrange(14000, 19000) if kind in ("saves", "urgent") else dice.randrange(500, 7000)
        host = dice.randrange(10, 60) if gpus else dice.randrange(20, 150)
        takes = gpu if gpus else host + 24
        declared = int(takes * 0.7) if kind == "liar" else 0 if dice.random() < 0.1 else takes + 64
        code = 0 if kind in ("saves", "urgent") else dice.choice((0, 0, 0, 0, 0, 1, 7))
        seconds = dice.uniform(3, 6) if kind == "saves" else dice.uniform(0.1, 1.5)
        job = Job(f"{prefix}-{place}", kind, code, seconds, gpus, gpu, host, declared, urgent=kind == "urgent")
        parents = [one.name for one in dice.sample(jobs, min(len(jobs), dice.choice((0, 0, 1, 2))))]
        split = dice.randrange(len(parents) + 1)
        jobs.append(replace(job, after=tuple(parents[:split]), ended=tuple(parents[split:])))
    return jobs


class Line(NamedTuple):
    """A line that a task told."""

    word: str
    task: int
    attempt: int
    at: float


class User:
    """One user, who has a list and a queue in turn until there is no time left."""

    def __init__(self, world: World, uid: int, dice: random.Random, until: float) -> None:
        self.world, self.uid, self.dice, self.until = world, uid, dice, until
        self.seen, self.home = world.seen, world.root / f"home{uid}"
        self.told, self.said = self.home / "told", self.home / "said"
        for path in (self.home, self.told, self.home / "tmp"):
            path.mkdir()
            os.chown(path, uid, uid)
        self.env = world.env(self.home)
        self.submitted: dict[str, float] = {}
        """When each task was handed in."""
        self.tasks = self.rounds = 0

    def words(self, *words: str) -> list[str]:
        return [*become(self.uid), PYTHON, "-m", "scheduler", *words]

    def start(self, *words: str) -> subprocess.Popen[str]:
        with open(self.said, "a") as said:
            return subprocess.Popen(
                self.words(*words), cwd=self.home, env=self.env, stdout=said, stderr=said, text=True
            )

    def look(self, *words: str) -> dict[str, Any]:
        """Return the JSON that a verb prints."""
        answer = run(self.words(*words, "--json"), self.env, self.home)
        if answer.returncode:
            self.fault(f"{words}: exit {answer.returncode}: {answer.stderr[-300:]}")
            return {}
        return dict(json.loads(answer.stdout))

    def fault(self, words: str) -> None:
        self.seen.faults.append(f"user {self.uid}: {words}")

    def runs(self) -> set[int]:
        return {one["number"] for one in self.look("status").get("runs", ())}

    def rows(self, number: int) -> list[dict[str, Any]]:
        return list(self.look("results", f"r{number}").get("tasks", ()))

    def live(self) -> None:
        """Go on until there is no time left."""
        try:
            while time.monotonic() < self.until:
                self.rounds += 1
                jobs = plan(self.dice, f"n{self.rounds}", self.dice.randrange(8, 20))
                before = self.runs()
                if self.rounds % 2:
                    answers = self.hand_in_list(jobs, before)
                else:
                    self.world.queuing.add(self.uid)
                    answers = self.submit(jobs)
                self.finish(before)
                Judge(self, jobs, answers, self.runs() - before).give()
                self.world.queuing.discard(self.uid)
        except Exception as exc:  # noqa: BLE001 - the main thread reads it; a thread has no caller
            self.fault(f"the oracle itself: {exc!r}")

    def hand_in_list(self, jobs: list[Job], before: set[int]) -> dict[str, int | None]:
        """Start a list until it is accepted; return no ids, as a list is accepted as a whole."""
        file = self.home / f"jobs-{self.rounds}.csv"
        rows = [",".join(("Name", "Command", *FIELDS))]
        rows += [
            ",".join(
                f'"{cell}"' for cell in (job.name, " ".join(job.command(self.world, self.told)), *job.cells(job.links))
            )
            for job in jobs
        ]
        file.write_text("\n".join(rows) + "\n")
        self.submitted |= dict.fromkeys((job.name for job in jobs), time.monotonic())
        flags = ["--devices", f"0,1,host:{BUDGET // MIB}MiB", "--buffer", "32MiB", "--keep-going", "--plain", "--new"]
        while True:
            self.said.touch()
            size = self.said.stat().st_size
            process = self.start("run", file.name, "--mps=auto", *flags)
            self.wait(process)
            acknowledged = "\nrun r" in "\n" + self.said.read_text()[size:]
            if self.runs() - before:
                return dict.fromkeys((job.name for job in jobs), None)
            if acknowledged:
                self.fault(f"list {file.name} was acknowledged and is not there")

    def submit(self, jobs: list[Job]) -> dict[str, int | None]:
        """Submit one task after the other; return what is known of each: its id, or that none was printed."""
        answers: dict[str, int | None] = {}
        for job in jobs:
            known = {name: answers.get(name) for name in (*job.after, *job.ended)}
            after = [str(known[name]) for name in job.after if known[name] is not None]
            ended = [f"ended:{known[name]}" for name in job.ended if known[name] is not None]
            self.submitted[job.name] = time.monotonic()
            fields = ["--name", job.name, *job.flags(",".join(after + ended))]
            words = [
                "submit",
                "--json",
                "--queue",
                f"q{self.rounds}",
                *fields,
                "--",
                *job.command(self.world, self.told),
            ]
            answer = run(self.words(*words), self.env, self.home)
            answers[job.name] = json.loads(answer.stdout)["tasks"][0] if answer.stdout.strip() else None
            if answer.returncode > 0 and not re.search(LEGITIMATE, answer.stderr):
                self.fault(f"{job.name} was refused: {answer.stderr[-300:]}")
            time.sleep(self.dice.uniform(0, 0.3))
        return answers

    def finish(self, before: set[int]) -> None:
        """Resume what was killed until all tasks have ended."""
        deadline = time.monotonic() + CALM + max(0.0, self.until - time.monotonic())
        while time.monotonic() < deadline:
            new = {one["number"]: one for one in self.look("status").get("runs", ()) if one["number"] not in before}
            left = [n for n in new if any(task["state"] in UNFINISHED for task in self.rows(n))]
            if not left:
                return
            if new[left[0]]["alive"]:
                time.sleep(0.3)
            else:
                self.wait(self.start("resume", f"r{left[0]}"))
        self.fault(f"runs {left} do not come to their end")

    def wait(self, process: subprocess.Popen[str]) -> None:
        try:
            process.wait(2 * CALM)
        except subprocess.TimeoutExpired:
            self.fault(f"{process.args} does not end")
            process.kill()
            process.wait()


class Judge:
    """The comparison of what was planned, told, answered and is said."""

    def __init__(self, user: User, jobs: list[Job], answers: dict[str, int | None], runs: set[int]) -> None:
        self.user, self.jobs, self.answers, self.runs = user, jobs, answers, runs
        self.seen = user.seen
        self.said: dict[str, list[dict[str, Any]]] = {}
        for number in runs:
            for row in user.rows(number):
                self.said.setdefault(row["name"], []).append(row)
        self.told = {job.name: self.read(job.name) for job in jobs}

    def read(self, name: str) -> list[Line]:
        path = self.user.told / name
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [Line(word, int(task), int(attempt), float(at)) for word, task, attempt, at, _ in lines]

    def give(self) -> None:
        """Judge every task."""
        is_list = self.user.rounds % 2 == 1
        for job in self.jobs:
            rows, answer = self.said.get(job.name, []), self.answers.get(job.name)
            self.user.tasks += len(rows)
            if len(rows) > 1:
                self.find("is there more than once", job)
            elif not rows and (is_list or answer is not None or self.told[job.name]):
                self.find("was accepted and is lost", job)
            elif rows and answer is not None and rows[0]["id"] != answer:
                self.find(f"has another id than {answer}", job)
            elif rows:
                self.task(job, rows[0])

    def find(self, words: str, job: Job) -> None:
        row = (self.said.get(job.name) or [{}])[0]
        kept = {name: row.get(name) for name in ("id", "state", "exit_code", "reason", "attempts", "ooms")}
        hits = {
            a.number: sorted(kinds)
            for a, kinds in self.seen.hit.items()
            if (a.uid, a.task) == (self.user.uid, kept["id"])
        }
        self.user.fault(f"{job.name} {words}: {job}; told {self.told[job.name]}; said {kept}; hit {hits}")

    def hit(self, row: dict[str, Any], attempt: int) -> set[str]:
        return self.seen.hit.get(Attempt(self.user.uid, row["id"], attempt), set())

    def task(self, job: Job, row: dict[str, Any]) -> None:
        """Judge one task that is there."""
        told = self.told[job.name]
        if any(line.word == "twice" for line in told):
            self.find("lived twice at once", job)
        begun = [line.attempt for line in told if line.word == "begin"]
        if len(set(begun)) < len(begun):
            self.find("began an attempt twice", job)
        self.order(job, row)
        for attempt in begun[:-1]:
            why = self.why_again(row, [line for line in told if line.attempt == attempt])
            if why:
                self.seen.explained[f"again after {why}"] += 1
            else:
                self.find(f"was started again after attempt {attempt} without a reason", job)
        self.growth(job, row)
        self.end(job, row, begun)

    def growth(self, job: Job, row: dict[str, Any]) -> None:
        """A reservation grows only where the task takes what it had."""
        mine = (self.user.uid, row["id"])
        for device, before, now in itertools.chain.from_iterable(
            grown for one, grown in self.seen.grown.items() if (one.uid, one.task) == mine
        ):
            takes = MIB * (job.host + 24 if device == "host" else job.gpu)
            self.seen.explained["growth of a task that takes more"] += takes + SLACK >= before
            if takes + SLACK < before:
                self.seen.over.append(f"{device}: grew from {before / MIB:.0f} to {now / MIB:.0f} MiB: {job}")

    def why_again(self, row: dict[str, Any], lines: list[Line]) -> str:
        """Return what explains that an attempt was not the last; empty: nothing."""
        words = {line.word: line.at for line in lines}
        if "shim" in self.hit(row, lines[0].attempt):
            return "the kill of its shim"
        if "oom" in words:
            return "an out-of-memory"
        if "saved" in words and self.was_urgent(words["saved"]):
            return "making room"
        fault = next((at for word, at in words.items() if word.startswith("fault")), 0.0)
        if fault and any(words["begin"] - DAEMON < at < fault for at in self.seen.daemons):
            return "the kill of a daemon of MPS"
        return ""

    def was_urgent(self, at: float) -> bool:
        """Tell whether a task with --preempt of this user waited at a moment."""
        for job in self.jobs:
            begun = [line.at for line in self.told[job.name] if line.word == "begin"]
            if job.urgent and self.user.submitted[job.name] < at < (begun[-1] if begun else at + 1):
                return True
        return False

    def order(self, job: Job, row: dict[str, Any]) -> None:
        """A task begins after the ends of what it waits for, and is skipped if that failed, and only then."""
        known = [
            name for name in (*job.after, *job.ended) if self.user.rounds % 2 or self.answers.get(name) is not None
        ]
        states = {name: self.said[name][0]["state"] for name in known if self.said.get(name)}
        failed = [name for name in job.after if states.get(name, "succeeded") != "succeeded"]
        if bool(failed) != (row["state"] == "skipped"):
            self.find(f"is {row['state']}, while {states} is what it waits for", job)
        first = min((line.at for line in self.told[job.name] if line.word == "begin"), default=None)
        late = [name for name in states if first and any(line.at > first for line in self.told[name])]
        if late or (failed and first):
            self.find(f"did not wait for {late or failed}", job)

    def end(self, job: Job, row: dict[str, Any], begun: list[int]) -> None:
        """The state and the code are the task's own, or a fault of its last attempt explains them."""
        state, code = row["state"], row["exit_code"]
        last = {line.word for line in self.told[job.name] if begun and line.attempt == begun[-1]}
        hits = [self.hit(row, attempt) for attempt in range(1, row["attempts"] + 1)]
        own = "succeeded" if job.code == 0 else "failed"
        if state == "skipped" or (state == own and code == job.code and "end" in last):
            return
        if "task" in (hits[-1] if hits else ()) and state == "failed" and code in (137, -9, None):
            self.seen.explained["another code after the kill of its main process"] += 1
            self.words(row)
        elif state == "failed" and len(begun) >= 3 and all("shim" in self.hit(row, one) for one in begun[-3:]):
            self.seen.explained["given up after three kills of its shims"] += 1
        elif state == "oom" and "oom" in last:
            self.seen.explained["given up after an out-of-memory"] += 1
        else:
            self.find(f"is {state} with code {code}", job)

    def words(self, row: dict[str, Any]) -> None:
        """Check that the sentence on a killed task names the signal, and accuses no one else."""
        said = run(self.user.words("why", str(row["id"])), self.user.env, self.user.home).stdout
        if not re.search("signal 9|SIGKILL", said) or re.search("kernel killed|out of memory|cancelled", said):
            self.user.fault(f"task {row['id']} was killed by a process of this bench, and why says: {said}")


def left_behind(world: World) -> list[str]:
    """Return what is still there when all is over: processes, files beside the runs."""
    deadline = time.monotonic() + 40
    while processes(world.tag) and time.monotonic() < deadline:
        time.sleep(0.2)
    found = [f"process {one.pid} of {one.uid}: {one.words[:150]}" for one in processes(world.tag)]
    kept = re.compile(r"mps\.\d+\.\w+(/log.*|/lock|/users)?")  # homes of MPS, which its user's next run uses again
    names = [str(path.relative_to(world.leases)) for path in world.leases.rglob("*")]
    found += [f"lease directory: {name}" for name in names if not kept.fullmatch(name)]
    found += [f"temporary: {path}" for path in world.root.glob("home*/tmp/*")]
    return found


def go(root: Path, minutes: float, seed: int) -> int:
    """Let three users live for some minutes while processes are killed; return 1 if anything is unexplained."""
    dice, seen = random.Random(seed), Seen()
    world = World(root, seen)
    until = time.monotonic() + 60 * minutes
    users = [User(world, uid, random.Random(dice.random()), until) for uid in UIDS]
    watcher, killer = Watcher(world), Killer(world, dice)
    threads = [threading.Thread(target=user.live, daemon=True) for user in users]
    for thread in (watcher, *threads):
        thread.start()
    while time.monotonic() < until:
        time.sleep(min(3.0, dice.expovariate(1 / PAUSE)))
        killer.act()
    for thread in threads:
        thread.join(3 * CALM)
    watcher.over.set()
    watcher.join()
    world.box.close()
    left = left_behind(world)
    tracebacks = [f"{u.uid}: {text[-1500:]}" for u in users for text in [u.said.read_text()] if "Traceback" in text]
    most = {name[:8]: f"{bytes_ / MIB:.0f} MiB" for name, bytes_ in seen.most.items()}
    print(
        f"oracle: seed {seed}; {sum(u.rounds for u in users)} lists and queues, {sum(u.tasks for u in users)} tasks; "
        f"{seen.looks} looks at the leases, at most {most}; killed {dict(seen.kills)}; "
        f"explained {dict(seen.explained)}; unexplained {len(seen.faults)}, overcommits {len(seen.over)}, "
        f"left behind {len(left)}, tracebacks {len(tracebacks)}"
    )
    for said in itertools.chain(seen.faults[:12], seen.over[:5], left[:12], tracebacks[:3]):
        print(f"  {said}")
    return 1 if seen.faults or seen.over or left or tracebacks else 0


def main() -> int:
    """Judge runs for some minutes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", action="store_true", help="leave the directory there")
    args = parser.parse_args()
    if os.geteuid() != 0:
        print("this bench needs root: it lets three users work")
        return 2
    root = Path(tempfile.mkdtemp(prefix="oracle-"))
    try:
        return go(root, args.minutes, args.seed)
    finally:
        if args.keep:
            print(root)
        else:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
