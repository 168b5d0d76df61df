"""`scheduler status`: show this machine's devices, the reservations of all users, and the user's runs."""

from __future__ import annotations

import sys
from contextlib import closing

from scheduler.app.observe.machine_status import MachineMonitor
from scheduler.cli.parsing import Parser, settings_from, show
from scheduler.ui.verbs import status


def main(argv: list[str]) -> int:
    """Print devices, reservations and the user's latest runs."""
    parser = Parser(
        "status",
        "Show this machine's devices, the reservations of all users, and your latest runs.",
        "scheduler status",
    ).common()
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print JSON")
    how.add_argument("--prometheus", action="store_true", help="print metrics in Prometheus' text format")
    parser.add_argument("--nodes", action="store_true", help="also the nodes of your runs on several machines")
    parser.add_argument(
        "--gpu-info",
        nargs="?",
        const="/tmp/gpu_scheduler_info",
        metavar="FILE",
        help="also write which task has which GPU, in the format of the older one-shot tool (default\n"
        "/tmp/gpu_scheduler_info)",
    )
    args = parser.parse_args(argv)
    settings = settings_from(args)
    with closing(MachineMonitor(settings)) as monitor:
        facts = monitor.facts()
        if args.nodes:
            facts["nodes"] = monitor.nodes()
    if args.gpu_info:
        from scheduler.compat import schedule_gpus
        from scheduler.compat.schedule import export

        export(args.gpu_info, schedule_gpus.look(settings), settings)
    if args.prometheus:
        from scheduler.ui.export import prometheus

        sys.stdout.write(prometheus.text(facts))
        return 0
    show(status.lines(facts), facts, as_json=args.json)
    return 0
