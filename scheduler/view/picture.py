"""A small picture: rectangles and capital letters on a plane of colours, as PNG, by the standard library alone."""

from __future__ import annotations

import struct
import zlib

Colour = tuple[int, int, int]

HIGH, WIDE = 7, 6
"""Of a letter, with the gap behind it."""
_DRAWN = """
0 01110 10001 10011 10101 11001 10001 01110
1 00100 01100 00100 00100 00100 00100 01110
2 01110 10001 00001 00110 01000 10000 11111
3 11110 00001 00001 01110 00001 00001 11110
4 00010 00110 01010 10010 11111 00010 00010
5 11111 10000 11110 00001 00001 10001 01110
6 00110 01000 10000 11110 10001 10001 01110
7 11111 00001 00010 00100 01000 01000 01000
8 01110 10001 10001 01110 10001 10001 01110
9 01110 10001 10001 01111 00001 00010 01100
A 01110 10001 10001 11111 10001 10001 10001
B 11110 10001 10001 11110 10001 10001 11110
C 01110 10001 10000 10000 10000 10001 01110
D 11110 10001 10001 10001 10001 10001 11110
E 11111 10000 10000 11110 10000 10000 11111
F 11111 10000 10000 11110 10000 10000 10000
G 01110 10001 10000 10111 10001 10001 01110
H 10001 10001 10001 11111 10001 10001 10001
I 01110 00100 00100 00100 00100 00100 01110
J 00111 00010 00010 00010 00010 10010 01100
K 10001 10010 10100 11000 10100 10010 10001
L 10000 10000 10000 10000 10000 10000 11111
M 10001 11011 10101 10101 10001 10001 10001
N 10001 11001 10101 10011 10001 10001 10001
O 01110 10001 10001 10001 10001 10001 01110
P 11110 10001 10001 11110 10000 10000 10000
Q 01110 10001 10001 10001 10101 10010 01101
R 11110 10001 10001 11110 10100 10010 10001
S 01111 10000 10000 01110 00001 00001 11110
T 11111 00100 00100 00100 00100 00100 00100
U 10001 10001 10001 10001 10001 10001 01110
V 10001 10001 10001 10001 10001 01010 00100
W 10001 10001 10001 10101 10101 11011 10001
X 10001 10001 01010 00100 01010 10001 10001
Y 10001 10001 01010 00100 00100 00100 00100
Z 11111 00001 00010 00100 01000 10000 11111
. 00000 00000 00000 00000 00000 01100 01100
, 00000 00000 00000 00000 01100 00100 01000
: 00000 01100 01100 00000 01100 01100 00000
- 00000 00000 00000 11111 00000 00000 00000
_ 00000 00000 00000 00000 00000 00000 11111
/ 00001 00010 00010 00100 01000 01000 10000
( 00010 00100 01000 01000 01000 00100 00010
) 01000 00100 00010 00010 00010 00100 01000
% 11001 11001 00010 00100 01000 10011 10011
+ 00000 00100 00100 11111 00100 00100 00000
? 01110 10001 00001 00110 00100 00000 00100
"""
LETTERS = {line[0]: line[2:].split() for line in _DRAWN.strip().splitlines()}


def wide(text: str, scale: int = 2) -> int:
    """How wide a text is drawn."""
    return len(text) * WIDE * scale


class Picture:
    """A plane of pixels; what lies outside of it is cut off."""

    def __init__(self, width: int, height: int, paper: Colour) -> None:
        self.width, self.height = width, height
        self._rows = [bytearray(bytes(paper) * width) for _ in range(height)]

    def fill(self, left: int, top: int, width: int, height: int, colour: Colour) -> None:
        """A rectangle."""
        first, last = max(0, left), min(self.width, left + width)
        if last <= first:
            return
        pixels = bytes(colour) * (last - first)
        for y in range(max(0, top), min(self.height, top + height)):
            self._rows[y][first * 3 : last * 3] = pixels

    def write(self, left: int, top: int, text: str, colour: Colour, scale: int = 2) -> None:
        """A text in capitals; a sign that nobody drew is a question mark."""
        for place, sign in enumerate(text.upper()):
            drawn = LETTERS.get(sign, LETTERS["?"]) if sign != " " else ()
            for x, y in ((x, y) for y, row in enumerate(drawn) for x, dot in enumerate(row) if dot == "1"):
                self.fill(left + (place * WIDE + x) * scale, top + y * scale, scale, scale, colour)

    def pixel(self, left: int, top: int) -> Colour:
        """What colour there is."""
        red, green, blue = self._rows[top][left * 3 : left * 3 + 3]
        return red, green, blue

    def png(self) -> bytes:
        """The file."""
        header = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        pixels = zlib.compress(b"".join(b"\0" + bytes(row) for row in self._rows), 6)
        parts = (b"IHDR", header), (b"IDAT", pixels), (b"IEND", b"")
        return b"\x89PNG\r\n\x1a\n" + b"".join(_part(name, content) for name, content in parts)


def _part(name: bytes, content: bytes) -> bytes:
    checked = name + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))
