"""The paragraph that `why` prints: the state of a task and its reason, from its scheduler or its journal."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from scheduler.core.local_time import moment
from scheduler.core.model import HOST, UNFINISHED, Outcome, State, Terms
from scheduler.core.reporting.columns import strayed
from scheduler.core.reporting.forecast import NO_ETA, ExpectedTask, Forecast
from scheduler.core.reporting.run_history import AttemptHistory, TaskHistory
from scheduler.core.tasks.after import parent_name, parent_word
from scheduler.core.tasks.redaction import without_secrets
from scheduler.ui.text import clean, clock, scheduler_ended
from scheduler.ui.verbs.eta import of_run, of_task_at_length
from scheduler.units import count, duration, size
from scheduler.values import dataclass

LONGEST = 200
MOST_PARENTS = 8
"""The most parents that are named; further ones are only counted."""


@dataclass(frozen=True, slots=True)
class TaskReport:
    """One task with all facts that its paragraph needs, from the journal of its run."""

    task: int
    state: State
    task_history: TaskHistory
    terms: Terms
    labels: Mapping[str, str]
    run: int
    alive: bool
    """True while the run has a scheduler."""
    log: str = ""
    last: str = ""
    """The last line of the task's log; empty if there is none."""
    done_by: int | None = None
    waits: str = ""
    """The reason that a running scheduler gives for a waiting task."""
    now: float = 0.0
    expected: ExpectedTask | None = None
    """The forecast that a running scheduler makes for a waiting or running task."""
    unfinished: Sequence[tuple[int, State]] = ()
    """The parents that have not ended yet, for which the task waits, with their states."""
    spoiler: tuple[int, State] | None = None
    """The parent whose failure made the scheduler skip the task, with the state of this parent."""
    spoiler_is_outside: bool = False
    """True if the parent in `spoiler` belongs to another run."""

    @property
    def attempt(self) -> AttemptHistory | None:
        """The last attempt; None before the first one."""
        return self.task_history.attempts[-1] if self.task_history.attempts else None


def paragraph(one: TaskReport) -> str:
    """Return the state of a task and the reason for it, as one paragraph."""
    astray = strayed(one.attempt, one.labels) if one.attempt is not None else ""
    cause = f"; it {astray}: does it set CUDA_VISIBLE_DEVICES, or choose its device, itself?" if astray else ""
    return clean(f"task {one.task} {_PARAGRAPHS[one.state](one)}{cause}")


def _where(one: TaskReport, attempt: AttemptHistory) -> str:
    return ", ".join(attempt.shown_on(one.labels))


def _without_gpu(one: TaskReport, attempt: AttemptHistory) -> str:
    """Return why a living attempt that could use GPUs counts as a task of the host."""
    if not attempt.sees or attempt.devices != (HOST,):
        return ""
    seen = ", ".join(one.labels.get(key, key) for key in attempt.sees)
    return f" (it sees {seen}, and has used no GPU so far)"


def _memory(attempt: AttemptHistory) -> str:
    """Return in words the peak and the reservation of an attempt on its main devices."""
    peak = max((attempt.peak.get(key, 0) for key in attempt.devices), default=0)
    reserved = max((attempt.reserved.get(key, 0) for key in attempt.devices), default=0)
    return f"peak {size(peak)}, reserved {size(reserved)} (source: {attempt.source})"


def _attempt_number(one: TaskReport) -> str:
    number = len(one.task_history.attempts)
    return f"attempt {number}"


def _at(attempt: AttemptHistory) -> str:
    return f" at {clock(attempt.ended)}" if attempt.ended is not None else ""


def _exit(attempt: AttemptHistory) -> str:
    if attempt.signal is not None:
        return f"was killed by signal {attempt.signal}"
    return f"ended with exit code {attempt.code}" if attempt.code is not None else "ended"


def _log(one: TaskReport) -> str:
    told = one.attempt is not None and one.last[:LONGEST] in one.attempt.reason
    last = f"; the last line of its log: {without_secrets(one.last)[:LONGEST]}" if one.last and not told else ""
    return f"{last}; log: {one.log}" if one.log else last


def _earlier_attempts(one: TaskReport) -> str:
    """Return in words how the attempts before the last one ended."""
    earlier = [a for a in one.task_history.attempts[:-1] if a.outcome not in (None, Outcome.UNSTARTED)]
    unstarted = _unstarted(one.task_history.attempts[:-1])
    if not earlier:
        return unstarted
    ended = ", ".join(f"{a.number} {a.outcome}{' as a probe' if a.purpose == 'probe' else ''}" for a in earlier)
    return f"; earlier attempts: {ended}{unstarted}"


def _unstarted(attempts: Sequence[AttemptHistory]) -> str:
    """Return in words the number of attempts that never started their program; they are counted because there may be
    too many to list.
    """
    number = sum(attempt.outcome is Outcome.UNSTARTED for attempt in attempts)
    return f"; {count(number, 'attempt')} never started (not counted as a failure)" if number else ""


def _reason(attempt: AttemptHistory) -> str:
    return f": {without_secrets(attempt.reason)}" if attempt.reason else ""


def _waiting(one: TaskReport) -> str:
    if one.waits:
        expected = _expected(one)  # it knows of the ends that other runs have published
        waits = one.waits.replace(f"; {NO_ETA}", "") if expected else one.waits
        return waits + expected + _all_attempts(one)
    resume = f"scheduler resume r{one.run}"
    if one.alive:
        return f"is waiting; the scheduler of run {one.run} has not reported the reason"
    return f"is waiting; run {one.run} has no scheduler: {resume} continues it{_all_attempts(one)}"


def _expected(one: TaskReport) -> str:
    text = of_task_at_length(one.expected, one.now)
    return f"; {text}" if text else ""


def _all_attempts(one: TaskReport) -> str:
    if not one.task_history.attempts:
        return ""
    tried = [a for a in one.task_history.attempts if a.outcome not in (None, Outcome.UNSTARTED)]
    ended = ", ".join(f"{a.number} {a.outcome}{_reason(a)}" for a in tried)
    unstarted = _unstarted(one.task_history.attempts)
    return f"; earlier attempts: {ended}{unstarted}" if ended else unstarted


def _blocked(one: TaskReport) -> str:
    first, rest = one.unfinished[:MOST_PARENTS], one.unfinished[MOST_PARENTS:]
    parents = ", ".join(f"{parent_name(parent)} ({state})" for parent, state in first)
    more = f" and {count(len(rest), 'other')}" if rest else ""
    dead = "" if one.alive else f"; run {one.run} has no scheduler: scheduler resume r{one.run} continues it"
    waits = [f"waits for the end of {parents}{more}{_expected(one)}"] if parents else []
    if one.terms.begin is not None and one.terms.begin > one.now:
        waits.append(f"begins at {moment(one.terms.begin, one.now)}{' at the earliest' if parents else ''}")
    return ("; ".join(waits) or "may start in a moment") + dead


def _held(one: TaskReport) -> str:
    return f"is held: scheduler release {one.task} puts it back into the queue"


def _running(one: TaskReport) -> str:
    attempt = one.attempt
    if attempt is None:
        return "is running"
    since = attempt.started or attempt.placed
    unseen = (
        "" if one.alive else f"; run {one.run} has no scheduler, nothing measures the task: scheduler resume r{one.run}"
    )
    what = "is being probed" if one.state is State.PROBING else "is running"
    return (
        f"{what} on {_where(one, attempt)}{_without_gpu(one, attempt)} "
        f"since {clock(since)} ({duration(one.now - since)}), {_attempt_number(one)}; "
        f"{_memory(attempt)}{_expected(one)}{_earlier_attempts(one)}{unseen}"
    )


def _succeeded(one: TaskReport) -> str:
    attempt = one.attempt
    if attempt is None:
        return "succeeded"
    took = f"on {_where(one, attempt)} after {duration(attempt.seconds)}"
    note = f"; {attempt.reason}" if attempt.reason else ""
    return f"succeeded{_at(attempt)} {took}, {_attempt_number(one)}; {_memory(attempt)}{note}{_earlier_attempts(one)}"


def _failed(one: TaskReport) -> str:
    attempt = one.attempt
    if attempt is None:
        return "failed"
    if attempt.outcome is Outcome.LOST:
        losses = sum(a.outcome is Outcome.LOST for a in one.task_history.attempts)
        lost = f"failed: its attempts were lost {count(losses, 'time')} for reasons outside of the task"
        return f"{lost}{_reason(attempt)}; scheduler retry {one.task} starts it again"
    tries = one.terms.retries
    retried = f"of {tries + 1} allowed (Retries {tries})" if tries else "without retries (--retries)"
    return (
        f"failed: it {_exit(attempt)}{_at(attempt)} after {duration(attempt.seconds)} on {_where(one, attempt)}"
        f"{_reason(attempt)}; {_attempt_number(one)} {retried}{_earlier_attempts(one)}{_log(one)}; "
        f"scheduler retry {one.task} starts it again"
    )


def _oom(one: TaskReport) -> str:
    ooms = [a for a in one.task_history.attempts if a.outcome is Outcome.OOM]
    attempt = ooms[-1] if ooms else one.attempt
    if attempt is None:
        return "ran out of memory"
    reserved = ", ".join(size(max((a.reserved.get(key, 0) for key in a.devices), default=0)) for a in ooms)
    often, where = count(len(ooms), "time"), _where(one, attempt)
    return (
        f"ran out of memory {often}, the last time alone on {where}{_reason(attempt)}; "
        f"{_memory(attempt)}; reservations in order: {reserved}{_log(one)}; "
        f"reduce its memory or use a larger device, then scheduler retry {one.task}"
    )


def _timeout(one: TaskReport) -> str:
    attempt = one.attempt
    limit = f" of {duration(one.terms.timeout)}" if one.terms.timeout else ""
    after = f" after {duration(attempt.seconds)} on {_where(one, attempt)}" if attempt else ""
    return (
        f"was stopped{after} at its time limit{limit} (Timeout){_log(one)}; to try again: "
        f"scheduler set {one.task} --timeout TIME, then scheduler retry {one.task}"
    )


def _interrupted(one: TaskReport) -> str:
    attempt = one.attempt
    after = f" after {duration(attempt.seconds)}" if attempt else ""
    return f"was interrupted{after}, when its run was stopped; scheduler resume r{one.run} starts it again"


def _cancelled(one: TaskReport) -> str:
    attempt = one.attempt
    ran = attempt is not None and attempt.outcome is Outcome.INTERRUPTED
    when = f"after {duration(attempt.seconds)} on {_where(one, attempt)}" if ran and attempt else "while it waited"
    return f"was cancelled {when}; scheduler retry {one.task} puts it back into the queue"


def _refused(one: TaskReport) -> str:
    return (
        f"was refused: it {one.task_history.refused or 'fits on no device of this run'}; give it more GPUs or a larger "
        f"device, then scheduler retry {one.task}"
    )


def _skipped(one: TaskReport) -> str:
    if one.spoiler is not None:
        parent, state = one.spoiler
        then = f", then scheduler resume r{one.run}, bring" if one.spoiler_is_outside and not one.alive else " brings"
        retry = f"scheduler retry {parent_word(parent)}{then} both back"
        return f"was skipped: it depends on {parent_name(parent)} ({state}); {retry}"
    why = (
        f"the same row succeeded in run {one.done_by}"
        if one.done_by
        else "the run only measures, and starts nothing else"
    )
    return f"was skipped: {why}"


def _pruned(one: TaskReport) -> str:
    attempt = one.attempt
    after = f" after {duration(attempt.seconds)} on {_where(one, attempt)}" if attempt else ""
    why = f": {attempt.pruned}" if attempt else ""
    return (
        f"was stopped early{after}{why} (--stop-when, --keep-best), which is no failure; "
        f"scheduler retry {one.task} runs it again, to its end"
    )


_PARAGRAPHS: dict[State, Callable[[TaskReport], str]] = {
    State.WAITING: _waiting,
    State.BLOCKED: _blocked,
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
    State.PRUNED: _pruned,
}


def blocked_tasks(number: int, begins: Sequence[float], now: float) -> str:
    """Return in words how many blocked tasks wait for other tasks, and how many for the times in `begins`."""
    others = number - len(begins)
    parts = [f"{others:,} for the end of other tasks (After)"] if others else []
    if begins:
        first = "at" if len(begins) == 1 else "the first at"
        parts.append(f"{len(begins):,} for a start time (Begin), {first} {moment(min(begins), now)}")
    return f"{number:,} blocked: {', '.join(parts)}"


def summary(
    run: int,
    what: str,
    states: Mapping[str, int],
    waits: str,
    *,
    alive: bool,
    forecast: Forecast | None = None,
    now: float = 0.0,
) -> list[str]:
    """Return lines about a run as a whole: its states, the reasons why tasks wait, and its expected end."""
    lines = [f"run {run}  {clean(what)}: " + (", ".join(f"{n:,} {s}" for s, n in states.items()) or "no tasks")]
    if not alive and any(states.get(state) for state in UNFINISHED):
        lines.append(scheduler_ended(run))
    if forecast is not None:
        lines.append(of_run(forecast, now))
    waiting = states.get("waiting", 0)
    if waiting:
        cause = f": {waits}" if waits else "; the scheduler has not reported the reason" if alive else ""
        lines.append(f"{waiting:,} waiting{cause}")
    if states.get("held"):
        lines.append(f"{states['held']:,} held: scheduler release --run r{run} puts them back into the queue")
    if states.get("interrupted"):
        lines.append(f"{states['interrupted']:,} interrupted: scheduler resume r{run} starts them again")
    ended = {"failed", "oom", "timeout", "cancelled", "refused"} & states.keys()
    if ended:
        number = sum(states[state] for state in ended)
        lines.append(
            f"{number:,} did not succeed: scheduler why ID explains one, scheduler retry r{run} starts them again"
        )
    return lines
