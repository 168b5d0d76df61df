"""The protocol of both sampler children: orders, answers, and a board that shows the child's current step.

A child is started with the path of the code, its own arguments, and the descriptor of the board. The child reads orders
as JSON lines from standard input, and answers in JSON lines on standard output. Each order replaces the one before; its
`order` is a number. Each answer says which `order` it follows, and in how many seconds the next one is due (`rest`;
null: after the next order). So the parent knows when an answer is due. Before every step that may hang, the child
writes the step to the board, which is memory shared with its parent: after a hang or a crash only the board is left.
This module uses the standard library only, because the child runs from a copy in the run's directory.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, Protocol

BOARD = 256


class Board:
    """The memory on which a child announces its steps."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, BOARD)
        self._where = ""
        self._began = 0.0

    def begin(self, where: str) -> None:
        """Begin to sample another object, named by `where`, which contains no blanks."""
        self._where, self._began = where, time.monotonic()

    def say(self, call: str) -> None:
        """Announce that the step `call` begins."""
        text = f"{time.monotonic():.3f} {self._began:.3f} {self._where} {call}"
        self._memory[:] = text.encode()[:BOARD].ljust(BOARD, b"\0")

    def rest(self) -> None:
        """Announce that no step is in progress."""
        self._memory[:] = bytes(BOARD)


class OrderReader:
    """The reader of orders, which keeps only the newest one. A thread reads standard input, so that the end of the
    input ends the child even while a step hangs.

    (The kernel kills a child when its parent ends, even a child that a signal has stopped: see
    `processes.start_child`.)
    """

    def __init__(self) -> None:
        self.number = 0
        """The number of the order that `next` returned last."""
        self._news = threading.Condition()
        self._line = b""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            with self._news:
                self._line = line
                self._news.notify()
        os._exit(0)

    def next(self, wait: float | None) -> dict[str, Any] | None:
        """Return the newest order, if one arrives within `wait` seconds (None: no limit); otherwise return None."""
        with self._news:
            if not self._line:
                self._news.wait(wait)
            line, self._line = self._line, b""
        if not line:
            return None
        message: dict[str, Any] = json.loads(line)
        self.number = message.pop("order", 0)
        return message


class Sampler(Protocol):
    """A type of sampler child: the objects that it samples, and how often it samples them."""

    gather: float
    """Seconds between an order and the sample that it requests; another order may follow within this time."""

    def order(self, said: dict[str, Any]) -> None:
        """Replace the list of objects to sample; objects that are in both lists keep their history."""

    def look(self) -> dict[str, Any]:
        """Take one sample of every object; return the answer for the parent."""

    def rest(self, cost: float) -> float | None:
        """Return the seconds until the next sample, after one that took `cost` seconds of processor time; None if
        there is nothing to sample.
        """


def serve(begin: Callable[[Board], Sampler | None]) -> None:
    """Serve as a sampler child until its input ends. If this program fails, its last answer is the error.

    `begin` returns the sampler, or None if there is nothing to sample.
    """
    orders = OrderReader()
    try:
        sampler = begin(Board(int(sys.argv[2])))
        if sampler is not None:
            _answer(orders, sampler)
    except BrokenPipeError:
        os._exit(0)
    except Exception:
        tell(bug=traceback.format_exc())
        raise


def _answer(orders: OrderReader, sampler: Sampler) -> None:
    wait = None
    while True:
        order = orders.next(wait)
        if order is not None:
            sampler.order(order)
            wait = sampler.gather
            continue
        if wait is None:
            continue
        began = time.process_time()
        said = sampler.look()
        wait = sampler.rest(time.process_time() - began)
        tell(order=orders.number, rest=wait, **said)


def tell(**message: Any) -> None:
    """Write one line with a message to the parent."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()
