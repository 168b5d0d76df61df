"""`scheduler runs`: all my runs with machine, state, list and time; `runs rm` removes ended ones."""

from __future__ import annotations

import json
import sys

from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import UsageError
from scheduler.settings import Settings
from scheduler.units import parse_duration
from scheduler.view import machine
from scheduler.wiring import keeping


def main(argv: list[str]) -> int:
    """List runs, or remove some."""
    parser = Parser("runs", "My runs on every machine that shares this state.", "scheduler runs rm 3 4").common()
    parser.add_argument("what", nargs="?", choices=("list", "rm"), default="list", help="default: list")
    parser.add_argument("run", nargs="*", metavar="RUN", help="of rm: numbers or names of ended runs")
    parser.add_argument("--older-than", metavar="D", help="of rm: all that ended longer ago, like 30d or 12h")
    parser.add_argument("--json", action="store_true", help="as JSON")
    args = parser.parse_args(argv)
    settings = settings_from(args)
    if args.what == "rm":
        return _remove(settings, args.run, args.older_than, as_json=args.json)
    if args.run or args.older_than:
        raise UsageError("runs: what is to be removed stands behind rm, as in scheduler runs rm 3")
    facts = keeping.runs(settings)
    if args.json:
        sys.stdout.write(json.dumps({"format": 1, "runs": facts}, indent=1) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in machine.run_lines(facts))
    return 0


def _remove(settings: Settings, words: list[str], older: str | None, *, as_json: bool) -> int:
    if bool(words) == (older is not None):
        raise UsageError("runs rm: say which, by number or name, or by --older-than 30d")
    gone = keeping.remove_old(settings, _age(older)) if older is not None else keeping.remove(settings, words)
    if as_json:
        sys.stdout.write(json.dumps({"format": 1, "removed": gone}, indent=1) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in machine.removed_lines(gone))
    return 0


def _age(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as exc:
        raise UsageError(f"--older-than {text}: {exc}") from exc
