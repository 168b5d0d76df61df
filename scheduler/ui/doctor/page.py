"""The page of `doctor`: the findings of a machine in groups, and a summary."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any, TypeVar

from scheduler.ui.doctor import gpus
from scheduler.ui.doctor import host as doctor_host
from scheduler.ui.doctor.lines import Finding, FindingGroup, LineMark, broken, group_lines
from scheduler.ui.doctor.report import DoctorReport, GpusReport, HostReport, ProbeFailed
from scheduler.units import size
from scheduler.values import dataclass

T = TypeVar("T")
_REPORT = "this is an error in the scheduler: please report it with the output of scheduler doctor --json"


@dataclass(frozen=True, slots=True)
class DoctorPage:
    """The whole page."""

    title: str
    groups: tuple[FindingGroup, ...]
    summary: str

    @property
    def findings(self) -> list[Finding]:
        """The findings of all groups, in order."""
        return [finding for group in self.groups for finding in group.findings]

    @property
    def exit_code(self) -> int:
        """1 if something has to be repaired, else 0."""
        return int(any(finding.broken for finding in self.findings))


def page(found: DoctorReport) -> DoctorPage:
    """Return the page for the facts of a machine."""
    groups = tuple(FindingGroup(title, tuple(findings)) for title, findings in _groups(found))
    findings = [finding for group in groups for finding in group.findings]
    return DoctorPage(f"{found.hostname}", groups, _summary(findings, found))


def lines(page: DoctorPage, width: int) -> Iterator[str]:
    """Yield the page as text."""
    for group in page.groups:
        yield from group_lines(group, width)
        yield ""
    yield page.summary


def data(found: DoctorReport, page: DoctorPage) -> dict[str, Any]:
    """Return facts and findings as data for JSON."""
    records = [{"group": group.title, **asdict(finding)} for group in page.groups for finding in group.findings]
    return {"format": 1, "ok": page.exit_code == 0, "summary": page.summary, **asdict(found), "lines": records}


def _groups(found: DoctorReport) -> Iterator[tuple[str, Iterator[Finding]]]:
    yield found.hostname, _program(found)
    yield "GPUs", _about_gpus(found)
    yield "host", _about("host", found.host, doctor_host.host_findings)
    yield "environment", _about("environment", found.surroundings, doctor_host.environment_findings)
    yield "files", _about_files(found)
    yield "settings", _about("settings", found.settings, doctor_host.settings_findings)


def _about(what: str, part: T | ProbeFailed, say: Callable[[T], Iterable[Finding]]) -> Iterator[Finding]:
    if isinstance(part, ProbeFailed):
        yield broken(what, f"the check failed ({part.failed})", part.cure or _REPORT, stops=False)
    else:
        yield from say(part)


def _program(found: DoctorReport) -> Iterator[Finding]:
    yield from _about("scheduler", found.program, doctor_host.program_findings)
    yield from _about("python for -1", found.python, doctor_host.python_findings)


def _about_gpus(found: DoctorReport) -> Iterator[Finding]:
    yield from _about("GPUs", found.gpus, gpus.gpu_findings)
    yield from _about("MPS", found.mps, gpus.mps_findings)


def _about_files(found: DoctorReport) -> Iterator[Finding]:
    labels = {gpu.uuid: f"GPU {gpu.index}" for gpu in found.gpus.gpus} if isinstance(found.gpus, GpusReport) else {}
    yield from _about("state", found.state, doctor_host.state_findings)
    yield from _about(
        "leases",
        found.leases,
        lambda leases: doctor_host.lease_findings(leases, lambda key: labels.get(key, key[:12])),
    )
    yield from _about("machine", found.house, doctor_host.site_findings)


def _summary(findings: list[Finding], found: DoctorReport) -> str:
    wrong = [finding for finding in findings if finding.mark is LineMark.WRONG]
    bad = _named(finding for finding in wrong if finding.broken)
    other = _named(finding for finding in wrong if not finding.broken)
    problems = [f"to repair: {bad}"] if bad else []
    problems += [f"to check: {other}"] if other else []
    return f"{'; '.join(problems) or 'no problems'}; {_uses(findings, found)}"


def _named(findings: Iterable[Finding]) -> str:
    return ", ".join(dict.fromkeys(finding.what for finding in findings))


def _uses(findings: list[Finding], found: DoctorReport) -> str:
    """Return what a run would use if it were started now."""
    if any(finding.stops for finding in findings):
        return "no run can start"
    usable = [gpu for gpu in found.gpus.gpus if gpu.usable] if isinstance(found.gpus, GpusReport) else []
    host = f"{size(found.host.memory.value)} of RAM" if isinstance(found.host, HostReport) else "the host's RAM"
    return f"a run would use {gpus.numbers(usable)} and {host}" if usable else f"a run would use {host} and no GPU"
