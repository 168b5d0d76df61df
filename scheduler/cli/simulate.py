"""`scheduler simulate FILE --devices 8x24GiB`: a list on a machine that is not there, by the real Brain and loop."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import UsageError

if TYPE_CHECKING:
    from scheduler.core.workload import Known, Measured
    from scheduler.settings import Settings
    from scheduler.wiring.simulating import Scene

TURNED = {
    "num": ("N", "rows in a batch (default 20; all rows of a trace, but 20 under the policy batches)"),
    "order": ("batch|global", "what ranks first (default batch)"),
    "buffer": ("SIZE", "memory kept free on every device (default 512MiB)"),
    "max_load": ("SHARE", "share of the cores that may be promised (default 1.0)"),
    "max_gpu_load": ("SUM", "what tasks on one GPU keep busy together, to half a task (default 2.0)"),
    "profile": ("HOW", "auto, probe, live or off: how unknown needs are learned"),
    "profile_epochs": ("N", "epochs of a probe (default 2)"),
    "settle": ("TIME", "time without a new peak that settles a task (5s, on GPUs 60s)"),
    "margin": ("M", "on top of a known peak (default 10%%+256MiB)"),
}
"""Settings that are flags of `simulate`, as they are of `run`."""
KNOWN = ("times", "peaks", "oracle")
MOST_CORES = 1e6
MOST_TASKS = 10_000_000


def parser() -> Parser:
    """The flags of `simulate`."""
    from scheduler.core.interference import MODELS
    from scheduler.core.policies import names
    from scheduler.core.workloads import WORKLOADS

    made = Parser(
        "simulate",
        "Run a list on a machine that is not there: the same decisions as a real run, in no time.",
        "scheduler simulate trace.csv --devices 4x24GiB,2x80GiB --compare",
    ).common()
    made.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="a list as run takes it, of whose tasks earlier runs or columns of the file (duration_s, peak_mem_mib, "
        "util, cores, arrival_s) know times and peaks; or a trace: such columns alone",
    )
    made.add_argument("--devices", metavar="WHICH", help="the machine: 8x24GiB; 4x24GiB,2x80GiB; host:64GiB")
    made.add_argument("--cores", metavar="N", help="cores of a simulated host (default: as many as this machine has)")
    when = made.add_mutually_exclusive_group()
    when.add_argument("--all-at-once", action="store_true", help="all rows are there at the start, whenever they came")
    when.add_argument("--arrive-over", metavar="TIME", help="rows come in their order, at random within so long")
    made.add_argument("--generate", metavar="NAME", help=f"write a made-up trace instead: {', '.join(WORKLOADS)}")
    made.add_argument("--tasks", metavar="N", help="how many rows of it (as many as are usual for it)")
    made.add_argument("--json", action="store_true", help="as JSON; with --compare a list")
    made.add_argument("-o", "--output", metavar="FILE", help="draw what ran where and when, as .svg or .png")
    policy = made.add_argument_group("policies")
    policy.add_argument("--policy", metavar="NAME", default="packed", help=f"{', '.join(names())} (default packed)")
    policy.add_argument(
        "--compare", nargs="?", const=",".join(names()), metavar="A,B", help="several; all without names"
    )
    policy.add_argument("--alone", action="store_true", help="also what the best priority waits without the others")
    for name, (metavar, what) in TURNED.items():
        policy.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=what)
    truth = made.add_argument_group("what tasks really do, and what of that is known beforehand")
    truth.add_argument(
        "--interference", choices=MODELS, default="fit", help="how tasks on one GPU slow each other down"
    )
    truth.add_argument(
        "--deviation",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="half of the peaks differ from their kind's, as they were measured to, and a twentieth come late",
    )
    truth.add_argument("--seed", metavar="N", default="1", help="of all that is drawn (default 1)")
    truth.add_argument(
        "--known",
        metavar="times,peaks",
        default="",
        help="of each kind, as earlier runs teach it; oracle: every task's own peak (default: nothing is known)",
    )
    truth.add_argument("--assume", metavar="10min,4GiB", help="time and peak of rows of which nothing is known")
    return made


def main(argv: list[str]) -> int:
    """Simulate, and print what came of it."""
    made = parser()
    args = made.parse_args(argv)
    if args.generate is not None:
        _refuse_beside_generate(made, args)
        return _generate(args)
    if args.output and not args.output.endswith((".svg", ".png")):
        raise UsageError(f"-o {args.output}: charts are written as SVG or PNG, call it something.svg or something.png")
    if args.tasks is not None:
        raise UsageError("--tasks is how many rows --generate writes: give that too, or leave it out")
    settings = settings_from(args, *TURNED)
    names = _policies(args)
    scene = _scene(args, settings)
    from scheduler.core.bars import bars_of
    from scheduler.view import chart
    from scheduler.view import simulated as view
    from scheduler.wiring.simulating import measured

    bars, all_ = {}, []
    for name in names:
        numbers, run = measured(scene, name, alone=args.alone)
        all_.append(numbers)
        bars[name] = bars_of(run)
    if args.output:
        from scheduler.view import drawing, raster

        drawn = chart.draw(bars, scene.devices)
        with open(args.output, "wb") as file:
            file.write(raster.png(drawn) if args.output.endswith(".png") else drawing.svg(drawn).encode())
    if args.json:
        view.write_json(all_, sys.stdout, several=bool(args.compare))
        return 0
    shown = args.policy if args.policy in names else names[0]
    text = chart.text_bars(shown, bars[shown], scene.devices, sys.stdout)
    sys.stdout.writelines(line + "\n" for line in [*view.lines(all_), *text])
    return 0


def _scene(args: argparse.Namespace, settings: Settings) -> Scene:
    """What is to be simulated; raises UsageError where too little is said."""
    if not args.file:
        raise UsageError("say which list or trace: scheduler simulate jobs.csv --devices 8x24GiB")
    if not args.devices:
        raise UsageError("say on which machine: --devices 8x24GiB, --devices 4x24GiB,2x80GiB or --devices host:64GiB")
    from scheduler.core.interference import MODELS
    from scheduler.core.workload import workload
    from scheduler.doors.machines import parse_machine
    from scheduler.wiring.choices import Choices, rules
    from scheduler.wiring.scenes import Source, rows
    from scheduler.wiring.simulating import Scene

    devices = parse_machine(args.devices, _cores(args.cores))
    known, seed = _known(args.known), whole("--seed", args.seed)
    source = Source(args.file, assumed(args.assume), args.all_at_once, _time(args.arrive_over), seed)
    found = rows(source, devices, settings)
    largest = max(device.total for device in devices)
    given = workload(found, known, seed=seed, deviation=args.deviation, largest=largest)
    return Scene(given, devices, MODELS[args.interference], rules(Choices(), settings), _num(args, settings))


def _num(args: argparse.Namespace, settings: Settings) -> int | None:
    """Rows in a batch; a trace has none, so that all its rows are one unless somebody says otherwise."""
    from scheduler.doors.traces import looks_like_trace

    said = settings.source.get("num", "default") != "default"
    return settings.num if said or not looks_like_trace(args.file) else None


def _refuse_beside_generate(made: Parser, args: argparse.Namespace) -> None:
    """Nothing is simulated there, so what is said of that says nothing."""
    for action in made._actions:
        beside = action.dest not in ("help", "state", "file", "generate", "tasks", "seed")
        if beside and getattr(args, action.dest) != action.default:
            flag = next((word for word in action.option_strings if word.startswith("--")), "")
            raise UsageError(f"{flag} says nothing beside --generate, which only writes a trace: leave it out")


def _generate(args: argparse.Namespace) -> int:
    """Write a trace that was made up."""
    from scheduler.core.workloads import WORKLOADS
    from scheduler.doors.traces import write_trace

    if args.file:
        raise UsageError(f"--generate {args.generate} writes a trace and reads none: leave {args.file} out")
    if args.generate not in WORKLOADS:
        raise UsageError(f"--generate {args.generate}: it is none of {', '.join(WORKLOADS)}")
    make, usual = WORKLOADS[args.generate]
    tasks = usual if args.tasks is None else whole("--tasks", args.tasks)
    if not 1 <= tasks <= MOST_TASKS:
        raise UsageError(f"--tasks {tasks}: a number from 1 to {MOST_TASKS:,} is needed")
    write_trace(make(tasks, whole("--seed", args.seed)), sys.stdout)
    return 0


def _time(said: str | None) -> float | None:
    from scheduler.units import parse_duration

    try:
        return None if said is None else parse_duration(said)
    except ValueError as exc:
        raise UsageError(f"--arrive-over: {exc}") from exc


def _policies(args: argparse.Namespace) -> list[str]:
    from scheduler.core.policies import named

    names = [name.strip() for name in args.compare.split(",")] if args.compare else [args.policy]
    for name in names:
        named(name)
    return names


def _known(said: str) -> Known:
    from scheduler.core.workload import Known

    words = [word.strip() for word in said.split(",") if word.strip()]
    for word in words:
        if word not in KNOWN:
            raise UsageError(f"--known {said}: {word!r} is none of {', '.join(KNOWN)}")
    return Known("times" in words, "peaks" in words, "oracle" in words)


def assumed(said: str | None) -> Measured:
    """Read `10min,4GiB`, or one of the two."""
    from scheduler.core.workload import Measured
    from scheduler.units import parse_duration, parse_size

    found = Measured()
    for part in filter(None, (said or "").split(",")):
        try:
            found = replace(found, seconds=parse_duration(part))
        except ValueError:
            try:
                found = replace(found, peak=parse_size(part))
            except ValueError as exc:
                raise UsageError(f"--assume {said}: {part!r} is no time (10min) and no size (4GiB)") from exc
    return found


def _cores(said: str | None) -> float:
    return float(os.cpu_count() or 1) if said is None else factor("--cores", said)


def factor(flag: str, text: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = 0.0
    if not 0 < found <= MOST_CORES:
        raise UsageError(f"{flag} {text}: a number above 0 is needed, such as 16")
    return found


def whole(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as exc:
        raise UsageError(f"{flag} {text}: a whole number is needed, such as 1") from exc
