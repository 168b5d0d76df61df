"""The data of the page in the browser: of a run, of its tasks, of the machine; texts contain no secrets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from scheduler.core.brain import Brain
from scheduler.core.metrics.ranking import sort_key
from scheduler.core.model import LIVING, RETRIABLE, UNFINISHED, RankOrder, State
from scheduler.core.reporting.forecast import Forecast
from scheduler.core.reporting.live_status import LiveStatus
from scheduler.core.reporting.run_history import RunHistory
from scheduler.core.tasks.redaction import without_secrets
from scheduler.ui.terminal import panels
from scheduler.ui.text import clean
from scheduler.ui.verbs import eta
from scheduler.ui.web.server import TaskQuery

ROWS = 50
"""The number of tasks on one page of the table."""
LONGEST = 400
"""The most characters of a command that are shown."""
GROUPS: Mapping[str, frozenset[State]] = {
    "all": frozenset(State),
    "running": LIVING,
    "waiting": UNFINISHED - LIVING,
    "ended": frozenset(State) - UNFINISHED,
    "failed": RETRIABLE,
}
_COLUMNS = (
    "id", "state", "exit_code", "priority", "batch", "attempts", "ooms", "device", "reserved_bytes", "peak_bytes",
    "source", "started", "ended", "waited_s", "ran_s",
)  # fmt: skip
TICKING = frozenset({"now", "seconds", "left"})
"""The names of values that change only with the clock; the browser updates them itself."""


def shown(text: Any) -> str:
    """Return a user's text without secrets and control characters."""
    return clean(without_secrets(str(text or "")))[:LONGEST]


def run(status: LiveStatus, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the present status of a run; `more` has additional facts."""
    facts = status.to_dict()
    for one in facts["living"]:
        one["name"] = shown(one["name"])
    return {**facts, "kind": "run", "what": shown(status.what), "legend": panels.LEGEND, **_left(status), **more}


def _left(status: LiveStatus) -> dict[str, float | None]:
    """Return the seconds until the expected end, and half the width of the range in which the end is expected."""
    if status.end is None:
        return {"left": None, "unsure": None}
    return {"left": status.end.likely - status.now, "unsure": round((status.end.late - status.end.early) / 2)}


def machine(facts: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the present status of the machine: devices, leases and waiting tasks; it never contains commands of other
    users.
    """
    bars = [bar.to_dict() for bar in panels.bars_of(facts)]
    kept = {name: facts[name] for name in ("hostname", "leases", "waiting", "disabled", "gpus_trouble")}
    return {"kind": "machine", "bars": bars, "legend": panels.MACHINE_LEGEND, **kept, **more}


def brief(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about one of the user's runs for the list of runs."""
    kept = {name: facts.get(name) for name in ("number", "alive", "over", "states", "accepted", "ended", "trouble")}
    return {**kept, "name": shown(facts.get("name")), "file": shown(facts.get("file"))}


def tasks(rows: Iterable[dict[str, Any]], forecast: Forecast | None, now: float) -> Iterator[dict[str, Any]]:
    """Yield rows of tasks; a task that has not ended gets its forecast. The values in `more` of each row are added
    unchanged.
    """
    for row in eta.with_expected(rows, forecast):
        texts = {name: shown(row.get(name)) for name in ("name", "command", "reason")}
        expected = eta.of_task(row.get("expected"), now)
        yield {**{name: row.get(name) for name in _COLUMNS}, **texts, "expected": expected, **row["more"]}


def without_ticks(facts: Any) -> Any:
    """Return facts without the values in TICKING, so that two states can be compared regardless of the clock."""
    if isinstance(facts, Mapping):
        return {name: without_ticks(value) for name, value in facts.items() if name not in TICKING}
    if isinstance(facts, list):
        return [without_ticks(one) for one in facts]
    return facts


def chosen(
    brain: Brain, history: RunHistory, wanted: TaskQuery, texts: Mapping[int, str], value: Callable[[int], Any] | None
) -> list[int]:
    """Return all tasks that match a query, on all pages, in the order of the query; `value` returns a task's value in
    the column by which they are sorted.
    """
    found = list(brain.task_table.in_state(*GROUPS.get(wanted.group, GROUPS["all"])))
    if wanted.find:
        words = wanted.find.lower().split()
        found = [number for number in found if _has(words, number, texts.get(number, ""))]
    if value is not None:
        return _by_value(found, value, down=wanted.down)
    keys = _keys(brain, history, texts)
    if wanted.sort in keys:
        return sorted(found, key=keys[wanted.sort], reverse=wanted.down)
    if wanted.group in ("ended", "failed"):
        return sorted(found, key=keys["ended"], reverse=True)
    return _by_rank(brain, found) if wanted.group == "waiting" else found


def _has(words: Sequence[str], number: int, text: str) -> bool:
    """Tell whether the text of a task contains all words; a word such as `#12` means the task with that number."""
    return all(word == f"#{number}" if word[0] == "#" and word[1:].isdecimal() else word in text for word in words)


def _by_value(found: Sequence[int], value: Callable[[int], Any], *, down: bool) -> list[int]:
    """Return the tasks sorted by a value, numbers before strings; tasks without a value come last in both
    directions.
    """
    keys = {task: key for task in found if (key := sort_key(value(task))) is not None}
    return sorted(keys, key=keys.__getitem__, reverse=down) + [task for task in found if task not in keys]


def _keys(brain: Brain, history: RunHistory, texts: Mapping[int, str]) -> Mapping[str, Callable[[int], Any]]:
    """Return the function for the sort key of each column; each key ends with the task's id."""
    return {
        "id": lambda number: number,
        "name": lambda number: (texts.get(number, ""), number),
        "state": lambda number: (brain.state(number), number),
        "priority": lambda number: (brain.terms_of(number).priority, number),
        "batch": lambda number: (brain.batch_of(number), number),
        "ended": lambda number: (_last(history, number, "ended"), number),
        "ran_s": lambda number: (_last(history, number, "seconds"), number),
        "peak_bytes": lambda number: (_peak(history, number), number),
    }


def _by_rank(brain: Brain, found: Sequence[int]) -> list[int]:
    """Return waiting tasks sorted by batch and priority, the order in which they will start."""
    roll, priorities = brain.task_table, [terms.priority for terms in brain.terms]
    if brain.rules.order is RankOrder.GLOBAL:
        return sorted(found, key=lambda number: (priorities[roll.terms(number)], roll.batch(number), number))
    return sorted(found, key=lambda number: (roll.batch(number), priorities[roll.terms(number)], number))


def _last(history: RunHistory, number: int, what: str) -> float:
    task_history = history.tasks.get(number)
    return getattr(task_history.attempts[-1], what) or 0.0 if task_history and task_history.attempts else 0.0


def _peak(history: RunHistory, number: int) -> int:
    task_history = history.tasks.get(number)
    return max(task_history.attempts[-1].peak.values(), default=0) if task_history and task_history.attempts else 0
