"""The live view of a run: a picture on the terminal instead of lines, which go on in the log."""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from scheduler.core.events import Event, Exited
from scheduler.core.explain import why
from scheduler.core.model import Refusal
from scheduler.core.picture import Picture
from scheduler.core.ports import Happening, Key, Sample, View
from scheduler.view import panels
from scheduler.view.screen import Gone, Screen
from scheduler.view.sink import Sink

PERIOD = 0.5
"""It is drawn at most so often, in seconds."""
Paint = Callable[[Mapping[Key, Mapping[str, int]], Mapping[Key, float]], Picture]
"""Makes a picture of a run from what its living attempts were last seen to hold, and how many epochs they did."""


class Recent:
    """A stream that keeps the last lines, for the view to show."""

    errors = "strict"

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=50)

    def write(self, text: str) -> int:
        """What `print` writes: a line, or its end."""
        self.lines += [line for line in text.splitlines() if line]
        return len(text)

    def flush(self) -> None:
        """There is nothing to wait for."""

    def fileno(self) -> int:
        """It is no file."""
        raise OSError("not a file")


class LiveView:
    """Shows a run until somebody presses q; then, and wherever that fails, its lines go on where they would have gone.

    It is told everything that a plain view is told, and every sample; it is drawn before each wait of the loop.
    """

    def __init__(self, plain: View, sink: Sink, stream: TextIO, screen: Screen, paint: Paint) -> None:
        self._plain = plain
        self._sink = sink
        self._stream: TextIO | None = stream
        self._screen = screen
        self._paint = paint
        self._recent = Recent()
        self._used: dict[Key, Mapping[str, int]] = {}
        self._epochs: dict[Key, float] = {}
        self._due = 0.0
        self._said = self._waits = ""
        sink.turn_to(self._recent)  # type: ignore[arg-type]  # all of a stream that a sink needs
        self._guarded(screen.enter)

    # ---- what it is told ----

    def show(self, event: Event, at: float) -> None:
        """An event was recorded and applied."""
        self._plain.show(event, at)
        if isinstance(event, Exited):
            self._used.pop((event.task, event.attempt), None)
            self._epochs.pop((event.task, event.attempt), None)

    def say(self, sentence: str) -> None:
        """A sentence of its own."""
        self._said = sentence
        self._plain.say(sentence)

    def repeat(self) -> None:
        """Show the last sentence once more: it was said on a screen that is gone."""
        if self._said:
            self._sink.show(self._said)

    def waits(self, refusals: Sequence[Refusal]) -> None:
        """Why nothing starts."""
        self._waits = f"task {refusals[0].task} {why(refusals[0])}" if refusals else ""
        self._plain.waits(refusals)

    def hang_up(self) -> None:
        """The terminal is gone; the log goes on."""
        self.leave()
        self._plain.hang_up()

    def see(self, sample: Sample) -> None:
        """What a living attempt holds now."""
        key = (sample.task, sample.attempt)
        self._used[key] = {**self._used.get(key, {}), **sample.used}
        if sample.progress is not None:
            self._epochs[key] = sample.progress

    # ---- what it does ----

    def draw(self) -> float:
        """Show how things stand, where that is due; in how many seconds it is due again."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + PERIOD
            if not self._screen.left:
                self._guarded(lambda: self._screen.draw(self._lines))
        return self._due - now

    def _lines(self, width: int, height: int) -> list[panels.Line]:
        picture = self._paint(self._used, self._epochs)
        return panels.lines(picture, width, height, self._recent.lines, waits=self._waits)

    def fileno(self) -> int:
        """Readable when a key was pressed."""
        return self._screen.fileno()

    def collect(self) -> Sequence[Happening]:
        """Leave at q; nothing ever happens to the run because of a key."""
        self._guarded(self._read)
        return ()

    def _read(self) -> None:
        if not self._screen.left and "q" in self._screen.keys().lower():
            self.leave()
            self.say("the view was left, the run goes on: lines follow (scheduler top shows it again)")

    def _guarded(self, act: Callable[[], None]) -> None:
        """Whatever fails here ends the view and not the run."""
        try:
            act()
        except Gone:
            self.hang_up()
        except Exception:  # noqa: BLE001 - a view must never stop a run, and the log gets the traceback
            self.leave()
            for line in traceback.format_exc().splitlines():
                self._sink.log(line, at=time.time())
            self.say("the live view failed, the run goes on: lines follow, and its log tells how it failed")

    def leave(self) -> None:
        """Give the terminal back; lines go there again."""
        self._screen.leave()
        if self._stream is not None:
            self._sink.turn_to(self._stream)
        self._stream = None
