"""`scheduler profiles`: what is known of the memory of each kind of task; list, show, forget, learn."""

from __future__ import annotations

import json
import sys

from scheduler.cli.parsing import Parser, settings_from
from scheduler.errors import UsageError
from scheduler.store.profiles import Kept, Profiles
from scheduler.view import profiles as view
from scheduler.wiring import reading


def main(argv: list[str]) -> int:
    """List, show or forget; `learn FILE` fills the cache and runs nothing for real."""
    if argv[:1] == ["learn"]:
        return _learn(argv[1:])
    parser = Parser(
        "profiles",
        "What is known of the memory of each kind of task. scheduler profiles learn FILE probes what is not known yet\n"
        "of a list, and runs nothing else of it; it takes the flags of scheduler run.",
        "scheduler profiles forget train_mlp.py",
    ).common()
    parser.add_argument("what", nargs="?", choices=("list", "show", "forget"), default="list", help="default: list")
    parser.add_argument("which", nargs="*", metavar="WHICH", help="keys (or their beginnings), or scripts as listed")
    parser.add_argument("--all", action="store_true", help="all of them, of show and forget")
    parser.add_argument("--json", action="store_true", help="as JSON")
    args = parser.parse_args(argv)
    if args.what != "list" and bool(args.which) == args.all:
        raise UsageError(f"profiles {args.what}: say which, by key or script, or --all")
    store = reading.profiles(settings_from(args))
    try:
        return _act(store, args.what, args.which, as_json=args.json)
    finally:
        store.close()


def _act(store: Profiles, what: str, which: list[str], *, as_json: bool) -> int:
    if store.said:
        sys.stderr.write(f"hint:   {store.said}\n")
    kept = [one for one in store.all() if not which or any(_meant(word, one) for word in which)]
    if which and not kept:
        raise UsageError(f"no profile is called {' or '.join(which)}: scheduler profiles lists them")
    if what == "forget":
        number = store.forget([one.key for one in kept])
        sys.stdout.write(json.dumps({"format": 2, "forgot": number}) + "\n" if as_json else f"forgot {number}\n")
    elif as_json:
        said = {"format": 2, "profiles": [view.facts(one) for one in kept], "scripts": view.family_facts(kept)}
        sys.stdout.write(json.dumps(said, indent=1) + "\n")
    elif what == "list":
        sys.stdout.writelines(line + "\n" for line in view.table_lines(kept))
    else:
        whole = [line for one in kept for line in view.full_lines(one)] + view.family_lines(_related(store, kept))
        sys.stdout.writelines(line + "\n" for line in whole)
    return 0


def _related(store: Profiles, kept: list[Kept]) -> list[Kept]:
    """All profiles of the same scripts: only together they tell which arguments matter."""
    families = {one.profile.family for one in kept}
    return [one for one in store.all() if one.profile.family in families]


def _meant(word: str, one: Kept) -> bool:
    return one.key.startswith(word) or word in (one.what, one.what.split(" ", 1)[0])


def _learn(argv: list[str]) -> int:
    """Probe every kind of a list that is not known; `scheduler run`'s flags apply."""
    from scheduler.cli import run  # with all that a run needs, which no look at profiles does

    return run.main(argv, learn_only=True, verb="profiles learn")
