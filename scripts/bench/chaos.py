"""Chaos: lists of random jobs run while everything that can break is broken, and what came of each task is judged.

    python scripts/bench/chaos.py [--minutes 10] [--seed 7] [--at-once 2000] [--keep] [--on ssh [--fence]]

Two users where root (one elsewhere), the first of which may make control groups, run one list after the other on two
stand-in GPUs and 2 GiB of RAM, always with the next scheduler where the last one was killed. Meanwhile schedulers, fork
servers, shims, samplers and tasks are killed or stopped, the file system of their state (a private mount) is filled,
GPU memory is taken by hand, and GPUs are lost or hang. A new run is sometimes killed the moment its first line is
read, sometimes before.

Samplers, fork servers and shims are also stopped for good: by SIGSTOP that nothing of this program takes back. A
scheduler replaces such a sampler and continues the others, so a task whose shim was stopped owes its exit code as if
nothing had happened. With `--at-once N` the first list of the first user has N tasks that all live at the same moment:
each waits for a gate, which opens once all of them have begun.

Most lists have the column After: chains, fans out and in, tasks that wait for success or for any end. No task may begin
before those that it waits for have written their last line, and skipped is exactly what waits for a failed one.

Every second round of a user is a queue instead of a list: four terminals submit to it, also with --after (see
chaos_queue.py).

Some lists and queues have trainings that fill a GPU and save when they are asked to, and urgent ones with --preempt.
What made room was asked to, at most three times in a row, and ends later.

Each task writes itself when it begins and ends, and holds a lock that a second copy of it would meet. The words of
docs/reliability.md are counted: tasks that are lost, run twice or have a wrong code, reservations above a device (or
memory
in use without a reservation), processes that survive. The last line says them; the exit code is 1 if any is not 0.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import glob
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from scheduler.core.events import Exited, Preempted  # noqa: E402  # found through the line above
from scheduler.core.events import Started as Started_  # noqa: E402
from scheduler.core.model import Outcome  # noqa: E402
from scheduler.errors import StateError  # noqa: E402
from scheduler.runtime.processes import empty_group  # noqa: E402
from scheduler.runtime.shim import BLOCK, ClaimState, claim_state, own_group, unpack_block  # noqa: E402
from scheduler.store.machine.locked_files import is_free  # noqa: E402
from scheduler.store.run.journal_reader import JournalReader  # noqa: E402
from scheduler.units import GIB, MIB  # noqa: E402
from scripts.bench import chaos_queue  # noqa: E402
from scripts.bench.chaos_links import UNFINISHED, Links, Ordered, make_links, states_of  # noqa: E402
from tests.support.killing import (  # noqa: E402  # noqa: E402
    Home,
    Started,
    children,
    command_line,
    environment,
    is_alive,
    kill,
    parent_of,
    state_of,
)
from tests.support.killing import processes as all_processes  # noqa: E402
from tests.support.standin.box import GPU_IS_LOST, Box, Unmanaged  # noqa: E402
from tests.support.waiting import wait_until  # noqa: E402

GPUS, TOTAL, RESERVED, BUFFER = 2, 24 * GIB, 300 * MIB, 512 * MIB
HOST_BUDGET, HOST_BUFFER = 2 * GIB, 32 * MIB
DISK, DISK_MIN = "160m", "8MiB"
STALE = 6.0
"""Seconds for which memory of an unmanaged process may be unknown to a decision: a look may be 2 s old, another
call hang for longer."""
CALM_DOWN = 240.0
"""Seconds in which the last lists have to come to their end once nothing is broken any more."""
UNSHARE = ("unshare", "--mount", "--propagation", "private")
INSIDE = "CHAOS_INSIDE"
USERS = (65534, 12345)
GATE = 90.0
"""Seconds after which the gate opens though not all tasks of the crowd have begun."""
CROWD_KINDS = ("plain", "plain", "plain", "self", "trap")
PYTHON = "/usr/bin/python3"

TASK = """\
told=$1 kind=$2 code=$3; shift 3
exec 9>>"lives/$SCHEDULER_TASK_ID"
flock -n 9 || echo "$SCHEDULER_TASK_ID $SCHEDULER_ATTEMPT twice" >>"$told"
save() {
    trap '' TERM
    echo "$SCHEDULER_TASK_ID $SCHEDULER_ATTEMPT saved" >>"$told"
    kill -9 "$work"
    wait "$work"
    exit 75
}
if [ "$kind" = saves ]; then
    "$@" & work=$!
    trap save TERM
    echo "$SCHEDULER_TASK_ID $SCHEDULER_ATTEMPT begin" >>"$told"
    wait "$work"
    trap '' TERM
else
    echo "$SCHEDULER_TASK_ID $SCHEDULER_ATTEMPT begin" >>"$told"
    "$@"
fi
printf '{"given": %s}' "$code" >"$SCHEDULER_RESULT" && echo "$SCHEDULER_TASK_ID $SCHEDULER_ATTEMPT result" >>"$told"
echo "$SCHEDULER_TASK_ID $SCHEDULER_ATTEMPT end" >>"$told"
case $kind in
    trap) trap 'kill 0' EXIT; exit 3 ;;
    group) kill -9 0 ;;
    fork) (setsid sleep 600 & setsid sh -c 'sleep 600 & sleep 600' &) ; exit "$code" ;;
    deaf) (trap '' TERM; setsid sleep 600 &) ; exit "$code" ;;
    clean) (env -i setsid sleep "600.$CHAOS_TAG" &) ; exit "$code" ;;
    self) kill -TERM $$; exit 0 ;;
esac
exit "$code"
"""
"""Said at the end by a task whose work is done; only what it does last can still change its code."""
FIXED = {"trap": (None, 15), "group": (None, 9), "self": (None, 15)}
GRACE = "1s"
"""The time that processes left behind by a task have to end; then its whole control group is killed."""
KINDS = ("trap", "group", "fork", "clean", *["deaf"] * 3, "self", *["plain"] * 9)


MOST_IN_A_ROW = 3
"""How often in a row a task makes room."""
ALONE = Links("")
"""The links of a task that nothing is said of."""


@dataclass(frozen=True, slots=True)
class Job:
    """One row, and what it must come to: an exit code or a signal."""

    kind: str
    code: int
    work: str
    gpus: int
    memory: str
    links: Links = ALONE
    urgent: bool = False
    """Less urgent tasks of the kind "saves" make room for it."""

    @property
    def saves(self) -> bool:
        return self.kind == "saves"

    @property
    def cells(self) -> list[str]:
        """Return the cells of Priority, Resumable and Preempt."""
        return ["-5" if self.urgent else "5" if self.saves else "", "yes" * self.saves, "yes" * self.urgent]

    @property
    def flags(self) -> list[str]:
        """Return the same as flags."""
        return ["--priority", "-5", "--preempt"] * self.urgent + ["--priority", "5", "--resumable", "yes"] * self.saves

    def linked(self, name: str, after: Sequence[str], ended: Sequence[str]) -> Job:
        return replace(self, links=Links(name, tuple(after), tuple(ended)))

    @property
    def expected(self) -> tuple[int | None, int | None]:
        return FIXED.get(self.kind, (self.code, None))


def make_job(dice: random.Random, python: str, train: Path) -> Job:
    """On the host or on one or both GPUs; most say what they need, and none takes more than it says."""
    code = dice.choice((0, 0, 0, 1, 7, 42, 255))
    kind = dice.choice(KINDS)
    if dice.random() < 0.5:
        memory = dice.choice((*(f"{dice.randrange(100, 1200)}MiB" for _ in range(5)), ""))
        return Job(kind, code, f"sleep {dice.uniform(0, 1.5):.2f}", 0, memory)
    gpus = dice.choice((1, 1, 1, 2))
    peak = dice.randrange(500, 9000)
    said = "" if gpus == 1 and dice.random() < 0.2 else f"{peak + 64}MiB"
    peaks = ",".join([f"{peak}MiB"] * gpus)
    work = f"{python} -S -E {train} --peak {peaks} --seconds {dice.uniform(0.1, 1.5):.2f} --profile flat"
    return Job(kind, code, work, gpus, said)


def with_preemption(job: Job, dice: random.Random, training: str, what: str = "") -> Job:
    """Make most jobs trainings that fill a GPU: some save when they are asked to, some are urgent and short."""
    what = what or dice.choice(("saves", "saves", "saves", "urgent", ""))
    if not what:
        return job
    peak = dice.randrange(14000, 20000)
    seconds = dice.uniform(5, 9) if what == "saves" else dice.uniform(0.2, 1)
    work = f"{training} --peak {peak}MiB --seconds {seconds:.2f} --profile flat"
    kind = "saves" if what == "saves" else "plain"
    return replace(job, kind=kind, code=0, work=work, gpus=1, memory=f"{peak + 64}MiB", urgent=what == "urgent")


def make_full_gpus(dice: random.Random, jobs: Sequence[Job], training: str) -> list[Job]:
    """Make a list whose urgent rows come one by one while the GPUs are full: each waits for a row on the host."""
    made = []
    for number, plain in enumerate(jobs):
        job = with_preemption(plain, dice, training, ("saves", "saves", "urgent")[number % 3])
        if job.urgent:
            name = f"before {number}"
            made.append(Job("plain", 0, f"sleep {2 + 1.5 * number:.1f}", 0, "50MiB", Links(name)))
            job = replace(job, links=Links("", ended=(name,)))
        made.append(job)
    return made


def make_linked_jobs(dice: random.Random, jobs: Sequence[Job]) -> list[Job]:
    """Give most lists a Name and an After; so that chains come far, most of their tasks succeed."""
    if dice.random() < 0.2:
        return [*jobs]
    made = []
    for job, links in zip(jobs, make_links(dice, len(jobs)), strict=True):
        kind, code = (job.kind, job.code) if dice.random() < 0.25 else ("plain", 0)
        made.append(replace(job, kind=kind, code=code, links=links))
    dice.shuffle(made)
    return made


def make_one_of_a_crowd(dice: random.Random, gate: str) -> Job:
    """One of those that live at the same moment: it sleeps in the opening of a pipe until that has a writer."""
    return Job(dice.choice(CROWD_KINDS), dice.choice((0, 0, 0, 1, 42)), f"cat {gate}", 0, "512KiB")


# What is counted


@dataclass(slots=True)
class Score:
    """The faults that were injected, and the findings; threads add to both."""

    done: Counter[str] = field(default_factory=Counter)
    tasks: int = 0
    lists: int = 0
    acknowledged: int = 0
    looks: int = 0
    found: dict[str, list[str]] = field(default_factory=dict)

    def find(self, what: str, words: str) -> None:
        self.found.setdefault(what, []).append(words)

    def line(self, seed: int, seconds: float) -> str:
        """Return the last line."""
        done = ", ".join(f"{many} {what}" for what, many in sorted(self.done.items()))
        counts = ", ".join(
            f"{what} {len(self.found.get(what, ()))}"
            for what in ("lost", "duplicated", "wrong codes", "overcommits", "survivors", "disagreements")
        )
        return (
            f"chaos: seed {seed}, {seconds:.0f} s; {self.lists} lists, "
            f"{self.tasks} tasks, {self.acknowledged} killed at their first line; {done}; {self.looks} looks; {counts}"
        )


@dataclass(slots=True)
class Attempt:
    """One attempt as it told of itself, as the journal has it, and what was done to it."""

    number: int
    said: list[str] = field(default_factory=list)
    exited: Exited | None = None
    hit: set[str] = field(default_factory=set)
    asked: bool = False
    """It was asked to save and make room."""


# One user: a list after the other, a scheduler after the other


class User(Home):
    """A home on the disk that fills, whose tasks tell of themselves elsewhere."""

    def __init__(self, world: World, name: str, uid: int, prefix: Sequence[str]) -> None:
        super().__init__(world.root / name, (*prefix, world.python, "-m", "scheduler"))
        self.world, self.uid = world, uid
        self.tag = f"{uuid.uuid4().int % 10**9:09}"
        self.state, self.leases = world.disk / name, world.leases
        self.env = {name: text for name, text in self.env.items() if not name.startswith(("CUDA_", "NVIDIA_"))}
        self.env |= world.box.env | {
            "SCHEDULER_STATE": str(self.state),
            "SCHEDULER_LEASES": str(self.leases),
            "SCHEDULER_DISK_MIN": DISK_MIN,
            "CHAOS_TAG": self.tag,
            "PYTHONPATH": str(world.code),
            "PATH": "/usr/local/bin:/usr/bin:/bin",
        }
        for path in (self.root, self.state, self.root / "lives"):
            path.mkdir()
            os.chown(path, uid, uid)
        (self.root / "task.sh").write_text(TASK)
        self.crowd = 0
        """How many tasks of its next list are to live at the same moment; 0: as it comes."""
        self.hits: dict[tuple[int, int], set[str]] = {}
        self.scheduler: chaos_queue.Living | None = None
        self.run = ""

    def living(self) -> list[int]:
        """Return all processes started from here, also those that cleared their environment."""
        mark, tag = self.mark.encode(), self.tag
        return [
            pid for pid in all_processes() if (mark in environment(pid) or tag in command_line(pid)) and is_alive(pid)
        ]

    def claims(self) -> list[tuple[tuple[int, int], dict[str, Any]]]:
        """Return living attempts with their claims."""
        found = []
        for path in glob.glob(f"{self.state}/runs/*/tasks/*/.claim.*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                task, number = int(path.split("/")[-2]), int(path.rpartition(".")[2])
                claim = unpack_block(Path(path).read_bytes()) or {}
                if claim_state(path) is ClaimState.LOCKED and "shim" in command_line(claim.get("shim") or 0):
                    found.append(((task, number), claim))
        return found


class Life(threading.Thread):
    """A user's lists, until there is no time left."""

    def __init__(self, user: User, score: Score, dice: random.Random, enough: threading.Event) -> None:
        super().__init__(daemon=True)
        self.user, self.score, self.dice, self.enough = user, score, dice, enough
        self.failed = ""
        self.full = False
        """The queue of this round gets trainings that fill the GPUs."""
        self._said = user.root / "said"

    def run(self) -> None:
        try:
            number = 0
            while not self.enough.is_set():
                number += 1
                if number % 2 == 0:
                    self.play_queue(number)
                else:
                    self.play(number)
        except Exception as exc:  # noqa: BLE001 - the main thread reads it; a thread has no caller
            self.failed = f"{type(exc).__name__}: {exc}"

    def play(self, number: int) -> None:
        """Run one list from its acceptance to its judgement."""
        user = self.user
        crowd, user.crowd = user.crowd, 0
        jobs = self.make_jobs(crowd)
        rows = [
            [
                f"sh task.sh told-{number} {job.kind} {job.code} {job.work}",
                job.gpus,
                job.memory,
                GRACE,
                str(job.expected),
                job.links.name,
                job.links.cell,
                *job.cells,
            ]
            for job in jobs
        ]
        user.write(
            f"jobs-{number}.csv", "Command,GPUs,Memory,Grace,Expected,Name,After,Priority,Resumable,Preempt", *rows
        )
        (user.root / f"told-{number}").touch()
        os.chown(user.root / f"told-{number}", user.uid, user.uid)
        if crowd:
            threading.Thread(target=self.open_gate, args=(number, crowd), daemon=True).start()
        over = self.accepted(number, len(jobs))
        if not user.run:
            return
        deadline = 0.0
        while not over:
            if self.enough.is_set():
                deadline = deadline or time.monotonic() + CALM_DOWN
                if time.monotonic() > deadline:
                    self.score.find("lost", f"run {user.run} of {user.root.name} does not come to its end")
                    break
            self.wait(self.launch("resume", f"r{user.run}"))
            over = self.is_over()
        self.judge(number, jobs)
        shutil.rmtree(user.state / "runs" / user.run, ignore_errors=True)

    def play_queue(self, number: int) -> None:
        """Submit to a queue from four terminals, and judge it once all of that has ended."""
        user, self.full = self.user, self.dice.random() < 0.5
        before = {run["number"] for run in self.runs()}
        (user.root / f"told-{number}").touch()
        os.chown(user.root / f"told-{number}", user.uid, user.uid)
        start = lambda *words, **how: user.start(*words, **how, env=user.env | chaos_queue.SETTINGS)  # noqa: E731
        terminals = chaos_queue.Terminals(start, f"q{number}", f"told-{number}", self.dice, self.make_submission)
        watched = threading.Event()
        watcher = threading.Thread(target=self.watch_queue, args=(watched,), daemon=True)
        watcher.start()
        try:
            user.world.queuing.add(user)
            terminals.play()
            runs = self.finish_queue(before, start)
        finally:
            watched.set()
            watcher.join()
        self.score.done["submissions"] += len(terminals.sent)
        self.score.done["submissions killed"] += terminals.killed
        self.score.done["submissions refused"] += sum(one.answer == chaos_queue.REFUSED for one in terminals.sent)
        self.judge_queue(number, runs, terminals)

    def make_submission(self, dice: random.Random) -> Job:
        """One that states its memory: a queue has the whole machine, not the little RAM of the lists."""
        world = self.user.world
        (job,) = make_linked_jobs(dice, [make_job(dice, world.python, world.train)])
        if self.full:
            job = with_preemption(job, dice, world.training)
        return replace(job, memory=job.memory or ("9500MiB" if job.gpus else "200MiB"))

    def watch_queue(self, enough: threading.Event) -> None:
        """Tell the monkey which process is the scheduler of the queue."""
        user = self.user
        while not enough.wait(0.1):
            pid = chaos_queue.scheduler_of(user.state)
            if pid and (user.scheduler is None or user.scheduler.poll() is not None):
                user.scheduler = chaos_queue.Background(pid, self.score.done)

    def finish_queue(self, before: set[int], start: Callable[..., Started]) -> list[int]:
        """Resume the queue until all of its tasks have ended; its runs."""
        deadline = time.monotonic() + CALM_DOWN
        while True:
            runs = sorted(run["number"] for run in self.runs() if run["number"] not in before)
            left = [run for run in runs if any(task["state"] in UNFINISHED for task in self.tasks(run))]
            if not left:
                return runs
            if time.monotonic() > deadline:
                self.score.find("lost", f"runs {left} of {self.user.root.name} do not come to their end")
                return runs
            if chaos_queue.scheduler_of(self.user.state):
                time.sleep(0.3)
                continue
            with self._said.open("a") as said:
                self.user.scheduler = resumed = start("resume", f"r{left[0]}", stderr=said)
            self.wait(resumed)

    def judge_queue(self, number: int, runs: Sequence[int], terminals: chaos_queue.Terminals) -> None:
        """Compare the answers, the tasks, the journals and what the tasks wrote themselves."""
        tasks = [task for run in runs for task in self.tasks(run)]
        for what, words in chaos_queue.faults(terminals.sent, tasks, self.user.world.was_full):
            self.score.find(what, f"{self.user.root.name}: {words}")
        jobs = {one.name: one.job for one in terminals.sent}
        known = [task for task in tasks if task["name"] in jobs]
        self.score.tasks += len(known)
        self.judge_tasks(number, runs, known, [jobs[task["name"]] for task in known])
        for run in runs:
            self.user.run = str(run)
            self.judge_rest(chaos_queue.PATIENCE)
            shutil.rmtree(self.user.state / "runs" / self.user.run, ignore_errors=True)
        self.user.world.queuing.discard(self.user)

    def make_jobs(self, crowd: int) -> list[Job]:
        """A crowd that lives at the same moment, if one is wanted; else some of every kind."""
        user, world = self.user, self.user.world
        if not crowd:
            full = self.dice.random() < 0.4
            many = self.dice.randrange(5, 12 if full else 30)
            jobs = [make_job(self.dice, world.python, world.train) for _ in range(many)]
            return make_full_gpus(self.dice, jobs, world.training) if full else make_linked_jobs(self.dice, jobs)
        os.mkfifo(user.root / "gate", 0o644)
        os.chown(user.root / "gate", user.uid, user.uid)
        world.crowded.set()
        return [make_one_of_a_crowd(self.dice, "gate") for _ in range(crowd)]

    def open_gate(self, number: int, crowd: int) -> None:
        """Let the crowd go once all of it lives, or after a while; later attempts find the gate open."""
        told, gate = self.user.root / f"told-{number}", self.user.root / "gate"
        began = lambda: len({line.split()[0] for line in told.read_text().splitlines() if "begin" in line})  # noqa: E731
        with contextlib.suppress(AssertionError):
            wait_until(lambda: began() >= crowd, GATE, pause=0.2)
        self.score.done["tasks at once"] = sum(
            "task.sh" in command_line(claim["pid"]) for _, claim in self.user.claims()
        )
        self.user.world.crowded.clear()
        writer = os.open(gate, os.O_RDWR)  # who has opened it for reading goes on, and reads to the end once this goes
        (self.user.root / "open").touch()
        (self.user.root / "open").chmod(0o644)
        (self.user.root / "open").rename(gate)
        time.sleep(1.0)
        os.close(writer)

    # Acceptance: before the first line all or nothing, after it everything

    def accepted(self, number: int, rows: int) -> bool:
        """Start the run until its list is accepted; whether it came to its end already."""
        user = self.user
        user.run = ""
        before = {run["number"] for run in self.runs()}
        while not self.enough.is_set():
            kills = ("",) if user.world.crowded.is_set() else ("", "", "at once", "at once", "before")
            acknowledged = self.begin(f"jobs-{number}.csv", self.dice.choice(kills))
            new = [run["number"] for run in self.runs() if run["number"] not in before]
            if new:
                user.run = str(max(new))
                there = len(self.tasks())
                if there != rows:
                    self.score.find("lost", f"run {user.run}: {there} of {rows} tasks accepted")
                self.score.lists += 1
                self.score.tasks += rows
                return self.is_over()
            if acknowledged:
                self.score.find("lost", f"list {number} of {user.root.name} was acknowledged and is not there")
        return True

    def begin(self, name: str, how: str) -> bool:
        """The first scheduler of a run, killed as soon as its first line is read, before that, or later by others."""
        room = f"0,1,host:{HOST_BUDGET >> 20}MiB"
        more = ("--devices", room, "--max-load", "1000", "--keep-going", "--settle", "1s", "--preempt-after", "0.3s")
        unmanaged = self.dice.choice((("--unmanaged", "ignore"), ("--unmanaged-calm", "1s")))
        said = ("run", name, "--new", *more, *unmanaged)
        scheduler = self.launch(*said, stdout=subprocess.PIPE)
        assert scheduler.stdout is not None
        if how == "before":
            with contextlib.suppress(subprocess.TimeoutExpired):
                scheduler.wait(self.dice.uniform(0.05, 0.5))
            self._kill(scheduler)
        line = scheduler.stdout.readline()
        if how == "at once" and line:
            self.score.acknowledged += self._kill(scheduler)
        threading.Thread(target=scheduler.stdout.read, daemon=True).start()
        self.wait(scheduler)
        return bool(line.startswith("run "))

    def _kill(self, scheduler: Started) -> bool:
        scheduler.kill()
        return scheduler.wait() == -signal.SIGKILL

    def launch(self, *words: str, **how: Any) -> Started:
        with self._said.open("a") as said:
            self.user.scheduler = started = self.user.start(*words, **{"stderr": said, **how})
        return started

    def wait(self, scheduler: Started) -> None:
        self.score.done["schedulers"] += scheduler.wait() == -signal.SIGKILL

    # Looks at it, which a full disk or a killed writer must not keep from reporting

    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.look("status")["runs"]
        return found

    def tasks(self, run: int | None = None) -> list[dict[str, Any]]:
        tasks: list[dict[str, Any]] = self.look("results", f"r{run or self.user.run}")["tasks"]
        return tasks

    def look(self, *words: str) -> dict[str, Any]:
        """Return the JSON output of a verb; a full disk may keep it from looking."""
        while True:
            began = time.monotonic()
            try:
                said: dict[str, Any] = json.loads(self.user.call(*words, "--json", code=0).stdout)
                troubles = [run for run in said.get("runs", ()) if "trouble" in run]
                assert not troubles, troubles
                return said
            except AssertionError:
                if not self.user.world.was_full(began, time.monotonic()):
                    raise
                wait_until(lambda: not self.user.world.ballast.exists(), 60)

    def is_over(self) -> bool:
        return not any(task["state"] in UNFINISHED for task in self.tasks())

    # The judgement

    def judge(self, number: int, jobs: Sequence[Job]) -> None:
        """Compare the rows, the journal, and what the tasks wrote themselves."""
        in_order = sorted(self.tasks(), key=lambda task: int(task["row"]))
        self.judge_tasks(number, [int(self.user.run)], in_order, jobs)
        self.judge_rest()

    def judge_tasks(
        self, number: int, runs: Sequence[int], tasks: Sequence[dict[str, Any]], jobs: Sequence[Job]
    ) -> None:
        attempts = self.attempts(number, runs)
        linked = {task["id"]: job.links for task, job in zip(tasks, jobs, strict=True)}
        order = Ordered(linked, states_of(tasks), self.lines(number))
        for what, words in order.faults():
            self.score.find(what, f"{self.user.root.name} runs {runs}: {words}")
        self.score.done["linked"] += sum(bool(links.cell) for links in linked.values())
        self.score.done["skipped"] += sum(order.is_skipped(task) for task in linked)
        for task, job in zip(tasks, jobs, strict=True):
            if order.is_skipped(task["id"]) and task["state"] == "skipped" and task["id"] not in attempts:
                continue
            Judgement(self.score, f"{self.user.root.name} runs {runs}", task, job).give(attempts.get(task["id"], {}))

    def told(self, number: int) -> Iterator[tuple[int, int, str]]:
        """Read the lines that the tasks of a list wrote themselves: task, attempt and word."""
        for line in (self.user.root / f"told-{number}").read_text().splitlines():
            task, count, word = line.split()
            yield int(task), int(count), word

    def lines(self, number: int) -> list[tuple[int, str]]:
        return [(task, word) for task, _, word in self.told(number)]

    def attempts(self, number: int, runs: Sequence[int]) -> dict[int, dict[int, Attempt]]:
        found: dict[int, dict[int, Attempt]] = {}
        current: dict[int, int] = {}

        def attempt(task: int, number: int) -> Attempt:
            return found.setdefault(task, {}).setdefault(number, Attempt(number))

        for task, count, word in self.told(number):
            attempt(task, count).said.append(word)
        for event in itertools.chain.from_iterable(self.journal(run) for run in runs):
            if isinstance(event, Exited):
                attempt(event.task, event.attempt).exited = event
            elif isinstance(event, Started_):
                current[event.task] = event.attempt
            elif isinstance(event, Preempted):
                for one in event.tasks:
                    attempt(one, current[one]).asked = True
        for (task, count), hit in self.user.hits.items():
            if task in found and count in found[task]:
                found[task][count].hit |= hit
        return found

    def journal(self, run: int) -> list[Any]:
        """Its events, read from a copy: who looks leaves files of their own beside it."""
        with tempfile.TemporaryDirectory() as copy:
            for path in (self.user.state / "runs" / str(run)).glob("journal.db*"):
                shutil.copy(path, copy)
            try:
                with contextlib.closing(JournalReader.read(Path(copy) / "journal.db")) as journal:
                    return [one.event for one in journal.events()]
            except StateError as exc:
                self.score.find("lost", f"the journal of run {run}: {exc}")
                return []

    def judge_rest(self, patience: float = 30.0) -> None:
        """Find processes and leases that are left when a run is over."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.user.living(), patience)
        for pid in self.user.living():
            who = f"process {pid} ({state_of(pid)}, child of {command_line(parent_of(pid)) or parent_of(pid)})"
            self.score.find("survivors", f"{who}: {command_line(pid)}")
            kill(pid)
        mine = [path.name for path in self.user.leases.iterdir() if path.name.startswith(f"{self.user.uid}.")]
        for name in mine:
            self.score.find("survivors", f"lease {name}")
        said = self._said.read_text() + self.user.log(int(self.user.run))
        found = re.search(r"^Traceback", said, re.MULTILINE)  # what tasks printed follows a bar
        if found:
            self.score.find("disagreements", said[found.start() :][:2000])
            self._said.write_text("")


@dataclass(slots=True)
class Judgement:
    """The comparison of one task's end with what it had to be."""

    score: Score
    run: str
    task: dict[str, Any]
    job: Job

    def find(self, what: str, words: str, *attempts: Attempt) -> None:
        told = "; ".join(f"{a.number}: said {a.said}, hit {sorted(a.hit)}, {a.exited}" for a in attempts)
        self.score.find(what, f"{self.run}, task {self.task['id']} ({self.job}): {words} [{told}]")

    def give(self, attempts: dict[int, Attempt]) -> None:
        in_order = [attempts[number] for number in sorted(attempts)]
        for attempt in in_order:
            self.one(attempt)
        for attempt, later in itertools.pairwise(in_order):
            again = (Outcome.LOST, Outcome.OOM, Outcome.UNSTARTED, Outcome.AGAIN)
            if attempt.exited is None or attempt.exited.outcome not in again:
                self.find("duplicated", "tried again after an end", attempt, later)
        row = [bool(one.exited and one.exited.outcome is Outcome.AGAIN) for one in in_order]
        if any(all(row[place : place + MOST_IN_A_ROW + 1]) for place in range(len(row) - MOST_IN_A_ROW)):
            self.find("disagreements", "made room too often in a row", *in_order)
        self.end(in_order)

    def one(self, attempt: Attempt) -> None:
        """Check that an attempt began once, and has the code that it gave unless the monkey hit it."""
        said = Counter(attempt.said)
        if said["twice"]:
            self.find("duplicated", "two lived at once", attempt)
        self.made_room(attempt)
        if said["begin"] > 1:
            self.find("duplicated", "began twice", attempt)
        if attempt.exited is None:
            self.find("lost", "its end is not recorded", attempt)
        elif attempt.exited.outcome is Outcome.UNSTARTED:
            if attempt.said:
                self.find("wrong codes", "recorded as never started, but it said something", attempt)
        elif said["end"]:
            self.ended(attempt, attempt.exited)
        elif not attempt.hit and attempt.exited.outcome not in (Outcome.LOST, Outcome.AGAIN):
            self.find("wrong codes", "it did not come to its end without being hit", attempt)
        elif said["begin"] and not attempt.hit and attempt.exited.outcome is Outcome.LOST:
            self.find("lost", "it began, was not hit, and its end is not known", attempt)

    def made_room(self, attempt: Attempt) -> None:
        """Check that it saved, and was to start again, only if it was asked to, and that it may be asked."""
        again = attempt.exited is not None and attempt.exited.outcome is Outcome.AGAIN
        self.score.done["made room"] += again
        if attempt.asked and not self.job.saves:
            self.find("disagreements", "was asked to make room and is not resumable", attempt)
        if again and not attempt.asked:
            self.find("disagreements", "has to start again and was not asked to make room", attempt)
        if "saved" in attempt.said and not attempt.asked:
            self.find("disagreements", "was stopped and not asked to make room", attempt)

    def ended(self, attempt: Attempt, exited: Exited) -> None:
        """It came to its last word: its code must be recorded, unless its shim was killed just then."""
        if (exited.code, exited.signal) == self.job.expected or "shim" in attempt.hit:
            return
        if ("task" in attempt.hit or attempt.asked) and exited.signal == signal.SIGKILL:
            return  # what makes room may be killed after its grace
        what = "lost" if exited.code is None and exited.signal is None else "wrong codes"
        self.find(what, f"not {self.job.expected}", attempt)

    def end(self, attempts: Sequence[Attempt]) -> None:
        """The task: in the state that its last attempt says."""
        state, last = self.task["state"], attempts[-1] if attempts else None
        if last is None or state not in ("succeeded", "failed"):
            self.find("lost", f"is {state}", *attempts)
            return
        if (state == "succeeded") != (last.exited is not None and last.exited.outcome is Outcome.SUCCEEDED):
            self.find("disagreements", f"is {state}", last)
        if state == "succeeded" and self.job.expected != (0, None):
            self.find("wrong codes", "succeeded", last)
        if state == "failed" and self.job.expected == (0, None) and not any(a.hit for a in attempts):
            self.find("wrong codes", "failed", *attempts)
        if state == "succeeded" and "result" in last.said and self.task.get("result.given") != self.job.code:
            self.find("lost", f"its result is {self.task.get('result.given')}", last)
        if self.task["attempts"] != last.number:
            self.find("disagreements", f"{self.task['attempts']} attempts in the results", *attempts)


# The machine, and who breaks it


class World:
    """A directory that all users reach, the GPUs, the disk, the code."""

    def __init__(self, root: Path, score: Score) -> None:
        self.root, self.score = root, score
        self.disk, self.leases, self.code = root / "disk", root / "leases", root / "code"
        self.ballast = self.disk / "ballast"
        self.full: list[tuple[float, float]] = []
        """The times in which the disk was full, each with its end."""
        self.stopped: list[tuple[float, float]] = []
        """The times in which a scheduler was stopped, each with its end."""
        self.queuing: set[User] = set()
        """The users that have a queue in place of a list just now."""
        self.crowded = threading.Event()
        """Set while a crowd gathers: schedulers are not killed then, or it would never be complete."""
        self.disk.mkdir()
        self.leases.mkdir()
        self.leases.chmod(0o1777)
        self.can_fill = bool(os.environ.get(INSIDE))
        if self.can_fill:
            said = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0755", "tmpfs", str(self.disk)]
            subprocess.run(said, check=True)
        self.python = self._copy_code()
        self.train = self.code / "tests/support/standin/train.py"
        self.training = f"{self.python} -S -E {self.train}"
        self.box = Box(root / "gpus", gpus=GPUS, total=TOTAL, reserved=RESERVED, cache=root / "built")
        self.box.file.chmod(0o666)
        self.unmanaged_processes: dict[int, list[tuple[float, int]]] = {device: [(0.0, 0)] for device in range(GPUS)}
        """The bytes that they hold of each GPU, and since when."""
        self.doors = [os.open(self.leases, os.O_RDONLY | os.O_DIRECTORY) for _ in range(2)]
        """The lease directory for the observer and for the monkey: a lock is of the descriptor, not of its thread."""

    def _copy_code(self) -> str:
        """The interpreter; the code lies where other users can read it, as this checkout may not."""
        hidden = shutil.ignore_patterns("__pycache__", ".built")
        for part in ("scheduler", "tests"):
            shutil.copytree(ROOT / part, self.code / part, ignore=hidden)
        import psutil
        import pynvml

        shutil.copytree(Path(psutil.__file__).parent, self.code / "psutil")
        shutil.copy(pynvml.__file__, self.code / "pynvml.py")
        return PYTHON if os.geteuid() == 0 else sys.executable

    def was_full(self, since: float, until: float) -> bool:
        """Tell whether the disk was full at a moment between these two."""
        return any(begin <= until and since <= end for begin, end in self.full)

    def unmanaged(self, device: int) -> int:
        return self.unmanaged_processes[device][-1][1]

    def long_unmanaged(self, device: int, at: float) -> int:
        """Return the least that unmanaged processes held in the seconds before a moment: a decision must have known.

        A scheduler that was stopped while it decided is as far behind as it stood still.
        """
        steps = self.unmanaged_processes[device]
        stops = [(begin, min(end, at)) for begin, end in self.stopped if begin <= at]
        still = max((end - begin for begin, end in stops if at - STALE <= end), default=0.0)
        since = at - STALE - still
        before = [bytes_ for when, bytes_ in steps if when <= since][-1:]
        return min([*before, *(bytes_ for when, bytes_ in steps if since < when <= at)])


class Observer(threading.Thread):
    """Looks at leases and memory every few milliseconds as any scheduler does: with the directory's mutex held."""

    def __init__(self, world: World) -> None:
        super().__init__(daemon=True)
        self.world, self.score = world, world.score
        self._enough = threading.Event()
        self._granted: list[dict[tuple[str, float], int]] = [{} for _ in range(GPUS)]
        """The bytes of the leases on each GPU when the newest of them was taken, by name and time."""
        self._last: list[dict[tuple[str, float], int]] = [{} for _ in range(GPUS)]
        """The bytes of the leases on each GPU at the last look."""
        self._outgrown: set[str] = set()
        self.failed = ""

    def run(self) -> None:
        try:
            rest = 0.02
            while not self._enough.wait(rest):
                with held(self.world.doors[0]):
                    began = time.monotonic()
                    self.look()
                    rest = max(0.02, 4 * (time.monotonic() - began))  # with thousands of leases others decide, too
        except Exception as exc:  # noqa: BLE001 - the main thread reads it
            self.failed = f"{type(exc).__name__}: {exc}"

    def look(self) -> None:
        self.score.looks += 1
        leases = living_leases(self.world.doors[0])
        for name, lease in leases.items():
            if lease is None:
                self.score.find("overcommits", f"{name} cannot be read")
        read = {name: lease for name, lease in leases.items() if lease}
        self.check_host(read)
        for device, uuid_ in enumerate(self.world.box.uuids):
            self.check_gpu(device, {name: lease for name, lease in read.items() if uuid_ in lease["bytes"]}, uuid_)

    def check_host(self, leases: dict[str, Any]) -> None:
        users = {str(user.uid) for user in self.world.queuing}  # a queue has all of the RAM
        reserved = sum(
            lease["bytes"].get("host", 0) for name, lease in leases.items() if name.partition(".")[0] not in users
        )
        if reserved > HOST_BUDGET:
            self.score.find("overcommits", f"host: {reserved} of {HOST_BUDGET} reserved by {leases}")

    def check_gpu(self, device: int, leases: dict[str, Any], uuid_: str) -> None:
        """Return what was reserved when the newest of them was taken: an undeclared need may outgrow it later."""
        world, now = self.world, {(name, said["since"]): said["bytes"][uuid_] for name, said in leases.items()}
        before, new = self._last[device], sorted(now.keys() - self._last[device].keys())
        granted = {one: min(now[one], before.get(one, now[one])) for one in now} if new else self._granted[device]
        self._granted[device], self._last[device] = {one: granted[one] for one in now}, now
        reserved = sum(self._granted[device].values())
        if reserved > TOTAL - RESERVED:
            told = "" if "overcommits" in self.score.found else self.told_of(leases)
            self.score.find("overcommits", f"GPU {device}: {reserved} reserved by {leases}{told}")
        elif sum(now.values()) > TOTAL - RESERVED:
            self._outgrown.update(one[0] for one in now if now[one] > granted[one])
            self.score.done["outgrown guesses"] = len(self._outgrown)
        for name, since in new:
            then = sum(bytes_ for (_, at), bytes_ in self._granted[device].items() if at <= since)
            if then + world.long_unmanaged(device, since) > TOTAL - RESERVED:
                beside = f"unmanaged {world.unmanaged_processes[device][-8:]}, stopped {world.stopped[-4:]}"
                self.score.find(
                    "overcommits",
                    f"GPU {device}: {then} reserved beside unmanaged processes, last {name} at {since}: {leases}"
                    f"{self.told_of(leases)}\n      {beside}",
                )
        living = {tuple(name.split(".")[i] for i in (0, 2, 3)) for name in leases}
        for holder in world.box.processes(device):
            whose = attempt_of(holder.pid)
            if whose is not None and whose not in living and is_alive(holder.pid):
                self.score.find(
                    "overcommits", f"GPU {device}: {whose} holds {holder.size}, reserved are {sorted(living)}"
                )

    def told_of(self, leases: Iterable[str]) -> str:
        """Return the events of these attempts in the journals, with their times."""
        lines = [f"\n      now {time.time():.3f}"]
        for uid, token, task, *_ in (name.split(".") for name in leases):
            home = f"user{[str(user) for user, _ in who()].index(uid)}"
            folder = self.world.disk / home / "runs" / token.partition("-")[0]
            with tempfile.TemporaryDirectory() as copy, contextlib.suppress(OSError, StateError):
                for path in folder.glob("journal.db*"):
                    shutil.copy(path, copy)
                with contextlib.closing(JournalReader.read(Path(copy) / "journal.db")) as journal:
                    lines += [f"      {one.at:.3f} {one.event}" for one in journal.task_events(int(task))]
        return "\n".join(lines)

    def stop(self) -> None:
        self._enough.set()
        self.join()


def attempt_of(pid: int) -> tuple[str, str, str] | None:
    """The user, the task and the attempt that a process belongs to."""
    said = dict(entry.split(b"=", 1) for entry in environment(pid) if b"=" in entry)
    task, attempt = said.get(b"SCHEDULER_TASK_ID"), said.get(b"SCHEDULER_ATTEMPT")
    with contextlib.suppress(OSError):
        if task and attempt:
            return str(os.stat(f"/proc/{pid}").st_uid), task.decode(), attempt.decode()
    return None


@contextlib.contextmanager
def held(directory: int, wait: bool = True) -> Iterator[None]:
    """Hold the mutex of all schedulers; raise BlockingIOError where it is locked and `wait` is False."""
    import fcntl

    fcntl.flock(directory, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    try:
        yield
    finally:
        fcntl.flock(directory, fcntl.LOCK_UN)


def living_leases(directory: int) -> dict[str, dict[str, Any] | None]:
    """Return the records of the locked leases; None where one cannot be read."""
    found = {}
    for name in os.listdir(directory):
        if not name[0].isdigit():
            continue
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW, dir_fd=directory)
        except FileNotFoundError:
            continue  # a task that ends takes its lease away without asking
        try:
            if not is_free(fd):
                found[name] = unpack_block(os.pread(fd, BLOCK, 0))
        finally:
            os.close(fd)
    return found


class Monkey:
    """Breaks something, again and again."""

    def __init__(self, world: World, users: Sequence[User], dice: random.Random) -> None:
        self.world, self.users, self.dice = world, users, dice
        self.done = world.score.done
        self.unmanaged_processes: list[tuple[int, Unmanaged]] = []
        self.mends: list[tuple[float, Callable[[], None]]] = []
        """The repairs that are due, each with its time."""
        self.acts: list[tuple[float, Callable[[User], None]]] = [
            (3, self.kill_scheduler),
            (0.7, self.kill_scheduler_and_server),
            (1, self.kill_scheduler_and_shims),
            (1, self.kill_server),
            (1.5, self.kill_sampler),
            (6, self.kill_shim),
            (3, self.kill_task),
            (0.7, self.stop_scheduler),
            (0.8, self.stop_samplers_for_good),
            (0.5, self.stop_server_for_good),
            (0.8, self.stop_shims_for_good),
            (0.25, self.fill_disk),
            (1.0, self.take_memory),
            (0.1, self.lose_gpu),  # one that came back is tried again after a minute
        ]

    def act(self) -> None:
        """Inject one fault, and do the repairs that are due."""
        gathering = (
            self.stop_samplers_for_good,
            self.stop_server_for_good,
            self.stop_shims_for_good,
            self.kill_sampler,
        )
        acts = [one for one in self.acts if one[1] in gathering] if self.world.crowded.is_set() else self.acts
        act = self.dice.choices([act for _, act in acts], [weight for weight, _ in acts])[0]
        act(self.dice.choice(self.users))
        self.mend(time.monotonic())

    def mend(self, now: float) -> None:
        due = [one for one in self.mends if one[0] <= now]
        self.mends = [one for one in self.mends if one[0] > now]
        for _, mend in due:
            mend()

    def later(self, least: float, most: float, mend: Callable[[], None]) -> None:
        self.mends.append((time.monotonic() + self.dice.uniform(least, most), mend))

    def kill_scheduler(self, user: User) -> None:
        """Mostly one that has something running: on a slow machine none would ever come so far."""
        if user.scheduler is None or (self.dice.random() < IDLE_LIVES and not user.claims()):
            return
        if user.scheduler.poll() is None:
            user.scheduler.kill()

    def kill_scheduler_and_server(self, user: User) -> None:
        if user.scheduler is not None:
            servers = children(user.scheduler.pid, "shim")
            self.kill_scheduler(user)
            self.done["fork servers"] += sum(kill(pid) for pid in servers)

    def kill_scheduler_and_shims(self, user: User) -> None:
        self.kill_scheduler(user)
        for key, claim in user.claims():
            if self.dice.random() < 0.5:
                self.kill_one(user, key, claim["shim"], "shim")

    def kill_server(self, user: User) -> None:
        if user.scheduler is not None:
            self.done["fork servers"] += sum(kill(pid) for pid in children(user.scheduler.pid, "shim"))

    def kill_sampler(self, user: User) -> None:
        if user.scheduler is not None:
            self.done["samplers"] += sum(kill(pid) for pid in children(user.scheduler.pid, "sampler"))

    def kill_shim(self, user: User) -> None:
        if claims := user.claims():
            key, claim = self.dice.choice(claims)
            self.kill_one(user, key, claim["shim"], "shim")

    def kill_task(self, user: User) -> None:
        if claims := user.claims():
            key, claim = self.dice.choice(claims)
            if "task.sh" in command_line(claim["pid"]):
                self.kill_one(user, key, claim["pid"], "task")

    def kill_one(self, user: User, key: tuple[int, int], pid: int, what: str) -> None:
        hit = {key}
        if what == "shim":  # by now it may have another attempt, but it takes none while it is stopped
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
            hit |= {other for other, claim in user.claims() if claim["shim"] == pid}
        for one in hit:
            user.hits.setdefault(one, set()).add(what)  # before: its end may be judged at once
        self.done[f"{what}s"] += kill(pid)

    def stop_scheduler(self, user: User) -> None:
        scheduler = user.scheduler
        if scheduler is not None and scheduler.poll() is None:
            began, place = time.time(), len(self.world.stopped)
            self.world.stopped.append((began, float("inf")))
            scheduler.send_signal(signal.SIGSTOP)
            self.done["schedulers stopped"] += 1
            self.later(0.2, 2.0, lambda: self.go_on(scheduler, place))

    def go_on(self, scheduler: chaos_queue.Living, place: int) -> None:
        scheduler.send_signal(signal.SIGCONT)
        self.world.stopped[place] = self.world.stopped[place][0], time.time()

    def stop_samplers_for_good(self, user: User) -> None:
        if user.scheduler is not None:
            pids = children(user.scheduler.pid, "sampler")
            self.done["samplers stopped for good"] += sum(kill(pid, signal.SIGSTOP) for pid in pids)

    def stop_server_for_good(self, user: User) -> None:
        if user.scheduler is not None:
            pids = children(user.scheduler.pid, "shim")
            self.done["servers stopped for good"] += sum(kill(pid, signal.SIGSTOP) for pid in pids)

    def stop_shims_for_good(self, user: User) -> None:
        """Some at work, and some that are idle or have not begun."""
        if user.scheduler is None:
            return
        idle = [shim for server in children(user.scheduler.pid, "shim") for shim in children(server, "shim")]
        pids = {claim["shim"] for _, claim in user.claims()} | {*idle}
        chosen = self.dice.sample(sorted(pids), min(len(pids), 3))
        self.done["shims stopped for good"] += sum(kill(pid, signal.SIGSTOP) for pid in chosen)

    def fill_disk(self, _: User) -> None:
        ballast = self.world.ballast
        if not self.world.can_fill or ballast.exists():
            return
        self.done["full disks"] += 1
        self.world.full.append((time.monotonic(), float("inf")))
        with contextlib.suppress(OSError), open(ballast, "wb", buffering=0) as file:
            while file.write(b"\1" * MIB):
                pass
        self.later(0.5, 3.0, self.empty_disk)

    def empty_disk(self) -> None:
        self.world.ballast.unlink()
        self.world.full[-1] = self.world.full[-1][0], time.monotonic()

    def take_memory(self, _: User) -> None:
        """Take part of a GPU's free and unreserved memory without a lease, and give it back after a while.

        Not where the mutex is taken: a scheduler that was stopped may have it, and only this thread lets it go on.
        """
        world = self.world
        device = self.dice.randrange(GPUS)
        with contextlib.suppress(BlockingIOError), held(world.doors[1], wait=False):
            leases = living_leases(world.doors[1]).values()
            uuid_ = world.box.uuids[device]
            reserved = sum(lease["bytes"].get(uuid_, 0) for lease in leases if lease)
            room = TOTAL - RESERVED - BUFFER - reserved - world.unmanaged(device)
            size = int(room * self.dice.uniform(0.1, 0.6))
            if room < GIB or world.unmanaged(device) > 10 * GIB:
                return
            unmanaged_process = world.box.unmanaged(device, size)
            self.note(device, size)
            self.done["unmanaged_processes"] += 1
            self.later(1.0, 8.0, lambda: self.give_back(device, unmanaged_process, size))

    def give_back(self, device: int, unmanaged_process: Unmanaged, size: int) -> None:
        self.note(device, -size)  # before: a decision may know it at once
        unmanaged_process.close()

    def note(self, device: int, more: int) -> None:
        self.world.unmanaged_processes[device].append((time.time(), self.world.unmanaged(device) + more))

    def lose_gpu(self, _: User) -> None:
        device, how = self.dice.randrange(GPUS), self.dice.choice(("error", "error", "hang"))
        self.world.box.set(device, **{how: GPU_IS_LOST if how == "error" else 1})
        self.done["GPUs lost" if how == "error" else "GPUs that hang"] += 1
        self.later(0.5, 4.0, lambda: self.world.box.set(device, **{how: 0}))


def rage(root: Path, seconds: float, seed: int, crowd: int = 0) -> Score:
    """Have it all go on for so long, and to its end."""
    score = Score()
    world = World(root, score)
    dice = random.Random(seed)
    enough = threading.Event()
    users = [User(world, f"user{n}", uid, prefix) for n, (uid, prefix) in enumerate(who())]
    users[0].crowd = crowd
    lives = [Life(user, score, random.Random(dice.random()), enough) for user in users]
    observer, monkey = Observer(world), Monkey(world, users, dice)
    group = delegated(users[0])
    try:
        for user in users:
            user.call("exec", "--devices", "host", "--", "true", code=0)  # whatever is made once is made in peace
        for thread in (observer, *lives):
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not any(life.failed for life in lives) and not observer.failed:
            time.sleep(min(2.0, dice.expovariate(1 / PAUSE)))
            monkey.act()
        enough.set()
        monkey.mend(float("inf"))
        for life in lives:
            life.join(2 * CALM_DOWN)
        observer.stop()
        judge_machine(world, [*lives, observer])
        return score
    finally:
        world.box.close()
        for user in users:
            user.end()
        if group:
            empty_group(group, 30.0)


def delegated(user: User) -> str:
    """The control group in which a user starts everything from now on and may make others; empty: there is none."""
    own = own_group()
    if not own or os.geteuid() != 0:
        return ""
    group = f"{own}/chaos-{user.tag}"
    os.mkdir(group)
    for path in (group, f"{group}/cgroup.procs"):
        os.chown(path, user.uid, user.uid)
    user.command[:0] = ["sh", "-c", 'echo $$ >"$0" && exec "$@"', f"{group}/cgroup.procs"]
    return group


IDLE_LIVES = 0.85
"""So likely a scheduler that has nothing running yet is spared."""
PAUSE = 0.3
"""Seconds between faults, on average."""


def judge_machine(world: World, threads: Sequence[Life | Observer]) -> None:
    """Find what is wrong beside the tasks."""
    for thread in threads:
        if thread.failed or thread.is_alive():
            world.score.find("disagreements", thread.failed or "a list does not come to its end")
    for path in world.leases.iterdir():
        with path.open("rb") as file:  # what else a killed scheduler leaves is removed by its user's next one
            if path.name[0].isdigit() or not is_free(file.fileno()):
                world.score.find("survivors", path.name)


def who() -> list[tuple[int, Sequence[str]]]:
    """Users, with what to put before their commands; setpriv itself still has root's right to pass every directory."""
    if os.geteuid() != 0:
        return [(os.geteuid(), ())]
    ids = [(uid, f"--reuid={uid}", f"--regid={uid}") for uid in USERS]
    return [(uid, ("setpriv", *said, "--clear-groups", "sh", "-c", 'exec "$@"', "sh")) for uid, *said in ids]


def main(argv: Sequence[str]) -> int:
    faulthandler.register(signal.SIGUSR1)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--at-once", type=int, default=0, help="a list of so many tasks that live at the same moment")
    parser.add_argument("--keep", action="store_true", help="leave the directory there")
    parser.add_argument("--on", choices=["ssh", "ray"], help="several machines instead (see chaos_nodes.py)")
    parser.add_argument(
        "--fence", action="store_true", help="with --on: with a fence, and links that are cut for longer"
    )
    args = parser.parse_args(argv)
    if args.on:
        from scripts.bench import chaos_nodes  # the rest needs none of it

        return chaos_nodes.main(args.on, args.minutes, args.seed, keep=args.keep, fence=args.fence)
    if os.geteuid() == 0 and not os.environ.get(INSIDE) and can_mount():
        command = [*UNSHARE, sys.executable, __file__, "--seed", str(args.seed), *argv]
        return subprocess.run(command, check=False, env={**os.environ, INSIDE: "1"}).returncode
    began = time.monotonic()
    root = Path(tempfile.mkdtemp(prefix="chaos-"))
    root.chmod(0o755)
    try:
        score = rage(root, 60 * args.minutes, args.seed, args.at_once)
    finally:
        if not args.keep:
            unmount(root)
    for what, words in score.found.items():
        print(f"{what}:", *words[:8], sep="\n    ")
    print(score.line(args.seed, time.monotonic() - began), flush=True)
    return 1 if score.found else 0


def can_mount() -> bool:
    """Tell whether file systems can be mounted here."""
    with contextlib.suppress(OSError):
        return subprocess.run([*UNSHARE, "true"], check=False, capture_output=True).returncode == 0
    return False


def unmount(root: Path) -> None:
    if os.environ.get(INSIDE):
        subprocess.run(["umount", "--lazy", str(root / "disk")], check=False)
    shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
