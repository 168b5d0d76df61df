"""The live view of a run: a screen that is redrawn, while the log still gets the plain lines."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TextIO

from scheduler.core.control.messages import why
from scheduler.core.events import Event, Exited
from scheduler.core.placement.refusal import Refusal
from scheduler.core.ports import Happening, Key, Sample, View
from scheduler.core.reporting.live_status import LiveStatus, ObservedState
from scheduler.ui.live.run_screen import RunScreen
from scheduler.ui.terminal.panels import Line
from scheduler.ui.terminal.screen import Screen, TerminalGone
from scheduler.ui.terminal.sink import LineSink

PERIOD = 0.5
"""The least seconds between two redraws if no key is pressed."""
MEASURED = 1.5
"""Seconds after the end of an attempt for which the measured use of the devices may still include the attempt."""
KEY_PERIOD = 0.06
"""Seconds between two checks while a typed escape character may still be the key Esc or the beginning of a sequence."""
Paint = Callable[[ObservedState], LiveStatus]
"""A function that builds the status of a run from the last samples of the running attempts."""


class RecentLines:
    """A stream that keeps the last lines that were written to it, for the view."""

    errors = "strict"

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=50)

    def write(self, text: str) -> int:
        """Keep a text that `print` writes: a line, or the line end after it."""
        self.lines += [line for line in text.splitlines() if line]
        return len(text)

    def flush(self) -> None:
        """Return at once, because nothing is buffered."""

    def fileno(self) -> int:
        """Raise OSError, because the stream has no file."""
        raise OSError("not a file")


class LiveView(View):
    """A view that draws a run until q is pressed or drawing fails; after that, plain lines are printed.

    It receives everything that a plain view receives, and also every sample; it is drawn before each wait of the run's
    loop.
    """

    def __init__(
        self, plain: View, sink: LineSink, stream: TextIO, screen: Screen, paint: Paint, frame: RunScreen
    ) -> None:
        super().__init__(plain)
        self._frame = frame
        self._sink = sink
        self._stream: TextIO | None = stream
        self._screen = screen
        self._paint = paint
        self._recent = RecentLines()
        self._used: dict[Key, Mapping[str, int]] = {}
        self._ended: deque[tuple[float, Key]] = deque()
        """The attempts that have ended recently, each with the time of its end."""
        self._epochs: dict[Key, float] = {}
        self._totals: dict[Key, float] = {}
        self._metrics: dict[Key, Mapping[str, Sequence[float | None]]] = {}
        self._due = 0.0
        self._last_sentence = self._waits = ""
        sink.turn_to(self._recent)  # type: ignore[arg-type]  # all of a stream that a sink needs
        self._guarded(screen.enter)

    # ---- input ----

    def show(self, event: Event, at: float) -> None:
        """Show an event, after it was recorded and applied."""
        super().show(event, at)
        if isinstance(event, Exited):
            memories: tuple[dict[Key, Any], ...] = (self._epochs, self._totals, self._metrics)
            for memory in memories:
                memory.pop((event.task, event.attempt), None)
            self._ended.append((time.monotonic(), (event.task, event.attempt)))

    def say(self, sentence: str) -> None:
        """Print a sentence about the run."""
        self._last_sentence = sentence
        super().say(sentence)

    def repeat(self) -> None:
        """Print the last sentence again, because the screen that showed it was left."""
        if self._last_sentence:
            self._sink.show(self._last_sentence)

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Show why no task starts."""
        self._waits = f"task {refusals[0].task} {why(refusals[0])}" if refusals else ""
        super().waits(refusals)

    def hang_up(self) -> None:
        """Note that the terminal was closed; continue to write the log."""
        self.leave()
        super().hang_up()

    def see(self, sample: Sample) -> None:
        """Note the resources that a running attempt uses now."""
        key = (sample.task, sample.attempt)
        self._used[key] = {**self._used.get(key, {}), **sample.used}
        if sample.progress is not None:
            self._epochs[key] = sample.progress
        if sample.epochs is not None:
            self._totals[key] = sample.epochs
        if sample.metrics is not None:
            self._metrics[key] = sample.metrics

    # ---- drawing and keys ----

    def draw(self) -> float:
        """Draw the screen if a redraw is due; return the seconds until the next one is due."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + PERIOD
            if not self._screen.left:
                self._guarded(self._redraw)
        return min(self._due - now, KEY_PERIOD) if self._frame.waits else self._due - now

    def _redraw(self) -> None:
        self._screen.report_mouse(self._frame.mouse)
        self._screen.draw(self._lines)

    def _lines(self, width: int, height: int) -> list[Line]:
        while self._ended and self._ended[0][0] < time.monotonic() - MEASURED:
            self._used.pop(self._ended.popleft()[1], None)
        seen = ObservedState(used=self._used, epochs=self._epochs, totals=self._totals, metrics=self._metrics)
        status = self._paint(seen)
        return self._frame.lines(status, width, height, self._recent.lines, self._waits)

    def fileno(self) -> int:
        """Return a descriptor that is readable after a key press."""
        return self._screen.fileno()

    def collect(self) -> Sequence[Happening]:
        """Handle the pressed keys, and return nothing: requests to the run are sent through its directory, as verbs
        send them.
        """
        self._guarded(self._read)
        return ()

    def _read(self) -> None:
        if self._screen.left:
            return
        if self._frame.type(self._screen.keys()):
            self._due = 0.0
        if self._frame.leaves:
            self.leave()
            self.say("left the live view; the run continues with plain lines (scheduler top shows the view again)")

    def _guarded(self, act: Callable[[], None]) -> None:
        """Call `act`; if it raises an error, the view ends and the run continues."""
        try:
            act()
        except TerminalGone:
            self.hang_up()
        except Exception:  # noqa: BLE001 - a view must never stop a run, and the log gets the traceback
            self.leave()
            for line in traceback.format_exc().splitlines():
                self._sink.log(line, at=time.time())
            self.say("the live view failed; the run continues with plain lines (the traceback is in the run's log)")

    def leave(self) -> None:
        """Restore the terminal; from then on, plain lines are printed on it."""
        self._screen.leave()
        if self._stream is not None:
            self._sink.turn_to(self._stream)
        self._stream = None
