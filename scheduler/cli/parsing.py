"""The argument parser that all verbs use, and the settings as a command line overrides them."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from scheduler.errors import UsageError
from scheduler.runtime.settings import Settings, read_settings

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

MPS_WORDS = ("on", "off", "true", "false", "yes", "no", "1", "0", "", "auto", "join")
"""Words that `--mps` accepts as its value; any other word after `--mps` is a file."""


class _HelpAll(argparse.Action):
    """The flag that prints the help with all flags."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        """Print the help and exit."""
        sys.stdout.write(parser.format_help())
        parser.exit()


class Parser(argparse.ArgumentParser):
    """A parser that refuses abbreviated flags, shows an example in its help, and reports each error in one sentence."""

    def __init__(self, verb: str, description: str, example: str, *, more_words: str = "") -> None:
        """Create the parser of a verb; `more_words` says how to pass words that the verb does not accept."""
        self.more_words = more_words
        self._words, self._shown = "", tuple[str, ...]()
        super().__init__(
            prog=f"scheduler {verb}",
            description=description,
            epilog=f"example: {example}",
            allow_abbrev=False,
            formatter_class=_format,
        )

    def error(self, message: str) -> NoReturn:
        """Raise UsageError with this message, because the command line cannot be parsed."""
        verb = self.prog.removeprefix("scheduler ")
        raise UsageError(f"{verb}: {message}{self._suggestion(message)} (scheduler {verb} --help)")

    def _suggestion(self, message: str) -> str:
        """Return a question that suggests the known flag nearest to an unknown one, or an empty string."""
        _, found, words = message.partition("unrecognized arguments: ")
        if not found or not words.startswith("--"):
            return f": {self.more_words}" if found and self.more_words else ""
        import difflib  # only where something is wrong

        near = difflib.get_close_matches(words.split()[0].partition("=")[0], self._option_string_actions, 1)
        return f": did you mean {near[0]}?" if near else ""

    def abridge(self, words: str, *shown: str) -> None:
        """Make `--help` show only the flags in `shown`, in this order, and `--help-all` all flags.

        `words` are the remaining words of the usage line, after the flags.
        """
        self._words, self._shown = words, ("--help", *shown, "--help-all")
        self.add_argument("--help-all", action=_HelpAll, nargs=0, help="show all flags and exit")

    def print_help(self, file: SupportsWrite[str] | None = None) -> None:
        """Print the help; for a verb with many flags, show only the most important ones."""
        self._print_message(self._short_help() if self._shown else self.format_help(), file or sys.stdout)

    def _short_help(self) -> str:
        words = [one for one in self._actions if not one.option_strings]
        page = self._get_formatter()
        page.add_usage(f"%(prog)s [FLAGS] {self._words}", (), ())
        page.add_text(self.description)
        for title, some in (("arguments", words), ("flags", [self._option_string_actions[one] for one in self._shown])):
            page.start_section(title)
            page.add_arguments(some)
            page.end_section()
        page.add_text(self.epilog)
        return page.format_help()

    def common(self) -> Parser:
        """Add the flags that every verb has."""
        self.add_argument("--state", metavar="DIR", help="directory in which runs are stored")
        return self

    def json(self) -> Parser:
        """Add `--json`, for verbs that can print JSON instead of text."""
        self.add_argument("--json", action="store_true", help="print JSON")
        return self

    def run(self) -> Parser:
        """Add the positional argument that names a run."""
        self.add_argument("run", nargs="?", metavar="RUN", help="a run: r3, its name or last (default: the latest run)")
        return self

    def secrets(self) -> None:
        """Add `--secrets`, for verbs that show commands."""
        self.add_argument("--show-secrets", action="store_true", help="show secrets instead of ***")


def _format(prog: str) -> argparse.HelpFormatter:
    """Return a help formatter as wide as the terminal. To find the width, the default formatter would load shutil,
    which takes 1.5 ms.
    """
    return argparse.RawDescriptionHelpFormatter(prog, width=terminal_width() - 2)


def terminal_width() -> int:
    """Return the number of columns of the terminal, or 80 if it is unknown."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns) > 0:
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def joined_mps(argv: list[str]) -> list[str]:
    """Join `--mps` with its value into one word: `--mps auto` is joined, while `--mps jobs.csv` remains a flag and a
    file.
    """
    words: list[str] = []
    for word in argv:
        bare = bool(words) and words[-1] in ("-m", "--mps")
        if bare and word.lower() in MPS_WORDS:
            words[-1] = f"--mps={word}"
        else:
            words.append(word)
    return ["--mps=on" if word in ("-m", "--mps") else word for word in words]


def joined_sort(argv: Sequence[str]) -> list[str]:
    """Join `--sort` with its value into one word, because the value may begin with a dash."""
    words: list[str] = []
    for word in argv:
        if words and words[-1] == "--sort" and word.startswith("-") and not word.startswith("--"):
            words[-1] = f"--sort={word}"
        else:
            words.append(word)
    return words


def settings_from(args: argparse.Namespace, *names: str) -> Settings:
    """Return the settings; the flags of this command line in `names` override them."""
    flags: Mapping[str, str | None] = {name: getattr(args, name, None) for name in ("state", *names)}
    return read_settings(flags)


def show(lines: Iterable[str], facts: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the lines of text, or with `as_json` the facts as JSON in the current format."""
    if as_json:
        sys.stdout.write(json.dumps({"format": 1, **facts}, indent=1) + "\n")
    else:
        sys.stdout.writelines(line + "\n" for line in lines)
