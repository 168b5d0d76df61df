"""The plain view of a run: one line for each start and end, readable in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from scheduler.core.causes import ResizeCause
from scheduler.core.control import messages
from scheduler.core.events import Event, Exited, Learned, Refused, Resized, Started, Submitted
from scheduler.core.model import (
    HOST,
    UNFINISHED,
    EstimateSource,
    Job,
    Outcome,
    Placement,
    State,
    gpus_in,
    on_node,
    shown_in,
)
from scheduler.core.placement.refusal import Reason, Refusal
from scheduler.core.ports import View
from scheduler.core.reporting.run_history import RunSummary, error_of, labels_on
from scheduler.core.tasks.launchers import calls_of
from scheduler.core.tasks.redaction import without_secrets
from scheduler.runtime.paths import tilde
from scheduler.ui.terminal.sink import LineSink
from scheduler.ui.text import short
from scheduler.units import count, duration, size

NAME = 34
MOST_ERROR = 120
"""The most characters of an error that are shown in a line."""
_WORDS = {
    Outcome.SUCCEEDED: "done",
    Outcome.FAILED: "FAILED",
    Outcome.OOM: "OOM",
    Outcome.TIMEOUT: "TIMEOUT",
    Outcome.INTERRUPTED: "stopped",
    Outcome.LOST: "LOST",
    Outcome.UNSTARTED: "requeued",
    Outcome.AGAIN: "again",
}
PRUNED = "pruned"
_SOURCES = {EstimateSource.MEASURED: "unknown, measured while it runs"}


class PlainView(View):
    """A view that prints one line for each event, and keeps facts about the events for the closing summary."""

    def __init__(
        self,
        sink: LineSink,
        job: Callable[[int], Job],
        log_path: Callable[[int, int], Path],
        counts: Callable[[], Mapping[State, int]],
        history: RunSummary,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.history = history
        self._sink = sink
        self._job = job
        self._log_path = log_path
        self._counts = counts
        self._labels = labels
        self._names: dict[int, tuple[Job, str]] = {}
        """The living tasks by id, each with its job and its truncated name."""
        self._on_host: set[int] = set()
        """The ids of living tasks that count as tasks of the host."""
        self._waited = ""

    def show(self, event: Event, at: float) -> None:
        """Print a line for an event that users want to see."""
        self.history.take(event, at)
        if isinstance(event, Started):
            return
        line = self._line(event)
        if line:
            self._sink.line(line, at=at, timed=True)

    def say(self, sentence: str) -> None:
        """Print a sentence about the run."""
        self._sink.line(sentence, at=time.time())

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Print why no task starts, once for each reason, and only while no task runs."""
        self._sink.catch_up()
        running = self._counts().get(State.RUNNING, 0)
        if running or not refusals:
            self._waited = ""
            return
        refusal = refusals[0]
        if refusal.reason in (Reason.SUSPENDED, Reason.AWAY):
            return  # the run prints its own sentence
        sentence = messages.line(refusal)
        key = f"{refusal.task} {refusal.reason} {refusal.device}"
        if key != self._waited:
            self._waited = key
            self.say(sentence)

    def hang_up(self) -> None:
        """Note that the terminal was closed; continue to write the log."""
        self._sink.hang_up()

    def _line(self, event: Event) -> str:
        match event:
            case Placement():
                return self._placed(event)
            case Exited():
                return self._exited(event)
            case Resized(cause=ResizeCause.GREW):
                node = self.history.living[event.task].node
                raised = ", ".join(
                    f"{self._labels.get(on_node(key, node), key)} {size(b)}"
                    for key, b in event.reservation.items()
                    if b
                )
                return self._words(
                    "grew", event.task, f"reservation raised to {raised}, because it used more than was reserved"
                )
            case Resized() if event.cause.changes_sides:
                return self._moved(event)
            case Refused():
                return self._words("REFUSED", event.task, event.reason)
        return self._of_the_run(event)

    def _moved(self, event: Resized) -> str:
        """Return the line for an attempt that has used no GPU so far, or that now uses its GPU after all. The first of
        the two is reported only once for a task; then the line is empty.
        """
        gpus = ", ".join(self._labels.get(key, key) for key in gpus_in(event.reservation))
        if event.cause is ResizeCause.TOUCHED:
            self._on_host.discard(event.task)
            held = size(max(event.reservation[key] for key in gpus_in(event.reservation)))
            return self._words("GPU", event.task, f"uses {gpus} after all: {held} reserved there")
        if event.task in self._on_host:
            return ""
        self._on_host.add(event.task)
        kept = f"; a part of {gpus} stays reserved for now" if gpus else ""
        return self._words("no GPU", event.task, f"has used no GPU so far, and counts as a task of the host{kept}")

    def _of_the_run(self, event: Event) -> str:
        """Return the line for an event that concerns the whole run."""
        if isinstance(event, Learned):
            what = "does not change the memory" if event.neutral else "changes the memory"
            name = f"argument {event.argument}" if event.argument.isdecimal() else event.argument
            return f"learned  {event.script}: {name} {what}"
        if isinstance(event, Submitted) and self.history.first is not None:
            return f"added    {count(len(event.terms), 'task')} as batch {event.batch}"
        return ""

    def _words(self, word: str, task: int, rest: str) -> str:
        return f"{word:<8} {task:>5}  {self._known(task)[1]:<{NAME}}  {rest}"

    def _known(self, task: int) -> tuple[Job, str]:
        known = self._names.get(task)
        if known is None:
            job = self._job(task)
            known = self._names[task] = (job, short(job.name, NAME))
        return known

    def _placed(self, event: Placement) -> str:
        job, _ = self._known(event.task)
        source = _SOURCES.get(event.source, str(event.source))
        again = f"  attempt {event.attempt}" if event.attempt > 1 else ""
        word = "probe" if event.purpose == "probe" else "start"
        gpus = gpus_in(event.reservation)
        if not gpus:
            self._on_host.add(event.task)
        devices = ", ".join(labels_on(shown_in(event.reservation), event.node, self._labels))
        reserved = (
            f"reserved {size(max((event.reservation[key] for key in gpus or event.reservation), default=0))} ({source})"
        )
        changes = _changes(job, event)
        return self._words(word, event.task, f"prio {job.spec.terms.priority}  {devices}  {reserved}{again}{changes}")

    def _exited(self, event: Exited) -> str:
        attempt = self.history.ended_attempt
        assert attempt is not None, "the event has just been taken"
        main = gpus_in(attempt.devices) or (HOST,)
        peak = max(attempt.peak.get(key, 0) for key in main)
        reserved = max(attempt.reserved.get(key, 0) for key in main)
        how = f"after {duration(event.seconds)}" if event.outcome is not Outcome.SUCCEEDED else duration(event.seconds)
        memory = f"peak {size(peak)} of {size(reserved)}"
        if HOST not in main and not any(attempt.peak.get(key, 1) for key in main):
            memory = "used no GPU"
        pruned = attempt.pruned and event.outcome is Outcome.INTERRUPTED
        words = [f"{ending(event)}{',' if pruned else ''} {how}".strip(), memory, self._progress()]
        if event.outcome in (Outcome.FAILED, Outcome.OOM, Outcome.TIMEOUT):
            words.append(f"log {tilde(self._log_path(event.task, event.attempt))}")
        elif event.outcome is Outcome.SUCCEEDED and event.reason:
            words.append(event.reason)
        if not event.reason and (error := error_of(event)):
            words.insert(1, short(without_secrets(error), MOST_ERROR))
        word = PRUNED if pruned else _WORDS[event.outcome]
        line = self._words(word, event.task, "  ".join(words))
        self._names.pop(event.task, None)
        self._on_host.discard(event.task)
        return line

    def _progress(self) -> str:
        counts = self._counts()
        total = sum(counts.values())
        ended = total - sum(counts.get(state, 0) for state in UNFINISHED)
        return f"[{ended}/{total}]"


def ending(event: Exited) -> str:
    """Return how an attempt ended, in a few words; empty for a success."""
    if event.outcome is Outcome.SUCCEEDED:
        return ""
    if event.reason:
        return event.reason
    if event.signal is not None:
        return f"signal {event.signal}"
    return f"exit {event.code}" if event.code is not None else str(event.outcome)


def _changes(job: Job, event: Placement) -> str:
    """Return, in words, the arguments that the attempt's launcher gets in addition to its command."""
    changes = calls_of(job).changes(str(event.port), len(event.sees)) if event.port else ""
    return f"  launcher gets {changes}" if changes else ""
