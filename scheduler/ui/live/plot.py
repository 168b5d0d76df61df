"""Curves of dots for a terminal: each character is two dots wide and four dots high."""

from __future__ import annotations

from collections.abc import Sequence

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_EMPTY = 0x2800
Point = tuple[float, float]


def plot(
    points: Sequence[Point], width: int, height: int, low: float | None = None, high: float | None = None
) -> list[str]:
    """Return the curve through points, by x, as lines of characters; y reaches from `low` to `high`."""
    if not points or width < 1 or height < 1:
        return [" " * width] * height
    wide, tall = 2 * width, 4 * height
    bottom = min(y for _, y in points) if low is None else low
    top = max(y for _, y in points) if high is None else high
    first, last = points[0][0], points[-1][0]
    cells = [[0] * width for _ in range(height)]
    before: tuple[int, int] | None = None
    for x, y in points:
        place = (
            round((x - first) / (last - first) * (wide - 1)) if last > first else 0,
            round((top - y) / (top - bottom) * (tall - 1)) if top > bottom else tall // 2,
        )
        for column, row in _between(before or place, place):
            if 0 <= column < wide and 0 <= row < tall:
                cells[row // 4][column // 2] |= _DOTS[row % 4][column % 2]
        before = place
    return ["".join(chr(_EMPTY + cell) if cell else " " for cell in line) for line in cells]


def _between(start: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the dots of a straight line."""
    (x, y), (to_x, to_y) = start, end
    steps = max(abs(to_x - x), abs(to_y - y), 1)
    return [(x + round((to_x - x) * n / steps), y + round((to_y - y) * n / steps)) for n in range(steps + 1)]


def labelled(
    points: Sequence[Point],
    width: int,
    height: int,
    unit: str = "",
    low: float | None = None,
    high: float | None = None,
    ends: tuple[str, str] = ("", ""),
) -> list[str]:
    """Return the curve with its largest and smallest value to its left, and the labels `ends` of x below it."""
    bottom = min((y for _, y in points), default=0.0) if low is None else low
    top = max((y for _, y in points), default=0.0) if high is None else high
    labels = [f"{top:.3g}{unit}", *[""] * (height - 2), f"{bottom:.3g}{unit}"][:height]
    wide = max(map(len, labels))
    lines = plot(points, width - wide - 3, height, bottom, top)
    first, last = ends
    below = f"{'':>{wide}} └ {first}{last:>{max(0, width - wide - 3 - len(first))}}"
    return [
        *(
            f"{label:>{wide}} ┤ {line}" if label else f"{'':>{wide}} │ {line}"
            for label, line in zip(labels, lines, strict=True)
        ),
        below,
    ]
