"""`scheduler runs`: list the user's runs with machine, state, list and duration; `runs rm` removes ended ones."""

from __future__ import annotations

from scheduler.app.control import retention
from scheduler.cli.flags import duration
from scheduler.cli.parsing import Parser, settings_from, show
from scheduler.errors import UsageError
from scheduler.runtime.settings import Settings
from scheduler.ui.verbs import status


def main(argv: list[str]) -> int:
    """List runs, or remove some."""
    parser = Parser(
        "runs",
        "List your runs on every machine that shares this state directory, or remove ended ones.",
        "scheduler runs rm r3 r4",
    ).common()
    parser.add_argument("what", nargs="?", choices=("list", "rm"), default="list", help="what to do (default list)")
    parser.add_argument("run", nargs="*", metavar="RUN", help="with rm: ended runs: r3 or their names")
    parser.add_argument(
        "--older-than", metavar="D", help="with rm: all runs that ended longer ago than this, such as 30d"
    )
    parser.json()
    args = parser.parse_args(argv)
    settings = settings_from(args)
    if args.what == "rm":
        return _remove(settings, args.run, args.older_than, as_json=args.json)
    if args.run or args.older_than:
        raise UsageError("runs: to remove runs, name them after rm, such as scheduler runs rm r3")
    facts = retention.runs(settings)
    show(status.run_lines(facts), {"runs": facts}, as_json=args.json)
    return 0


def _remove(settings: Settings, words: list[str], older: str | None, *, as_json: bool) -> int:
    if bool(words) == (older is not None):
        raise UsageError("runs rm: name runs, as r3 or by name, or give --older-than 30d")
    gone = (
        retention.remove_old(settings, duration("--older-than", older))
        if older is not None
        else retention.remove(settings, words)
    )
    show(status.removed_lines(gone), {"removed": gone}, as_json=as_json)
    return 0
