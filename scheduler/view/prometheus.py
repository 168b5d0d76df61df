"""`status` in Prometheus' text format: what every family is called, and its samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from scheduler.core.confidential import without_secrets
from scheduler.values import dataclass
from scheduler.view.words import clean

Sample = tuple[Mapping[str, str], float]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric; all of them are gauges."""

    name: str
    labels: str
    """Names of its labels, for the documentation."""
    help: str
    samples: Callable[[Mapping[str, Any]], Iterable[Sample]]


def text(facts: Mapping[str, Any]) -> str:
    """Everything, in the order of the table."""
    lines: list[str] = []
    for family in FAMILIES:
        lines += [f"# HELP {family.name} {_escaped(family.help, quotes=False)}", f"# TYPE {family.name} gauge"]
        lines += [f"{family.name}{_labels(labels)} {_number(value)}" for labels, value in family.samples(facts)]
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    said = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{{{said}}}" if said else ""


def _escaped(value: str, *, quotes: bool = True) -> str:
    said = value.replace("\\", "\\\\").replace("\n", "\\n")
    return said.replace('"', '\\"') if quotes else said


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def _shown(value: Any) -> str:
    return clean(without_secrets(str(value)))


def _host(what: str) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    return lambda facts: [({}, facts["host"][what])]


def _gpus(what: str) -> Callable[[Mapping[str, Any]], Iterable[Sample]]:
    def samples(facts: Mapping[str, Any]) -> Iterator[Sample]:
        for gpu in facts["gpus"]:
            yield {"device": gpu["device"]}, float(bool(gpu[what])) if what == "closed" else gpu[what]

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
    """My latest runs that can be read, each with the labels that name it."""
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
    Family("scheduler_host_memory_total_bytes", "", "RAM of this machine.", _host("total")),
    Family("scheduler_host_memory_available_bytes", "", "RAM that can be had now.", _host("available")),
    Family("scheduler_device_memory_total_bytes", "device", "Memory of each GPU.", _gpus("total")),
    Family("scheduler_device_memory_free_bytes", "device", "Memory of each GPU that nobody holds.", _gpus("free")),
    Family("scheduler_device_promised_bytes", "device", "What is promised of each GPU.", _gpus("promised")),
    Family("scheduler_device_tasks", "device", "Tasks of anybody on each GPU.", _gpus("tasks")),
    Family("scheduler_device_closed", "device", "1 where nothing can be started on a GPU.", _gpus("closed")),
    Family(
        "scheduler_lease_promised_bytes", "user, run, task, device", "What each running task of anybody is promised.",
        _leases("promised"),
    ),
    Family(
        "scheduler_lease_used_bytes", "user, run, task, device", "What it holds, as far as that can be seen.",
        _leases("used"),
    ),
    Family(
        "scheduler_waiting_seconds", "user, run, task", "How long the next task of each scheduler has waited for room.",
        _waiting,
    ),
    Family("scheduler_run_tasks", "run, name, file, state", "Tasks of my latest runs, by where they stand.", _states),
    Family(
        "scheduler_run_alive", "run, name, file", "1 where the run has a scheduler.",
        _of_runs(lambda run: float(run["alive"])),
    ),
    Family(
        "scheduler_run_over", "run, name, file", "1 where nothing of the run is left to do.",
        _of_runs(lambda run: float(run["over"])),
    ),
    Family(
        "scheduler_run_accepted_timestamp_seconds", "run, name, file", "When the run was accepted.",
        _of_runs(lambda run: run["accepted"]),
    ),
    Family(
        "scheduler_run_expected_end_timestamp_seconds", "run, name, file, bound",
        "When the run is expected to be over: early, likely, late; nothing while nobody knows.",
        _ends,
    ),
)  # fmt: skip
