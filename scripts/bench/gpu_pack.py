"""Packing on stand-in GPUs with real processes: cold, warm, and one task per GPU; profiling cost; what a grid teaches.

    python scripts/bench/gpu_pack.py [pack] [scripts] [grid] [--seed 1] [--seconds 4.0]

The GPUs are those of tests/standin: the scheduler sees them through the unmodified nvidia-ml-py, tasks take memory from
them and are slowed down by their neighbours as pairs of training jobs were measured to be. Time is scaled: a task lasts
seconds, and `--settle` is scaled alike. Nothing is declared; what a task really needs lies in a table that only the
task reads. Makespans are ratios of runs in one go.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from measuring import ROOT, Bench, kept
from page import Bound, Section, table
from page import number as shown

sys.path.insert(0, str(ROOT))

from scheduler.core.events import Exited, Resized  # found through the line above
from scheduler.core.model import Placement
from scheduler.core.reporting.energy import whole
from scheduler.devices.load_recorder import read_history
from scheduler.store.run.journal_reader import JournalReader
from scheduler.units import GIB
from tests.support.standin.box import TRAIN, Box

TOTAL = 24 * GIB
MOST = {1: 1.12, 2: 1.05, 4: 1.05}
"""Cold over warm, by the number of GPUs."""
JOB = f"""
import json, os, sys, hashlib
here = os.path.dirname(os.path.abspath(__file__))
said = dict(zip(sys.argv[1::2], sys.argv[2::2]))
truth = json.load(open(os.path.join(here, "truth.json")))[TABLE(said)]
draw = int.from_bytes(hashlib.blake2b((os.environ["SCHEDULER_KEY"] + truth["seed"]).encode()).digest()[:4], "big")
seconds = float(truth["seconds"]) * (1 + truth.get("spread", 0) * (draw // 20 % 1000 / 500 - 1))
profile = "late" if truth["profile"] == "ramp" and draw % 20 == 0 and truth["late"] else truth["profile"]
os.execv(sys.executable, [sys.executable, "-S", "-E", {str(TRAIN)!r}, "--peak", truth["peak"], "--seconds",
    f"{{seconds:.2f}}", "--epochs", said.get("--epochs", "10"), "--busy", truth["busy"], "--profile", profile,
    "--rise", truth["rise"]])
"""


@dataclass(frozen=True)
class Report:
    """One run in numbers."""

    tasks: int
    succeeded: int
    seconds: float
    device_ooms: int
    attempts: int
    unknown: int
    """Tasks of which an attempt was started without knowing what it needs."""
    probes: int
    most_reserved: float
    """The highest sum of reservations on a GPU on which something was started, of what it has."""
    most_grown: float
    """That sum at any time: peaks above a reservation are reserved, even where others have the rest."""
    completion: float
    """The mean time from the first start to the end of a task."""
    watt_hours: float | None = None
    """The energy of all GPUs while the run lasted; a stand-in draws 40 W, and 260 W more in proportion to its load."""

    def line(self, name: str) -> str:
        """For people."""
        return (
            f"{name:<12} {self.succeeded}/{self.tasks} succeeded in {self.seconds:.1f}s, {self.attempts} attempts, "
            f"{self.device_ooms} out-of-memories on the devices, {self.unknown} started unknown, {self.probes} probes, "
            f"at most {self.most_reserved:.0%} of a GPU reserved at a start, {self.most_grown:.0%} by growth"
        )


class Place:
    """A folder with a list, its GPUs and its state."""

    def __init__(self, folder: Path, gpus: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.box = Box(folder / "gpus", gpus=gpus)
        self.gpus = gpus

    def write(self, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """The list."""
        with open(self.folder / "jobs.csv", "w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(rows)

    def run(self, settle: float | None, *flags: str, state: str = "state") -> Report:
        """Run the list; without a settle time tasks settle by evidence."""
        before = sum(self.box.ooms(device) for device in range(self.gpus))
        home = self.folder / state
        environ = {**os.environ, **self.box.env, "PYTHONPATH": str(ROOT)}
        environ |= {"SCHEDULER_STATE": str(home), "SCHEDULER_LEASES": str(self.folder / "leases")}
        command = [sys.executable, "-m", "scheduler", "run", "jobs.csv"]
        command += [] if settle is None else ["--settle", f"{settle * 1000:.0f}ms"]
        with open(self.folder / f"{state}.log", "ab") as log:
            subprocess.run(
                [*command, "--json", *flags], cwd=self.folder, env=environ, stdout=log, stderr=log, check=False
            )
        newest = max((home / "runs").iterdir(), key=lambda run: int(run.name))
        ooms = sum(self.box.ooms(device) for device in range(self.gpus)) - before
        return replace(report(newest / "journal.db", ooms), watt_hours=whole(read_history(newest / "devices.json")))


def report(path: Path, ooms: int) -> Report:
    """A run, from its journal."""
    journal = JournalReader.read(path)
    tasks, _ = journal.count()
    events = [(one.event, one.at) for one in journal.events()]
    placed = [event for event, _ in events if isinstance(event, Placement)]
    ended = [(event, at) for event, at in events if isinstance(event, Exited)]
    first = min(at for event, at in events if isinstance(event, Placement))
    journal.close()
    return Report(
        tasks,
        len({event.task for event, _ in ended if event.outcome == "succeeded"}),
        max(at for _, at in ended) - first,
        ooms,
        len(placed),
        len({event.task for event in placed if event.source == "measured"}),
        sum(event.purpose == "probe" for event in placed),
        *most_reserved([event for event, _ in events]),
        sum({event.task: at - first for event, at in ended}.values()) / max(1, len({event.task for event, _ in ended})),
    )


def most_reserved(events: Sequence[object]) -> tuple[float, float]:
    """The highest sum of living reservations on one GPU: where something was started, and at any time."""
    living: dict[int, dict[str, int]] = {}
    started = grown = 0
    for event in events:
        if isinstance(event, Placement | Resized):
            living[event.task] = {key: b for key, b in event.reservation.items() if key != "host"}
        elif isinstance(event, Exited):
            living.pop(event.task, None)
        sums: Counter[str] = Counter()
        for reservation in living.values():
            sums.update(reservation)
        grown = max([grown, *sums.values()])
        if isinstance(event, Placement):
            started = max([started, *(sums[key] for key in living[event.task])])
    return started / TOTAL, grown / TOTAL


# ---- 200 tasks of 40 configurations ----


def pack(folder: Path, args: argparse.Namespace) -> bool:
    """Cold, warm, and one task per GPU; a tenth of the configurations on 2 GPUs, a tenth in child processes."""
    place, chance = Place(folder, 4), random.Random(args.seed)
    truths = {f"c{number}": _truth(number, chance, args) for number in range(40)}
    (folder / "truth.json").write_text(json.dumps(truths))
    (folder / "job.py").write_text(JOB.replace("TABLE(said)", 'said["--config"]'))
    rows = [
        [folder, sys.executable, f"job.py --config c{n % 40}", 10, 1, truths[f"c{n % 40}"]["gpus"]] for n in range(200)
    ]
    chance.shuffle(rows)
    place.write(["Directory", "Executable", "Filename", "Epochs", "Priority", "GPUs"], rows)
    settle = args.seconds / 10
    cold, warm = place.run(settle), place.run(settle)
    alone = place.run(settle, "--slots", "1", state="alone")
    bound = lower_bound([truths[str(row[2]).split()[-1]] for row in rows])
    for name, one in (("cold", cold), ("warm", warm), ("one per GPU", alone)):
        print(one.line(name), f"({one.seconds / bound:.2f} of the lower bound {bound:.1f}s)")
    late = 200 * sum(t["profile"] == "ramp" for t in truths.values()) // 40 // 20
    good = [
        kept("every task succeeds", cold.succeeded + warm.succeeded + alone.succeeded, 600, exactly=True),
        kept("reserved of a GPU at a start", max(cold.most_reserved, warm.most_reserved), 1.0),
        kept("out-of-memories cold", cold.device_ooms, 40 / 4 + late),
        kept("out-of-memories warm", warm.device_ooms, 0),
        kept("cold / warm", cold.seconds / warm.seconds, 1.15),
        kept("warm / one per GPU", warm.seconds / alone.seconds, 0.65),
    ]
    if warm.watt_hours and alone.watt_hours:
        print(
            f"energy warm {warm.watt_hours:.2f} Wh, one per GPU {alone.watt_hours:.2f} Wh: "
            f"{warm.watt_hours / alone.watt_hours - 1:+.1%} (40 W idle, 300 W busy; CARMA: -15 %)"
        )
    return all(good)


# A task of a real list holds little until its data are read, 45 s at most where `--settle` is 60 s: scaled alike.


def _truth(number: int, chance: random.Random, args: argparse.Namespace) -> dict[str, object]:
    gpus = 2 if number % 10 == 3 else 1
    bytes_ = int(chance.uniform(0.5, 20) * 1024)
    return {
        "gpus": gpus,
        "bytes": bytes_ * 2**20,
        "peak": ",".join([f"{bytes_}MiB"] * gpus),
        "seconds": f"{chance.uniform(0.5, 1.5) * args.seconds:.2f}",
        "busy": f"{chance.uniform(0.1, 0.7):.2f}",
        "profile": "children" if number % 10 == 7 else "ramp",
        "late": True,
        "rise": f"{args.seconds / 10 * 0.75:.2f}",
        "seed": str(args.seed),
    }


def lower_bound(truths: Sequence[dict[str, object]]) -> float:
    """Return a time that no schedule can beat: of the longest task, of memory times seconds, of load times seconds."""
    seconds = [float(str(truth["seconds"])) for truth in truths]
    gpus = [int(str(truth["gpus"])) for truth in truths]
    memory = sum(s * g * int(str(t["bytes"])) for s, g, t in zip(seconds, gpus, truths, strict=True)) / (4 * TOTAL)
    load = sum(s * g * float(str(t["busy"])) for s, g, t in zip(seconds, gpus, truths, strict=True)) / 4
    return max(*seconds, memory, load)


# ---- 40 rows over 4 scripts ----


def scripts(folder: Path, args: argparse.Namespace) -> bool:
    """Measure the cost of learning where four scripts make forty rows, without and with probes."""
    good = []
    for gpus, most in MOST.items():
        cold, warm = _cold_and_warm(place := Place(folder / f"{gpus}gpus", gpus), args)
        good.append(kept(f"cold / warm on {gpus} GPUs", cold / warm, most))
    settle = args.seconds * 2 / 20
    probed = [place.run(settle, "--profile", "probe", "--profile-epochs", "1", state="probed") for _ in range(2)]
    good.append(kept("probes cold", probed[0].probes, 4, exactly=True))
    good.append(kept("probes warm", probed[1].probes, 0))
    return all(good)


def _write_scripts(place: Place, args: argparse.Namespace) -> None:
    """Tasks of different lengths: of forty equal ones it would be chance whether the last wave is full."""
    truths = {}
    for number in range(4):
        truths[f"s{number}"] = {
            "peak": f"{2.5 + 1.1 * number}GiB", "seconds": f"{args.seconds * 2:.2f}", "busy": "0.3",
            "profile": "ramp", "late": False, "rise": f"{args.seconds * 2 / 20 * 0.75:.2f}", "seed": str(args.seed),
            "spread": 0.5,
        }  # fmt: skip
        (place.folder / f"s{number}.py").write_text(JOB.replace("TABLE(said)", f'"s{number}"'))
    (place.folder / "truth.json").write_text(json.dumps(truths))
    rows = [[place.folder, sys.executable, f"s{n % 4}.py", 5, 1] for n in range(40)]
    place.write(["Directory", "Executable", "Filename", "Epochs", "Priority"], rows)


# ---- a grid of 320 ----


def grid(folder: Path, args: argparse.Namespace) -> bool:
    """Five hyperparameters, one of them as three arguments, one as two, all in --output_dir and --name as well."""
    good = []
    for name, peak in (("none", lambda batch: 3.0), ("batch", lambda batch: 1.0 + batch / 32)):
        place = Place(folder / name, 4)
        _write_grid(place, args, peak)
        done = place.run(0.1)
        print(done.line(name), f"; {learned(place)}")
        good.append(kept(f"{name}: every task succeeds", done.succeeded, 320, exactly=True))
        good.append(kept(f"{name}: out-of-memories", done.device_ooms, 3.2))
    return all(good)


def _write_grid(place: Place, args: argparse.Namespace, peak: Callable[[int], float]) -> None:
    batches = (16, 32, 64, 128)
    truths = {
        str(batch): {
            "peak": f"{int(peak(batch) * 1024)}MiB", "seconds": "1.0", "busy": "0.15", "profile": "ramp", "late": False,
            "rise": "0.075", "seed": str(args.seed),
        }
        for batch in batches
    }  # fmt: skip
    (place.folder / "truth.json").write_text(json.dumps(truths))
    (place.folder / "job.py").write_text(JOB.replace("TABLE(said)", 'said["--bs"]'))
    rows = []
    for lr, bs, drop, opt, aug in itertools.product(
        ("1e-2", "1e-3", "1e-4", "1e-5"), batches, range(5), range(2), range(2)
    ):
        word = f"lr{lr}_bs{bs}_do{drop}_{opt}_{aug}"
        said = f"--lr {lr} --lr_head {lr}0 --warmup {lr}1 --bs {bs} --dropout 0.{drop} --optim o{opt} --aug a{aug}"
        said += f" --strength {aug + 5} --output_dir out/{word} --name {word}"
        rows.append([place.folder, sys.executable, f"job.py {said}", 10, 1])
    place.write(["Directory", "Executable", "Filename", "Epochs", "Priority"], rows)


def learned(place: Place) -> str:
    """Return what the log of the run says about arguments."""
    log = (place.folder / "state/runs").glob("*/run.log")
    lines = [line for path in log for line in path.read_text().splitlines() if "learned" in line]
    return "; ".join(line.split("learned", 1)[1].strip() for line in lines)


def measure(bench: Bench) -> dict[str, Any]:
    """Forty rows over four scripts, cold and then warm, on 4 stand-in GPUs, and on 1 and 2 as well.

    With 4 they are ten to a GPU, and how such a list ends is half chance: so three lists.
    """
    found = []
    for gpus in (4,) if bench.quick else MOST:
        lists = range(3 if gpus == max(MOST) else 1)
        places = [Place(bench.folder / f"{gpus}gpus{seed}", gpus) for seed in lists]
        went = [_cold_and_warm(place, argparse.Namespace(seconds=4.0, seed=1 + n)) for n, place in enumerate(places)]
        cold, warm = zip(*went, strict=True)
        found.append({"gpus": gpus, "cold": cold, "warm": warm})
    return {"tasks": 40, "seconds": 8.0, "found": found}


def _cold_and_warm(place: Place, args: argparse.Namespace) -> tuple[float, float]:
    """Seconds of the same list twice."""
    _write_scripts(place, args)
    cold, warm = (place.run(args.seconds * 2 / 20) for _ in range(2))
    print(cold.line(f"{place.gpus} GPU cold"), "|", warm.line("warm"), flush=True)
    return round(cold.seconds, 2), round(warm.seconds, 2)


def section(found: dict[str, Any]) -> list[Section]:
    """Return the section on the cost of knowing nothing beforehand."""
    made = Section("What learning needs costs: real runs on stand-in GPUs")
    seconds = f"{found['seconds'] * 0.5:g} to {found['seconds'] * 1.5:g}"
    made.text.append(
        f"{found['tasks']} tasks of {seconds} s over four scripts of which nothing is known (cold), and once more with "
        "what that taught (warm). Real processes; the GPUs are the tests' stand-in, seen through nvidia-ml-py."
    )
    rows = [
        [
            str(one["gpus"]),
            str(len(one["cold"])),
            shown(sum(one["cold"])),
            shown(sum(one["warm"])),
            f"{_ratio(one):.3f}",
        ]
        for one in found["found"]
    ]
    made.text.append(table(("GPUs", "lists", "cold, s", "warm, s", "cold / warm"), rows))
    made.bounds = [
        Bound(f"cold over warm on {one['gpus']} GPUs", MOST[one["gpus"]], _ratio(one)) for one in found["found"]
    ]
    return [made]


def _ratio(one: dict[str, Any]) -> float:
    return float(sum(one["cold"]) / sum(one["warm"]))


SCENES: dict[str, Callable[[Path, argparse.Namespace], bool]] = {"pack": pack, "scripts": scripts, "grid": grid}


def main() -> int:
    """Run the scenes that were named, or all; 1 where a bound is not kept."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("scenes", nargs="*", choices=[[], *SCENES], default=[])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=4.0, help="mean run time of a task")
    parser.add_argument("--keep", help="a folder that is kept, to look at")
    args = parser.parse_args()
    return 0 if all(list(_scenes(args))) else 1


def _scenes(args: argparse.Namespace) -> Iterator[bool]:
    for name in args.scenes or SCENES:
        print(f"== {name} (seed {args.seed})", flush=True)
        if args.keep:
            yield SCENES[name](Path(args.keep) / name, args)
            continue
        with tempfile.TemporaryDirectory(prefix="gpu-pack-") as folder:
            yield SCENES[name](Path(folder) / name, args)


if __name__ == "__main__":
    sys.exit(main())
