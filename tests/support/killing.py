"""A run whose scheduler is killed repeatedly, and the verdict on its tasks.

By hand: `python -m tests.support.killing --tasks 200 --kills 20 --seed 7 [--shims 5]`
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import glob
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scheduler.store.machine.locked_files import LockHolders
from tests.support import leftovers
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
MARK = "TEST_HOME_MARK"


class Started(subprocess.Popen[str]):
    """A command that is killed at the end of its `with` block if that fails."""

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        if kind is not None:
            self.kill()
        super().__exit__(kind, *rest)


class Home:
    """A state and a lease directory, the command line on them, and all processes that it started."""

    def __init__(self, root: Path, command: Sequence[str] = (sys.executable, "-m", "scheduler")) -> None:
        self.root = root
        self.state = root / "state"
        self.leases = root / "leases"
        self.command = [*command]
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        kept = {name: text for name, text in os.environ.items() if not name.startswith("SCHEDULER_")}
        name, _, value = self.mark.partition("=")
        own = {"SCHEDULER_STATE": str(self.state), "SCHEDULER_LEASES": str(self.leases), "HOME": str(root)}
        self.env = {**kept, **own, name: value, "PYTHONPATH": str(ROOT)}

    def start(self, *arguments: str, **how: Any) -> Started:
        """Start the command, by default without input and output."""
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        settings = {"cwd": self.root, "env": self.env, "text": True, **quiet, **how}
        return Started([*self.command, *arguments], **settings)

    def call(self, *arguments: str, code: int | None = None, **how: Any) -> subprocess.CompletedProcess[str]:
        """Run the command to its end; `code` is what its exit code has to be."""
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with self.start(*arguments, **{**piped, **how}) as process:
            try:
                out, err = process.communicate(timeout=60)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        assert "Traceback" not in (err or ""), err
        assert code in (None, process.returncode), f"exit {process.returncode}\n{out}\n{err}"
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def write(self, name: str, header: str, *rows: str | Sequence[object]) -> str:
        """Write a CSV file and return its name; a row is a text as it stands, or cells."""
        with open(self.root / name, "w", newline="") as file:
            file.write(header + "\n")
            for row in rows:
                if isinstance(row, str):
                    file.write(row + "\n")
                else:
                    csv.writer(file, lineterminator="\n").writerow(row)
        return name

    def commands(self, *commands: str, name: str = "jobs.csv") -> str:
        """Write a CSV file of commands."""
        return self.write(name, "Command", *([command] for command in commands))

    def tasks(self, *run: str) -> list[dict[str, Any]]:
        """Return the tasks of `results --json`, of the latest run or of one by number or name."""
        words = [f"r{word}" if word.isdecimal() else word for word in run]
        tasks: list[dict[str, Any]] = json.loads(self.call("results", *words, "--json", code=0).stdout)["tasks"]
        return tasks

    def states(self, *run: str) -> list[str]:
        """Return the states of the tasks by id."""
        return [task["state"] for task in self.tasks(*run)]

    def log(self, run: int = 1) -> str:
        """Return the log of a run so far."""
        path = self.state / f"runs/{run}/run.log"
        return path.read_text() if path.exists() else ""

    def scheduler(self, run: int = 1) -> int:
        """Return the process that holds a run."""
        (pid,) = LockHolders().of(os.stat(self.state / f"runs/{run}"))
        return pid

    def living(self) -> list[int]:
        """Return all living processes started from here, directly or not."""
        mark = self.mark.encode()
        return [pid for pid in processes() if mark in environment(pid) and is_alive(pid)]

    def end(self) -> None:
        """Kill all processes that are left at the end of the test, and remove the control groups they have left."""
        killed = False

        def emptied() -> bool:
            nonlocal killed
            left = self.living()
            for pid in left:
                kill(pid)
                killed = True
            return not left

        wait_until(emptied, 20)
        if killed:
            leftovers.remove_groups(self.root)


def processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def state_of(pid: int) -> str:
    """Return the kernel's letter for the state of a process, T for stopped, Z for a zombie; empty if it is gone."""
    return _stat(pid)[0]


def parent_of(pid: int) -> int:
    """Return the parent of a process; 0 if it is gone."""
    return int(_stat(pid)[1])


def _stat(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ["", "0"]


def is_alive(pid: int) -> bool:
    """Tell whether a process exists and is not a zombie."""
    return state_of(pid) not in ("", "Z", "X")


def children(pid: int, word: str = "") -> list[int]:
    """Return the children of a process that have a word on their command line."""
    try:
        pids = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [int(child) for child in pids if word in command_line(int(child))]


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def kill(pid: int, number: int = signal.SIGKILL) -> bool:
    """Send a signal; return False if the process does not exist."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
        return True
    return False


# What the tasks are


TASK = """\
exec 9>>"lives/$SCHEDULER_TASK_ID"
flock -n 9 || echo "$SCHEDULER_TASK_ID $SCHEDULER_ATTEMPT twice" >>told
echo "$SCHEDULER_TASK_ID $SCHEDULER_ATTEMPT begin" >>told
sleep "$3"
printf '{"given": %s}' "$2" >"$SCHEDULER_RESULT"
echo "$SCHEDULER_TASK_ID $SCHEDULER_ATTEMPT end" >>told
case $1 in
    trap) trap 'kill 0' EXIT; exit 3 ;;
    careful) trap "trap '' TERM; kill 0" EXIT; exit "$2" ;;
    group) kill -9 0 ;;
    fork) (setsid sleep 60 & setsid sh -c 'sleep 60 & sleep 60' &) ; exit "$2" ;;
    pipe) yes | head -1; exit $? ;;
    pipefail) set -o pipefail; yes | head -1; exit $? ;;
    self) kill -TERM $$; exit 0 ;;
esac
exit "$2"
"""
"""A living attempt holds its task's lock together with all its descendants, so a second one cannot miss it."""

SPECIAL = {"trap": 143, "careful": None, "group": 137, "fork": None, "pipe": 0, "pipefail": 141, "self": 143}
"""The exit codes of special jobs; None: the code that the job was given."""


@dataclass(frozen=True, slots=True)
class Job:
    """One row, and the exit code that it must end with."""

    kind: str
    code: int
    seconds: float

    @property
    def expected(self) -> int:
        fixed = SPECIAL.get(self.kind)
        return self.code if fixed is None else fixed


def make_jobs(number: int, seconds: float, dice: random.Random) -> list[Job]:
    """Make jobs that mostly succeed, with each special kind at least once in thirty."""
    kinds = [*SPECIAL, *["plain"] * 23]
    made = []
    for place in range(number):
        code = dice.choice((0, 0, 0, 0, 1, 2, 7, 42, 127, 255))
        made.append(Job(kinds[(place * 7) % len(kinds)], code, round(dice.uniform(0, 2 * seconds), 3)))
    return made


# What is done to the run


@dataclass(slots=True)
class Count:
    """The number of kills by target."""

    seed: int
    schedulers: int = 0
    early: int = 0
    """Kills of a `resume` in its first second."""
    servers: int = 0
    samplers: int = 0
    shims: int = 0


@dataclass(slots=True)
class Verdict:
    """The result of a round."""

    count: Count
    seconds: float
    lost: list[str] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    disagree: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    fenced: int = 0
    tasks: int = 0

    @property
    def good(self) -> bool:
        return not (self.lost or self.twice or self.wrong or self.disagree or self.left)

    def line(self) -> str:
        """Return the closing line."""
        done = self.count
        return (
            f"seed {done.seed}: {self.tasks} tasks; killed: {done.schedulers} schedulers ({done.early} of them a "
            f"resume in its first second), {done.servers} fork servers, {done.samplers} samplers, {done.shims} shims; "
            f"{len(self.lost)} lost, {len(self.twice)} run twice, {len(self.wrong)} wrong exit codes, "
            f"{len(self.disagree)} disagreements, {len(self.left)} leftovers; {self.fenced} fenced; {self.seconds:.0f}s"
        )

    def report(self) -> str:
        """Return the closing line and the first errors."""
        wrong = {name: getattr(self, name)[:5] for name in ("lost", "twice", "wrong", "disagree", "left")}
        return "\n".join([self.line(), *(f"{name}: {what}" for name, what in wrong.items() if what)])


class Killing:
    """One run from its list to the verdict."""

    def __init__(self, home: Home, jobs: Sequence[Job], slots: int, dice: random.Random, count: Count) -> None:
        self.home = home
        self.jobs = jobs
        self.dice = dice
        self.count = count
        self.slots = slots
        self.run = ""
        self.said = home.root / "said"
        self._errors = open(self.said, "w")  # noqa: SIM115 - every scheduler of the run writes there

    def prepare(self) -> None:
        """Write the list and what its tasks run."""
        (self.home.root / "lives").mkdir()
        (self.home.root / "told").touch()
        (self.home.root / "task.sh").write_text(TASK)
        shells = {"pipefail": "bash"}
        rows = [
            [f"{shells.get(job.kind, 'sh')} task.sh {job.kind} {job.code} {job.seconds}", job.expected]
            for job in self.jobs
        ]
        self.home.write("jobs.csv", "Command,Expected", *rows)

    def start(self) -> subprocess.Popen[str]:
        """Start the next scheduler of this run."""
        slots = ("--devices", "host", "--slots", str(self.slots))
        arguments = ("resume", f"r{self.run}") if self._accepted() else ("run", "jobs.csv", *slots)
        return self.home.start(*arguments, stderr=self._errors)

    def _accepted(self) -> bool:
        """Tell whether the list was accepted; a scheduler that was killed before that loses its number."""
        if not self.run:
            runs = json.loads(self.home.call("status", "--json", code=0).stdout)["runs"]
            assert not any("trouble" in run for run in runs), runs
            self.run = str(runs[0]["number"]) if runs else ""
        return bool(self.run)

    def round(self, shims: float) -> bool:
        """Start a scheduler and kill it, and sometimes others with it; False: the run was over before that."""
        scheduler = self.start()
        is_resume = "resume" in scheduler.args
        began = time.monotonic()
        delay = self.dice.choice((self.dice.uniform(0, 0.4), self.dice.uniform(0, 1), self.dice.uniform(0.3, 1.5)))
        victims = self.dice.choice(("", "", "server before", "server after", "sampler"))
        if victims == "sampler":
            delay += 0.5  # it is there only once something runs
        while shims and self.dice.random() < shims:
            self._pause(scheduler, self.dice.uniform(0, 0.3))
            self._kill_a_shim()
        self._pause(scheduler, delay)
        if victims == "server before":
            self._kill_children(scheduler, "shim.py")
            self._pause(scheduler, self.dice.uniform(0, 0.2))
        elif victims == "sampler":
            self._kill_children(scheduler, "sampler")
            self._pause(scheduler, self.dice.uniform(0, 0.1))
        servers = children(scheduler.pid, "shim.py")
        if scheduler.poll() is not None:
            return False
        scheduler.kill()
        if victims == "server after":
            self.count.servers += sum(kill(pid) for pid in servers)
        age = time.monotonic() - began
        if scheduler.wait() != -signal.SIGKILL:
            return False
        self.count.schedulers += 1
        self.count.early += is_resume and age < 1
        return True

    def _pause(self, scheduler: subprocess.Popen[str], seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            scheduler.wait(seconds)

    def _kill_children(self, scheduler: subprocess.Popen[str], word: str) -> None:
        killed = sum(kill(pid) for pid in children(scheduler.pid, word))
        if word == "sampler":
            self.count.samplers += killed
        else:
            self.count.servers += killed

    def _kill_a_shim(self) -> None:
        """Kill a shim that holds a claim; a process without one may be the fork server."""
        shims = [pid for pid in self._claims() if is_alive(pid)]
        if shims:
            self.count.shims += kill(self.dice.choice(shims))

    def _claims(self) -> list[int]:
        """Return the shims that the claims name."""
        found = []
        for path in self._left(".claim.*"):
            with contextlib.suppress(OSError, ValueError, IndexError):
                found.append(json.loads(path.read_bytes().rstrip(b"\0").split(b" ", 1)[1])["shim"])
        return [pid for pid in found if pid and "shim.py" in command_line(pid)]

    def _left(self, name: str) -> list[Path]:
        """Return the files in the folders of tasks; they come and go meanwhile, which Path.glob cannot handle."""
        return [Path(path) for path in glob.glob(f"{self.home.state}/runs/{self.run}/tasks/*/{name}")]

    def finish(self, deadline: float) -> int:
        """Resume until it is over; the last exit code."""
        scheduler = self.start()
        try:
            return scheduler.wait(deadline)
        except subprocess.TimeoutExpired:
            scheduler.kill()
            scheduler.wait()
            return -1

    def judge(self, verdict: Verdict, exit_code: int) -> None:
        """Compare the rows, the journal and what the tasks wrote themselves."""
        assert self._accepted()
        told = [line.split() for line in (self.home.root / "told").read_text().splitlines()]
        begins = Counter((int(task), int(attempt)) for task, attempt, what in told if what == "begin")
        ends = Counter((int(task), int(attempt)) for task, attempt, what in told if what == "end")
        tasks = self.home.tasks(self.run)
        verdict.tasks = len(tasks)
        verdict.twice += [f"task {task}, attempt {n}: two lived at once" for task, n, what in told if what == "twice"]
        verdict.twice += [f"task {t}, attempt {n} began {many} times" for (t, n), many in begins.items() if many > 1]
        for task, job in zip(tasks, self.jobs, strict=True):
            attempts = sorted(n for number, n in begins if number == task["id"])
            ended = sorted(n for number, n in ends if number == task["id"])
            self._judge_task(verdict, task, job, attempts, ended)
        wanted = 0 if all(job.expected == 0 for job in self.jobs) else 1
        if exit_code != wanted:
            verdict.disagree.append(f"the last resume came to {exit_code}, not {wanted}")
        self._judge_leftovers(verdict)

    def _judge_task(
        self, verdict: Verdict, task: Mapping[str, Any], job: Job, begun: Sequence[int], ended: Sequence[int]
    ) -> None:
        name = f"task {task['id']} ({job.kind})"
        if task["state"] == "failed" and self.count.shims and task["attempts"] >= 3 and not ended:
            return  # three shims in a row were killed, before or while it ran: then it fails with that reason
        if task["state"] not in ("succeeded", "failed") or not ended:
            verdict.lost.append(f"{name} is {task['state']}; began {begun}, ended {ended}")
            return
        if task["exit_code"] != job.expected or task["exit_code"] != int(task["Expected"]):
            verdict.wrong.append(f"{name}: {task['exit_code']} and not {job.expected}")
        if task.get("result.given") != job.code:
            verdict.lost.append(f"{name}: its result is {task.get('result.given')} and not {job.code}")
        if begun[-1] != task["attempts"] or ended[-1] != task["attempts"]:
            verdict.disagree.append(f"{name}: journal {task['attempts']} attempts, began {begun}, ended {ended}")
        if (len(begun) > 1 or len(ended) > 1) and not self.count.shims:
            verdict.twice.append(f"{name} began {begun}, ended {ended}")
        verdict.fenced += task["attempts"] - len(begun)

    def _judge_leftovers(self, verdict: Verdict) -> None:
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self.home.living(), 10)
        verdict.left += [f"process {pid}: {command_line(pid)}" for pid in self.home.living()]
        verdict.left += [f"lease {path.name}" for path in self.home.leases.iterdir()]
        files = self._left(".re*")  # records and results
        verdict.left += [f"{path.parent.name}/{path.name}" for path in files]
        self._errors.flush()
        verdict.left += [line for line in self.said.read_text().splitlines() if not line.startswith("hint:")]


def murder(root: Path, tasks: int, kills: int, seed: int, **how: float) -> Verdict:
    """Run `tasks` tasks under schedulers of which `kills` are killed, and judge it.

    `slots` tasks at once, each of `seconds` on average (else it takes as long as the kills need); `shims` is how
    likely a shim is killed in a round, too.
    """
    dice = random.Random(seed)
    slots, shims = int(how.get("slots", 4)), how.get("shims", 0.0)
    seconds = how.get("seconds") or 0.75 * kills * slots / tasks
    home = Home(root)
    count = Count(seed)
    began = time.monotonic()
    killing = Killing(home, make_jobs(tasks, seconds, dice), slots, dice, count)
    killing.prepare()
    try:
        while count.schedulers < kills and killing.round(shims):
            pass
        exit_code = killing.finish(60 + tasks * seconds)
        verdict = Verdict(count, time.monotonic() - began)
        killing.judge(verdict, exit_code)
        return verdict
    finally:
        home.end()


def main(argv: Iterable[str]) -> int:
    """Run the command line of this module: kill for as long and as often as its flags say."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.killing", description=__doc__)
    parser.add_argument("--tasks", type=int, default=200)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=0.0, help="of a task, on average; else what the kills need")
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--shims", type=float, default=0.0, help="how likely shims are killed in a round, 0 to 0.9")
    parser.add_argument("--keep", action="store_true", help="leave the directory there")
    args = parser.parse_args([*argv])
    seed = random.SystemRandom().randrange(10**6) if args.seed is None else args.seed
    how = {"seconds": args.seconds, "slots": args.slots, "shims": args.shims}
    with _folder(args.keep) as root:
        verdict = murder(Path(root), args.tasks, args.kills, seed, **how)
        print(verdict.report() + (f"\nkept in {root}" if args.keep else ""), flush=True)
    return 0 if verdict.good else 1


@contextlib.contextmanager
def _folder(keep: bool) -> Iterator[str]:
    """Make a temporary directory that may be kept."""
    if keep:
        yield tempfile.mkdtemp()
    else:
        with tempfile.TemporaryDirectory() as root:
            yield root


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
