"""The columns of results: one row for each task, with equal columns in every format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from scheduler.core.model import HOST, Job, Outcome, Spec, State, gpus_in
from scheduler.core.reporting.run_history import AttemptHistory, TaskHistory
from scheduler.units import size

COLUMNS = (
    "id", "key", "row", "name", "state", "exit_code", "reason", "priority", "batch", "attempts", "ooms", "device",
    "node", "gpus", "reserved_bytes", "peak_bytes", "host_reserved_bytes", "host_peak_bytes", "source", "submitted",
    "started", "ended", "waited_s", "ran_s", "neighbours_max", "stretched", "command", "directory", "log", "done_by",
    "skipped_for", "mps", "thread_percentage", "fenced", "energy_wh",
    "epoch_energy_wh",
)  # fmt: skip
"""The columns of results. The file's own columns follow, then those of `result.*`."""
OURS = frozenset(COLUMNS)
TEXTS = ("name", "reason", "command")
"""The columns with text, which may contain a secret."""


def row(  # noqa: PLR0913  # all that a row is made of
    task: int,
    batch: int,
    job: Job,
    state: State,
    task_history: TaskHistory | None,
    command: str,
    log: str,
    submitted: float,
    labels: Mapping[str, str] | None = None,
    done_by: int | None = None,
    skipped_for: str | None = None,
    energy: float | None = None,
) -> dict[str, Any]:
    """Return the row of one task; unknown values are None."""
    last = task_history.last if task_history else None
    values: dict[str, Any] = dict.fromkeys(COLUMNS)
    values.update(
        id=task, key=job.key, row=job.spec.row, name=job.name, state=str(state), priority=job.spec.terms.priority,
        batch=batch, attempts=0, ooms=0, command=command, directory=job.spec.directory, submitted=submitted,
        done_by=done_by, skipped_for=skipped_for, energy_wh=energy,
        epoch_energy_wh=_per_epoch(energy, job.spec.terms.epochs, state),
    )  # fmt: skip
    if task_history is not None:
        values["reason"] = task_history.refused or (task_history.attempts[-1].reason if task_history.attempts else "")
    if task_history is not None and task_history.attempts:
        values["attempts"] = len(task_history.attempts)
        values["ooms"] = sum(a.outcome is Outcome.OOM for a in task_history.attempts)
        newest = task_history.attempts[-1]
        values["exit_code"] = newest.code if newest.signal is None else 128 + newest.signal
        if newest.strayed:
            values["reason"] = "; ".join(filter(None, [values["reason"], strayed(newest, labels or {})]))
        values["log"] = log
    if last is not None:
        gpus = () if last.devices == (HOST,) else gpus_in(last.reserved)  # on the host it may keep a part of a GPU
        main = {key: last.reserved[key] for key in gpus or (HOST,) if key in last.reserved}
        values.update(
            device=",".join(last.shown_on(labels or {})), gpus=len(gpus),
            node=last.node or None,
            source=last.source, neighbours_max=last.neighbours, stretched=last.stretch,
            reserved_bytes=max(main.values(), default=None), host_reserved_bytes=last.reserved.get(HOST),
            peak_bytes=max((last.peak[key] for key in main if key in last.peak), default=None),
            host_peak_bytes=last.peak.get(HOST), started=last.started, ended=last.ended,
            waited_s=max(0.0, round((last.started or last.placed) - submitted, 3)),
            ran_s=round(last.seconds, 3) if last.ended is not None else None,
            mps=(last.mps or None) if last.percentage else None, thread_percentage=last.percentage or None,
            fenced=last.fenced,
        )  # fmt: skip
    values.update(_own(job.spec))
    values.update({f"result.{name}": value for name, value in (last.result if last else {}).items()})
    return values


def _per_epoch(energy: float | None, epochs: int | None, state: State) -> float | None:
    """Return the energy per epoch of a succeeded task, failed attempts included; None for any other task."""
    if energy is None or not epochs or state is not State.SUCCEEDED:
        return None
    return round(energy / epochs, 4)


def strayed(attempt: AttemptHistory, labels: Mapping[str, str]) -> str:
    """Return a clause about what an attempt used on GPUs that it was not given; empty if it used nothing there."""
    used = " and ".join(f"{size(held)} of {labels.get(gpu, gpu)}" for gpu, held in attempt.strayed.items())
    return f"used {used}, which it was not given" if used else ""


def column_of(parameter: str) -> str:
    """Return the name of a parameter's column. If the name is also one of COLUMNS, it gets the prefix `file.`."""
    return f"file.{parameter}" if parameter in OURS else parameter


def with_parameters(row: dict[str, Any], values: Mapping[str, str], varies: Sequence[str]) -> dict[str, Any]:
    """Return a row with one more column for each parameter that varies in the list."""
    more = {column_of(name): values[name] for name in varies if name in values}
    return {**row, **{name: value for name, value in more.items() if name not in row}}


def _own(spec: Spec) -> dict[str, str]:
    """Return the file's own columns. If a name is also one of COLUMNS, it gets the prefix `file.`."""
    return {column_of(name): value for name, value in spec.own}
