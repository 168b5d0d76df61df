"""Joins what is needed to say why tasks stand where they stand: their journal, and their scheduler where it lives."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from scheduler.core.control import WHY
from scheduler.core.model import State
from scheduler.core.ports import Answer, Request
from scheduler.core.results import Story
from scheduler.paths import open_plain
from scheduler.store import requests
from scheduler.store.locks import is_locked
from scheduler.values import dataclass
from scheduler.view.ahead import of_one, of_program, of_program_task
from scheduler.view.why import Standing, paragraph, summary
from scheduler.wiring.addressing import Target
from scheduler.wiring.reading import Telling, foreseen

PATIENCE = 5.0
"""Seconds in which a living scheduler has to answer."""
AT_ONCE = 50
"""So many tasks are asked for in one request: the scheduler has other things to do."""
TAIL = 4096
"""Bytes of a log in which its last line is looked for."""


@dataclass(frozen=True, slots=True)
class Why:
    """What is said of one run or its tasks: lines for people, and the same as data."""

    lines: Sequence[str]
    facts: Mapping[str, Any]


def why(target: Target) -> Why:
    """Why the tasks meant stand where they stand, or all of a run."""
    info = target.info
    alive = is_locked(info.places.lock)
    asks = alive and not info.elsewhere
    few = asks and len(target.tasks) <= AT_ONCE
    posted = requests.post(info.places, Request(WHY, target.tasks)) if few else None  # it is answered while we read
    with closing(Telling(info)) as telling:
        if posted is not None:
            said = requests.fetch(info.places, posted, PATIENCE) or ()
        else:
            said = _asked(target, telling) if asks else ()
        telling.catch_up()  # whoever was started since waits no more
        if not target.tasks:
            return _of_run(telling, alive, said)
        return _of_tasks(telling, target.tasks, alive, {one.tasks[0]: one for one in said if one.tasks})


def _asked(target: Target, telling: Telling) -> Sequence[Answer]:
    """What the scheduler of a run says of many tasks; as much as it said, where it stopped answering."""
    waiting = [task for task in target.tasks if telling.brain.state(task) is State.WAITING]
    said: list[Answer] = []
    for first in range(0, len(waiting), AT_ONCE):
        asked = Request(WHY, tuple(waiting[first : first + AT_ONCE]))
        answers = requests.ask(target.info.places, asked, PATIENCE)
        if answers is None:
            break
        said += answers
    return said


def _of_run(telling: Telling, alive: bool, said: Sequence[Answer]) -> Why:
    states = {str(state): number for state in State if (number := telling.brain.roll.counts[state])}
    words, reasons = (said[0].says, said[0].facts.get("reasons", {})) if said else ("", {})
    info = telling.info
    said_ahead = foreseen(info)
    lines = summary(info.number, info.what, states, words, alive=alive, foreseen=said_ahead, now=time.time())
    facts = {"run": info.number, "alive": alive, "states": states, "reasons": reasons, "says": lines[1:]}
    return Why(lines, {**facts, "expected": of_program(said_ahead)})


def _of_tasks(telling: Telling, tasks: Sequence[int], alive: bool, said: Mapping[int, Answer]) -> Why:
    lines, facts = [], []
    ahead = foreseen(telling.info)
    for task in tasks:
        one, answer = (
            _standing(telling, task, alive, said.get(task), of_one(ahead, task, telling.brain.state(task))),
            said.get(task),
        )
        line = paragraph(one)
        lines.append(line)
        waits = answer.facts if answer is not None and one.waits else {}
        attempt = one.attempt
        facts.append(
            {
                "id": task,
                "state": str(one.state),
                "says": line,
                "attempts": len(one.story.attempts),
                "outcome": str(attempt.outcome) if attempt and attempt.outcome else None,
                "reason": (one.story.refused or (attempt.reason if attempt else "")) or None,
                "log": one.log or None,
                "waits": dict(waits) or None,
                "expected": of_program_task(one.expected),
            }
        )
    return Why(lines, {"run": telling.info.number, "alive": alive, "tasks": facts})


def _standing(
    telling: Telling, task: int, alive: bool, answer: Answer | None, expected: Mapping[str, Any] | None
) -> Standing:
    brain, info = telling.brain, telling.info
    state, story = brain.state(task), telling.fold.stories.get(task, Story())
    log = str(info.places.task_log(task, len(story.attempts))) if story.attempts else ""
    return Standing(
        task,
        state,
        story,
        brain.terms[brain.roll.terms(task)],
        telling.labels,
        info.number,
        alive,
        log,
        _last_line(log) if state in (State.FAILED, State.OOM, State.TIMEOUT) else "",
        telling.fold.done_by.get(task),
        answer.says if answer is not None and state is State.WAITING else "",
        time.time(),
        expected,
    )


def _last_line(log: str) -> str:
    """The last line that says anything; empty where the log cannot be read."""
    from pathlib import Path

    try:
        with open_plain(Path(log)) as file:
            file.seek(max(0, file.seek(0, 2) - TAIL))
            lines = file.read(TAIL).decode("utf-8", "replace").splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")
