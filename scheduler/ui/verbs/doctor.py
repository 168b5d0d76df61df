"""The page of `doctor`: findings about a machine in groups, each with a mark, a sentence and a cure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from scheduler.ui.text import clean
from scheduler.values import dataclass, field

_WHAT = 14
_INDENT = 2 + 2 + 2 + _WHAT + 1


class Mark(StrEnum):
    """The mark at the beginning of a line."""

    OK = "ok"
    WRONG = "!!"
    ABSENT = "--"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the page; if it reports a problem, it has a cure."""

    mark: Mark
    what: str
    says: str
    cure: str = ""
    note: str = ""
    """An additional remark, on a line of its own if it does not fit on the line of the text."""
    broken: bool = False
    """True if the finding needs a repair, False if it only needs attention."""
    stops: bool = False
    """True if no run can start because of this finding."""

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as JSON values."""
        return {
            "mark": str(self.mark),
            "what": self.what,
            "says": self.says,
            "cure": self.cure,
            "note": self.note,
            "broken": self.broken,
            "stops": self.stops,
        }


def ok(what: str, says: str, note: str = "") -> Finding:
    """Return a finding without a problem."""
    return Finding(Mark.OK, what, says, note=note)


def absent(what: str, says: str, cure: str = "", note: str = "") -> Finding:
    """Return a finding that says that something optional is absent; `cure` says how to get it."""
    return Finding(Mark.ABSENT, what, says, cure, note)


def wrong(what: str, says: str, cure: str, note: str = "") -> Finding:
    """Return a finding that needs attention although runs can start."""
    return Finding(Mark.WRONG, what, says, cure, note)


def broken(what: str, says: str, cure: str, note: str = "", *, stops: bool = True) -> Finding:
    """Return a finding that needs a repair; `stops` is true if no run can start because of it."""
    return Finding(Mark.WRONG, what, says, cure, note, broken=True, stops=stops)


@dataclass(frozen=True, slots=True)
class DoctorPage:
    """The whole page of `doctor`."""

    hostname: str
    groups: Mapping[str, Sequence[Finding]]
    """The findings of each group, by its heading."""
    uses: str
    """The devices that a run would use if it started now."""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Further data for programs: GPUs, settings, and the tracebacks of failed checks."""

    @property
    def findings(self) -> list[Finding]:
        """The findings of all groups, in order."""
        return [finding for findings in self.groups.values() for finding in findings]

    @property
    def exit_code(self) -> int:
        """The exit code: 1 if a finding needs a repair, otherwise 0."""
        return int(any(finding.broken for finding in self.findings))

    @property
    def summary(self) -> str:
        """The names of the problems, and the devices that a run would use."""
        found = [finding for finding in self.findings if finding.mark is Mark.WRONG]
        named = {
            "to repair": dict.fromkeys(finding.what for finding in found if finding.broken),
            "to check": dict.fromkeys(finding.what for finding in found if not finding.broken),
        }
        problems = [f"{what}: {', '.join(names)}" for what, names in named.items() if names]
        stopped = any(finding.stops for finding in found)
        return f"{'; '.join(problems) or 'no problems'}; {'no run can start' if stopped else self.uses}"

    def lines(self, width: int) -> Iterator[str]:
        """Yield the page as text, wrapped to a width."""
        for title, findings in self.groups.items():
            yield title
            for finding in findings:
                yield from _lines(finding, width)
            yield ""
        yield self.summary

    def to_dict(self) -> dict[str, Any]:
        """Return the page as JSON values."""
        records = [
            {"group": title, **finding.to_dict()} for title, findings in self.groups.items() for finding in findings
        ]
        head = {"hostname": self.hostname, "ok": not self.exit_code, "summary": self.summary}
        return {**head, "lines": records, **self.facts}


def _lines(finding: Finding, width: int) -> Iterable[str]:
    indent = " " * _INDENT
    head = f"  {finding.mark}  {finding.what:<{_WHAT}} "
    whole = f"{finding.says}  {finding.note}" if finding.says else finding.note
    if not finding.note or len(head) + len(whole) <= width:
        yield from _wrap(whole.rstrip(), head, indent, width)
    else:
        yield from _wrap(finding.says, head, indent, width)
        yield from _wrap(finding.note, indent, indent, width)
    if finding.cure:
        yield from _wrap(finding.cure, f"{indent}cure: ", f"{indent}      ", width)


def _wrap(text: str, first: str, then: str, width: int) -> list[str]:
    return textwrap.wrap(
        clean(text),
        width,
        initial_indent=first,
        subsequent_indent=then,
        break_long_words=False,
        break_on_hyphens=False,
    )
