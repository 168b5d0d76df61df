"""`scheduler experiment mps|priority FILE`: one list in several ways, measured, with a report of what pays."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import UsageError

if TYPE_CHECKING:
    from scheduler.core.experiments import Arm
    from scheduler.core.model import Device
    from scheduler.paths import ExperimentPlaces
    from scheduler.settings import Settings
    from scheduler.store.experiments import Readings
    from scheduler.wiring.experiments import Bench, Rig

KINDS = ("mps", "priority")
TURNED = ("buffer", "max_load", "max_gpu_load", "python", "profile_epochs", "margin")
IDENTITY = ("devices", "append", "simulate", "mps_speed", "assume", "seed")
PERCENTAGES = "100,50,25"
NUMS = "5,10,20,40"
MOST_REPEATS = 1000
MOST_AT_ONCE = 48
"""More clients one GPU does not take under MPS."""
MOST_COPIES = 100_000


def parser() -> Parser:
    """The flags of `experiment`."""
    made = Parser(
        "experiment",
        "Run one list in several ways, interleaved and repeated, and say what pays here. mps: one task per GPU, packed "
        "without MPS, packed with it. priority: sizes of batches, and rank by priority alone. What tasks need is "
        "learned before anything is measured. Each way is an ordinary run.",
        "scheduler experiment mps jobs.csv\n         scheduler experiment mps --copies 1,2,4 -- python train.py\n"
        "         scheduler experiment priority jobs.csv --num 5,20 --devices host",
    ).common()
    made.add_argument("kind", choices=KINDS, metavar="mps|priority", help="what is tried")
    made.add_argument("file", nargs="?", metavar="FILE", help="a list as run takes it")
    made.add_argument("--repeats", metavar="N", default="3", help="how often each way is run (default 3)")
    made.add_argument("-o", "--output", metavar="DIR", help="the folder (default experiment-KIND-FILE here)")
    made.add_argument("--append", choices=("both", "epochs", "id", "none"), help="what follows arguments (both)")
    made.add_argument("--json", action="store_true", help="at the end, print the readings as JSON")
    mps = made.add_argument_group("mps")
    mps.add_argument(
        "--percentages", metavar="P,P", help=f"thread percentages, or auto: shared out (default {PERCENTAGES})"
    )
    mps.add_argument("--copies", metavar="1,2,4", help="so many at a time on each GPU, of the command behind --")
    priority = made.add_argument_group("priority")
    priority.add_argument("--num", metavar="N,N", help=f"sizes of batches (default {NUMS})")
    priority.add_argument("--order", metavar="O,O", help="batch, global or both (default batch,global)")
    _add_machine(made)
    return made


def _add_machine(made: Parser) -> None:
    where = made.add_argument_group("where")
    where.add_argument("--devices", metavar="WHICH", default="auto", help="as for run; the host's RAM: host")
    where.add_argument("--buffer", metavar="SIZE", help="memory kept free on every device (default 512MiB)")
    where.add_argument("--max-load", metavar="SHARE", help="share of the cores that may be promised (default 1.0)")
    where.add_argument("--max-gpu-load", metavar="SUM", help="what tasks on one GPU keep busy together (default 2.0)")
    where.add_argument("--python", metavar="EXE", help="what -1 or an empty Executable stands for")
    where.add_argument("--profile-epochs", metavar="N", help="epochs of a probe (default 2)")
    where.add_argument("--margin", metavar="M", help="on top of a known peak (default 10%%+256MiB)")
    simulated = made.add_argument_group("on a machine that is not there")
    simulated.add_argument("--simulate", metavar="4x24GiB", help="run nothing: by the decisions of a real run")
    simulated.add_argument(
        "--mps-speed",
        metavar="FACTOR",
        help="tasks that slow each other down get on so many times faster under MPS, none faster than alone "
        "(default 1: no gain is made up)",
    )
    simulated.add_argument("--assume", metavar="10min,4GiB", help="time and peak of rows of which nothing is known")
    simulated.add_argument("--seed", metavar="N", help="of all that is drawn (default 1)")


def main(argv: list[str]) -> int:
    """Measure what is left of it, and say what came of it."""
    from scheduler.cli.run import split_at_command

    argv, command = split_at_command(argv)
    args = parser().parse_args(argv)
    settings = settings_from(args, *TURNED)
    _check(args, command)
    from scheduler.store.experiments import Readings

    devices = _imagined(args)
    bench = _bench(args, _arms(args), command)
    gpus = _gpus(bench, settings, devices)
    if command is not None:
        _check_copies(args, gpus)
    kept = Readings(_folder(args, command), _terms(bench, args, command))
    try:
        if command is not None:
            _write_copies(bench, command, gpus)
        return _conduct(bench, _rig(bench, args, settings, devices), kept, as_json=args.json)
    finally:
        kept.close()


def _conduct(bench: Bench, rig: Rig, kept: Readings, *, as_json: bool) -> int:
    from scheduler.view import experiments as view
    from scheduler.wiring.experiments import conduct, summed_up

    setting = rig.setting
    signal = conduct(bench, rig, kept)
    all_, sentence = summed_up(bench, kept, setting)
    if as_json:
        view.write_json(all_, setting, sentence, str(kept.places.root), sys.stdout)
    elif all_:
        said = view.lines(all_, setting, sentence, of_priority=bench.of_priority)
        sys.stdout.writelines(line + "\n" for line in [*said, f"report  {kept.places.page}"])
    return 128 + signal if signal else 0


def _check(args: argparse.Namespace, command: Sequence[str] | None) -> None:
    """Refuse what says nothing here."""
    how = ", or --copies 1,2,4 -- CMD" if args.kind == "mps" else ""
    if args.file is None and command is None:
        raise UsageError(f"say what is to be run: scheduler experiment {args.kind} jobs.csv{how}")
    if (command is None) != (args.copies is None) or command == []:
        raise UsageError("--copies and a command behind -- go together: --copies 1,2,4 -- python train.py")
    if command is not None and (args.file is not None or args.append is not None):
        raise UsageError("with a command behind -- there is no list and nothing is appended: leave them out")
    if args.simulate is not None and args.devices != "auto":
        raise UsageError(f"--simulate {args.simulate} names the devices: leave --devices {args.devices} out")
    _check_flags(args)


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse those of the other experiment, and those of a simulation where there is none."""
    for name in {"mps": ("num", "order"), "priority": ("percentages", "copies", "mps_speed")}[args.kind]:
        if getattr(args, name) is not None:
            raise UsageError(f"--{name.replace('_', '-')} says nothing in experiment {args.kind}: leave it out")
    for name in ("mps_speed", "assume", "seed"):
        if args.simulate is None and getattr(args, name) is not None:
            flag = f"--{name.replace('_', '-')}"
            raise UsageError(f"{flag} is for machines that are not there: add --simulate 4x24GiB, or leave it out")


def _arms(args: argparse.Namespace) -> list[Arm]:
    from scheduler.core.experiments import mps_arms, priority_arms

    if args.kind == "mps":
        copies = _wholes("--copies", args.copies, MOST_AT_ONCE) if args.copies is not None else []
        percentages = PERCENTAGES if not copies else "100"
        return mps_arms(_percentages(args.percentages or percentages), copies)
    orders = _words("--order", args.order or "batch,global", ("batch", "global"))
    return priority_arms(_wholes("--num", args.num or NUMS, 1_000_000), orders)


def _percentages(said: str) -> list[str]:
    from scheduler.core.fields import FIELDS

    field = next(field for field in FIELDS if field.column == "ThreadPercentage")
    found = _listed("--percentages", said)
    for one in found:
        try:
            field.read(one)
        except (ValueError, ArithmeticError) as exc:
            raise UsageError(f"--percentages {said}: {exc}") from exc
    return found


def _words(flag: str, said: str, known: Sequence[str]) -> list[str]:
    found = _listed(flag, said)
    for one in found:
        if one not in known:
            raise UsageError(f"{flag} {said}: {one!r} is none of {', '.join(known)}")
    return found


def _wholes(flag: str, said: str, most: int) -> list[int]:
    return [_whole(flag, one, most, said) for one in _listed(flag, said)]


def _listed(flag: str, said: str) -> list[str]:
    """What stands between commas, each once."""
    found = [one.strip() for one in said.split(",") if one.strip()]
    if not found or len(set(found)) < len(found):
        raise UsageError(f"{flag} {said!r}: write different ones with commas between them")
    return found


def _whole(flag: str, text: str, most: int, said: str = "") -> int:
    if not (text.isascii() and text.isdecimal()) or not 1 <= int(text) <= most:
        raise UsageError(f"{flag} {said or text}: {text!r} is no whole number from 1 to {most:,}")
    return int(text)


def _imagined(args: argparse.Namespace) -> Sequence[Device] | None:
    """The machine that is not there, where one is meant."""
    if args.simulate is None:
        return None
    from scheduler.doors.machines import parse_machine

    try:
        devices = parse_machine(args.simulate, float(os.cpu_count() or 1))
    except UsageError as exc:
        raise UsageError(str(exc).replace("--devices", "--simulate", 1)) from exc
    if args.kind == "mps" and not any(device.is_gpu for device in devices):
        raise UsageError(f"--simulate {args.simulate}: MPS shares GPUs, and there is none: write 4x24GiB")
    return devices


def _folder(args: argparse.Namespace, command: Sequence[str] | None) -> ExperimentPlaces:
    from scheduler.paths import ExperimentPlaces
    from scheduler.wiring.experiments import usual_folder

    if args.output is not None:
        return ExperimentPlaces(Path(args.output))
    return usual_folder(args.kind, args.file if command is None else "copies")


def _bench(args: argparse.Namespace, arms: Sequence[Arm], command: Sequence[str] | None) -> Bench:
    from scheduler.wiring.experiments import Bench

    repeats = _whole("--repeats", args.repeats, MOST_REPEATS)
    path = args.file if command is None else str(_folder(args, command).copies)
    append = args.append or "both" if command is None else "none"
    return Bench(args.kind, path, arms, repeats, args.devices, append)


def _gpus(bench: Bench, settings: Settings, devices: Sequence[Device] | None) -> int:
    """How many there are; here it turns out whether the experiment can be made at all."""
    if devices is not None:
        return sum(device.is_gpu for device in devices)
    from scheduler.wiring.real_arms import check

    return check(bench, settings)


def _check_copies(args: argparse.Namespace, gpus: int) -> None:
    from scheduler.core.experiments import copies_needed

    needed = copies_needed(_wholes("--copies", args.copies, MOST_AT_ONCE), gpus)
    if needed > MOST_COPIES:
        raise UsageError(
            f"--copies {args.copies}: {needed:,} tasks come out even in all of them, which is above {MOST_COPIES:,}: "
            "choose numbers that divide each other, such as 1,2,4,8"
        )


def _write_copies(bench: Bench, command: Sequence[str], gpus: int) -> None:
    """The list that the arms run: the same command so often that every number at a time comes out even."""
    import csv

    from scheduler.core.experiments import copies_needed
    from scheduler.store.experiments import write_whole

    copies = [arm.per_device for arm in bench.arms if arm.per_device]
    rows = [["Command"], *[[shlex.join(command)]] * copies_needed(copies, gpus)]
    write_whole(Path(bench.path), lambda file: csv.writer(file, lineterminator="\n").writerows(rows))


def _terms(bench: Bench, args: argparse.Namespace, command: Sequence[str] | None) -> dict[str, object]:
    """What an experiment is, so that another one is not taken for its beginning."""
    import hashlib

    content = b""
    if command is None:
        try:
            content = Path(bench.path).read_bytes()
        except OSError as exc:
            raise UsageError(f"{bench.path}: {(exc.strerror or str(exc)).lower()}") from exc
    return {
        "experiment": bench.kind,
        "list": shlex.join(command) if command is not None else os.path.realpath(bench.path),
        "content": hashlib.blake2b(content, digest_size=8).hexdigest(),
        "arms": ", ".join(arm.name for arm in bench.arms),
        **{name: getattr(args, name) for name in (*IDENTITY, *TURNED)},
    }


def _rig(bench: Bench, args: argparse.Namespace, settings: Settings, devices: Sequence[Device] | None) -> Rig:
    if devices is None:
        from scheduler.wiring.real_arms import RealBench

        return RealBench(bench, settings)
    from scheduler.cli.simulate import assumed, factor, whole
    from scheduler.wiring.simulated_arms import Imagined, SimulatedBench

    speed = 1.0 if args.mps_speed is None else factor("--mps-speed", args.mps_speed)
    seed = 1 if args.seed is None else whole("--seed", args.seed)
    return SimulatedBench(Imagined(bench.path, devices, assumed(args.assume), speed, seed), settings, bench)
