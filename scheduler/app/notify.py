"""Notifications (`--notify`): call a command or a web hook when a run ends, fails for the first time, or halts."""

from __future__ import annotations

import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from shutil import which
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any

from scheduler.core.causes import HaltCause
from scheduler.core.events import Event, Exited, Halted, Refused
from scheduler.core.model import State
from scheduler.core.ports import Happening, View
from scheduler.core.reporting.run_history import RunSummary
from scheduler.core.tasks.fields import words
from scheduler.core.tasks.redaction import notifier, without_secrets
from scheduler.errors import UsageError
from scheduler.runtime.processes import answer
from scheduler.runtime.shim import hostname
from scheduler.runtime.threads import start_thread
from scheduler.units import duration
from scheduler.values import replace

if TYPE_CHECKING:
    from scheduler.app.run.session import RunSession
    from scheduler.runtime.event_sources import SystemWorld
    from scheduler.runtime.loop import Ports
    from scheduler.ui.terminal.sink import LineSink

PATIENCE = 10.0
"""Seconds that one notification may take. The run continues meanwhile, and waits at most this long at its end."""
LONGEST = 200
PREFIX = "SCHEDULER_NOTIFY_"
BAD = (State.FAILED, State.OOM, State.TIMEOUT, State.REFUSED)


def check(target: str) -> None:
    """Raise UsageError for a command that does not exist."""
    if not target or is_address(target):
        return
    program = words(target)[0] if target.strip() else ""
    if which(program) is None:
        raise UsageError(f"--notify {notifier(target)}: there is no program {program!r} on PATH")


def is_address(target: str) -> bool:
    """Tell whether a target is the address of a web hook; otherwise it is a command."""
    return target.startswith(("http://", "https://"))


class Notifier:
    """The sender of notifications: one at a time, each in a thread. Only the first failure is reported."""

    def __init__(self, target: str, directory: str, report: Callable[[str], None]) -> None:
        """Prepare to send notifications to a command or a web hook. A command runs in `directory`; `report` prints a
        failure.
        """
        self.report = report
        self._target, self._directory = target, directory
        self._waiting: deque[Mapping[str, Any]] = deque()
        self._delivery: Delivery | None = None
        self._failed = False
        if is_address(target):
            import urllib.request  # noqa: F401 - used in the threads, and an upgrade may remove it by then

    def send(self, facts: Mapping[str, Any]) -> None:
        """Queue a notification and return at once."""
        self._waiting.append(facts)
        self._next()

    def _next(self) -> None:
        """Start sending the next notification, unless one is being sent."""
        while self._waiting and self._delivery is None:
            delivery = Delivery(self._target, self._waiting.popleft(), self._directory)
            if start_thread(delivery.run):
                self._delivery = delivery
            else:
                self._fail("no thread can be started")

    def fileno(self) -> int:
        """Return -1: there is no descriptor to wait for, so a failure may be reported a moment late."""
        return -1

    def collect(self) -> Sequence[Happening]:
        """Take the result of a notification; return nothing, because a notification never changes the run."""
        delivery = self._delivery
        if delivery is not None and (delivery.done.is_set() or delivery.age() > PATIENCE + 2):
            self._delivery = None
            trouble = delivery.trouble if delivery.done.is_set() else f"no answer within {PATIENCE:g} s"
            if trouble:
                self._fail(trouble)
            self._next()
        return ()

    def _fail(self, trouble: str) -> None:
        """Report a failure, but only the first."""
        if not self._failed:
            self._failed = True
            self.report(
                f"--notify {notifier(self._target)} failed: {trouble[:LONGEST]} (reported once; the run continues)"
            )

    def finish(self) -> None:
        """Wait until all notifications are sent, but no longer than PATIENCE."""
        end = time.monotonic() + PATIENCE + 3
        while self._delivery is not None:
            if not self._delivery.done.wait(max(0.0, end - time.monotonic())):
                self._waiting.clear()
                self._fail(f"no answer within {PATIENCE:g} s")
                return
            self.collect()


class Delivery:
    """One notification that is being sent. Its thread may hang for good if a name server does not answer."""

    def __init__(self, target: str, facts: Mapping[str, Any], directory: str) -> None:
        self.done = threading.Event()
        self.trouble = ""
        """Why the notification could not be delivered; empty if it was delivered or is still being sent."""
        self._began = time.monotonic()
        self._target, self._facts, self._directory = target, facts, directory

    def age(self) -> float:
        """Return the seconds since sending began."""
        return time.monotonic() - self._began

    def run(self) -> None:
        """Deliver the notification; store an error of any kind in `trouble`."""
        try:
            self.trouble = deliver(self._target, self._facts, self._directory)
        except Exception as exc:  # noqa: BLE001 - the run goes on whatever a notification meets
            self.trouble = str(exc) or type(exc).__name__
        finally:
            self.done.set()


def deliver(target: str, facts: Mapping[str, Any], directory: str) -> str:
    """Send one notification now; return the reason for a failure, or an empty string."""
    body = json.dumps(facts)
    return _post(target, body) if is_address(target) else _call(target, facts, body, directory)


def _call(command: str, facts: Mapping[str, Any], body: str, directory: str) -> str:
    """Run a command in the run's directory, with the facts as environment variables and as JSON on standard input."""
    values = {name: facts[name] for name in ("event", "text", "run", "name", "file", "host", "tasks")}
    states = facts["states"]
    values |= {"succeeded": states.get("succeeded", 0), "failed": sum(states.get(state, 0) for state in BAD)}
    environ = {**os.environ, **{PREFIX + name.upper(): str(value) for name, value in values.items()}}
    try:
        code, output = answer(words(command), body, PATIENCE, environ, directory)
    except TimeoutExpired:
        return f"it did not end within {PATIENCE:g} s"
    except OSError as exc:
        return exc.strerror or str(exc)
    last = output.strip().rpartition("\n")[2]
    return f"exit {code}{f': {last}' if last else ''}" if code else ""


def _post(address: str, body: str) -> str:
    """Send JSON to a web hook. The text of a failure leaves the address out, because it may contain a secret."""
    from http.client import HTTPException
    from urllib.error import HTTPError, URLError
    from urllib.request import Request, urlopen

    headers = {"Content-Type": "application/json", "User-Agent": "gpu-batch-scheduler"}
    try:
        with urlopen(Request(address, body.encode(), headers), timeout=PATIENCE) as response:
            response.read(1024)
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


class NotifyingView(View):
    """A view around another one that also sends notifications."""

    def __init__(
        self, inner: View, notifier_: Notifier, facts: Callable[[], dict[str, Any]], history: RunSummary
    ) -> None:
        super().__init__(inner)
        self._notifier, self._facts, self._history = notifier_, facts, history
        self._failed_before = self._count_failed()
        self._full_sent = False

    def watch(self, ports: Ports) -> Ports:
        """Return the ports of the run with this view in place of the old one, and with notifications of a full disk."""
        return replace(ports, view=self, full=lambda: self.full(ports.full()))

    def _count_failed(self) -> int:
        states = self._facts()["states"]
        return sum(states.get(state, 0) for state in BAD)

    def show(self, event: Event, at: float) -> None:
        """Show an event; send a notification of a halt and of the first failure."""
        super().show(event, at)
        if isinstance(event, Halted):
            alike = event.why is not HaltCause.FAILURES
            why = f"{event.number} failed alike: {event.line}" if alike else f"{event.number} failed"
            self._tell("stopped", f"no more tasks start: {why}", task=event.task)
        elif isinstance(event, Exited | Refused) and 0 <= self._failed_before < self._count_failed():
            self._failed_before = -1
            reason = event.reason if isinstance(event, Refused) else _how(event)
            self._tell("failure", f"task {event.task} {reason}", task=event.task)

    def full(self, sentence: str) -> str:
        """Pass on why no task can start; send a notification when that begins."""
        if sentence and not self._full_sent:
            self._tell("stopped", sentence)
        self._full_sent = bool(sentence)
        return sentence

    def end(self, sink: LineSink) -> None:
        """Send the notification of the run's end; return when it is sent or has failed."""
        self._notifier.report = lambda sentence: sink.line(sentence, at=time.time())
        seconds = (self._history.last or 0.0) - (self._history.first or 0.0)
        self._tell("end", f"ended after {duration(seconds)}", seconds=round(seconds, 3))
        self._notifier.finish()

    def _tell(self, event: str, what: str, task: int | None = None, seconds: float | None = None) -> None:
        facts = self._facts()
        states = ", ".join(f"{number:,} {state}" for state, number in facts["states"].items())
        name = f" ({facts['name']})" if facts["name"] else ""
        text = f"run {facts['run']}{name} on {facts['host']}: {without_secrets(what)} [{facts['file']}: {states}]"
        message = {"format": 1, "event": event, "text": text, "content": text, **facts}
        self._notifier.send({**message, "task": task, "seconds": seconds})


def _how(event: Exited) -> str:
    if event.reason:
        return f"{event.outcome}: {event.reason}"
    ended = f"signal {event.signal}" if event.signal is not None else f"exit {event.code}"
    return f"{event.outcome}: {ended}"


def notifying_view(session: RunSession, ports: Ports, world: SystemWorld) -> NotifyingView | None:
    """Return a view that adds the notifications of `--notify` to the view of the ports; None without `--notify`."""
    target = session.settings.notify
    if not target:
        return None
    notifier_ = Notifier(target, session.meta["directory"], ports.view.say)
    world.add(notifier_)
    facts = lambda: run_facts(session.number, session.meta, session.brain.state_counts)  # noqa: E731 - three names
    return NotifyingView(ports.view, notifier_, facts, session.history)


def run_facts(number: int, meta: Mapping[str, str], states: Mapping[State, int]) -> dict[str, Any]:
    """Return the facts that every notification contains."""
    counts = {str(state): tasks for state in State if (tasks := states.get(state, 0))}
    return {
        "run": number,
        "name": meta.get("name", ""),
        "file": meta.get("file", ""),
        "host": hostname(),
        "tasks": sum(counts.values()),
        "states": counts,
    }
