"""`scheduler experiment mps|priority FILE`: run one list in several ways, and report which is fastest."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.cli import flags
from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import UsageError

if TYPE_CHECKING:
    from scheduler.core.model import Device
    from scheduler.experiment.arms import Arm, Experiment
    from scheduler.experiment.measure import ArmRunner
    from scheduler.runtime.settings import Settings

SETTINGS = ("buffer", "max_load", "max_gpu_load", "python", "profile_epochs", "margin", "my_columns")
IDENTITY = ("devices", "on", "append", "simulate", "mps_speed", "assume", "seed", *SETTINGS)
"""The flags whose values, together with the list of tasks, identify an experiment."""
OF_ONE_KIND = {"mps": ("num", "order"), "priority": ("percentages", "copies", "mps_speed")}
"""For each kind of experiment, the flags that only the other kind accepts."""
OF_SIMULATION = ("mps_speed", "assume", "seed")
PERCENTAGES = "100,50,25"
NUMS = "5,10,20,40"
MOST_REPEATS = 1000
MOST_AT_ONCE = 48
"""The most MPS clients that can share one GPU."""
MOST_COPIES = 100_000


def parser() -> Parser:
    """Build the parser of `experiment`."""
    made = Parser(
        "experiment",
        "Run one list in several ways, interleaved and repeated, and report which is fastest on this machine.\n"
        "mps compares one task per GPU, packed without MPS, and packed with it; priority compares batch sizes and\n"
        "ranking by priority alone. Memory needs are learned before anything is measured. Each way is an ordinary run.",
        "scheduler experiment mps jobs.csv\n         scheduler experiment mps --copies 1,2,4 -- python train.py\n"
        "         scheduler experiment priority jobs.csv --num 5,20 --devices host",
    ).common()
    made.add_argument("kind", choices=(*OF_ONE_KIND,), metavar="mps|priority", help="what is compared")
    made.add_argument("file", nargs="?", metavar="FILE", help="a list in the format that run accepts")
    made.add_argument("--repeats", metavar="N", default="3", help="how often each way is measured (default 3)")
    made.add_argument(
        "-o", "--output", metavar="DIR", help="directory for the results (default ./experiment-KIND-FILE)"
    )
    made.add_argument(
        "--append", choices=("both", "epochs", "id", "none"), help="what is appended to the arguments (default both)"
    )
    made.add_argument("--json", action="store_true", help="print the results as JSON at the end")
    _add_kinds(made)
    machine = made.add_argument_group("devices and settings")
    flags.add_devices(machine)
    flags.add_on(machine)
    flags.add_settings(machine, *SETTINGS)
    _add_simulation(made.add_argument_group("simulated machine"))
    return made


def _add_kinds(made: Parser) -> None:
    """Add the flags that only one kind of experiment has."""
    mps = made.add_argument_group("mps")
    mps.add_argument(
        "--percentages",
        metavar="P,P",
        help=f"thread percentages under MPS; auto shares them equally (default {PERCENTAGES})",
    )
    mps.add_argument(
        "--copies", metavar="1,2,4", help="numbers of copies of the command after -- that run on each GPU at a time"
    )
    priority = made.add_argument_group("priority")
    priority.add_argument("--num", metavar="N,N", help=f"batch sizes (default {NUMS})")
    priority.add_argument("--order", metavar="O,O", help="ranking: batch, global or both (default batch,global)")


def _add_simulation(group: argparse._ArgumentGroup) -> None:
    """Add the flags of a simulated machine."""
    group.add_argument("--simulate", metavar="4x24GiB", help="simulate a machine with these devices; run nothing")
    group.add_argument(
        "--mps-speed",
        metavar="FACTOR",
        help="how much faster co-located tasks are under MPS, never faster than alone (default 1: no gain)",
    )
    group.add_argument("--assume", metavar="10min,4GiB", help="time and peak of rows without a profile")
    group.add_argument("--seed", metavar="N", help="seed of all random numbers (default 1)")


def main(argv: list[str]) -> int:
    """Measure the arms that have not been measured yet, and print the results of the experiment."""
    argv, command = flags.split_at_command(argv)
    args = parser().parse_args(argv)
    settings = settings_from(args, *SETTINGS, "on")
    _check(args, command)
    from scheduler.experiment.folder import ExperimentFolder
    from scheduler.experiment.measure import Measurement
    from scheduler.runtime.paths import ExperimentPaths

    name = Path(args.file).stem if command is None else "copies"
    places = ExperimentPaths(Path(args.output or f"experiment-{args.kind}-{name}"))
    devices = _simulated_devices(args)
    experiment = _experiment(args, str(places.copies) if command is not None else args.file)
    gpus = _count_gpus(experiment, settings, devices)
    copies = _copies(args, command, gpus) if command is not None else ""
    with closing(ExperimentFolder(places, _terms(experiment, args, command))) as folder:
        if copies:
            folder.write(places.copies, copies)
        measured = Measurement(experiment, _runner(experiment, args, settings, devices), folder)
        signal = measured.conduct()
        if args.json:
            sys.stdout.write(measured.as_json())
        elif folder.readings:
            sys.stdout.writelines(line + "\n" for line in [*measured.report.lines(), f"report  {places.page}"])
    return 128 + signal if signal else 0


def _check(args: argparse.Namespace, command: Sequence[str] | None) -> None:
    """Raise UsageError for flags and arguments that contradict each other."""
    how = ", or --copies 1,2,4 -- CMD" if args.kind == "mps" else ""
    if args.file is None and command is None:
        raise UsageError(f"give a list: scheduler experiment {args.kind} jobs.csv{how}")
    for name in OF_ONE_KIND[args.kind]:
        if getattr(args, name) is not None:
            raise UsageError(f"{_flag(name)} has no effect in experiment {args.kind}: leave it out")
    for name in OF_SIMULATION:
        if args.simulate is None and getattr(args, name) is not None:
            raise UsageError(f"{_flag(name)} has an effect only in a simulation: add --simulate 4x24GiB")
    if (command is None) != (args.copies is None) or command == []:
        raise UsageError("--copies and a command after -- go together: --copies 1,2,4 -- python train.py")
    if command is not None and (args.file is not None or args.append is not None):
        raise UsageError("a command after -- takes no list and no --append: leave them out")
    for flag, value in (("--devices", args.devices if args.devices != "auto" else None), ("--on", args.on)):
        if args.simulate is not None and value is not None:
            raise UsageError(f"--simulate {args.simulate} gives the devices: leave {flag} {value} out")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _experiment(args: argparse.Namespace, path: str) -> Experiment:
    from scheduler.experiment.arms import Experiment

    repeats = flags.whole_number("--repeats", args.repeats, most=MOST_REPEATS)
    append = "none" if args.copies is not None else args.append or "both"
    return Experiment(args.kind, path, _arms(args), repeats, args.devices, append)


def _arms(args: argparse.Namespace) -> list[Arm]:
    from scheduler.experiment.arms import mps_arms, priority_arms

    if args.kind == "mps":
        usual = PERCENTAGES if args.copies is None else "100"
        return mps_arms(_percentages(args.percentages or usual), _numbers_of_copies(args))
    orders = flags.listed_words("--order", args.order or "batch,global", ("batch", "global"))
    return priority_arms(flags.whole_numbers("--num", args.num or NUMS, 1_000_000), orders)


def _percentages(text: str) -> list[str]:
    from scheduler.core.tasks.fields import BY_COLUMN

    found = flags.listed("--percentages", text)
    for percentage in found:
        try:
            BY_COLUMN["threadpercentage"].read(percentage)
        except (ValueError, ArithmeticError) as exc:
            raise UsageError(f"--percentages {text}: {exc}") from exc
    return found


def _numbers_of_copies(args: argparse.Namespace) -> list[int]:
    return [] if args.copies is None else flags.whole_numbers("--copies", args.copies, MOST_AT_ONCE)


def _copies(args: argparse.Namespace, command: Sequence[str], gpus: int) -> str:
    """Return the list of tasks that the arms run: copies of the command. Their number is the number of GPUs times a
    common multiple of the tested numbers of copies per GPU.
    """
    from scheduler.experiment.arms import copies_needed
    from scheduler.experiment.report import csv_text

    needed = copies_needed(_numbers_of_copies(args), gpus)
    if needed > MOST_COPIES:
        raise UsageError(
            f"--copies {args.copies}: the list would need {needed:,} tasks to divide by all of them (at most "
            f"{MOST_COPIES:,}): choose numbers that divide each other, such as 1,2,4,8"
        )
    return csv_text([{"Command": shlex.join(command)}] * needed)


def _simulated_devices(args: argparse.Namespace) -> Sequence[Device] | None:
    """Return the devices of the simulated machine; None if the experiment is not simulated."""
    if args.simulate is None:
        return None
    from scheduler.simulation.machine_spec import parse_machine

    try:
        devices = parse_machine(args.simulate, float(os.cpu_count() or 1))
    except UsageError as exc:
        raise UsageError(str(exc).replace("--devices", "--simulate", 1)) from exc
    if args.kind == "mps" and not any(device.is_gpu for device in devices):
        raise UsageError(f"--simulate {args.simulate}: MPS needs a GPU, and there is none: give 4x24GiB, for example")
    return devices


def _count_gpus(experiment: Experiment, settings: Settings, devices: Sequence[Device] | None) -> int:
    """Return the number of GPUs; raise UsageError if the experiment cannot run."""
    if devices is not None:
        return sum(device.is_gpu for device in devices)
    from scheduler.experiment.real_runs import count_gpus

    return count_gpus(experiment, settings)


def _terms(experiment: Experiment, args: argparse.Namespace, command: Sequence[str] | None) -> dict[str, object]:
    """Return the values that identify an experiment, so that a different experiment in its directory is not continued
    by mistake.
    """
    import hashlib

    content = b""
    if command is None:
        try:
            content = Path(experiment.path).read_bytes()
        except OSError as exc:
            raise UsageError(f"{experiment.path}: {(exc.strerror or str(exc)).lower()}") from exc
    return {
        "experiment": experiment.kind,
        "list": shlex.join(command) if command is not None else os.path.realpath(experiment.path),
        "content": hashlib.blake2b(content, digest_size=8).hexdigest(),
        "arms": ", ".join(arm.name for arm in experiment.arms),
        **{name: getattr(args, name) for name in IDENTITY},
    }


def _runner(
    experiment: Experiment, args: argparse.Namespace, settings: Settings, devices: Sequence[Device] | None
) -> ArmRunner:
    if devices is None:
        from scheduler.experiment.real_runs import RealRunner

        return RealRunner(experiment, settings)
    from scheduler.experiment.simulated_runs import SimulatedRunner, SimulatedSetting

    speed = 1.0 if args.mps_speed is None else flags.positive_number("--mps-speed", args.mps_speed)
    seed = 1 if args.seed is None else flags.any_integer("--seed", args.seed)
    setting = SimulatedSetting(devices, flags.assumed_task(args.assume), speed, seed)
    return SimulatedRunner(experiment, settings, setting)
