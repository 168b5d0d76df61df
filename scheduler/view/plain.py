"""The plain view of a run: one line per start and end, readable in a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from scheduler.core import explain
from scheduler.core.events import Event, Exited, Learned, Placed, Refused, Resized, Started, Submitted
from scheduler.core.model import HOST, UNFINISHED, Job, KnownBy, Outcome, Refusal, State, gpus_in, shown_in
from scheduler.core.results import Fold
from scheduler.paths import tilde
from scheduler.units import count, duration, size
from scheduler.view.sink import Sink
from scheduler.view.words import short

NAME = 34
_WORDS = {
    Outcome.SUCCEEDED: "done",
    Outcome.FAILED: "FAILED",
    Outcome.OOM: "OOM",
    Outcome.TIMEOUT: "TIMEOUT",
    Outcome.INTERRUPTED: "stopped",
    Outcome.LOST: "LOST",
    Outcome.AGAIN: "again",
}
_KNOWN = {KnownBy.LIVE: "unknown, watched"}


class PlainView:
    """Prints what happens; keeps the fold that the closing words are made from."""

    def __init__(
        self,
        sink: Sink,
        job: Callable[[int], Job],
        log_path: Callable[[int, int], Path],
        counts: Callable[[], Mapping[State, int]],
        fold: Fold,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.fold = fold
        self._sink = sink
        self._job = job
        self._log_path = log_path
        self._counts = counts
        self._labels = labels
        self._names: dict[int, tuple[Job, str]] = {}
        """The texts of tasks that live, and what they are called here."""
        self._waited = ""

    def show(self, event: Event, at: float) -> None:
        """One line for what people care about."""
        self.fold.take(event, at)
        if isinstance(event, Started):
            return
        line = self._line(event)
        if line:
            self._sink.line(line, at=at, timed=True)

    def say(self, sentence: str) -> None:
        """A sentence of its own."""
        self._sink.line(sentence, at=time.time())

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Say why nothing starts, once for each reason, and only while nothing runs."""
        self._sink.catch_up()
        running = self._counts().get(State.RUNNING, 0)
        if running or not refusals:
            self._waited = ""
            return
        refusal = refusals[0]
        sentence = f"task {refusal.task} waits: it {explain.why(refusal)}"
        key = f"{refusal.task} {refusal.reason} {refusal.device}"
        if key != self._waited:
            self._waited = key
            self.say(sentence)

    def hang_up(self) -> None:
        """The terminal is gone; the log goes on."""
        self._sink.hang_up()

    def _line(self, event: Event) -> str:
        match event:
            case Placed():
                return self._placed(event)
            case Exited():
                return self._exited(event)
            case Resized(cause="grew"):
                raised = ", ".join(f"{self._labels.get(key, key)} {size(b)}" for key, b in event.promise.items() if b)
                return self._words("grew", event.task, f"promise raised to {raised}: it was seen above the last one")
            case Refused():
                return self._words("REFUSED", event.task, event.reason)
        return self._of_the_run(event)

    def _of_the_run(self, event: Event) -> str:
        """What is about no single task."""
        if isinstance(event, Learned):
            what = "does not change its memory" if event.neutral else "changes its memory after all"
            return f"learned  {event.script}: {event.argument} {what}"
        if isinstance(event, Submitted) and self.fold.first is not None:
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

    def _placed(self, event: Placed) -> str:
        job, _ = self._known(event.task)
        known = _KNOWN.get(event.known_by, str(event.known_by))
        again = f"  attempt {event.attempt}" if event.attempt > 1 else ""
        word = "probe" if event.purpose == "probe" else "start"
        gpus = gpus_in(event.promise)
        devices = ", ".join(self._labels.get(key, key) for key in shown_in(event.promise))
        promised = f"promised {size(max((event.promise[key] for key in gpus or event.promise), default=0))} ({known})"
        return self._words(word, event.task, f"prio {job.spec.terms.priority}  {devices}  {promised}{again}")

    def _exited(self, event: Exited) -> str:
        attempt = self.fold.stories[event.task].attempts[-1]
        main = gpus_in(attempt.promised) or (HOST,)
        peak = max(attempt.peak.get(key, 0) for key in main)
        promised = max(attempt.promised.get(key, 0) for key in main)
        how = f"after {duration(event.seconds)}" if event.outcome is not Outcome.SUCCEEDED else duration(event.seconds)
        memory = f"peak {size(peak)} of {size(promised)}"
        words = [f"{ending(event)} {how}".strip(), memory, self._progress()]
        if event.outcome in (Outcome.FAILED, Outcome.OOM, Outcome.TIMEOUT):
            words.append(f"log {tilde(self._log_path(event.task, event.attempt))}")
        line = self._words(_WORDS[event.outcome], event.task, "  ".join(words))
        self._names.pop(event.task, None)
        return line

    def _progress(self) -> str:
        counts = self._counts()
        total = sum(counts.values())
        over = total - sum(counts.get(state, 0) for state in UNFINISHED)
        return f"[{over}/{total}]"


def ending(event: Exited) -> str:
    """How an attempt ended, in a few words; nothing for a success."""
    if event.outcome is Outcome.SUCCEEDED:
        return ""
    if event.reason:
        return event.reason
    if event.signal is not None:
        return f"signal {event.signal}"
    return f"exit {event.code}" if event.code is not None else str(event.outcome)
