"""`scheduler run FILE`: accept a list of jobs and run it to its end."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from scheduler.cli import samples
from scheduler.cli.parsing import Parser, joined_mps, settings_from
from scheduler.core.command import APPEND
from scheduler.core.fields import FIELDS
from scheduler.errors import UsageError
from scheduler.settings import Settings
from scheduler.view.sink import hint
from scheduler.wiring import notifying, starting
from scheduler.wiring.again import Wish
from scheduler.wiring.choices import MPS_WORDS, Choices, mps_word, run_name, this_python
from scheduler.wiring.listing import Listing, csv_listing, follow_listing, stdin_listing
from scheduler.wiring.running import Session

TURNED = (
    "num", "order", "buffer", "max_load", "max_gpu_load", "python", "profile", "profile_epochs", "profile_id", "settle",
    "margin", "foreign", "foreign_calm", "visible", "memory_args", "ignore_args", "log_max", "notify",
)  # fmt: skip
"""Settings that are flags of `run`."""
STDIN = "-"
DEFAULT_FILES = ("scheduler_files/commands_1.csv", "scheduler_files/commands.csv")


def parser(verb: str = "run") -> Parser:
    """The flags of `run`."""
    what = (
        "Run a CSV of jobs batch by batch, packed by memory."
        if verb == "run"
        else "Only learn what a list's jobs need."
    )
    examples = f"scheduler {verb} jobs.csv --num 20\n         scheduler {verb} table.csv -- python train.py --lr {{lr}}"
    made = Parser(verb, what, examples).common()
    _add_list(made)
    add_run_flags(made)
    if verb == "run":
        _add_again(made.add_argument_group("the same list again"))
    return made


def _add_list(made: Parser) -> None:
    """Which list, and how it is read."""
    made.add_argument(
        "file",
        nargs="?",
        metavar="FILE",
        help="CSV, TSV or JSON lines (.jsonl); without it scheduler_files/commands_1.csv; behind it may stand "
        "-- COMMAND, which every row fills: {lr} is its cell of the column lr; - : commands from standard input, one "
        "shell command on each line, started as they arrive",
    )
    made.add_argument("--follow", metavar="F", help="commands from a file, those that will be appended to it too")
    made.add_argument(
        "--multiline", action="store_true", help="commands of several lines, each ended by a blank line or a NUL"
    )
    made.add_argument("--sample", action="store_true", help="copy the sample jobs to ./scheduler_samples and run them")
    made.add_argument(
        "--header", default="0", metavar="N|None", help="row number of the header, from 0; None: no header"
    )
    made.add_argument("--append", choices=APPEND, help="what follows the arguments (default both; a COMMAND: none)")


def add_run_flags(made: Parser) -> None:
    """Everything that can be said of a run whatever its list is."""
    made.add_argument("--num", metavar="N", help="rows in a batch (default 20)")
    made.add_argument("--order", metavar="batch|global", help="what ranks first (default batch)")
    made.add_argument("-j", "--jobs", metavar="N", help="tasks of this run at once")
    made.add_argument(
        "--python",
        metavar="EXE",
        help="what -1 or an empty Executable stands for: a path, a name, conda:NAME, a folder (the active environment)",
    )
    made.add_argument("--log-max", metavar="SIZE", help="a task's log is kept below this: head and tail (default 1GiB)")
    made.add_argument("--name", default="", help="a name for the run")
    made.add_argument("--plain", action="store_true", help="lines, not the live view that a terminal gets")
    made.add_argument(
        "--dry-run", action="store_true", help="check the list, show what would start when, start nothing"
    )
    made.add_argument("-d", "--detach", action="store_true", help="go on without this terminal, return once accepted")
    made.add_argument(
        "--json", action="store_true", help="at the end, the results as JSON on stdout; with --dry-run the plan"
    )
    add_notify(made)
    _add_stops(made)
    _add_devices(made.add_argument_group("devices"))
    _add_mps(made.add_argument_group("NVIDIA MPS"))
    _add_learning(made.add_argument_group("learning what tasks need"))
    task = made.add_argument_group("defaults for rows that do not say it themselves")
    for field in FIELDS:
        if field.flag and field.column != "Name":
            action = "append" if field.column == "Env" else "store"
            task.add_argument(
                field.flag, *field.aliases, dest=f"field_{field.attribute}", action=action, metavar="X", help=field.help
            )


def add_notify(made: argparse.ArgumentParser) -> None:
    """Who is told of what becomes of the run."""
    made.add_argument(
        "--notify",
        metavar="WHO",
        help="a command, or a web hook (https://...), that is told of the end, the first failure, and when launching "
        "stops by itself",
    )


def _add_stops(made: Parser) -> None:
    made.add_argument(
        "--keep-going", action="store_true", help="go on even if the first 5 rows that end all fail with the same line"
    )
    made.add_argument(
        "--max-failures", metavar="N", help="start nothing more once N tasks failed, timed out or ran out of memory"
    )


def _add_again(made: argparse._ArgumentGroup) -> None:
    made.add_argument("--new", action="store_true", help="start it although a run of this file is not over")
    made.add_argument("--skip-done", action="store_true", help="run only rows that succeeded in no run of this file")


def _add_devices(made: argparse._ArgumentGroup) -> None:
    made.add_argument("--buffer", metavar="SIZE", help="memory kept free on every device (default 512MiB)")
    made.add_argument("--max-load", metavar="SHARE", help="share of the cores that may be promised (default 1.0)")
    made.add_argument(
        "--max-gpu-load",
        metavar="SUM",
        help="what tasks on one GPU keep busy together, 1.0 each at most, to half a task (default 2.0)",
    )
    made.add_argument(
        "--devices",
        default="auto",
        metavar="WHICH",
        help="GPUs as nvidia-smi counts (0,2-3), UUIDs, all, host; each with a budget if wanted: 0:10GiB,host:12GiB "
        "or slots of one task each, by any names: 'slots:0;0;1,2' "
        "(default: every GPU this shell may use, and the host's RAM beside them or alone)",
    )
    made.add_argument("--visible", metavar="HOW", help="uuid, index, all: how tasks are told their GPUs (default uuid)")
    made.add_argument("--slots", metavar="N", help="tasks at once on a device, whatever their memory")
    made.add_argument("--max-per-device", metavar="N", help="tasks at once on a device, if their memory fits")
    made.add_argument(
        "--foreign", metavar="HOW", help="headroom, avoid or ignore: what is done about others' memory (headroom)"
    )
    made.add_argument("--foreign-calm", metavar="TIME", help="how long others must hold still before we join (2m)")


def _add_mps(made: argparse._ArgumentGroup) -> None:
    made.add_argument(
        "-m",
        "--mps",
        metavar="HOW",
        default="off",
        help="tasks on one GPU share it at the same moment; off (default), auto: where it can be, join: the daemon "
        "that runs here; without a word, or with on: a daemon of your own",
    )
    made.add_argument(
        "--mps-fence", default="on", metavar="on|off", help="no task can have more memory than it was promised (on)"
    )
    made.add_argument(
        "--mps-exclusive", action="store_true", help="as root: the GPUs take nobody but MPS until the run is over"
    )


def _add_learning(made: argparse._ArgumentGroup) -> None:
    made.add_argument("--profile", metavar="HOW", help="auto, probe, live or off: how unknown needs are learned")
    made.add_argument("--profile-epochs", metavar="N", help="epochs of a probe (default 2)")
    made.add_argument("--profile-id", metavar="own|same", help="whether a probe gets an id of its own (default own)")
    made.add_argument("--settle", metavar="TIME", help="time without a new peak that settles a task (5s, on GPUs 60s)")
    made.add_argument("--margin", metavar="M", help="on top of a known peak (default 10%%+256MiB)")
    made.add_argument("--memory-args", metavar="A,B", help="only these arguments determine the memory of a script")
    made.add_argument("--ignore-args", metavar="A,B", help="these arguments do not")


def defaults_from(args: argparse.Namespace) -> dict[str, str]:
    """Run-wide task fields as texts by column."""
    said: dict[str, str] = {}
    for field in FIELDS:
        value = getattr(args, f"field_{field.attribute}", None)
        if value is not None:
            said[field.column] = " ".join(_quoted(v) for v in value) if isinstance(value, list) else value
    return said


def _quoted(text: str) -> str:
    from shlex import quote

    return quote(text)


def main(argv: list[str], *, learn_only: bool = False, verb: str = "run") -> int:
    """Parse, accept, run, report."""
    argv, template = split_at_command(argv)
    args = parser(verb).parse_args(joined_mps(argv))
    if learn_only:
        _probe(args)
    settings = settings_from(args, *TURNED)
    listing = _listing(args, template, settings, this_python(settings))
    wish = Wish() if learn_only else Wish(args.new, args.skip_done)
    return run_listing(listing, args, settings, wish, learn_only=learn_only)


def _probe(args: argparse.Namespace) -> None:
    """Learning needs probes, whatever a run would do."""
    if args.profile not in (None, "probe"):
        raise UsageError(f"profiles learn --profile {args.profile}: it probes and runs nothing else: leave that out")
    args.profile = "probe"


def run_listing(
    listing: Listing, args: argparse.Namespace, settings: Settings, wish: Wish, *, learn_only: bool = False
) -> int:
    """Run, plan or detach what came through a door, as the flags say."""
    choices = _choices(args, keep_going=args.keep_going or listing.door != "list", learn_only=learn_only)
    if args.dry_run and args.detach:
        raise UsageError("--dry-run starts nothing that could go on without a terminal: leave --detach out")
    notifying.check(settings.notify)
    python = this_python(settings)
    if args.dry_run:
        return starting.plan(listing, choices, settings, python, wish, sys.stdout, as_json=args.json)
    if args.detach:
        return start_detached(listing, choices, settings, python, wish, as_json=args.json)
    typed = getattr(args, "file", None) == STDIN  # whoever types commands there must see what they type
    live = not args.plain and not typed
    return start(listing, choices, settings, python, wish, as_json=args.json, live=live)


def _choices(args: argparse.Namespace, *, keep_going: bool, learn_only: bool) -> Choices:
    return Choices(
        devices=args.devices,
        slots=_positive("--slots", args.slots),
        jobs=_positive("-j", args.jobs),
        max_per_device=_positive("--max-per-device", args.max_per_device),
        name=run_name("--name ", args.name),
        learn_only=learn_only,
        keep_going=keep_going,
        max_failures=_positive("--max-failures", args.max_failures),
        mps=_mps(args),
        mps_fence=_is_on("--mps-fence", args.mps_fence),
        mps_exclusive=args.mps_exclusive,
    )


def _listing(args: argparse.Namespace, template: list[str] | None, settings: Settings, python: str) -> Listing:
    """The door that the list comes through."""
    defaults = checked(defaults_from(args))
    if args.file == STDIN:
        _refuse_beside_lines("-", args, template)
        at_once = args.detach or args.dry_run
        if at_once and os.isatty(0):
            hint("reading commands from this terminal, one on each line; Ctrl-D ends them")
        return stdin_listing(defaults, multiline=args.multiline, at_once=at_once)
    if args.follow is not None:
        _refuse_beside_lines("--follow", args, template)
        return follow_listing(args.follow, defaults, settings, multiline=args.multiline, anew=args.new)
    if args.multiline:
        raise UsageError(
            "--multiline is for commands that are one of several lines: scheduler run - --multiline, or --follow"
        )
    if args.sample and (args.file is not None or template is not None):
        raise UsageError("--sample runs the sample jobs: leave the other list out")
    path = samples.unpack() if args.sample else _file(args.file)
    if template is not None:
        _check_table(template, args)
    return csv_listing(
        path,
        header=header(args.header),
        defaults=defaults,
        append=args.append or ("both" if template is None else "none"),
        python=python,
        template=template or (),
    )


def _refuse_beside_lines(what: str, args: argparse.Namespace, template: list[str] | None) -> None:
    """Refuse what says nothing where every line is a whole command."""
    for flag, said in {
        "-- COMMAND": template is not None,
        "--header": args.header != "0",
        "--append": args.append is not None,
        "--num": args.num is not None and not (args.detach or args.dry_run),
        "--sample": args.sample,
        "--new": what == STDIN and args.new,
        "--skip-done": args.skip_done,
        "another list": what != STDIN and args.file is not None,
        "--dry-run": what != STDIN and args.dry_run,
    }.items():
        if said:
            raise UsageError(f"{flag} does not go with {what}, where every line is a whole command: leave it out")


def _mps(args: argparse.Namespace) -> str:
    """How MPS is asked for; raises UsageError where flags that need it are given without."""
    how = mps_word(f"--mps={args.mps}", args.mps)
    if how == "off" and args.field_thread_percentage is not None:
        raise UsageError(
            f"--thread-percentage {args.field_thread_percentage}: shares of a GPU's threads are given by MPS alone: "
            "add --mps"
        )
    if how == "off" and (args.mps_exclusive or args.mps_fence != "on"):
        raise UsageError("--mps-exclusive and --mps-fence say how MPS is used: add --mps")
    if args.mps_exclusive and how != "on":
        raise UsageError(f"--mps-exclusive is for a daemon of one's own: write --mps, not --mps={how}")
    return how


def _is_on(flag: str, text: str) -> bool:
    how = MPS_WORDS.get(text.lower(), "")
    if how not in ("on", "off"):
        raise UsageError(f"{flag} {text}: write on or off")
    return how == "on"


def split_at_command(argv: list[str]) -> tuple[list[str], list[str] | None]:
    """The flags, and the command behind `--`; None where there is no `--`."""
    if "--" not in argv:
        return argv, None
    at = argv.index("--")
    return argv[:at], argv[at + 1 :]


def _check_table(template: list[str], args: argparse.Namespace) -> None:
    """Refuse what says nothing where the command stands behind `--`."""
    from scheduler.doors.table import check_template

    check_template(template)
    if args.append not in (None, "none"):
        raise UsageError(
            f"--append {args.append}: nothing is appended to a command behind --, write {{epochs}} or {{id}}"
        )
    if args.header.lower() == "none":
        raise UsageError("--header None: the placeholders of the command need a header that names the columns")


def start(
    listing: Listing,
    choices: Choices,
    settings: Settings,
    python: str,
    wish: Wish,
    *,
    as_json: bool = False,
    live: bool = False,
) -> int:
    """Accept a listing and run it in the foreground."""
    session = starting.begin(listing, choices, settings, python, wish)
    for warning in listing.warnings():
        hint(warning)
    if session is None:
        return _nothing(listing)
    try:
        ended = session.go(sys.stderr if as_json else sys.stdout, session.first_words(), live=live)
        if as_json:
            session.write_json(sys.stdout)
    finally:
        session.close()
    return ended.exit_code


def start_detached(
    listing: Listing, choices: Choices, settings: Settings, python: str, wish: Wish, *, as_json: bool = False
) -> int:
    """Accept a listing and leave it to a process without a terminal."""
    from scheduler.wiring import detaching

    def begin() -> tuple[Session | None, Sequence[str]]:
        session = starting.begin(listing, choices, settings, python, wish)
        return session, [*listing.warnings(), *(session.earlier if session is not None else ())]

    told = detaching.detach(begin, lambda session: session.first_words())
    return detaching.show(told, as_json=as_json) if told.number or told.trouble else _nothing(listing)


def _nothing(listing: Listing) -> int:
    lacks = "has a header and no rows" if listing.door == "list" else "has no commands"
    sys.stdout.write(f"{listing.what} {lacks}: nothing to run\n")
    return 0


def header(text: str) -> int | None:
    """`--header N|None`."""
    if text.lower() == "none":
        return None
    if not text.isdecimal():
        raise UsageError(f"--header {text}: write the row number of the header, from 0, or None")
    return int(text)


def checked(defaults: Mapping[str, str]) -> Mapping[str, str]:
    """Refuse a run-wide default that no cell could say either."""
    by_column = {field.column: field for field in FIELDS}
    for column, text in defaults.items():
        field = by_column[column]
        try:
            field.read(text)
        except (ValueError, ArithmeticError) as exc:
            raise UsageError(f"{field.flag}: {exc}") from exc
    return defaults


def _positive(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{flag} {text}: write a whole number above 0")
    return int(text)


def _file(said: str | None) -> str:
    if said is not None:
        return said
    for path in DEFAULT_FILES:
        if Path(path).is_file():
            return path
    raise UsageError(f"give a CSV file: there is neither {DEFAULT_FILES[0]} nor {DEFAULT_FILES[1]} here")
