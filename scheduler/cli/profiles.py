"""`scheduler profiles`: list, show, forget or learn the memory profiles of task classes."""

from __future__ import annotations

import sys

from scheduler.app.observe import run_facts
from scheduler.cli.parsing import Parser, settings_from, show
from scheduler.core.profiling.profile import StoredProfile
from scheduler.errors import UsageError
from scheduler.store.profiles import ProfileStore
from scheduler.ui.verbs import profiles as view
from scheduler.units import count


def main(argv: list[str]) -> int:
    """List, show or forget profiles; `learn FILE` measures unknown ones with probes."""
    if argv[:1] == ["learn"]:
        return _learn(argv[1:])
    parser = Parser(
        "profiles",
        "List, show or forget the memory profiles of task classes. scheduler profiles learn FILE measures the unknown\n"
        "memory needs of a list with probes and runs nothing else of it; it takes the flags of scheduler run.",
        "scheduler profiles forget train_mlp.py",
    ).common()
    parser.add_argument(
        "what", nargs="?", choices=("list", "show", "forget"), default="list", help="what to do (default list)"
    )
    parser.add_argument("which", nargs="*", metavar="WHICH", help="profile keys or their first characters, or scripts")
    parser.add_argument("--all", action="store_true", help="with show and forget: all profiles")
    parser.json()
    args = parser.parse_args(argv)
    if args.what != "list" and bool(args.which) == args.all:
        raise UsageError(f"profiles {args.what}: name profiles by key or script, or give --all")
    store = run_facts.profiles(settings_from(args))
    try:
        return _act(store, args.what, args.which, as_json=args.json)
    finally:
        store.close()


def _act(store: ProfileStore, what: str, which: list[str], *, as_json: bool) -> int:
    if store.trouble:
        sys.stderr.write(f"hint:   {store.trouble}\n")
    kept = [profile for profile in store.all() if not which or any(_is_named(word, profile) for word in which)]
    if which and not kept:
        raise UsageError(f"there is no profile {' or '.join(which)}: scheduler profiles lists them")
    if what == "forget":
        number = store.forget([profile.key for profile in kept])
        show([f"{count(number, 'profile')} removed"], {"forgot": number}, as_json=as_json)
        return 0
    whole = view.table_lines(kept) if what == "list" else _all_lines(store, kept)
    facts = {"profiles": [view.facts(one) for one in kept], "scripts": view.family_facts(kept)}
    show(whole, facts, as_json=as_json)
    return 0


def _all_lines(store: ProfileStore, kept: list[StoredProfile]) -> list[str]:
    """Return all lines about some profiles. Only with all profiles of a script can its relevant arguments be shown."""
    families = {one.profile.family for one in kept}
    related = [one for one in store.all() if one.profile.family in families]
    return [line for one in kept for line in view.full_lines(one)] + view.family_lines(related)


def _is_named(word: str, profile: StoredProfile) -> bool:
    return profile.key.startswith(word) or word in (profile.what, profile.what.split(" ", 1)[0])


def _learn(argv: list[str]) -> int:
    """Probe every unknown task class of a list."""
    from scheduler.cli import run  # loads all that a run needs, which the other actions do not

    return run.main(argv, learn_only=True, verb="profiles learn")
