"""What the page in the browser is told of a run, of its tasks and of the machine: texts without secrets, numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from scheduler.core.brain import Brain
from scheduler.core.confidential import without_secrets
from scheduler.core.model import LIVING, RETRIABLE, UNFINISHED, Order, State
from scheduler.core.picture import Picture
from scheduler.core.results import Fold
from scheduler.view import ahead, panels
from scheduler.view.web import Wanted
from scheduler.view.words import clean

ROWS = 50
"""On one page of the tasks."""
LONGEST = 400
"""Of a command so many characters are shown."""
GROUPS: Mapping[str, frozenset[State]] = {
    "all": frozenset(State),
    "running": LIVING,
    "waiting": UNFINISHED - LIVING,
    "ended": frozenset(State) - UNFINISHED,
    "failed": RETRIABLE,
}
_COLUMNS = (
    "id", "state", "exit_code", "priority", "batch", "attempts", "ooms", "device", "promised_bytes", "peak_bytes",
    "need_known_by", "started", "ended", "waited_s", "ran_s",
)  # fmt: skip
TICKING = frozenset({"now", "seconds", "left"})
"""What moves on by itself: whoever looks can count on."""


def shown(text: Any) -> str:
    """A text of the user's on one line, without secrets and control characters."""
    return clean(without_secrets(str(text or "")))[:LONGEST]


def run(picture: Picture, said: Mapping[str, Any]) -> dict[str, Any]:
    """A run as it stands; what is said of it besides comes along."""
    facts = asdict(picture)
    for one in facts["living"]:
        one["name"] = shown(one["name"])
    kept = {str(state): number for state, number in picture.states.items()}
    bars = [{**asdict(bar), "free": bar.free} for bar in picture.bars]
    more = {"kind": "run", "what": shown(picture.what), "states": kept, "bars": bars}
    return {**facts, **more, **_left(picture), "tasks": picture.tasks, "over": picture.over, "legend": _LEGEND, **said}


def _left(picture: Picture) -> dict[str, float | None]:
    """Seconds until it is over, and by how many that may be wrong."""
    if picture.end is None:
        return {"left": None, "unsure": None}
    return {"left": picture.end.likely - picture.now, "unsure": round((picture.end.late - picture.end.early) / 2)}


_LEGEND = {
    "ours": "held by this run",
    "promised": "promised, not taken yet",
    "others": "held by others",
    "buffer": "buffer",
}
_EVERYBODY = {"ours": "held by tasks", "promised": _LEGEND["promised"], "others": "held without a promise"}


def machine(facts: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    """The machine as it stands: whose tasks, which promises; never another user's commands."""
    bars = [{**asdict(bar), "free": bar.free} for bar in panels.bars_of(facts)]
    told = {name: facts[name] for name in ("hostname", "leases", "waiting", "disabled", "gpus_trouble")}
    return {"kind": "machine", "bars": bars, "legend": _EVERYBODY, **told, **said}


def brief(facts: Mapping[str, Any]) -> dict[str, Any]:
    """One of my runs, for the list of them."""
    kept = {name: facts.get(name) for name in ("number", "alive", "over", "states", "accepted", "ended", "trouble")}
    return {**kept, "name": shown(facts.get("name")), "file": shown(facts.get("file"))}


def tasks(rows: Iterable[dict[str, Any]], foreseen: Mapping[str, Any] | None, now: float) -> Iterator[dict[str, Any]]:
    """Rows of the tasks, with what is expected of those that are not over."""
    for row in ahead.with_expected(rows, foreseen):
        texts = {name: shown(row.get(name)) for name in ("name", "command", "reason")}
        expected = ahead.of_task(row.get("expected"), now)
        yield {**{name: row.get(name) for name in _COLUMNS}, **texts, "expected": expected}


def without_ticks(facts: Any) -> Any:
    """The same without what moves on by itself: if that is equal, there is nothing to tell."""
    if isinstance(facts, Mapping):
        return {name: without_ticks(value) for name, value in facts.items() if name not in TICKING}
    if isinstance(facts, list):
        return [without_ticks(one) for one in facts]
    return facts


def chosen(brain: Brain, fold: Fold, wanted: Wanted, texts: Mapping[int, str]) -> list[int]:
    """The tasks that are wanted, all pages of them, in the wanted order."""
    found = list(brain.roll.in_state(*GROUPS.get(wanted.group, GROUPS["all"])))
    if wanted.find:
        word = wanted.find.lower()
        found = [number for number in found if word in f"{number} {texts.get(number, '')}"]
    keys = _keys(brain, fold, texts)
    if wanted.sort in keys:
        return sorted(found, key=keys[wanted.sort], reverse=wanted.down)
    if wanted.group in ("ended", "failed"):
        return sorted(found, key=keys["ended"], reverse=True)
    return _by_rank(brain, found) if wanted.group == "waiting" else found


def _keys(brain: Brain, fold: Fold, texts: Mapping[int, str]) -> Mapping[str, Callable[[int], Any]]:
    """What tasks can be sorted by, each together with its id."""
    return {
        "id": lambda number: number,
        "name": lambda number: (texts.get(number, ""), number),
        "state": lambda number: (brain.state(number), number),
        "priority": lambda number: (brain.terms[brain.roll.terms(number)].priority, number),
        "batch": lambda number: (brain.roll.batch(number), number),
        "ended": lambda number: (_last(fold, number, "ended"), number),
        "ran_s": lambda number: (_last(fold, number, "seconds"), number),
        "peak_bytes": lambda number: (_peak(fold, number), number),
    }


def _by_rank(brain: Brain, found: Sequence[int]) -> list[int]:
    """In the order in which they start, as far as batch and priority say."""
    roll, priorities = brain.roll, [terms.priority for terms in brain.terms]
    if brain.rules.order is Order.GLOBAL:
        return sorted(found, key=lambda number: (priorities[roll.terms(number)], roll.batch(number), number))
    return sorted(found, key=lambda number: (roll.batch(number), priorities[roll.terms(number)], number))


def _last(fold: Fold, number: int, what: str) -> float:
    story = fold.stories.get(number)
    return getattr(story.attempts[-1], what) or 0.0 if story and story.attempts else 0.0


def _peak(fold: Fold, number: int) -> int:
    story = fold.stories.get(number)
    return max(story.attempts[-1].peak.values(), default=0) if story and story.attempts else 0
