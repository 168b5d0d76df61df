"""`scheduler report [RUN…] -o report.html`: what became of runs, as a page that opens offline."""

from __future__ import annotations

import sys

from scheduler.cli.parsing import Parser, settings_from
from scheduler.units import size


def main(argv: list[str]) -> int:
    """Write the report in every form that is asked for."""
    parser = Parser(
        "report",
        "What became of runs: timeline, memory, waiting times and tasks on one page that opens offline; of several "
        "runs side by side. Values of names that look like secrets are shown as ***.",
        "scheduler report 12 13 -o report.html -o timeline.png",
    ).common()
    parser.add_argument("runs", nargs="*", metavar="RUN", help="numbers or names; without one the latest run")
    parser.add_argument(
        "-o",
        "--output",
        action="append",
        metavar="FILE",
        help="where to; its end says what: .html (default report.html), .png (the timeline), .csv (attempts), .json",
    )
    parser.add_argument(
        "--json", action="store_true", help="the data on standard output; nothing is written without -o"
    )
    parser.secrets()
    args = parser.parse_args(argv)
    from scheduler.wiring import reporting

    found = reporting.told(settings_from(args), args.runs, secrets=args.show_secrets)
    outputs = args.output or ([] if args.json else ["report.html"])
    for path in outputs:
        written = reporting.write(found, path)
        sys.stderr.write(f"{path}  {size(written) if written >= 1 << 20 else f'{written >> 10}KiB'}\n")
    if args.json:
        sys.stdout.write(reporting.as_json(found))
    return 0
