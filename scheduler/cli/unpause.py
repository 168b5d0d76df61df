"""`scheduler unpause [RUN|--all]`: let the tasks of a paused run start again."""

from __future__ import annotations

from scheduler.cli import pause_targets
from scheduler.core.control.requests import UNPAUSE


def main(argv: list[str]) -> int:
    """Send the request to the run's scheduler, or record it for the next scheduler of the run."""
    parser = pause_targets.parser("unpause", "Let the tasks of a paused run start again.", "scheduler unpause --all")
    return pause_targets.ask(parser.parse_args(argv), {UNPAUSE: "yes"})
