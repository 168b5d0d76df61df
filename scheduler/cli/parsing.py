"""What the verbs' parsers share."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import NoReturn

from scheduler.errors import UsageError
from scheduler.settings import Settings, read_settings

MPS_WORDS = ("on", "off", "true", "false", "yes", "no", "1", "0", "", "auto", "join")
"""What is taken for the word of `--mps` where it stands behind it."""


class Parser(argparse.ArgumentParser):
    """No abbreviated flags, an example at the end, errors in one sentence and not under a page of usage."""

    def __init__(self, verb: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"scheduler {verb}",
            description=description,
            epilog=f"example: {example}",
            allow_abbrev=False,
            formatter_class=_format,
        )

    def error(self, message: str) -> NoReturn:
        """What cannot be parsed, as all that is wrong is said."""
        verb = self.prog.removeprefix("scheduler ")
        raise UsageError(f"{verb}: {message}{self._meant(message)} (scheduler {verb} --help)")

    def _meant(self, message: str) -> str:
        """The flag that is nearest to one that is not there."""
        _, found, words = message.partition("unrecognized arguments: ")
        if not found or not words.startswith("--"):
            return ""
        import difflib  # only where something is wrong

        near = difflib.get_close_matches(words.split()[0].partition("=")[0], self._option_string_actions, 1)
        return f": did you mean {near[0]}?" if near else ""

    def common(self) -> Parser:
        """Flags that every verb has."""
        self.add_argument("--state", metavar="DIR", help="where runs are kept")
        return self

    def secrets(self) -> None:
        """The flag of verbs that show commands."""
        self.add_argument("--show-secrets", action="store_true", help="show what looks like a secret, not ***")


def _format(prog: str) -> argparse.HelpFormatter:
    """As wide as the terminal; argparse would load shutil (1.5 ms) for that, in every verb."""
    return argparse.RawDescriptionHelpFormatter(prog, width=_columns() - 2)


def _columns() -> int:
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said) > 0:
        return int(said)
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80


def joined_mps(argv: list[str]) -> list[str]:
    """`--mps` with its word as one, where one of its words follows it: `--mps jobs.csv` is a flag and a file."""
    said: list[str] = []
    for word in argv:
        bare = bool(said) and said[-1] in ("-m", "--mps")
        if bare and word.lower() in MPS_WORDS:
            said[-1] = f"--mps={word}"
        else:
            said.append(word)
    return ["--mps=on" if word in ("-m", "--mps") else word for word in said]


def settings_from(args: argparse.Namespace, *names: str) -> Settings:
    """The settings with this command line's flags on top."""
    flags: Mapping[str, str | None] = {name: getattr(args, name, None) for name in ("state", *names)}
    return read_settings(flags)
