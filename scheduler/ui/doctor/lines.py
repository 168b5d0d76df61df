"""The lines of the doctor's page: findings with a mark, a text and a cure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from enum import StrEnum

from scheduler.ui.text import clean
from scheduler.values import dataclass

_WHAT = 14
_INDENT = 2 + 2 + 2 + _WHAT + 1


class LineMark(StrEnum):
    """The mark before a line."""

    OK = "ok"
    WRONG = "!!"
    ABSENT = "--"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the page; a problem always has a cure."""

    mark: LineMark
    what: str
    says: str
    cure: str = ""
    note: str = ""
    """An addition, on a line of its own if it does not fit beside the text."""
    broken: bool = False
    """True if it has to be repaired, false if it only needs attention."""
    stops: bool = False
    """True if no run can start because of it."""


@dataclass(frozen=True, slots=True)
class FindingGroup:
    """Findings under a heading."""

    title: str
    findings: tuple[Finding, ...]


def ok(what: str, says: str, note: str = "") -> Finding:
    """Return a finding without a problem."""
    return Finding(LineMark.OK, what, says, note=note)


def absent(what: str, says: str, cure: str = "", note: str = "") -> Finding:
    """Return a finding about something optional that is absent; `cure` says how to get it."""
    return Finding(LineMark.ABSENT, what, says, cure, note)


def wrong(what: str, says: str, cure: str, note: str = "") -> Finding:
    """Return a finding that needs attention, though runs start."""
    return Finding(LineMark.WRONG, what, says, cure, note)


def broken(what: str, says: str, cure: str, note: str = "", *, stops: bool = True) -> Finding:
    """Return a finding that has to be repaired."""
    return Finding(LineMark.WRONG, what, says, cure, note, broken=True, stops=stops)


def group_lines(group: FindingGroup, width: int) -> Iterator[str]:
    """Yield a heading and its findings, wrapped to a width."""
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
