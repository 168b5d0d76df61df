"""Live views on a terminal, of a run in this process and of `top`, and the guard that restores the terminal."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, TextIO

from scheduler.core.leases import Lease
from scheduler.core.reporting.live_status import LiveStatus, ObservedState, StatusBuilder
from scheduler.errors import SchedulerError
from scheduler.runtime import clock
from scheduler.values import dataclass, replace

if TYPE_CHECKING:
    from scheduler.app.run.session import RunSession
    from scheduler.core.reporting.forecast import Forecast
    from scheduler.runtime.event_sources import SystemWorld
    from scheduler.runtime.loop import Ports
    from scheduler.runtime.processes import Child
    from scheduler.ui.terminal.live_view import LiveView
    from scheduler.ui.terminal.panels import Line
    from scheduler.ui.terminal.sink import LineSink
    from scheduler.ui.terminal.top import Frame

REST = 2.0
"""Seconds between two reads of other schedulers' leases, because each lease is a file to be read."""
GUARD_ENDS = 2.0
"""Seconds within which the guard must end once the terminal is restored."""
GUARD = r"""
trap '' INT QUIT TSTP HUP TERM
read -r over && exit
printf '\033[0m\033[?1006l\033[?1000l\033[?25h\033[?1049l' >"$1"
case $(stty -a <"$1") in *-inlcr*' icrnl'*-icanon*) stty icanon echo <"$1" ;; esac
"""
"""A shell script that restores the terminal after its scheduler was killed. It restores the terminal's modes only if
they are as the scheduler left them. A shell that has set modes of its own for a prompt keeps these modes, because it
treats a carriage return differently."""
MISSING = "no live view: the package rich is missing (pip install rich, or run with --plain)"


@dataclass(frozen=True, slots=True)
class LiveScreen:
    """The live view of a run on a terminal, with the terminal's guard."""

    view: LiveView
    guard: Child | None
    opened: contextlib.ExitStack
    """The stack that closes the files of the view."""

    def close(self, *, repeat: bool = False) -> None:
        """Restore the terminal, and with `repeat` print the view's last sentence again; a second call does nothing."""
        self.view.leave()
        release(self.guard)
        self.opened.close()
        if repeat:
            self.view.repeat()


def live_view(
    session: RunSession,
    ports: Ports,
    world: SystemWorld,
    forecast: Callable[[], Forecast | None],
    sink: LineSink,
    stream: TextIO | None,
) -> LiveScreen | None:
    """Open the live view of a run; return None if `stream` is not a terminal that can be drawn on."""
    if stream is None or not stream.isatty():
        return None
    try:
        from scheduler.ui.terminal.screen import Screen, path_of
    except ImportError:
        sink.line(f"hint:   {MISSING}", at=clock.now())
        return None
    from scheduler.app.live.tasks import screen_of
    from scheduler.ui.live.run_screen import SIGNALS
    from scheduler.ui.terminal.live_view import LiveView

    path = path_of(stream)
    if not path:
        return None
    with contextlib.ExitStack() as stack:
        try:
            frame = screen_of(session.info, session.brain, session.history, stack, SIGNALS)
            screen = Screen(path, stream.encoding or "ascii")
        except (OSError, SchedulerError):
            return None
        view = LiveView(ports.view, sink, stream, screen, _status_maker(session, ports, forecast), frame)
        world.add(view)
        return LiveScreen(view, guard(path), stack.pop_all())


def on_terminal(
    stream: TextIO, frame: Frame, make: Callable[[int, int], Sequence[Line]], over: Callable[[], bool]
) -> bool:
    """Show lines made for the terminal's size until `over` returns True or the key q is pressed; return False if the
    lines cannot be drawn.
    """
    if not stream.isatty():
        return False
    try:
        from scheduler.ui.terminal import top
        from scheduler.ui.terminal.screen import Screen, path_of
    except ImportError:
        from scheduler.ui.terminal.sink import hint

        hint(MISSING)
        return False
    path = path_of(stream)
    if not path:
        return False
    child = guard(path)
    try:
        top.show(Screen(path, stream.encoding or "ascii"), frame, make, over)
    except OSError:
        return False
    finally:
        release(child)
    return True


def guard(path: str) -> Child | None:
    """Start a process that restores the terminal if this process is killed; return None if it cannot be started."""
    from scheduler.runtime.processes import start_child

    try:
        return start_child(["/bin/sh", "-c", GUARD, "sh", path])
    except OSError:
        return None


def release(child: Child | None) -> None:
    """End a guard, because the terminal is restored."""
    if child is not None and child.stdin is not None and not child.stdin.closed:
        with contextlib.suppress(OSError):
            child.stdin.write(b"over\n")
        child.stdin.close()
        try:
            child.wait(GUARD_ENDS)
        except TimeoutExpired:  # a signal has stopped it; it has nothing left to do
            child.kill()
        if child.stdout is not None:
            child.stdout.close()


def _status_maker(
    session: RunSession, ports: Ports, forecast: Callable[[], Forecast | None]
) -> Callable[[ObservedState], LiveStatus]:
    """Return a function that builds the live status from the loop's state and the samples of the attempts."""
    brain = session.brain
    session.devices.discover()
    labels = session.devices.labels
    builder = StatusBuilder(
        session.number,
        session.meta.get("file", ""),
        brain,
        session.history,
        lambda task: session.store.job(task).name,
        labels,
    )
    others = OtherLeases(ports)

    def make_status(samples: ObservedState) -> LiveStatus:
        expected = {
            task.id: brain.profiles.expected(brain.kind_of(task.id), brain.terms[task.terms].epochs)
            for task in brain.living()
        }
        budgets, foreseen = session.devices.snapshot(), forecast()
        seen = replace(samples, budgets=budgets, leases=others.look(), expected=expected, forecast=foreseen)
        return builder.paint(seen, clock.now())

    return make_status


class OtherLeases:
    """The leases of all other runs on the machines of this run, read every few seconds."""

    def __init__(self, ports: Ports) -> None:
        self._registry = ports.leases
        self._used_by = ports.watcher.used_by
        self._leases: Sequence[Lease] = ()
        self._next = 0.0

    def look(self) -> Sequence[Lease]:
        """Return the leases of other runs with what they reserve and use, at most REST seconds old."""
        if time.monotonic() >= self._next:
            others = self._registry.seen()
            self._leases = [replace(lease, used=self._used_by(lease.shim, lease.name)) for lease in others]
            self._next = time.monotonic() + REST
        return self._leases
