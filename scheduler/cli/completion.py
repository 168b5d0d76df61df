"""`scheduler completion bash|zsh|fish`: what a shell needs to complete verbs, flags, ids and runs."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
from collections.abc import Iterable
from importlib import import_module

from scheduler.cli.main import COMMON, VERBS
from scheduler.cli.parsing import Parser
from scheduler.errors import SchedulerError

BASH = """\
_scheduler() {
    local IFS=$'\\n'
    COMPREPLY=($("${COMP_WORDS[0]}" completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _scheduler scheduler gsched
"""
ZSH = """\
#compdef scheduler gsched
_scheduler() {
    local -a found
    found=("${(@f)$("${words[1]}" completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    [[ -n $found ]] && compadd -- $found || _files
}
(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }
compdef _scheduler scheduler gsched
"""
FISH = """\
function __scheduler_complete
    set -l said (commandline -opc) (commandline -ct)
    set -l found ($said[1] completion words -- $said[2..-1] 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c scheduler -f -a '(__scheduler_complete)'
complete -c gsched -f -a '(__scheduler_complete)'
"""
SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}
INSTALL = {
    "bash": 'eval "$(scheduler completion bash)"     # in ~/.bashrc',
    "zsh": 'eval "$(scheduler completion zsh)"      # in ~/.zshrc',
    "fish": "scheduler completion fish | source     # in ~/.config/fish/config.fish",
}
FEW = 50
"""So many of the latest tasks are offered."""
_FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z_-]*|-[a-zA-Z])(?: (?:\{([^}]*)\}|([A-Z][A-Z|]*)))?")


def main(argv: list[str]) -> int:
    """Print the script for a shell, or what may come next."""
    parser = Parser(
        "completion",
        "What a shell needs to complete verbs, flags, task ids and runs on Tab:\n  " + "\n  ".join(INSTALL.values()),
        "scheduler completion fish | source",
    )
    parser.add_argument("shell", choices=(*SHELLS, "words"), help="words: what the scripts ask: what may come next")
    parser.add_argument("said", nargs=argparse.REMAINDER, metavar="WORD", help="of words: all so far, the last begun")
    parser.add_argument("--json", action="store_true", help="as JSON")
    args = parser.parse_args(argv)
    if args.shell == "words":
        said = args.said[1:] if args.said[:1] == ["--"] else args.said
        found = [*candidates(said or [""])]
        text = json.dumps({"format": 1, "words": found}) if args.json else "\n".join(found)
        sys.stdout.write(text + "\n" if text else "")
    elif args.said not in ([], ["--json"]):  # which a shell's name may stand before
        parser.error(f"nothing follows {args.shell}")
    elif args.json or args.said:
        sys.stdout.write(json.dumps({"format": 1, "shell": args.shell, "script": SHELLS[args.shell]}) + "\n")
    else:
        sys.stdout.write(SHELLS[args.shell])
    return 0


def candidates(said: list[str]) -> Iterable[str]:
    """What the last word may become; nothing where it is a file, or nobody knows."""
    *before, begun = said
    if not before:
        return [verb for verb in VERBS if verb.startswith(begun)] or [v for v in COMMON if not begun]
    if before[0] not in VERBS or "--" in before:
        return []
    usage = _help(before[0])
    takes = _flags(usage)
    choices, metavar = takes.get(before[-1], ("", ""))
    if choices:
        found: Iterable[str] = choices.split(",")
    elif metavar:
        found = _named(metavar, begun)
    elif begun.startswith("-"):
        found = sorted(flag for flag in takes if flag.startswith("--"))
    else:
        found = _positional(usage, begun)
    return [word for word in found if word.startswith(begun)]


def flags(verb: str) -> set[str]:
    """Every flag of a verb."""
    return {*_flags(_help(verb))}


def _flags(usage: str) -> dict[str, tuple[str, str]]:
    """Flags with the choices or the kind of what follows them; neither those of examples nor of what flags are for."""
    lines = re.findall(r"^ +(-\S.*?)(?: {2}.*)?$", usage, re.MULTILINE)
    return {flag: (choices, metavar) for line in lines for flag, choices, metavar in _FLAG.findall(line)}


def _help(verb: str) -> str:
    """What a verb says of itself: the flags are those that people read there, whoever wrote the verb."""
    os.environ["COLUMNS"] = "1000"
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        import_module(f"scheduler.cli.{verb}").main(["--help"])
    return said.getvalue()


def _positional(usage: str, begun: str) -> list[str]:
    """What the arguments without a flag may be, by what the first line calls them."""
    line = re.sub(r"\[-[^][]*\]", "", usage.partition("\n")[0])
    found = [word for group in re.findall(r"\{([^}]*)\}", line) for word in group.split(",")]
    for metavar in ("ID", "RUN"):
        if re.search(rf"\b{metavar}\b", line):
            found += _named(metavar, begun)
    return found


def _named(metavar: str, begun: str) -> list[str]:
    """Runs, tasks; what else has a name is not ours to know."""
    from scheduler.settings import read_settings
    from scheduler.wiring import offering

    with contextlib.suppress(SchedulerError, OSError):
        settings = read_settings({})
        if metavar == "RUN":
            return offering.runs(settings)
        if "ID" in metavar.split("|"):
            return offering.tasks(settings, FEW, begun)
    return []
