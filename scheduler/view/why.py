"""Why a task stands where it stands, as a paragraph, whoever tells it: its scheduler, or its journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scheduler.core.model import Outcome, State, Terms
from scheduler.core.results import Attempt, Story
from scheduler.units import count, duration, size
from scheduler.values import dataclass
from scheduler.view.ahead import of_run, of_task_at_length
from scheduler.view.words import clean, clock

LONGEST = 200


@dataclass(frozen=True, slots=True)
class Standing:
    """One task, as its run's journal tells it."""

    task: int
    state: State
    story: Story
    terms: Terms
    labels: Mapping[str, str]
    run: int
    alive: bool
    """Whether the run has a scheduler."""
    log: str = ""
    last: str = ""
    """The last line of its log."""
    done_by: int | None = None
    waits: str = ""
    """What its scheduler says of it, where it waits and that lives."""
    now: float = 0.0
    expected: Mapping[str, Any] | None = None
    """What its scheduler expects of it, where it waits or runs and that lives."""

    @property
    def attempt(self) -> Attempt | None:
        return self.story.attempts[-1] if self.story.attempts else None


def paragraph(one: Standing) -> str:
    """The task, where it stands and why."""
    return clean(f"task {one.task} {_SAYS[one.state](one)}")


def _where(one: Standing, attempt: Attempt) -> str:
    return ", ".join(one.labels.get(key, key) for key in attempt.devices)


def _memory(attempt: Attempt) -> str:
    """Peak against promise, on its main devices."""
    peak = max((attempt.peak.get(key, 0) for key in attempt.devices), default=0)
    said = max((attempt.promised.get(key, 0) for key in attempt.devices), default=0)
    return f"it held {size(peak)} at most and was promised {size(said)} ({attempt.known_by})"


def _which(one: Standing) -> str:
    number = len(one.story.attempts)
    return f"attempt {number}" if number > 1 else "its first attempt"


def _at(attempt: Attempt) -> str:
    return f" at {clock(attempt.ended)}" if attempt.ended is not None else ""


def _exit(attempt: Attempt) -> str:
    if attempt.signal is not None:
        return f"was killed by signal {attempt.signal}"
    return f"ended with exit code {attempt.code}" if attempt.code is not None else "ended"


def _log(one: Standing) -> str:
    last = f"; the last line of its log: {one.last[:LONGEST]}" if one.last else ""
    return f"{last}; log: {one.log}" if one.log else last


def _before(one: Standing) -> str:
    """What became of the attempts before the last one."""
    earlier = [a for a in one.story.attempts[:-1] if a.outcome is not None]
    if not earlier:
        return ""
    ended = ", ".join(f"{a.number} {a.outcome}{' as a probe' if a.purpose == 'probe' else ''}" for a in earlier)
    return f"; before that, attempt {ended}"


def _reason(attempt: Attempt) -> str:
    return f": {attempt.reason}" if attempt.reason else ""


def _waiting(one: Standing) -> str:
    if one.waits:
        return one.waits + _expected(one) + _before_all(one)
    resume = f"scheduler resume {one.run}"
    if one.alive:
        return f"waits, and the scheduler of run {one.run} has not said why"
    return f"waits, and run {one.run} has no scheduler that could start it: {resume} goes on with it{_before_all(one)}"


def _expected(one: Standing) -> str:
    said = of_task_at_length(one.expected, one.now)
    return f"; {said}" if said else ""


def _before_all(one: Standing) -> str:
    if not one.story.attempts:
        return ""
    ended = ", ".join(f"{a.number} {a.outcome}{_reason(a)}" for a in one.story.attempts if a.outcome)
    return f"; it was tried before: attempt {ended}" if ended else ""


def _held(one: Standing) -> str:
    return f"is held: scheduler release {one.task} lets it wait for its turn again"


def _running(one: Standing) -> str:
    attempt = one.attempt
    if attempt is None:
        return "runs"
    since = attempt.started or attempt.placed
    unseen = "" if one.alive else f"; run {one.run} has no scheduler, so nobody watches it: scheduler resume {one.run}"
    what = "is probed" if one.state is State.PROBING else "runs"
    return (
        f"{what} on {_where(one, attempt)} since {clock(since)} ({duration(one.now - since)}), {_which(one)}; "
        f"{_memory(attempt)}{_expected(one)}{_before(one)}{unseen}"
    )


def _succeeded(one: Standing) -> str:
    attempt = one.attempt
    if attempt is None:
        return "succeeded"
    took = f"on {_where(one, attempt)} after {duration(attempt.seconds)}"
    return f"succeeded{_at(attempt)} {took}, {_which(one)}; {_memory(attempt)}{_before(one)}"


def _failed(one: Standing) -> str:
    attempt = one.attempt
    if attempt is None:
        return "failed"
    if attempt.outcome is Outcome.LOST:
        lost = f"failed, because its attempts were lost to other causes {count(len(one.story.attempts), 'time')}"
        return f"{lost}{_reason(attempt)}; scheduler retry {one.task} tries it again"
    tries = one.terms.retries
    retried = f"Retries {tries}" if tries else "no retries (--retries)"
    return (
        f"failed: it {_exit(attempt)}{_at(attempt)} after {duration(attempt.seconds)} on {_where(one, attempt)}"
        f"{_reason(attempt)}; {_which(one)}, {retried}{_before(one)}{_log(one)}; "
        f"scheduler retry {one.task} tries it again"
    )


def _oom(one: Standing) -> str:
    ooms = [a for a in one.story.attempts if a.outcome is Outcome.OOM]
    attempt = ooms[-1] if ooms else one.attempt
    if attempt is None:
        return "ran out of memory"
    promised = ", ".join(size(max((a.promised.get(key, 0) for key in a.devices), default=0)) for a in ooms)
    often, where = count(len(ooms), "time"), _where(one, attempt)
    return (
        f"ran out of memory {often}, the last time alone on {where}{_reason(attempt)}; "
        f"{_memory(attempt)}, in order it was promised {promised}{_log(one)}; "
        f"make it need less or give it a larger device, then scheduler retry {one.task}"
    )


def _timeout(one: Standing) -> str:
    attempt = one.attempt
    limit = duration(one.terms.timeout) if one.terms.timeout else "the limit it had"
    after = f" after {duration(attempt.seconds)} on {_where(one, attempt)}" if attempt else ""
    return (
        f"was stopped{after}, because its time limit is {limit} (Timeout){_log(one)}; "
        f"scheduler set {one.task} --timeout TIME and scheduler retry {one.task} let it try again"
    )


def _interrupted(one: Standing) -> str:
    attempt = one.attempt
    after = f" after {duration(attempt.seconds)}" if attempt else ""
    return f"was stopped{after} when its run was; scheduler resume {one.run} starts it again"


def _cancelled(one: Standing) -> str:
    attempt = one.attempt
    ran = attempt is not None and attempt.outcome is Outcome.INTERRUPTED
    when = f"after {duration(attempt.seconds)} on {_where(one, attempt)}" if ran and attempt else "while it waited"
    return f"was cancelled {when}; scheduler retry {one.task} lets it wait again"


def _refused(one: Standing) -> str:
    return (
        f"was refused: it {one.story.refused or 'fits on no device of this run'}; give it more GPUs or a larger "
        f"device, then scheduler retry {one.task}"
    )


def _skipped(one: Standing) -> str:
    by = f"the same row succeeded in run {one.done_by}" if one.done_by else "only what tasks need was to be learned"
    return f"was skipped: {by}"


_SAYS: dict[State, Callable[[Standing], str]] = {
    State.WAITING: _waiting,
    State.HELD: _held,
    State.PROBING: _running,
    State.RUNNING: _running,
    State.SUCCEEDED: _succeeded,
    State.FAILED: _failed,
    State.OOM: _oom,
    State.TIMEOUT: _timeout,
    State.INTERRUPTED: _interrupted,
    State.CANCELLED: _cancelled,
    State.REFUSED: _refused,
    State.SKIPPED: _skipped,
}


def summary(
    run: int,
    what: str,
    states: Mapping[str, int],
    waits: str,
    *,
    alive: bool,
    foreseen: Mapping[str, Any] | None = None,
    now: float = 0.0,
) -> list[str]:
    """A run as a whole: how many stand where, for what the waiting ones wait, when all will be over."""
    lines = [f"run {run}  {clean(what)}: " + (", ".join(f"{n:,} {s}" for s, n in states.items()) or "no tasks")]
    if foreseen is not None:
        lines.append(of_run(foreseen, now))
    left, verb = states.get("waiting", 0), "wait"
    if left:
        verb = "waits" if left == 1 else "wait"
        cause = f": {waits}" if waits else ", and its scheduler has not said why" if alive else ""
        dead = "" if alive else f", and run {run} has no scheduler: scheduler resume {run} goes on with them"
        lines.append(f"{left:,} {verb}{cause}{dead}")
    if states.get("held"):
        lines.append(f"{states['held']:,} held: scheduler release --run {run} lets them wait for their turn again")
    if states.get("interrupted"):
        lines.append(f"{states['interrupted']:,} interrupted: scheduler resume {run} starts them again")
    ended = {"failed", "oom", "timeout", "cancelled", "refused"} & states.keys()
    if ended:
        number = sum(states[state] for state in ended)
        lines.append(f"{number:,} ended without success: scheduler why ID says why, scheduler retry {run} tries again")
    return lines
