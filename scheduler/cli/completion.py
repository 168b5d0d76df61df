"""`scheduler completion bash|zsh|fish`: print the script for Tab completion."""

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
from scheduler.patterns import lazy_pattern

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
"""The number of latest tasks that are offered as completions."""
_FLAG = lazy_pattern(r"(?<![\w-])(--[a-z][a-z_-]*|-[a-zA-Z])(?: (?:\{([^}]*)\}|((?:[a-z]+\|)+[a-z]+)|([A-Z][A-Z|]*)))?")


def main(argv: list[str]) -> int:
    """Print the completion script for a shell, or the words that may come next."""
    parser = Parser(
        "completion",
        "Print the script for Tab completion of verbs, flags, task ids and runs. To install it:\n  "
        + "\n  ".join(INSTALL.values()),
        "scheduler completion fish | source",
    )
    parser.add_argument(
        "shell",
        choices=(*SHELLS, "words"),
        help="a shell; words: used by the scripts, prints the words that may come next",
    )
    parser.add_argument(
        "said", nargs=argparse.REMAINDER, metavar="WORD", help="with words: the words so far, the last one incomplete"
    )
    parser.json()
    args = parser.parse_args(argv)
    if args.shell == "words":
        words = args.said[1:] if args.said[:1] == ["--"] else args.said
        found = [*candidates(words or [""])]
        text = json.dumps({"format": 1, "words": found}) if args.json else "\n".join(found)
        sys.stdout.write(text + "\n" if text else "")
    elif args.said not in ([], ["--json"]):  # --json may follow the shell's name
        parser.error(f"{args.shell} takes no more arguments")
    elif args.json or args.said:
        sys.stdout.write(json.dumps({"format": 1, "shell": args.shell, "script": SHELLS[args.shell]}) + "\n")
    else:
        sys.stdout.write(SHELLS[args.shell])
    return 0


def candidates(words: list[str]) -> Iterable[str]:
    """Return the possible completions of the last word; none for a file name, which the shell completes itself."""
    *before, begun = words
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
    """Return every flag of a verb."""
    return {*_flags(_help(verb))}


def _flags(usage: str) -> dict[str, tuple[str, str]]:
    """Return the flags of a usage text, each with the choices or the metavar of its value."""
    lines = re.findall(r"^ +(-\S.*?)(?: {2}.*)?$", usage, re.MULTILINE)
    found = (match for line in lines for match in _FLAG.findall(line))
    return {flag: (choices or words.replace("|", ","), metavar) for flag, choices, words, metavar in found}


def _help(verb: str) -> str:
    """Return the `--help` text of a verb, from which the flags are read."""
    os.environ["COLUMNS"] = "1000"
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        import_module(f"scheduler.cli.{verb}").main(["--help-all" if verb in ("run", "grid") else "--help"])
    return text.getvalue()


def _positional(usage: str, begun: str) -> list[str]:
    """Return the possible values of a positional argument, according to the first line of the usage text."""
    line = re.sub(r"\[-[^][]*\]", "", usage.partition("\n")[0])
    found = [word for group in re.findall(r"\{([^}]*)\}", line) for word in group.split(",")]
    for metavar in ("ID", "RUN"):
        if re.search(rf"\b{metavar}\b", line):
            found += _named(metavar, begun)
    return found


def _named(metavar: str, begun: str) -> list[str]:
    """Return the runs or tasks that a metavar stands for; none for other metavars."""
    from scheduler.app.control import completion_data
    from scheduler.runtime.settings import read_settings

    with contextlib.suppress(SchedulerError, OSError):
        settings = read_settings({})
        if metavar == "RUN":
            return completion_data.runs(settings)
        if "ID" in metavar.split("|"):
            return completion_data.tasks(settings, FEW, begun)
    return []
