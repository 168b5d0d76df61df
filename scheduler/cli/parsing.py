"""What the verbs' parsers share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from scheduler.settings import Settings, read_settings


class Parser(argparse.ArgumentParser):
    """No abbreviated flags, an example at the end, our name before errors."""

    def __init__(self, verb: str, description: str, example: str) -> None:
        super().__init__(
            prog=f"scheduler {verb}",
            description=description,
            epilog=f"example: {example}",
            allow_abbrev=False,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def common(self) -> Parser:
        """Flags that every verb has."""
        self.add_argument("--state", metavar="DIR", help="where runs are kept")
        return self


def settings_from(args: argparse.Namespace, *names: str) -> Settings:
    """The settings with this command line's flags on top."""
    flags: Mapping[str, str | None] = {name: getattr(args, name, None) for name in ("state", *names)}
    return read_settings(flags)
