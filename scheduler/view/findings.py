"""Lines of a page that says what is well, what is wrong and how that is cured."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from enum import StrEnum

from scheduler.values import dataclass
from scheduler.view.words import clean

_WHAT = 14
_INDENT = 2 + 2 + 2 + _WHAT + 1


class Mark(StrEnum):
    """What stands before a line."""

    OK = "ok"
    WRONG = "!!"
    ABSENT = "--"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line; what is wrong always has a cure."""

    mark: Mark
    what: str
    says: str
    cure: str = ""
    note: str = ""
    """More of what it says, on a line of its own where there is no room beside the rest."""
    broken: bool = False
    """Whether it is to be repaired, and not just worth knowing."""
    stops: bool = False
    """Whether no run would start."""


@dataclass(frozen=True, slots=True)
class Group:
    """Lines under a heading."""

    title: str
    findings: tuple[Finding, ...]


def ok(what: str, says: str, note: str = "") -> Finding:
    """All is well."""
    return Finding(Mark.OK, what, says, note=note)


def absent(what: str, says: str, cure: str = "", note: str = "") -> Finding:
    """It is not there, which is nothing wrong; `cure` is how to have it."""
    return Finding(Mark.ABSENT, what, says, cure, note)


def wrong(what: str, says: str, cure: str, note: str = "") -> Finding:
    """It needs attention, though runs go on."""
    return Finding(Mark.WRONG, what, says, cure, note)


def broken(what: str, says: str, cure: str, note: str = "", *, stops: bool = True) -> Finding:
    """It has to be repaired."""
    return Finding(Mark.WRONG, what, says, cure, note, broken=True, stops=stops)


def group_lines(group: Group, width: int) -> Iterator[str]:
    """A heading, and its lines wrapped to a width."""
    yield group.title
    for finding in group.findings:
        yield from _lines(finding, width)


def _lines(finding: Finding, width: int) -> Sequence[str]:
    indent = " " * _INDENT
    head = f"  {finding.mark}  {finding.what:<{_WHAT}} "
    whole = f"{finding.says}  {finding.note}" if finding.says else finding.note
    if not finding.note or len(head) + len(whole) <= width:
        lines = _wrap(whole.rstrip(), head, indent, width)
    else:
        lines = [*_wrap(finding.says, head, indent, width), *_wrap(finding.note, indent, indent, width)]
    if finding.cure:
        lines += _wrap(finding.cure, f"{indent}cure: ", f"{indent}      ", width)
    return lines


def _wrap(text: str, first: str, then: str, width: int) -> list[str]:
    return textwrap.wrap(
        clean(text),
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )
