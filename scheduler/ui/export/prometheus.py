"""The facts of `status` in the text format of Prometheus: metric families and their samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from scheduler.core.tasks.redaction import without_secrets
from scheduler.ui.text import clean
from scheduler.values import dataclass

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric; all metrics of this project are gauges."""

    name: str
    labels: str
    """The names of the metric's labels, for the documentation."""
    help: str
    samples: Callable[[Mapping[str, Any]], Iterable[Sample]]


def text(facts: Mapping[str, Any]) -> str:
    """Return all samples in the text format, in the order of FAMILIES."""
    lines: list[str] = []
    for family in FAMILIES:
        lines += [f"# HELP {family.name} {_escaped(family.help, quotes=False)}", f"# TYPE {family.name} gauge"]
        lines += [f"{family.name}{_labels(labels)} {_number(value)}" for labels, value in family.samples(facts)]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    escaped = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{escaped}}}" if escaped else ""


def _escaped(value: str, *, quotes: bool = True) -> str:
    escaped = value.replace("\\", "\\\\").replace("\n", "\\n")
    return escaped.replace('"', '\\"') if quotes else escaped


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _shown(value: Any) -> str:
    return clean(without_secrets(str(value)))


def _host(what: str) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    return lambda facts: [({}, facts["host"][what])]


def _gpus(what: str) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    def samples(facts: Mapping[str, Any]) -> Iterator[Sample]:
        for gpu in facts["gpus"]:
            yield {"device": gpu["device"]}, float(bool(gpu[what])) if what == "drained" else gpu[what]

    return samples


def _leases(what: str) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    def samples(facts: Mapping[str, Any]) -> Iterator[Sample]:
        for lease in facts["leases"]:
            named = {"user": _shown(lease["user"]), "run": str(lease["run"]), "task": str(lease["task"])}
            yield from (({**named, "device": device}, bytes_) for device, bytes_ in lease[what].items())

    return samples


def _waiting(facts: Mapping[str, Any]) -> Iterator[Sample]:
    for one in facts["waiting"]:
        yield {"user": _shown(one["user"]), "run": str(one["run"]), "task": str(one["task"])}, one["waited"]


def _runs(facts: Mapping[str, Any]) -> list[tuple[dict[str, str], Mapping[str, Any]]]:
    """Return the user's latest readable runs, each with its labels."""
    readable = [run for run in facts["runs"] if "trouble" not in run]
    return [({"run": str(r["number"]), "name": _shown(r["name"]), "file": _shown(r["file"])}, r) for r in readable]


def _states(facts: Mapping[str, Any]) -> Iterator[Sample]:
    for named, run in _runs(facts):
        yield from (({**named, "state": state}, number) for state, number in run["states"].items())


def _of_runs(value: Callable[[Mapping[str, Any]], float]) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    return lambda facts: [(named, value(run)) for named, run in _runs(facts)]


def _ends(facts: Mapping[str, Any]) -> Iterator[Sample]:
    for named, run in _runs(facts):
        end = (run.get("expected") or {}).get("end")
        yield from (({**named, "bound": bound}, end[bound]) for bound in ("early", "likely", "late") if end)


FAMILIES = (
    MetricFamily("scheduler_host_memory_total_bytes", "", "RAM of this machine.", _host("total")),
    MetricFamily("scheduler_host_memory_available_bytes", "", "RAM that is available now.", _host("available")),
    MetricFamily("scheduler_device_memory_total_bytes", "device", "Memory of each GPU.", _gpus("total")),
    MetricFamily("scheduler_device_memory_free_bytes", "device", "Free memory of each GPU.", _gpus("free")),
    MetricFamily("scheduler_device_reserved_bytes", "device", "Memory reserved on each GPU.", _gpus("reserved")),
    MetricFamily("scheduler_device_tasks", "device", "Tasks of all users on each GPU.", _gpus("tasks")),
    MetricFamily("scheduler_device_drained", "device", "1 if no task can start on this GPU, else 0.", _gpus("drained")),
    MetricFamily(
        "scheduler_lease_reserved_bytes", "user, run, task, device", "Memory reserved for each running task.",
        _leases("reserved"),
    ),
    MetricFamily(
        "scheduler_lease_used_bytes", "user, run, task, device", "Memory used by each task, if visible.",
        _leases("used"),
    ),
    MetricFamily(
        "scheduler_waiting_seconds", "user, run, task", "How long the next task of each scheduler has been waiting.",
        _waiting,
    ),
    MetricFamily("scheduler_run_tasks", "run, name, file, state", "Tasks of your latest runs, by state.", _states),
    MetricFamily(
        "scheduler_run_alive", "run, name, file", "1 while the run has a scheduler.",
        _of_runs(lambda run: float(run["alive"])),
    ),
    MetricFamily(
        "scheduler_run_over", "run, name, file", "1 once all tasks of the run have ended.",
        _of_runs(lambda run: float(run["over"])),
    ),
    MetricFamily(
        "scheduler_run_accepted_timestamp_seconds", "run, name, file", "Time at which the run was accepted.",
        _of_runs(lambda run: run["accepted"]),
    ),
    MetricFamily(
        "scheduler_run_expected_end_timestamp_seconds", "run, name, file, bound",
        "Expected end of the run: early, likely, late; absent while it is unknown.",
        _ends,
    ),
)  # fmt: skip
