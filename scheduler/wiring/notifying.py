"""Joins a run with whoever is to be told of it: a command or a web hook, at its end, its first failure, its halt."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from shutil import which
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any

from scheduler.core.confidential import notifier, without_secrets
from scheduler.core.events import Event, Exited, Halted, Refused
from scheduler.core.fields import words
from scheduler.core.model import Refusal, State
from scheduler.core.ports import Happening, View
from scheduler.core.results import Fold
from scheduler.errors import UsageError
from scheduler.processes import answer, start_aside, wait_for
from scheduler.shim import hostname
from scheduler.units import duration

if TYPE_CHECKING:
    from scheduler.loop import Ports
    from scheduler.view.sink import Sink
    from scheduler.wiring.running import Session

PATIENCE = 10.0
"""Seconds that a notifier has; the run goes on meanwhile, and waits no longer than that at its end."""
CPU = 30
LONGEST = 200
PREFIX = "SCHEDULER_NOTIFY_"
BAD = (State.FAILED, State.OOM, State.TIMEOUT, State.REFUSED)


def check(who: str) -> None:
    """Refuse at once a command that is not there; raises UsageError."""
    if not who or is_address(who):
        return
    program = words(who)[0] if who.strip() else ""
    if which(program) is None:
        raise UsageError(f"--notify {notifier(who)}: there is no program {program!r} on PATH")


def is_address(who: str) -> bool:
    """Whether it is a web hook."""
    return who.startswith(("http://", "https://"))


class Notifier:
    """Tells one thing after the other, in copies of this process; what fails is said once and holds nobody."""

    def __init__(self, who: str, directory: str, speak: Callable[[str], None]) -> None:
        self.speak = speak
        """Where trouble is said."""
        self._who, self._directory = who, directory
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._pid, self._fd = 0, -1
        self._since = 0.0
        self._said = bytearray()
        self._failed = False
        if is_address(who):
            import urllib.request  # noqa: F401 - used in the copies, after an upgrade may have taken it away

    def tell(self, facts: Mapping[str, Any]) -> None:
        """Have it told; returns at once."""
        self._waiting.append(facts)
        self._next()

    def _next(self) -> None:
        if self._pid or not self._waiting:
            return
        facts, who, directory = self._waiting.popleft(), self._who, self._directory
        try:
            self._pid, self._fd = start_aside(lambda: told(who, facts, directory).encode(), CPU)
        except OSError as exc:
            self._fail(exc.strerror or str(exc))
            return
        os.set_blocking(self._fd, False)
        self._since = time.monotonic()

    def fileno(self) -> int:
        """Readable once one is told."""
        return self._fd

    def collect(self) -> Sequence[Happening]:
        """See what became of it; nothing ever happens to the run because of it."""
        with contextlib.suppress(BlockingIOError):
            while self._fd >= 0:
                said = os.read(self._fd, 4096)
                self._said += said
                if not said:
                    self._over("")
        if self._pid and time.monotonic() - self._since > PATIENCE + 2:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            self._over(f"no answer within {PATIENCE:g} s")
        return ()

    def _over(self, trouble: str) -> None:
        os.close(self._fd)
        code = wait_for(self._pid)
        said = bytes(self._said).decode("utf-8", "replace")
        self._pid, self._fd = 0, -1
        self._said.clear()
        if trouble or said or code:
            self._fail(trouble or said or "it was ended")
        self._next()

    def _fail(self, trouble: str) -> None:
        """Say so, the first time."""
        if not self._failed:
            self._failed = True
            self.speak(f"{notifier(self._who)} could not be told: {trouble[:LONGEST]} (said once; the run goes on)")

    def finish(self) -> None:
        """Wait for what is still to be told, as long as its patience lasts."""
        end = time.monotonic() + PATIENCE + 3
        while (self._pid or self._waiting) and time.monotonic() < end:
            select.select([self._fd] if self._fd >= 0 else [], [], [], 0.2)
            self.collect()
        self._waiting.clear()
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._pid, signal.SIGKILL)
            self._over(f"no answer within {PATIENCE:g} s")


def told(who: str, facts: Mapping[str, Any], directory: str) -> str:
    """Tell it now; why that failed, or nothing."""
    body = json.dumps(facts)
    return _posted(who, body) if is_address(who) else _called(who, facts, body, directory)


def _called(who: str, facts: Mapping[str, Any], body: str, directory: str) -> str:
    """Run a command, where the run was started, with the facts as variables, and as JSON to read."""
    said = {name: facts[name] for name in ("event", "text", "run", "name", "file", "host", "tasks")}
    states = facts["states"]
    said |= {"succeeded": states.get("succeeded", 0), "failed": sum(states.get(state, 0) for state in BAD)}
    environ = {**os.environ, **{PREFIX + name.upper(): str(value) for name, value in said.items()}}
    try:
        code, output = answer(words(who), body, PATIENCE, environ, directory)
    except TimeoutExpired:
        return f"it has not ended within {PATIENCE:g} s"
    except OSError as exc:
        return exc.strerror or str(exc)
    last = output.strip().rpartition("\n")[2]
    return f"exit {code}{f': {last}' if last else ''}" if code else ""


def _posted(address: str, body: str) -> str:
    """Send it to a web hook; what is said of a failure does not name the address."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    headers = {"Content-Type": "application/json", "User-Agent": "gpu-batch-scheduler"}
    try:
        with urlopen(Request(address, body.encode(), headers), timeout=PATIENCE) as answered:
            answered.read(1024)
    except TimeoutError:
        return f"no answer within {PATIENCE:g} s"
    except HTTPError as exc:
        return f"HTTP {exc.code} {exc.reason}"
    except URLError as exc:
        if isinstance(exc.reason, TimeoutError):
            return f"no answer within {PATIENCE:g} s"
        return str(getattr(exc.reason, "strerror", None) or exc.reason)
    except (OSError, HTTPException, ValueError) as exc:
        return type(exc).__name__
    return ""


class Telling:
    """A view that has somebody told of what matters most, beside the one that it shows everything to."""

    def __init__(self, inner: View, notifier_: Notifier, facts: Callable[[], dict[str, Any]], fold: Fold) -> None:
        self._inner, self._notifier, self._facts, self._fold = inner, notifier_, facts, fold
        self._before = self._bad()
        self._told_full = False

    def _bad(self) -> int:
        states = self._facts()["states"]
        return sum(states.get(state, 0) for state in BAD)

    def show(self, event: Event, at: float) -> None:
        """Pass it on, and have the first failure and a halt told."""
        self._inner.show(event, at)
        if isinstance(event, Halted):
            why = (
                f"{event.number} failed alike: {event.line}" if event.why == "first rows" else f"{event.number} failed"
            )
            self._tell("stopped", f"nothing more is started, {why}", task=event.task)
        elif isinstance(event, Exited | Refused) and self._before >= 0 and self._bad() > self._before:
            self._before = -1
            reason = event.reason if isinstance(event, Refused) else _how(event)
            self._tell("failure", f"task {event.task} {reason}", task=event.task)

    def full(self, sentence: str) -> str:
        """Whatever keeps everything from being launched; told the first time."""
        if sentence and not self._told_full:
            self._tell("stopped", sentence)
        self._told_full = bool(sentence)
        return sentence

    def end(self, sink: Sink) -> None:
        """The run is over; returns once that is told, or nobody listens."""
        self._notifier.speak = lambda sentence: sink.line(sentence, at=time.time())
        seconds = (self._fold.last or 0.0) - (self._fold.first or 0.0)
        self._tell("end", f"over after {duration(seconds)}", seconds=round(seconds, 3))
        self._notifier.finish()

    def _tell(self, event: str, what: str, task: int | None = None, seconds: float | None = None) -> None:
        facts = self._facts()
        states = ", ".join(f"{number:,} {state}" for state, number in facts["states"].items())
        name = f" ({facts['name']})" if facts["name"] else ""
        text = f"run {facts['run']}{name} on {facts['host']}: {without_secrets(what)} [{facts['file']}: {states}]"
        said = {"format": 1, "event": event, "text": text, "content": text, **facts}
        self._notifier.tell({**said, "task": task, "seconds": seconds})

    def say(self, sentence: str) -> None:
        """Pass it on."""
        self._inner.say(sentence)

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Pass it on."""
        self._inner.waits(refusals)

    def hang_up(self) -> None:
        """Pass it on."""
        self._inner.hang_up()


def _how(event: Exited) -> str:
    if event.reason:
        return f"{event.outcome}: {event.reason}"
    ended = f"signal {event.signal}" if event.signal is not None else f"exit {event.code}"
    return f"{event.outcome}: {ended}"


def notified(session: Session, ports: Ports) -> tuple[Ports, Telling | None]:
    """A run's ports with somebody who is told of it; as they were where nobody is."""
    who, world = session.settings.notify, session.world
    if not who or world is None:
        return ports, None
    notifier_ = Notifier(who, session.meta["directory"], ports.view.say)
    world.add(notifier_)
    facts = lambda: run_facts(session.number, session.meta, session.brain.roll.counts)  # noqa: E731 - three names
    telling = Telling(ports.view, notifier_, facts, session.fold)
    return replace(ports, view=telling, full=lambda: telling.full(ports.full())), telling


def run_facts(number: int, meta: Mapping[str, str], states: Mapping[State, int]) -> dict[str, Any]:
    """What everybody is told of a run."""
    counts = {str(state): tasks for state in State if (tasks := states.get(state, 0))}
    return {
        "run": number,
        "name": meta.get("name", ""),
        "file": meta.get("file", ""),
        "host": hostname(),
        "tasks": sum(counts.values()),
        "states": counts,
    }
