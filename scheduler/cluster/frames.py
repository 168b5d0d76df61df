"""Frames: one JSON object per line on two descriptors, which never block."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Iterable, Mapping
from typing import Any

Message = dict[str, Any]
LONGEST = 64 << 20
"""The most bytes in one line; agents send only shorter lines."""
_PIECE = 1 << 18


class BadFrame(Exception):
    """A line that is not a frame; the message of the error is what the other end wrote."""


class Channel:
    """One end of a link. `fileno` is readable when `receive` or `push` has something to do."""

    def __init__(self, read: int, write: int) -> None:
        """Use these descriptors, which become non-blocking and still belong to the caller."""
        self._read, self._write = read, write
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        self._epoll = select.epoll()
        self._epoll.register(read, select.EPOLLIN)
        self._pushes = False
        """True if the epoll object also waits until more can be written."""
        self._unsent = bytearray()
        self._pending = bytearray()
        self._kept: list[Message] = []
        self.ended = False
        """True once the other end is gone."""

    def fileno(self) -> int:
        """Return the descriptor to wait on."""
        return self._epoll.fileno()

    @property
    def unsent(self) -> int:
        """The number of bytes that the other end has not accepted yet."""
        return len(self._unsent)

    def send(self, message: Mapping[str, Any]) -> None:
        """Send as much of a message as the other end accepts now; `push` sends the rest."""
        self._unsent += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.push()

    def push(self) -> None:
        """Send as much of the waiting messages as the other end accepts now."""
        try:
            while self._unsent and not self.ended:
                del self._unsent[: os.write(self._write, memoryview(self._unsent)[:_PIECE])]
        except BlockingIOError:
            pass
        except OSError:
            self.ended = True
        self._wait_for_room(wanted=bool(self._unsent) and not self.ended)

    def _wait_for_room(self, *, wanted: bool) -> None:
        if wanted and not self._pushes:
            self._epoll.register(self._write, select.EPOLLOUT)
        elif self._pushes and not wanted:
            self._epoll.unregister(self._write)
        self._pushes = wanted

    def receive(self) -> list[Message]:
        """Return the messages that have arrived; `ended` is set when no more can come. Raise BadFrame for a line that
        is not a frame.
        """
        self.push()
        messages, self._kept = self._kept, []
        while not self.ended:
            try:
                got = os.read(self._read, _PIECE)
            except BlockingIOError:
                break
            except OSError:
                got = b""
            if not got:
                self.ended = True
                break
            self._pending += got
            messages += self._whole()
        return messages

    def keep(self, messages: Iterable[Message]) -> None:
        """Keep these messages, so that the next call of `receive` returns them again."""
        self._kept += messages

    def _whole(self) -> list[Message]:
        """Remove the complete lines from what has arrived, and return their messages."""
        *lines, rest = self._pending.split(b"\n")
        self._pending = rest
        if len(rest) > LONGEST:
            raise BadFrame("a line without an end")
        return [_parsed(line) for line in lines if line]

    def end(self) -> None:
        """Read nothing more."""
        self.ended = True

    def close(self) -> None:
        """Stop waiting for the descriptors, which the caller closes."""
        self.ended = True
        self._epoll.close()


def _parsed(line: bytes | bytearray) -> Message:
    try:
        message = json.loads(line)
    except ValueError:
        message = None
    if not isinstance(message, dict):
        raise BadFrame(line[:200].decode(errors="replace"))
    return message
