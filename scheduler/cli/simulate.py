"""`scheduler simulate FILE --devices 8x24GiB`: simulate a list with the Brain and the loop of a real run."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from scheduler.cli import flags
from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import UsageError
from scheduler.values import replace

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from scheduler.app.simulate.simulated_run import Scene
    from scheduler.core.model import Device
    from scheduler.runtime.settings import Settings
    from scheduler.simulation.workload import InitialKnowledge, TraceRow

SETTINGS = (
    "num", "order", "window", "buffer", "max_load", "max_gpu_load", "profile", "profile_epochs", "settle", "margin",
    "my_columns",
)  # fmt: skip
"""The settings that are flags of `simulate`, with the meaning that they have in `run`."""
KNOWN = ("times", "peaks", "oracle")
MOST_TASKS = 10_000_000
USUAL = "packed"
"""The policy that is simulated if the command line names none."""


def parser() -> Parser:
    """Build the parser of `simulate`."""
    made = Parser(
        "simulate",
        "Simulate a list or a trace on a machine that need not exist, with the decisions that a real run would make.",
        "scheduler simulate trace.csv --devices 4x24GiB,2x80GiB --compare",
    ).common()
    made.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="a list in the format that run accepts, with times and peaks from earlier runs or from columns of the "
        "file (duration_s, peak_mem_mib, util, cores, arrival_s); or a trace, which has only such columns",
    )
    made.add_argument(
        "--devices", metavar="DEVICES", help="the machine: 8x24GiB; 4x24GiB,2x80GiB; host:64GiB; 3x(4x24GiB) for nodes"
    )
    made.add_argument(
        "--cores", metavar="N", help="CPU cores of the simulated host (default: as many as this machine has)"
    )
    made.add_argument("--json", action="store_true", help="print the result as JSON; with --compare, a list")
    made.add_argument("-o", "--output", metavar="FILE", help="write the schedule as an SVG chart")
    _add_arrivals(made)
    made.add_argument(
        "--begin", metavar="TIME|DATE", help="earliest start of rows without a Begin: 22:00, +2h or 2026-12-01T08:00"
    )
    _add_policies(made.add_argument_group("policies"))
    _add_behaviour(made.add_argument_group("task behaviour"))
    return made


def _add_arrivals(made: Parser) -> None:
    """Add the flags that set when rows arrive, and the flags that generate a trace."""
    from scheduler.simulation.generators import WORKLOADS

    when = made.add_mutually_exclusive_group()
    when.add_argument("--all-at-once", action="store_true", help="all rows arrive at the start, despite arrival_s")
    when.add_argument("--arrive-over", metavar="TIME", help="rows arrive in order, at random times within TIME")
    made.add_argument("--generate", metavar="NAME", help=f"write a generated trace instead: {', '.join(WORKLOADS)}")
    made.add_argument("--tasks", metavar="N", help="rows of the generated trace (default: depends on NAME)")


def _add_policies(group: argparse._ArgumentGroup) -> None:
    """Add the flags of the policy and of its settings."""
    from scheduler.core.placement.policies import names

    group.add_argument("--policy", metavar="NAME", default=USUAL, help=f"{', '.join(names())} (default {USUAL})")
    group.add_argument(
        "--compare", nargs="?", const=",".join(names()), metavar="A,B", help="compare several policies (default: all)"
    )
    group.add_argument(
        "--alone",
        action="store_true",
        help="also report how long the tasks of the best priority wait if there are no others",
    )
    group.add_argument(
        "--learning", action="store_true", help="also report the cost of not knowing the peaks in advance"
    )
    num = "rows per batch (default 20; a trace is one batch, except under the policy batches)"
    profile = "how unknown memory needs are learned: auto, probe, live or off; sequential is the policy batches"
    flags.add_settings(group, *SETTINGS, num=num, profile=profile)


def _add_behaviour(group: argparse._ArgumentGroup) -> None:
    """Add the flags that describe the tasks, and the flags that set how much of this is known in advance."""
    from scheduler.simulation.interference import MODELS

    group.add_argument(
        "--interference",
        choices=MODELS,
        default="fit",
        help="how tasks on one GPU slow each other down: none, prop (they share its time), fit (as measured; default)",
    )
    group.add_argument(
        "--deviation",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="vary the peaks within a task class as measured: half of them differ, one in twenty comes late",
    )
    group.add_argument(
        "--loading",
        metavar="SHARE",
        help="the share of its time for which a task loads its data before it uses its GPUs, such as 0.1 (default 0)",
    )
    group.add_argument("--seed", metavar="N", default="1", help="seed of all random numbers (default 1)")
    group.add_argument(
        "--known",
        metavar="times,peaks",
        default="",
        help="what is known in advance about each task class; oracle: every task's own peak (default: nothing)",
    )
    group.add_argument("--assume", metavar="10min,4GiB", help="time and peak of rows without a profile")


def main(argv: list[str]) -> int:
    """Simulate the list under each policy, and print or draw the results."""
    made = parser()
    args = made.parse_args(argv)
    if args.generate is not None:
        _refuse_beside_generate(made, args)
        return _generate(args)
    if args.output and not args.output.endswith(".svg"):
        raise UsageError(f"-o {args.output}: charts are SVG files: give a name that ends in .svg")
    if args.tasks is not None:
        raise UsageError("--tasks has an effect only with --generate: add --generate, or leave it out")
    settings = settings_from(args, *SETTINGS)
    names = _policies(args, settings)
    scene, known = _scenes(args, settings)
    from scheduler.app.simulate.simulated_run import measured
    from scheduler.ui.charts import memory_chart
    from scheduler.ui.verbs import simulate as view

    schedules, all_ = {}, []
    for name in names:
        numbers, run = measured(scene, name, alone=args.alone, known=known)
        all_.append(numbers)
        schedules[name] = memory_chart.simulated_schedule(name, run, scene.devices)
    if args.output:
        from scheduler.ui.charts.svg import svg

        drawn = memory_chart.draw([*schedules.values()])
        with open(args.output, "wb") as file:
            file.write(svg(drawn).encode())
    if args.json:
        view.write_json(all_, sys.stdout, several=bool(args.compare))
        return 0
    shown = args.policy if args.policy in names else names[0]
    text = memory_chart.text_bars(schedules[shown], sys.stdout)
    sys.stdout.writelines(line + "\n" for line in [*view.lines(all_), *text])
    return 0


def _scenes(args: argparse.Namespace, settings: Settings) -> tuple[Scene, Scene | None]:
    """Return the scene to simulate; with `--learning`, also a second scene in which all peaks are known.

    Raise UsageError if the list or the machine is missing.
    """
    if not args.file:
        raise UsageError("give a list or a trace: scheduler simulate jobs.csv --devices 8x24GiB")
    if not args.devices:
        raise UsageError(
            "give the machine: --devices 8x24GiB, --devices 4x24GiB,2x80GiB, --devices host:64GiB, or "
            "--devices '3x(4x24GiB)' for nodes"
        )
    from scheduler.app.run.options import RunOptions, ranked, rules
    from scheduler.app.simulate.simulated_run import Scene
    from scheduler.runtime import clock
    from scheduler.simulation.interference import MODELS
    from scheduler.simulation.machine_spec import parse_machine
    from scheduler.simulation.workload import workload

    cores = float(os.cpu_count() or 1) if args.cores is None else flags.positive_number("--cores", args.cores)
    devices = parse_machine(args.devices, cores)
    loading = 0.0 if args.loading is None else flags.share("--loading", args.loading)
    known, seed = _known(args.known), flags.any_integer("--seed", args.seed)
    tasks, columns = _tasks(args, settings, devices, seed)
    settings = ranked(settings, columns)
    largest = max(device.total for device in devices)
    if args.learning and (known.peaks or known.own):
        raise UsageError(f"--learning compares with known peaks: leave {args.known} out of --known, or --learning")
    found = [
        Scene(
            workload(tasks, its, seed=seed, deviation=args.deviation, largest=largest, loading=loading),
            devices,
            MODELS[args.interference],
            rules(RunOptions(), settings),
            _num(args, settings),
            clock.wall(),
        )
        for its in ((known, replace(known, peaks=True)) if args.learning else (known,))
    ]
    return found[0], found[1] if args.learning else None


def _tasks(
    args: argparse.Namespace, settings: Settings, devices: Sequence[Device], seed: int
) -> tuple[Sequence[TraceRow], Container[str]]:
    """Return the rows of the list or trace, and its columns. Rows that would never start are left out: held rows, and
    rows that depend on held rows.
    """
    from scheduler.app.simulate.scenario import ScenarioSource, rows, without_held
    from scheduler.core.tasks.fields import BEGIN
    from scheduler.simulation.traces import looks_like_trace
    from scheduler.ui.terminal.sink import hint
    from scheduler.units import count

    if args.begin is not None and looks_like_trace(args.file):
        raise UsageError(f"--begin is for the rows of a list; {args.file} is a trace, whose rows have arrival_s")
    arrive_over = None if args.arrive_over is None else flags.duration("--arrive-over", args.arrive_over)
    assumed, fields = flags.assumed_task(args.assume), flags.checked_fields({BEGIN: args.begin} if args.begin else {})
    source = ScenarioSource(args.file, assumed, args.all_at_once, arrive_over, seed, fields=fields)
    found, columns = rows(source, devices, settings)
    tasks, held = without_held(source.path, found)
    if held:
        hint(f"left out: {count(held, 'task')} that {'is' if held == 1 else 'are'} held, or would wait for one that is")
    return tasks, columns


def _num(args: argparse.Namespace, settings: Settings) -> int | None:
    """Return the number of rows per batch. For a trace without `--num`, return None, which puts rows that arrive
    together into one batch.
    """
    from scheduler.simulation.traces import looks_like_trace

    given = settings.source.get("num", "default") != "default"
    return settings.num if given or not looks_like_trace(args.file) else None


def _refuse_beside_generate(made: Parser, args: argparse.Namespace) -> None:
    """Raise UsageError for flags of a simulation together with `--generate`."""
    for action in made._actions:
        unused = action.dest not in ("help", "state", "file", "generate", "tasks", "seed")
        if unused and getattr(args, action.dest) != action.default:
            flag = next((word for word in action.option_strings if word.startswith("--")), "")
            raise UsageError(f"{flag} has no effect with --generate, which only writes a trace: leave it out")


def _generate(args: argparse.Namespace) -> int:
    """Write a generated trace to standard output."""
    from scheduler.simulation.generators import WORKLOADS
    from scheduler.simulation.traces import write_trace

    if args.file:
        raise UsageError(f"--generate {args.generate} writes a trace and reads none: leave {args.file} out")
    if args.generate not in WORKLOADS:
        raise UsageError(f"--generate {args.generate}: not one of {', '.join(WORKLOADS)}")
    make, usual = WORKLOADS[args.generate]
    tasks = usual if args.tasks is None else flags.whole_number("--tasks", args.tasks, most=MOST_TASKS)
    write_trace(make(tasks, flags.any_integer("--seed", args.seed)), sys.stdout)
    return 0


def _policies(args: argparse.Namespace, settings: Settings) -> list[str]:
    """Return the policies to simulate; `--profile sequential` is another name for one of them."""
    from scheduler.app.run.admission import check_sequential
    from scheduler.app.run.options import RunOptions
    from scheduler.core.config import BATCHES
    from scheduler.core.placement.policies import named

    if settings.profile == "sequential":
        if args.compare or args.policy not in (USUAL, BATCHES):
            raise UsageError("--profile sequential is the policy batches: leave --policy and --compare out")
        check_sequential(RunOptions(), settings)
        return [BATCHES]
    names = [name.strip() for name in args.compare.split(",")] if args.compare else [args.policy]
    for name in names:
        named(name)
    return names


def _known(text: str) -> InitialKnowledge:
    from scheduler.simulation.workload import InitialKnowledge

    words = flags.listed_words("--known", text, KNOWN) if text else []
    return InitialKnowledge("times" in words, "peaks" in words, "oracle" in words)
