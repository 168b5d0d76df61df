"""The cost of a refresh of the live view: `python scripts/bench/live.py [--running 200] [--queued 100000]`.

Printed: milliseconds of processor time of a refresh, at 80x24 and at 200x50, while every task gets on and the queue
changes between two of them, and which share of a core that is at two refreshes a second.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import statistics
import struct
import termios
import threading
import time
from typing import Any

from measuring import Bench
from page import Section, number, table

from scheduler.core.brain import Brain
from scheduler.core.config import SchedulingConfig
from scheduler.core.events import Event, Exited, Started, Submitted
from scheduler.core.model import Device, DeviceBudget, EstimateSource, Outcome, Placement, Purpose, Terms
from scheduler.core.reporting.live_status import ObservedState, StatusBuilder
from scheduler.core.reporting.run_history import RunSummary
from scheduler.ui.terminal.live_view import PERIOD
from scheduler.ui.terminal.panels import Line
from scheduler.ui.terminal.screen import Screen
from scheduler.units import GIB
from tests.support.live_screen import screen

BATCH = 20
GPUS = 8
SIZES = ((80, 24), (200, 50))


class Crowded:
    """A run of very many tasks, a refresh after the other."""

    def __init__(self, running: int, queued: int) -> None:
        terms = [Terms(memory=GIB, priority=priority, epochs=50) for priority in range(5)]
        self.brain, self.history, self.now = Brain(SchedulingConfig(), terms), RunSummary(), 0.0
        for batch in range((running + queued) // BATCH):
            self.brain.apply(Submitted(batch + 1, 1 + batch * BATCH, [n % 5 for n in range(BATCH)]))
        gpus = [Device(f"GPU-{n}", f"GPU {n}", 80 * GIB, 1.0, n) for n in range(GPUS)]
        self.budgets = [DeviceBudget(gpu, 30 * GIB, busy=0.7, celsius=61) for gpu in gpus]
        self.running: list[int] = []
        self.next = 1
        for _ in range(running):
            self.start()
        labels = {gpu.key: gpu.label for gpu in gpus}
        self.builder = StatusBuilder(
            1, "many.csv", self.brain, self.history, lambda task: f"train lr=0.1 seed={task}", labels
        )
        self.screen = screen(self.brain, self.history, lambda task: f"train lr=0.1 seed={task}")

    def tell(self, event: Event) -> None:
        self.brain.apply(event, self.now)
        self.history.take(event, self.now)

    def start(self) -> None:
        reservation = {f"GPU-{self.next % GPUS}": GIB}
        self.tell(Placement(self.next, 1, Purpose.RUN, reservation, 1.0, EstimateSource.DECLARED))
        self.tell(Started(self.next, 1, pid=self.next, start=1))
        self.running.append(self.next)
        self.next += 1

    def move(self) -> None:
        """Half a second later: two tasks have ended, two others started."""
        self.now += PERIOD
        for _ in range(2):
            task = self.running.pop(0)
            self.tell(Exited(task, 1, Outcome.SUCCEEDED, code=0, seconds=30.0))
            self.start()

    def lines(self, width: int, height: int) -> list[Line]:
        keys = [(task, 1) for task in self.running]
        used = {key: {f"GPU-{key[0] % GPUS}": GIB // 2} for key in keys}
        seen = ObservedState(self.budgets, used, dict.fromkeys(keys, self.now % 50))
        return self.screen.lines(self.builder.paint(seen, self.now), width, height, ["12:00:00  done"] * 5)


def refreshes(run: Crowded, screen: Screen, number: int) -> list[float]:
    """Seconds of processor time that each of them took."""
    spent = []
    for _ in range(number):
        run.move()
        began = time.thread_time()
        screen.draw(run.lines)
        spent.append(time.thread_time() - began)
        while screen.pending:
            time.sleep(0.001)
            screen.flush()
    return spent


def measure(bench: Bench) -> dict[str, Any]:
    """Both sizes of a terminal."""
    return taken(200, 10_000 if bench.quick else 100_000, 30 if bench.quick else 100)


def taken(running: int, queued: int, number_: int) -> dict[str, Any]:
    """So many refreshes of each."""
    found = {f"{width}x{height}": _on_terminal(width, height, running, queued, number_) for width, height in SIZES}
    return {"running": running, "queued": queued, "sizes": found}


def _on_terminal(width: int, height: int, running: int, queued: int, number_: int) -> dict[str, float]:
    """Milliseconds of a core, and KiB that a refresh wrote."""
    reader, terminal = os.openpty()
    os.environ["TERM"] = "xterm-256color"
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    read = [0]

    def drain() -> None:
        while data := os.read(reader, 65536):
            read[0] += len(data)

    threading.Thread(target=drain, daemon=True).start()
    drawn = Screen(os.ttyname(terminal))
    drawn.enter()
    spent = [1000 * one for one in refreshes(Crowded(running, queued), drawn, number_)]
    return {
        "median": round(statistics.median(spent), 2),
        "most": round(max(spent), 2),
        "kib": round(read[0] / number_ / 1024, 1),
    }


def section(found: dict[str, Any]) -> list[Section]:
    """A table."""
    made = Section(f"A refresh of the live view: {found['running']} running, {found['queued']:,} queued")
    rows = [
        [size, number(one["median"]), number(one["most"]), number(one["kib"]), f"{one['median'] / 1000 / PERIOD:.1%}"]
        for size, one in found["sizes"].items()
    ]
    header = ("terminal", "median, ms of a core", "most", "KiB written", f"of a core, {1 / PERIOD:.0f} a second")
    made.text.append(table(header, rows))
    return [made]


def main() -> None:
    """Print a line for each size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, default=200)
    parser.add_argument("--queued", type=int, default=100_000)
    parser.add_argument("--refreshes", type=int, default=100)
    args = parser.parse_args()
    for size, one in taken(args.running, args.queued, args.refreshes)["sizes"].items():
        print(
            f"{args.running:,} running, {args.queued:,} queued, {size}: median {one['median']:.1f} ms, "
            f"most {one['most']:.1f} ms, {one['kib']:.1f} KiB written; "
            f"{one['median'] / 1000 / PERIOD:.1%} of a core at {1 / PERIOD:.0f} a second"
        )


if __name__ == "__main__":
    main()
