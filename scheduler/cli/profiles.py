"""`scheduler profiles`: list, show, forget, learn, export or import the memory profiles of task classes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Collection
from pathlib import Path

from scheduler.app.observe import run_facts
from scheduler.cli.parsing import Parser, settings_from, show
from scheduler.core.profiling.class_profile import StoredProfile
from scheduler.errors import InputError, StateError, UsageError
from scheduler.store.profile_records import LARGEST_FILE, from_file, to_file
from scheduler.store.profiles import ProfileStore
from scheduler.ui.verbs import profiles as view
from scheduler.units import count, size


def main(argv: list[str]) -> int:
    """List, show, forget, export or import profiles; `learn FILE` measures unknown profiles with probes."""
    if argv[:1] == ["learn"]:
        return _learn(argv[1:])
    parser = Parser(
        "profiles",
        "List, show or forget the memory profiles of task classes. scheduler profiles learn FILE measures the unknown\n"
        "memory needs of a list with probes and runs nothing else of it; it takes the flags of scheduler run.\n"
        "scheduler profiles export writes the profiles to a file, which profiles import FILE reads on another machine.",
        "scheduler profiles forget train_mlp.py",
    ).common()
    parser.add_argument(
        "what", nargs="?", choices=("list", "show", "forget", "export", "import"), default="list",
        help="what to do (default list)",
    )  # fmt: skip
    parser.add_argument(
        "which",
        nargs="*",
        metavar="WHICH",
        help="profile keys or their first characters, or scripts; with import: a file, or - for standard input",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="with export: the file (default: standard output)")
    parser.add_argument("--all", action="store_true", help="with show and forget: all profiles")
    parser.json()
    args = parser.parse_args(argv)
    if args.what in ("show", "forget") and bool(args.which) == args.all:
        raise UsageError(f"profiles {args.what}: name profiles by key or script, or give --all")
    if args.what == "import" and len(args.which) != 1:
        raise UsageError("profiles import: name one file that scheduler profiles export wrote, or - for standard input")
    if args.output is not None and args.what != "export":
        raise UsageError("-o is for profiles export")
    new = _read(args.which[0]) if args.what == "import" else []
    store = run_facts.profiles(settings_from(args))
    try:
        if args.what == "import":
            return _import(store, new, as_json=args.json)
        if args.what == "export":
            return _export(store, args.which, args.output)
        return _act(store, args.what, args.which, as_json=args.json)
    finally:
        store.close()


def _act(store: ProfileStore, what: str, which: list[str], *, as_json: bool) -> int:
    kept = _chosen(store, which)
    if what == "forget":
        number = store.forget([profile.key for profile in kept])
        show([f"{count(number, 'profile')} removed"], {"forgot": number}, as_json=as_json)
        return 0
    old = view.superseded(store.all())
    whole = view.table_lines(kept, old) if what == "list" else _all_lines(store, kept, old)
    facts = {"profiles": [view.facts(one, old) for one in kept], "scripts": view.family_facts(kept)}
    show(whole, facts, as_json=as_json)
    return 0


def _chosen(store: ProfileStore, which: list[str]) -> list[StoredProfile]:
    if store.trouble:
        sys.stderr.write(f"hint:   {store.trouble}\n")
    kept = [profile for profile in store.all() if not which or any(_is_named(word, profile) for word in which)]
    if which and not kept:
        raise UsageError(f"there is no profile {' or '.join(which)}: the verb `scheduler profiles` lists what there is")
    return kept


def _export(store: ProfileStore, which: list[str], output: str | None) -> int:
    """Write profiles as JSON to a file or to standard output."""
    kept = _chosen(store, which)
    text = json.dumps(to_file(kept), indent=1) + "\n"
    if output is None or output == "-":
        sys.stdout.write(text)
        return 0
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as exc:
        raise UsageError(f"{output} cannot be written: {exc.strerror}") from exc
    sys.stderr.write(f"{count(len(kept), 'profile')} written to {output}; read there with scheduler profiles import\n")
    return 0


def _read(path: str) -> list[StoredProfile]:
    """Return the profiles in a file, or from standard input. Raise InputError if it is not a file of profiles."""
    try:
        with contextlib.ExitStack() as stack:
            file = sys.stdin.buffer if path == "-" else stack.enter_context(open(path, "rb"))
            content = file.read(LARGEST_FILE + 1)
    except OSError as exc:
        raise InputError(path, f"cannot be read: {exc.strerror}") from exc
    if len(content) > LARGEST_FILE:
        raise InputError(path, f"it is larger than {size(LARGEST_FILE)}, so it is not a file of profiles")
    return from_file(content.decode("utf-8", "replace"), path)


def _import(store: ProfileStore, new: list[StoredProfile], *, as_json: bool) -> int:
    """Add imported profiles to the stored ones."""
    if store.trouble:
        raise StateError(store.trouble)
    added = store.add(new)
    known = len(new) - added
    line = f"{count(added, 'profile')} imported"
    line += f"; {known:,} known here already, left as {'it is' if known == 1 else 'they are'}" if known else ""
    show([line], {"imported": added, "known": known}, as_json=as_json)
    return 0


def _all_lines(store: ProfileStore, kept: list[StoredProfile], old: Collection[str]) -> list[str]:
    """Return all lines about the profiles in `kept`. The relevant arguments of a script can only be shown if all
    profiles of the script are among them.
    """
    families = {one.profile.family for one in kept}
    related = [one for one in store.all() if one.profile.family in families]
    return [line for one in kept for line in view.full_lines(one, old)] + view.family_lines(related)


def _is_named(word: str, profile: StoredProfile) -> bool:
    return profile.key.startswith(word) or word in (profile.what, profile.what.split(" ", 1)[0])


def _learn(argv: list[str]) -> int:
    """Probe every unknown task class of a list."""
    from scheduler.cli import run  # loads all that a run needs, which the other actions do not

    return run.main(argv, learn_only=True, verb="profiles learn")
