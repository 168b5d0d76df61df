"""`scheduler simulate FILE --devices 8x24GiB`: a list on a machine that is not there, by the real Brain and loop."""

from __future__ import annotations

import os
import sys

from scheduler.cli.parsing import Parser, settings_from
from scheduler.core.interference import MODELS
from scheduler.core.workload import Known, workload
from scheduler.doors.machines import parse_machine
from scheduler.doors.traces import read_trace
from scheduler.errors import UsageError
from scheduler.view import simulated as view
from scheduler.wiring.choices import Choices, rules
from scheduler.wiring.simulating import POLICIES, Scene, measured

TURNED = ("num", "order", "buffer", "max_load", "max_gpu_load", "profile", "profile_epochs", "settle", "margin")
KNOWN = ("times", "peaks", "oracle")


def parser() -> Parser:
    """The flags of `simulate`."""
    made = Parser(
        "simulate",
        "Run a list on a machine that is not there: the same decisions as a real run, in no time.",
        "scheduler simulate trace.csv --devices 4x24GiB,2x80GiB --compare",
    )
    made.add_argument("file", metavar="FILE", help="a trace: a CSV with the columns duration_s and peak_mem_mib")
    made.add_argument("--devices", metavar="WHICH", default="8x24GiB", help="8x24GiB; 4x24GiB,2x80GiB; host:64GiB")
    made.add_argument("--cores", metavar="N", help="cores of a simulated host (default: as many as this machine has)")
    made.add_argument("--interference", choices=MODELS, default="fit", help="how tasks on one GPU slow each other down")
    made.add_argument("--all-at-once", action="store_true", help="all rows are there at the start, whenever they came")
    made.add_argument(
        "--no-deviation", dest="deviation", action="store_false", help="every task needs what its kind does"
    )
    made.add_argument("--seed", type=int, default=1, help="of all that is drawn (default 1)")
    made.add_argument("--known", default="", metavar="times,peaks", help="what is known beforehand (default: nothing)")
    made.add_argument("--policy", choices=POLICIES, default="packed", help="how tasks are placed (default packed)")
    made.add_argument("--compare", nargs="?", const=",".join(POLICIES), metavar="A,B", help="several policies")
    made.add_argument("--json", action="store_true", help="as JSON; with --compare a list")
    for name in TURNED:
        made.add_argument(f"--{name.replace('_', '-')}", metavar="X", help="as of scheduler run")
    return made


def main(argv: list[str]) -> int:
    """Simulate, and print what came of it."""
    args = parser().parse_args(argv)
    settings = settings_from(args, *TURNED)
    devices = parse_machine(args.devices, float(args.cores or os.cpu_count() or 1))
    rows = read_trace(args.file)
    if args.all_at_once:
        from dataclasses import replace

        rows = [replace(row, arrives=0.0) for row in rows]
    largest = max(device.total for device in devices)
    work = workload(rows, _known(args.known), seed=args.seed, deviation=args.deviation, largest=largest)
    scene = Scene(work, devices, MODELS[args.interference], rules(Choices(), settings), settings.num)
    names = args.compare.split(",") if args.compare else [args.policy]
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise UsageError(
            f"--compare {args.compare}: there is no policy {unknown[0]!r}; there is: {', '.join(POLICIES)}"
        )
    all_ = [measured(scene, name)[0] for name in names]
    if args.json:
        view.write_json(all_, sys.stdout, several=bool(args.compare))
    else:
        sys.stdout.writelines(line + "\n" for line in view.lines(all_))
    return 0


def _known(said: str) -> Known:
    words = [word.strip() for word in said.split(",") if word.strip()]
    for word in words:
        if word not in KNOWN:
            raise UsageError(f"--known {said}: {word!r} is none of {', '.join(KNOWN)}")
    return Known("times" in words, "peaks" in words, "oracle" in words)
