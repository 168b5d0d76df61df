"""`scheduler why ID|RUN`: explain why a task waits, or why it ended as it did."""

from __future__ import annotations

from scheduler.cli import request_flags
from scheduler.cli.parsing import show


def main(argv: list[str]) -> int:
    """Print a paragraph for each task; for a run, print the number of waiting tasks for each reason."""
    parser = request_flags.parser(
        "why",
        "Explain why a task waits, with the numbers, or why it ended as it did; for a run, how many wait for what.",
        "scheduler why 17",
        "its waiting tasks, counted by reason",
    )
    args = parser.parse_args(argv)
    from scheduler.app.observe.why import why

    explanations = [why(target) for target in request_flags.targets_of(args)]
    lines = [line for explanation in explanations for line in explanation.lines]
    show(lines, {"runs": [explanation.facts for explanation in explanations]}, as_json=args.json)
    return 0
