"""`scheduler report [RUN…] -o report.html`: write a report of runs as one HTML page."""

from __future__ import annotations

import sys

from scheduler.cli.parsing import Parser, settings_from
from scheduler.units import size


def main(argv: list[str]) -> int:
    """Write a report to each output file."""
    parser = Parser(
        "report",
        "Write a report of runs: timeline, memory, waiting times and tasks on one HTML page that opens offline.\n"
        "Several runs are shown side by side. Values that look like secrets are shown as ***.",
        "scheduler report r12 r13 -o report.html -o timeline.svg",
    ).common()
    parser.add_argument("runs", nargs="*", metavar="RUN", help="runs: r3, a name or last (default: the latest run)")
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        metavar="FILE",
        help="output file of type .html (default report.html), .svg (timeline), .csv (attempts) or .json",
    )
    parser.add_argument("--json", action="store_true", help="print the data as JSON; files are written only with -o")
    parser.secrets()
    args = parser.parse_args(argv)
    from scheduler.app.observe import report

    data = report.report_data(settings_from(args), args.runs, secrets=args.show_secrets)
    outputs = args.output or ([] if args.json else ["report.html"])
    for path in outputs:
        written = report.write(data, path)
        sys.stderr.write(f"{path}  {size(written) if written >= 1 << 20 else f'{written >> 10}KiB'}\n")
    if args.json:
        sys.stdout.write(report.as_json(data))
    return 0
