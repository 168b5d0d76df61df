"""`scheduler why ID|RUN`: what a task waits for, or why it ended as it did."""

from __future__ import annotations

import json
import sys

from scheduler.cli import asking


def main(argv: list[str]) -> int:
    """Print a paragraph for each task, or what all of a run wait for."""
    parser = asking.parser(
        "why",
        "What a task waits for, with the numbers, or why it ended as it did; of a run: how many wait for what.",
        "scheduler why 17",
        "how many of its tasks wait for what",
    )
    args = parser.parse_args(argv)
    from scheduler.wiring.explaining import why

    said = [why(target) for target in asking.meant(args)]
    if args.json:
        sys.stdout.write(json.dumps({"format": 1, "runs": [one.facts for one in said]}, indent=1) + "\n")
        return 0
    for one in said:
        sys.stdout.writelines(line + "\n" for line in one.lines)
    return 0
