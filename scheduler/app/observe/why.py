"""Why tasks wait or ended: from the journal, and from the run's scheduler if it is running."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from scheduler.app.control.targets import Target
from scheduler.app.observe.run_facts import forecast_of, forecast_with
from scheduler.app.observe.run_reader import RunReader
from scheduler.core.control.request_kinds import RunRequest
from scheduler.core.model import NO_TASK, State
from scheduler.core.ports import Answer, Request
from scheduler.core.reporting.forecast import Forecast
from scheduler.core.tasks.redaction import without_secrets
from scheduler.runtime.paths import open_plain
from scheduler.store.machine.locked_files import is_locked
from scheduler.store.run import requests
from scheduler.ui.verbs.why import TaskReport, blocked_tasks, paragraph, summary
from scheduler.values import dataclass

PATIENCE = 5.0
"""Seconds to wait for the answer of a running scheduler."""
AT_ONCE = 50
"""The most tasks in one request; with more, the scheduler could not answer quickly."""
TAIL = 4096
"""The number of bytes at the end of a log that are searched for its last line."""


@dataclass(frozen=True, slots=True)
class WhyAnswer:
    """The explanation for one run or its tasks, as lines and as data."""

    lines: Sequence[str]
    facts: Mapping[str, Any]


def why(target: Target) -> WhyAnswer:
    """Return why the tasks of a target wait or ended; for a run, the number of waiting tasks by reason."""
    info = target.info
    alive = is_locked(info.places.root)
    asks = alive and not info.elsewhere
    few = asks and len(target.tasks) <= AT_ONCE
    request = Request(RunRequest.WHY, target.tasks)
    posted = requests.post(info.places, request) if few else None  # the scheduler answers while this process reads
    with closing(RunReader(info, only_states=True)) as reader:
        if posted is not None:
            said = requests.fetch(info.places, posted, PATIENCE) or ()
        else:
            said = _asked(target, reader) if asks else ()
        reader.catch_up()  # a task that has started since then no longer waits
        if not target.tasks:
            return _of_run(reader, alive, said)
        return _of_tasks(reader, target.tasks, alive, {one.tasks[0]: one for one in said if one.tasks})


def _asked(target: Target, reader: RunReader) -> Sequence[Answer]:
    """Return the answers of the run's scheduler about the waiting tasks; fewer if it stops answering."""
    waiting = [task for task in target.tasks if reader.brain.state(task) is State.WAITING]
    said: list[Answer] = []
    for first in range(0, len(waiting), AT_ONCE):
        asked = Request(RunRequest.WHY, tuple(waiting[first : first + AT_ONCE]))
        answers = requests.ask(target.info.places, asked, PATIENCE)
        if answers is None:
            break
        said += answers
    return said


def _of_run(reader: RunReader, alive: bool, said: Sequence[Answer]) -> WhyAnswer:
    states = {str(state): number for state in State if (number := reader.brain.state_counts[state])}
    words, reasons = (said[0].says, said[0].facts.get("reasons", {})) if said else ("", {})
    info = reader.info
    forecast = forecast_with(info, reader.brain)
    now = time.time()
    lines = summary(info.number, info.what, states, words, alive=alive, forecast=forecast, now=now)
    if blocked := list(reader.brain.task_table.in_state(State.BLOCKED)):
        begins = [at for task in blocked if (at := reader.brain.dependencies.begins(task)) > now]
        lines.append(blocked_tasks(len(blocked), begins, now))
    facts = {"run": info.number, "alive": alive, "states": states, "reasons": reasons, "says": lines[1:]}
    return WhyAnswer(lines, {**facts, "expected": forecast and forecast.run_to_dict()})


def _of_tasks(reader: RunReader, tasks: Sequence[int], alive: bool, said: Mapping[int, Answer]) -> WhyAnswer:
    lines, facts = [], []
    forecast = forecast_of(reader.info)
    for task in tasks:
        answer = said.get(task)
        one = _standing(reader, task, alive, answer, forecast)
        line = paragraph(one)
        lines.append(line)
        waits = answer.facts if answer is not None and one.waits else {}
        attempt = one.attempt
        facts.append(
            {
                "id": task,
                "state": str(one.state),
                "says": line,
                "attempts": len(one.task_history.attempts),
                "outcome": str(attempt.outcome) if attempt and attempt.outcome else None,
                "reason": without_secrets(one.task_history.refused or (attempt.reason if attempt else "")) or None,
                "log": one.log or None,
                "waits": dict(waits) or None,
                "expected": one.expected and one.expected.to_dict(),
            }
        )
    return WhyAnswer(lines, {"run": reader.info.number, "alive": alive, "tasks": facts})


def _standing(
    reader: RunReader, task: int, alive: bool, answer: Answer | None, forecast: Forecast | None
) -> TaskReport:
    brain, info = reader.brain, reader.info
    state, task_history = brain.state(task), reader.history_of(task)
    spoiler = brain.dependencies.cause(task)
    log = str(info.places.task_log(task, len(task_history.attempts))) if task_history.attempts else ""
    return TaskReport(
        task,
        state,
        task_history,
        brain.terms_of(task),
        reader.labels,
        info.number,
        alive,
        log,
        _last_line(log) if state in (State.FAILED, State.OOM, State.TIMEOUT) else "",
        reader.history.done_by.get(task),
        answer.says if answer is not None and state is State.WAITING else "",
        time.time(),
        forecast.of_task(task, state) if forecast is not None else None,
        [(parent, brain.dependencies.state(parent)) for parent in brain.dependencies.unfinished(task)],
        None if spoiler == NO_TASK else (spoiler, brain.dependencies.state(spoiler)),
        spoiler != NO_TASK and spoiler not in brain.task_table,
    )


def _last_line(log: str) -> str:
    """Return the last line of a log that is not blank; empty if the log cannot be read."""
    from pathlib import Path

    try:
        with open_plain(Path(log)) as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            lines = file.read(TAIL).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
