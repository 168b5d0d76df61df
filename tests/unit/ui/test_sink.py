"""Lines for a terminal or pipe whose reader is stopped: no line waits for it, and none is lost or cut."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from scheduler.ui.terminal.sink import LineSink
from tests.support.faults import fault

LINES = 2000
Ends = Callable[[], tuple[int, int]]


def show(sink: LineSink, length: int) -> None:
    for number in range(LINES):
        sink.show(f"{number:06}{'x' * length}")


@fault(89)
@pytest.mark.parametrize("ends", [os.openpty, os.pipe], ids=["terminal", "pipe"])
@pytest.mark.parametrize("length", [60, 9000], ids=["line", "line longer than a page"])
def test_sink_does_not_wait_for_a_blocked_reader(ends: Ends, length: int) -> None:
    ours, theirs = ends()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream:
        sink = LineSink(None, stream)
        shows = threading.Thread(target=show, args=(sink, length), daemon=True)
        shows.start()
        shows.join(20)
        waited = shows.is_alive()
        os.close(ours)
        shows.join(20)
        sink.hang_up()
    assert not waited


def test_reader_that_continues_gets_every_line_whole_and_in_order() -> None:
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "w", encoding="utf-8") as stream, os.fdopen(ours, encoding="utf-8") as reader:
        sink = LineSink(None, stream)
        show(sink, 100)
        closes = threading.Thread(target=lambda: (sink.close(), stream.close()), daemon=True)
        closes.start()
        said = reader.read().splitlines()
        closes.join(20)
    assert said == [f"{number:06}{'x' * 100}" for number in range(LINES)]


def test_sink_appends_lines_to_a_file(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding="utf-8") as stream:
        stream.write("before\n")
        sink = LineSink(None, stream)
        sink.show("a line")
        sink.close()
    assert (tmp_path / "out").read_text() == "before\na line\n"
