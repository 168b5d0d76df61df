"""Joins a run that goes on here with the live view of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from scheduler import clocks
from scheduler.core.model import Hold
from scheduler.core.picture import Painter, Picture, Seen
from scheduler.core.ports import Key
from scheduler.values import dataclass

if TYPE_CHECKING:
    from scheduler.loop import Ports
    from scheduler.processes import Child
    from scheduler.view.live import LiveView
    from scheduler.view.panels import Line
    from scheduler.view.sink import Sink
    from scheduler.wiring.running import Session

REST = 2.0
"""Others' leases are read at most so often, in seconds: one file each."""
GUARD = r"""
trap '' INT QUIT TSTP HUP TERM
read -r over && exit
printf '\033[0m\033[?25h\033[?1049l' >"$1"
case $(stty -a <"$1") in *-inlcr*' icrnl'*-icanon*) stty icanon echo <"$1" ;; esac
"""
"""Gives a terminal back whose scheduler was killed before it could; its modes only where they are as we left them, and
not where a shell has its own on for its prompt (each of those changes what becomes of a carriage return)."""
MISSING = "no live view: the package rich is missing (pip install rich, or run with --plain)"


@dataclass(frozen=True, slots=True)
class Lively:
    """A run's ports with the live view among them."""

    ports: Ports
    view: LiveView
    guard: Child | None

    def close(self, *, repeat: bool = False) -> None:
        """Give the terminal back, with its last sentence once more if that is wanted; the second time nothing."""
        self.view.leave()
        release(self.guard)
        if repeat:
            self.view.repeat()


def live_view(session: Session, ports: Ports, sink: Sink, stream: TextIO | None) -> Lively | None:
    """The live view on a terminal; None where `stream` is none, or none that can be drawn on."""
    if stream is None or not stream.isatty():
        return None
    try:
        from scheduler.view.screen import Screen, path_of
    except ImportError:
        sink.line(f"hint:   {MISSING}", at=clocks.now())
        return None
    from scheduler.realworld import LookedAt, RealWorld
    from scheduler.view.live import LiveView

    path = path_of(stream)
    world, plain = ports.world, ports.view
    if not path or not isinstance(world, RealWorld):
        return None
    try:
        screen = Screen(path, stream.encoding or "ascii")
    except OSError:
        return None
    view = LiveView(plain, sink, stream, screen, _paint(session, ports))
    world.add(view)
    return Lively(replace(ports, view=view, world=LookedAt(world, view)), view, guard(path))


def on_terminal(stream: TextIO, make: Callable[[int, int], Sequence[Line]], over: Callable[[], bool]) -> bool:
    """Show lines made for its size until it is over or somebody presses q; False where they cannot be drawn."""
    if not stream.isatty():
        return False
    try:
        from scheduler.view import top
        from scheduler.view.screen import Screen, path_of
    except ImportError:
        from scheduler.view.sink import hint

        hint(MISSING)
        return False
    path = path_of(stream)
    if not path:
        return False
    held = guard(path)
    try:
        top.show(Screen(path, stream.encoding or "ascii"), make, over)
    except OSError:
        return False
    finally:
        release(held)
    return True


def guard(path: str) -> Child | None:
    """A process that gives a terminal back if we cannot; None where none can be started."""
    from scheduler.processes import start_child

    try:
        return start_child(["/bin/sh", "-c", GUARD, "sh", path])
    except OSError:
        return None


def release(child: Child | None) -> None:
    """The terminal was given back."""
    if child is not None and child.stdin is not None and not child.stdin.closed:
        with contextlib.suppress(OSError):
            child.stdin.write(b"over\n")
        child.stdin.close()
        child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _paint(session: Session, ports: Ports) -> Callable[[Mapping[Key, Mapping[str, int]], Mapping[Key, float]], Picture]:
    """Makes pictures of the run from what its own loop knows."""
    brain = session.brain
    labels = {device.key: device.label for device in session.devices.discover()}
    painter = Painter(
        session.number,
        session.meta.get("file", ""),
        brain,
        session.fold,
        lambda task: session.book.job(task).name,
        labels,
    )
    others = Others(session, ports)

    def paint(used: Mapping[Key, Mapping[str, int]], epochs: Mapping[Key, float]) -> Picture:
        expected = {
            task.id: brain.knowledge.expected(brain.roll.kind(task.id), brain.terms[task.terms].epochs)
            for task in brain.living()
        }
        forecast = session.outlook.forecast if session.outlook is not None else None
        seen = Seen(session.devices.snapshot(), used, epochs, others.look(), expected, forecast)
        return painter.paint(seen, clocks.now())

    return paint


class Others:
    """The leases of everybody else on this machine, read now and then."""

    def __init__(self, session: Session, ports: Ports) -> None:
        self._settings = session.settings
        self._token = session.meta["token"]
        self._uid = ports.ledger.uid
        self._used_by = ports.watcher.used_by
        self._holds: Sequence[Hold] = ()
        self._next = 0.0

    def look(self) -> Sequence[Hold]:
        """What they hold, at most two seconds old."""
        if time.monotonic() >= self._next:
            from scheduler.store.leases import find_directory, living

            leases = living(find_directory(self._settings.leases or None))
            others = [lease for lease in leases if (lease.uid, lease.run) != (self._uid, self._token)]
            self._holds = [Hold(lease.promised, self._used_by(lease.shim, lease.name), lease.load) for lease in others]
            self._next = time.monotonic() + REST
        return self._holds
