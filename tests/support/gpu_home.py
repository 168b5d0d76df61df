"""A home on a machine with stand-in GPUs: lists of fake trainings, whole runs, and their attempts by the journal."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scheduler.core.events import Exited, Peaked, Resized, Started
from scheduler.core.model import HOST, Placement
from scheduler.errors import StateError
from scheduler.store.run.journal_reader import JournalReader
from tests.support import killing
from tests.support.standin.box import TRAIN, Box
from tests.support.waiting import wait_until

PATIENCE = 30.0
"""Seconds within which an awaited event must arrive; most take less than two."""
OF_THE_SHELL = ("CUDA_", "SLURM_", "NVIDIA_", "TF_FORCE_", "XLA_", "OMP_", "MKL_", "MASTER_")
"""Beginnings of variables of the test machine that must not reach the commands."""

MPS_CONTROL, NVIDIA_SMI = TRAIN.parent / "mps_control.py", TRAIN.parent / "nvidia_smi.py"
HOLD = f"""\
import json, os, sys, time
sys.path.insert(0, {str(TRAIN.parent)!r})
import client
from train import gib, options, size

def take_more():
    if "more" in said and os.path.exists("more"):
        cuda.allocate(0, size(said.pop("more")))

said, cuda = options(sys.argv[1:]), client.Cuda()
with open("began", "a") as file:
    file.write(os.environ["SCHEDULER_TASK_ID"] + "\\n")
with open(os.path.join(os.environ["SCHEDULER_TASK_DIR"], "told"), "w") as file:
    json.dump([cuda.devices(), dict(os.environ)], file)
try:
    for position, wanted in enumerate(said["take"].split(",") if "take" in said else ()):
        cuda.allocate(position, size(wanted))
    take_more()
    while not os.path.exists(said["until"]):
        if os.path.exists("dead") and open("dead").read() in cuda.devices():
            sys.exit("RuntimeError: CUDA error: unspecified launch failure")
        time.sleep(0.01)
        cuda.check()
        take_more()
except client.Fault as fault:
    sys.exit(f"RuntimeError: {{fault}}")
except client.OutOfMemory as full:
    sys.exit("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " + gib(full.requested))
"""
"""A script that prints its variables, takes memory of its visible GPUs, and waits for a file.

Once a file `more` exists, it takes as much more as that says; it fails where a file `dead` names one of its GPUs.
"""

Row = dict[str, object]


def training(script: object = TRAIN, **said: object) -> Row:
    """Make one row: names with a capital are columns, the others options of the fake training."""
    columns = {name: value for name, value in said.items() if name[0].isupper()}
    options = "".join(f" --{name} {value}" for name, value in said.items() if name not in columns)
    return {"Command": f"{sys.executable} -S -E {script}{options}", **columns}


def holding(take: str = "", until: str = "go", **said: object) -> Row:
    """Make one row that takes these sizes, one on each GPU, and keeps them until a file exists."""
    return training("hold.py", **({"take": take} if take else {}), until=until, **said)


@dataclass(slots=True)
class Try:
    """One attempt by the journal; devices are given by their numbers, as texts, or `host`."""

    task: int
    number: int
    first: dict[str, int]
    """The reservation at its placement."""
    reservation: dict[str, int]
    """The last reservation."""
    source: str
    placed: float
    pid: int = 0
    ended: float = 0.0
    exited: Exited | None = None
    seen: dict[str, int] = field(default_factory=dict)
    """The highest sampled use on each device of its placement."""
    causes: list[str] = field(default_factory=list)
    """The reasons of the changes of its reservation, in order."""

    @property
    def gpus(self) -> tuple[int, ...]:
        """Return its GPUs in the order in which it sees them."""
        return tuple(int(key) for key in self.first if key != HOST)

    @property
    def outcome(self) -> str:
        """Return its outcome; empty while it lives."""
        return str(self.exited.outcome) if self.exited else ""


class GpuHome(killing.Home):
    """A home whose commands see the GPUs of a box."""

    def __init__(self, root: Path, **machine: Any) -> None:
        super().__init__(root)
        self.env = {name: text for name, text in self.env.items() if not name.startswith(OF_THE_SHELL)}
        self.said = root / "said"
        self.said.touch()
        (root / "hold.py").write_text(HOLD)
        self.boxes: list[Box] = []
        self.plug(**machine)

    @property
    def box(self) -> Box:
        """Return the box with the stand-in GPUs."""
        return self.boxes[-1]

    def plug(self, **machine: Any) -> Box:
        """Have these GPUs from now on; the same number is the same GPU as it was before."""
        self.boxes.append(Box(self.root / f"gpus{len(self.boxes)}", **machine))
        self.env |= self.box.env
        return self.box

    def install_mps(self, *, real: str = "") -> None:
        """Put a control program of MPS on PATH: the stand-in, or the folder of the real one."""
        folder = self.root / "bin"
        if not real:
            folder.mkdir()
            program = folder / "nvidia-cuda-mps-control"
            program.write_text(f"#!{sys.executable} -S\n" + MPS_CONTROL.read_text())
            program.chmod(0o755)
            (folder / "nvidia-smi").write_text(f"#!{sys.executable} -S\n" + NVIDIA_SMI.read_text())
            (folder / "nvidia-smi").chmod(0o755)
            self.env["STANDIN_MPS"] = str(self.root / "mps")
        self.env["PATH"] = f"{real or folder}{os.pathsep}{self.env['PATH']}"

    def mps_notes(self, *words: str) -> list[str]:
        """Return the commands to the daemons in order; only those that begin with one of these words."""
        path = self.root / "mps"
        lines = path.read_text().splitlines() if path.exists() else []
        said = [line.partition(" ")[2] for line in lines]
        return [line for line in said if not words or line.split()[0] in words]

    def daemons(self) -> list[int]:
        """Return the living MPS daemons that were started from here."""
        return [pid for pid in self.living() if "nvidia-cuda-mps-control -d" in killing.command_line(pid)]

    def wait_for_clients(self, number: int) -> None:
        """Wait until this many tasks have become clients, and their scheduler has read the list of clients."""
        wait_until(lambda: len(self.mps_notes("client")) >= number, PATIENCE)
        looks = len(self.mps_notes("get_client_list"))
        wait_until(lambda: len(self.mps_notes("get_client_list")) >= looks + 3 * len(self.box.uuids), PATIENCE)

    def jobs(self, *rows: Row) -> None:
        """Write the list."""
        columns = list(dict.fromkeys(name for row in rows for name in row))
        self.write("jobs.csv", ",".join(columns), *[[row.get(name, "") for name in columns] for row in rows])

    def go(self, name: str = "go") -> None:
        """Make the file that holding tasks wait for."""
        (self.root / name).touch()

    @contextlib.contextmanager
    def going(self, *flags: str, verb: str = "run", code: int = 0) -> Iterator[killing.Started]:
        """Run the list during the block; wait for its end, without a traceback."""
        words = ("run", "jobs.csv") if verb == "run" else (verb,)
        with open(self.said, "a") as said, self.start(*words, *flags, stderr=said) as process:
            yield process
            assert process.wait(2 * PATIENCE) == code, self.said.read_text()
        self.check()

    def run(self, *flags: str, code: int = 0) -> list[Try]:
        """Run the list to its end; return its attempts."""
        with self.going(*flags, code=code):
            pass
        return self.tries()

    def check(self) -> None:
        """Check that no process printed a traceback."""
        said = self.said.read_text() + self.log()
        assert "Traceback" not in said, said

    def kill_all(self) -> None:
        """Kill everything at once, as when the power fails."""
        wait_until(lambda: not [killing.kill(pid) for pid in self.living()], PATIENCE)

    def tries(self, run: int = 1) -> list[Try]:
        """Return all attempts of a run so far, in the order of their placement."""
        try:
            journal = JournalReader.read(self.state / f"runs/{run}/journal.db")
        except StateError:  # it is not there yet
            return []
        with contextlib.closing(journal):
            return history([(one.event, one.at) for one in journal.events()], self.boxes[0].numbers)

    def wait_for(self, number: int, *outcomes: str) -> list[Try]:
        """Wait until this many attempts have started, or have ended with one of these outcomes."""

        def enough() -> list[Try]:
            found = [one for one in self.tries() if one.pid and (not outcomes or one.outcome in outcomes)]
            return found if len(found) >= number else []

        return wait_until(enough, PATIENCE, pause=0.02)

    def wait_for_words(self, words: str) -> None:
        """Wait until the run's log contains these words."""
        wait_until(lambda: words in self.log(), PATIENCE, pause=0.02)

    def wait_for_use(self, device: int, least: int) -> None:
        """Wait until so many bytes of a GPU are in use."""
        wait_until(lambda: self.box.used(device) >= least, PATIENCE)

    def told(self, task: int) -> tuple[list[int], dict[str, str]]:
        """Return the GPUs and the environment of a holding task."""
        devices, environ = json.loads((self.state / f"runs/1/tasks/{task}/told").read_text())
        return [self.box.uuids.index(uuid) for uuid in devices], environ

    def end(self) -> None:
        """Release what hangs, and kill all processes."""
        print(self.log())  # pytest shows it where a test failed
        for box in self.boxes:
            box.close()
        super().end()


def history(events: Sequence[tuple[Any, float]], devices: Mapping[str, int]) -> list[Try]:
    """Convert events to attempts; `devices` are the numbers of the devices by UUID."""
    numbers = {uuid: str(number) for uuid, number in devices.items()} | {HOST: HOST}
    tries: dict[tuple[int, int], Try] = {}
    for event, at in events:
        if isinstance(event, Placement):
            reservation = {numbers[key]: bytes_ for key, bytes_ in event.reservation.items()}
            one = Try(event.task, event.attempt, reservation, reservation, str(event.source), at)
            tries[event.task, event.attempt] = one
        elif isinstance(event, Started):
            tries[event.task, event.attempt].pid = event.pid
        elif isinstance(event, Peaked):
            one = tries[event.task, event.attempt]
            peaks = {numbers[key]: bytes_ for key, bytes_ in event.peak.items()}
            one.seen |= {key: bytes_ for key, bytes_ in peaks.items() if key != HOST or not one.gpus}
        elif isinstance(event, Resized):
            one = tries[event.task, event.attempt]
            one.reservation = {numbers[key]: bytes_ for key, bytes_ in event.reservation.items()}
            one.causes.append(event.cause)
        elif isinstance(event, Exited):
            tries[event.task, event.attempt].ended, tries[event.task, event.attempt].exited = at, event
    return list(tries.values())


def gaps(tries: Sequence[Try], device: int) -> list[float]:
    """Return the seconds between the end of each attempt on a device and the next start, if one runs at a time."""
    here = sorted((one for one in tries if one.gpus == (device,)), key=lambda one: one.placed)
    return [after.placed - one.ended for one, after in itertools.pairwise(here) if one.ended]


def most_reserved(tries: Sequence[Try], device: str) -> int:
    """Return the highest sum of reservations on a device at one moment."""
    changes = [(one.placed, one.first.get(device, 0)) for one in tries]
    changes += [(one.ended, -one.first.get(device, 0)) for one in tries if one.ended]
    total = most = 0
    for _, change in sorted(changes):
        total += change
        most = max(most, total)
    return most
