"""`scheduler status`: this machine, everybody's promises, my runs."""

from __future__ import annotations

import json
import sys

from scheduler.cli.parsing import Parser, settings_from
from scheduler.view import machine
from scheduler.wiring import reading


def main(argv: list[str]) -> int:
    """Print what is promised on this machine and my latest runs."""
    parser = Parser("status", "This machine: promises of everybody, my runs.", "scheduler status").common()
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="as JSON")
    how.add_argument("--prometheus", action="store_true", help="as metrics, in Prometheus' text format")
    parser.add_argument(
        "--gpu-info",
        nargs="?",
        const="/tmp/gpu_scheduler_info",
        metavar="FILE",
        help="also write who has which GPU as the older one-shot tool did (default /tmp/gpu_scheduler_info)",
    )
    args = parser.parse_args(argv)
    settings = settings_from(args)
    facts = reading.machine_facts(settings)
    if args.gpu_info:
        from scheduler.cli.schedule import export
        from scheduler.wiring import classic_gpus

        export(args.gpu_info, classic_gpus.look(settings), settings)
    if args.prometheus:
        from scheduler.view import prometheus

        sys.stdout.write(prometheus.text(facts))
    elif args.json:
        sys.stdout.write(json.dumps(facts, indent=1) + "\n")
    else:
        for line in machine.lines(facts):
            sys.stdout.write(line + "\n")
    return 0
