"""The page of `doctor`: what was found on a machine, in groups of lines, with what is wrong and how it is cured."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar

from scheduler.units import size
from scheduler.values import dataclass
from scheduler.view import about_gpus, about_host
from scheduler.view.examined import Examined, Failed, Gpus, Host
from scheduler.view.findings import Finding, Group, Mark, broken, group_lines

T = TypeVar("T")
_REPORT = "this is a fault of the scheduler: please report it with what scheduler doctor --json says of it"


@dataclass(frozen=True, slots=True)
class Page:
    """Everything there is to say."""

    title: str
    groups: tuple[Group, ...]
    summary: str

    @property
    def findings(self) -> list[Finding]:
        """All lines in order."""
        return [finding for group in self.groups for finding in group.findings]

    @property
    def exit_code(self) -> int:
        """1 where something has to be repaired."""
        return int(any(finding.broken for finding in self.findings))


def page(found: Examined) -> Page:
    """The page about what was found."""
    groups = tuple(Group(title, tuple(findings)) for title, findings in _groups(found))
    findings = [finding for group in groups for finding in group.findings]
    return Page(f"{found.hostname}", groups, _summary(findings, found))


def lines(page: Page, width: int) -> Iterator[str]:
    """As text."""
    for group in page.groups:
        yield from group_lines(group, width)
        yield ""
    yield page.summary


def data(found: Examined, page: Page) -> dict[str, Any]:
    """The same as data: what was found, and the lines made of it."""
    said = [{"group": group.title, **asdict(finding)} for group in page.groups for finding in group.findings]
    return {"format": 1, "ok": page.exit_code == 0, "summary": page.summary, **asdict(found), "lines": said}


def _groups(found: Examined) -> Iterator[tuple[str, Iterator[Finding]]]:
    yield found.hostname, _program(found)
    yield "GPUs", _about_gpus(found)
    yield "host", _about("host", found.host, about_host.host_findings)
    yield "surroundings", _about("surroundings", found.surroundings, about_host.surroundings_findings)
    yield "files", _about_files(found)
    yield "settings", _about("settings", found.settings, about_host.settings_findings)


def _about(what: str, part: T | Failed, say: Callable[[T], Iterable[Finding]]) -> Iterator[Finding]:
    if isinstance(part, Failed):
        yield broken(what, f"cannot be looked at ({part.failed})", part.cure or _REPORT, stops=False)
    else:
        yield from say(part)


def _program(found: Examined) -> Iterator[Finding]:
    yield from _about("scheduler", found.program, about_host.program_findings)
    yield from _about("python for -1", found.python, about_host.python_findings)


def _about_gpus(found: Examined) -> Iterator[Finding]:
    yield from _about("GPUs", found.gpus, about_gpus.gpu_findings)
    yield from _about("MPS", found.mps, about_gpus.mps_findings)


def _about_files(found: Examined) -> Iterator[Finding]:
    labels = {gpu.uuid: f"GPU {gpu.index}" for gpu in found.gpus.gpus} if isinstance(found.gpus, Gpus) else {}
    yield from _about("state", found.state, about_host.state_findings)
    yield from _about(
        "leases",
        found.leases,
        lambda leases: about_host.lease_findings(leases, lambda key: labels.get(key, key[:12])),
    )
    yield from _about("machine", found.house, about_host.house_findings)


def _summary(findings: list[Finding], found: Examined) -> str:
    wrong = [finding for finding in findings if finding.mark is Mark.WRONG]
    bad = _named(finding for finding in wrong if finding.broken)
    other = _named(finding for finding in wrong if not finding.broken)
    said = [f"to repair: {bad}"] if bad else []
    said += [f"to look at: {other}"] if other else []
    return f"{'; '.join(said) or 'nothing is wrong'}; {_uses(findings, found)}"


def _named(findings: Iterable[Finding]) -> str:
    return ", ".join(dict.fromkeys(finding.what for finding in findings))


def _uses(findings: list[Finding], found: Examined) -> str:
    """What a run would use if it were started now."""
    if any(finding.stops for finding in findings):
        return "no run would start"
    usable = [gpu for gpu in found.gpus.gpus if gpu.usable] if isinstance(found.gpus, Gpus) else []
    host = f"{size(found.host.memory.value)} of RAM" if isinstance(found.host, Host) else "the host's RAM"
    return f"a run would use {about_gpus.numbers(usable)} and {host}" if usable else f"a run would use {host} alone"
