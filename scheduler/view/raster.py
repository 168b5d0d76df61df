"""Drawings as PNG, by the standard library alone."""

from __future__ import annotations

import struct
import zlib
from base64 import b85decode
from functools import cache
from itertools import accumulate

from scheduler.values import dataclass
from scheduler.view.drawing import Drawing, Rect, Words
from scheduler.view.letters import BASELINE, CHARACTERS, HEIGHT, PIXELS, WIDTHS
from scheduler.view.words import clean

SCALE = 2
"""Pixels for each unit of a drawing."""
MOST = 16_000
"""Pixels that a picture may be high; what lies below is left out."""
FULL = 15
UNKNOWN = "?"


@dataclass(frozen=True, slots=True)
class Letter:
    """How much of each of its pixels is ink, in fifteenths, row by row."""

    width: int
    rows: tuple[bytes, ...]


class Picture:
    """Pixels of three bytes each."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.rows = [bytearray(b"\xff" * (3 * width)) for _ in range(height)]

    def fill(self, rect: Rect) -> None:
        """A rectangle, whatever of it lies inside; it is at least one pixel wide and high."""
        left, top = max(0, round(rect.x * SCALE)), max(0, round(rect.y * SCALE))
        right = min(self.width, max(left + 1, round((rect.x + rect.width) * SCALE)))
        bottom = min(self.height, max(top + 1, round((rect.y + rect.height) * SCALE)))
        if rect.width <= 0 or rect.height <= 0 or right <= left:
            return
        colour = bytes(rgb(rect.fill)) * (right - left)
        for y in range(top, bottom):
            self.rows[y][3 * left : 3 * right] = colour

    def write(self, words: Words) -> None:
        """A line of letters."""
        shown = [sized(letter, words.size) for letter in clean(words.text)]
        width = sum(letter.width for letter in shown)
        x = round(words.x * SCALE) - {"start": 0, "middle": width // 2, "end": width}[words.anchor]
        y = round(words.y * SCALE) - round(BASELINE * SCALE * words.size / HEIGHT * _TO_SIZE)
        for letter in shown:
            self._ink(letter, x, y, rgb(words.fill))
            x += letter.width

    def _ink(self, letter: Letter, left: int, top: int, colour: tuple[int, int, int]) -> None:
        for y, row in enumerate(letter.rows, top):
            if not 0 <= y < self.height:
                continue
            pixels = self.rows[y]
            for x, ink in enumerate(row, left):
                if ink and 0 <= x < self.width:
                    _mix(pixels, 3 * x, colour, ink)

    def png(self) -> bytes:
        """The file."""
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self.rows), 6)
        chunks = _chunk(b"IHDR", header) + _chunk(b"IDAT", pixels) + _chunk(b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + chunks


_TO_SIZE = 28 / 22
"""What is called a letter's size is less than the height of its line."""


def png(drawing: Drawing) -> bytes:
    """A drawing as a picture."""
    picture = Picture(round(drawing.width * SCALE), min(MOST, round(drawing.height * SCALE)))
    for rect in drawing.rects:
        picture.fill(rect)
    for words in drawing.words:
        picture.write(words)
    return picture.png()


def rgb(colour: str) -> tuple[int, int, int]:
    """`#3b6fb6` as numbers."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def _mix(pixels: bytearray, at: int, colour: tuple[int, int, int], ink: int) -> None:
    for place, wanted in enumerate(colour, at):
        pixels[place] += (wanted - pixels[place]) * ink // FULL


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@cache
def _letters() -> dict[str, Letter]:
    """All letters, as large as they are kept."""
    packed = zlib.decompress(b85decode(PIXELS))
    pixels = bytes(half for byte in packed for half in (byte >> 4, byte & FULL))
    whole = sum(WIDTHS)
    starts = accumulate(WIDTHS, initial=0)
    return {
        letter: Letter(width, tuple(pixels[y * whole + x : y * whole + x + width] for y in range(HEIGHT)))
        for letter, width, x in zip(CHARACTERS, WIDTHS, starts, strict=False)
    }


@cache
def sized(letter: str, size: int) -> Letter:
    """A letter as large as it is wanted: each pixel is the mean of what it covers."""
    kept = _letters().get(letter) or _letters()[UNKNOWN]
    share = size * SCALE * _TO_SIZE / HEIGHT
    width, height = max(1, round(kept.width * share)), max(1, round(HEIGHT * share))
    across, down = kept.width / width, HEIGHT / height
    return Letter(width, tuple(_row(kept, y * down, (y + 1) * down, width, across) for y in range(height)))


def _row(kept: Letter, top: float, bottom: float, width: int, across: float) -> bytes:
    return bytes(round(_mean(kept, x * across, (x + 1) * across, top, bottom)) for x in range(width))


def _mean(kept: Letter, left: float, right: float, top: float, bottom: float) -> float:
    ink = area = 0.0
    for y in range(int(top), min(HEIGHT, int(bottom - 1e-9) + 1)):
        high = min(bottom, y + 1) - max(top, y)
        for x in range(int(left), min(kept.width, int(right - 1e-9) + 1)):
            part = high * (min(right, x + 1) - max(left, x))
            ink, area = ink + part * kept.rows[y][x], area + part
    return ink / area if area else 0.0
